import pytest

from omnitts.errors import InputError, one_line, reason, shown_path


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("a.wav", "a.wav"),
        ("a  b c.wav", "a  b c.wav"),
        (" a.wav", "' a.wav'"),
        ("a.wav ", "'a.wav '"),
        ("a\t", r"'a\t'"),
        ("a\nb", r"'a\nb'"),
        ("", "''"),
        ("a\x1b[31mb", r"'a\x1b[31mb'"),
        ("a\u202egpj.exe", r"'a\u202egpj.exe'"),
        ("a\u3000", r"'a\u3000'"),
        ("it's ", '"it\'s "'),
        (b"\xff.wav", r"'\udcff.wav'"),
        ("日本 語.wav", "日本 語.wav"),
    ],
)
def test_paths_are_shown_as_they_are(path, shown):
    assert shown_path(path) == shown


def test_messages_are_one_line_and_leave_paths_alone():
    error = InputError("no such file: a  b.wav;\n  choose\tanother", file="my  lines.jsonl", line=3, field="ref_audio")
    assert str(error) == "my  lines.jsonl:3: ref_audio: no such file: a  b.wav; choose another"
    assert str(InputError("no", file=" x\n.jsonl")) == r"' x\n.jsonl': no"
    assert one_line("a\r\n\u2028b \n") == "a b"
    assert reason(RuntimeError("two\n  lines")) == "two lines"


def test_a_path_with_blanks_is_found_again_in_the_message(run, tmp_path):
    for name in ("no  such.jsonl", "such ", " such"):
        path = tmp_path / name
        code, _, said = run("check", path)
        assert code == 2 and f"error: {shown_path(path)}: no such file" in said
    code, _, said = run("dump", "show", f"{tmp_path}/a  b ")
    assert code == 2 and said == f"error: no such file: '{tmp_path}/a  b '\n"
    (tmp_path / "lines.jsonl").write_text('{"text": "Hi.", "ref_text": "Hi.", "ref_audio": "no\\nsuch  one.wav"}')
    code, _, said = run("check", tmp_path / "lines.jsonl")
    assert code == 2 and said.endswith(rf"no such file: '{tmp_path}/no\nsuch  one.wav'" + "\n")
