"""Ids as names of files: what is refused, what is warned of, and in which words."""

import json
import unicodedata

import numpy as np
import pytest

from omnitts import manifest
from omnitts.errors import InputError
from omnitts.manifest import ManifestError, Reading, read_all, read_manifest, read_utterances
from omnitts.names import Names, doubts, folded, read_id, refusal
from omnitts.recipe import Recipe


@pytest.fixture
def lines(tmp_path):
    """Writes a manifest of these ids; returns its path."""

    def write(*ids):
        path = tmp_path / "lines.jsonl"
        path.write_text("".join(json.dumps({"id": id, "text": "Hi."}) + "\n" for id in ids), encoding="utf-8")
        return path

    return write


def rules(id):
    return [rule for rule, _ in doubts(id)]


@pytest.mark.parametrize(
    ("id", "told"),
    [
        ("a/b", "has a slash"),
        ("a\\b", "has a backslash"),
        ("a\tb", "has a control character or line break, U+0009"),
        ("a\u2028b", "U+2028 LINE SEPARATOR"),
        ("\ud800", "has half a surrogate pair, U+D800"),
        (".a", "begins with a dot"),
        ("-a", "begins with a dash"),
        ("\u3000a", "begins with a blank"),
        ("a ", "ends with a blank"),
        ("a\n", "has a control character or line break, U+000A"),
        ("é" * 101, "is 202 bytes long in UTF-8, of 200"),
    ],
)
def test_a_refused_id_is_told_its_rule_and_no_other(id, told):
    why = refusal(id)
    assert told in why and ", and " not in why and ": " in why
    with pytest.raises(InputError, match="cannot name a file: ") as caught:
        read_id(id)
    str(caught.value).encode()  # could be printed


def test_of_several_rules_each_is_told():
    assert refusal("-a/b ").split(", and ") == [
        "it has a slash, which parts folders: write _ in its place",
        "begins with a dash, which commands take for an option: write another character before it",
        "ends with a blank: leave it out",
    ]
    assert refusal("a.b c") is None


@pytest.mark.parametrize(("value", "id"), [(5, "5"), (0, "0"), (10**50, "1" + "0" * 50), (np.int64(7), "7")])
def test_whole_numbers_are_text(value, id):
    assert read_id(value) == id


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1.0, 'got 1.0: write 1, or "1.0"'),
        (2.5, 'got 2.5: write "2.5"'),
        (float("nan"), 'got nan: write "nan"'),
        (True, "wanted a text in quotes or a whole number, got true"),
        (["a"], "got a list"),
        (-5, "begins with a dash"),
        (10**250, "an enormous number"),
        pytest.param(10**5000, "an enormous number", id="beyond printing"),
        ("  ", "is blank"),
    ],
)
def test_other_values_are_told(value, told):
    with pytest.raises(InputError) as caught:
        read_id(value)
    assert told in str(caught.value)


def test_a_number_and_its_digits_are_one_id(lines):
    with pytest.raises(ManifestError, match=r"lines.jsonl:2: id: '5' is the id of line 1 too"):
        read_manifest(lines(5, "5"), recipe=Recipe())
    assert [each.id for each in read_utterances([{"text": "Hi.", "id": 12}], recipe=Recipe())] == ["12"]


@pytest.mark.parametrize(
    ("id", "rule"),
    [
        *(
            (id, "device")
            for id in ("con", "NUL", "Aux.take2", "com1", "LPT9.x.y", "com¹", "lpt³", "prn .a", "CONOUT$")
        ),
        *((f"a{character}b", "reserved") for character in '<>:"|?*'),
        ("a.", "dot"),
        *(
            (f"a{character}b", "hidden")
            for character in "\u202e\u200b\u200d\ufeff\xad\u2066\u3164\ufe0f\U000e0041\ufffe"
        ),
        (unicodedata.normalize("NFD", "é"), "form"),
        ("\u212b", "form"),  # an Ångström sign, which no form keeps
    ],
)
def test_what_other_systems_cannot_hold(id, rule):
    assert refusal(id) is None and rules(id) == [rule]


@pytest.mark.parametrize(
    "id", ["a", "console", "com", "com10", "xcon", "con_1", "été", "語-1", "한국", "a b", "a.con", "A-1", "\u0600١"]
)
def test_what_every_system_holds(id):
    assert refusal(id) is None and rules(id) == []


def test_doubts_name_what_is_wrong():
    (told,) = (told for _, told in doubts("a\u202eb"))
    assert told.startswith("'a\\u202eb' has U+202E RIGHT-TO-LEFT OVERRIDE") and told.endswith(": leave it out")
    assert next(doubts("con.intro"))[1].startswith("'con.intro' is no file to Windows, where 'con' is a device")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", "A"),
        ("Ab", "aB"),
        ("Straße", "STRASSE"),
        (unicodedata.normalize("NFC", "Zoë"), unicodedata.normalize("NFD", "zoë")),
        ("a\u200bb", "ab"),
        ("ﬁn", "FIN"),
    ],
)
def test_twins(one, other):
    for first, second in ((one, other), (other, one)):
        assert folded(first) == folded(second)
        names = Names()
        assert names.add(first, 1) == names.add("unlike", 2) == (None, None)
        assert names.add(second, 3) == (None, 1) and names.add(second, 4) == (3, None)


def test_no_twins():
    names = Names()
    assert [names.add(id, line) for line, id in enumerate(("a", "á", "а", "a1", "ab"), 1)] == [(None, None)] * 5


def test_names_of_small_letters_take_no_second_hash():
    names = Names()
    for number in range(100):
        names.add(f"line-{number}", number)
    assert len(names.lines) == 100 and not names.folds


def test_doubts_are_counted_by_rule(lines):
    found = read_manifest(lines("a:1", "b*2", "con", "c:3", "x", "X"), recipe=Recipe()).warnings
    assert len(found) == 3
    assert ":1: id: 'a:1' has :, which no name may have on Windows" in found[0]
    assert found[0].endswith("(and on 2 more lines)")
    assert ":3: id: 'con' is no file to Windows" in found[1]
    assert ":6: id: 'X' and the id of line 5 are one name" in found[2]


def test_they_are_refused_when_asked(lines):
    with pytest.raises(ManifestError) as caught:
        read_manifest(lines("a:1", "b", "B", "com7.x", 4), recipe=Recipe(), portable_names=True)
    assert [(each.line, each.field) for each in caught.value.problems] == [(1, "id"), (3, "id"), (4, "id")]


def test_they_are_left_out_when_the_rest_goes_on(lines, monkeypatch):
    """Also where a long manifest is read again; a twin's name is not that of the refused line."""
    monkeypatch.setattr(manifest, "KEPT", 1)
    path = lines("a", "A", "b:c", "d", "d", "e")
    found = read_all(Reading(path, recipe=Recipe(), keep_going=True, portable_names=True))
    assert [(each.id, each.line) for each in found.refused] == [(None, 2), ("b:c", 3), (None, 5)]
    for _ in range(2):
        assert [(each.id, each.line) for each in found.utterances] == [("a", 1), ("d", 4), ("e", 6)]


@pytest.mark.parametrize("command", ["check", "plan", "synth"])
def test_the_commands_warn_or_refuse(run, lines, tmp_path, checkpoint_dir, command):
    path, out = lines("a:b", 7), tmp_path / "out"
    more = {"check": [], "plan": ["--model", checkpoint_dir], "synth": ["--model", checkpoint_dir, "--out", out]}[
        command
    ]
    code, _, said = run(command, path, *more, "--portable-names")
    assert code == 2 and f"error: {path}:1: id: 'a:b' has :" in said and not out.exists()
    code, _, said = run(command, path, *more, *(["--set", "num_step=2"]))
    assert code == 0 and f"warning: {path}:1: id: 'a:b' has :" in said
    if command == "synth":
        assert (out / "7.wav").exists() and (out / "a:b.wav").exists()
