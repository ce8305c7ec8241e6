import pytest

from omnitts.errors import InputError
from omnitts.model.instruct import resolve_instruct


def test_prompts_of_the_decoder(cases):
    given = [case for case in cases["prompts"] if case["instruct"]]
    assert len(given) == 15
    for case in given:
        assert resolve_instruct(case["instruct"], case["text"]) == case["resolved_instruct"]


def test_bad_instructs_of_the_decoder(cases):
    assert len(cases["bad_instructs"]) == 4
    for instruct in cases["bad_instructs"]:
        with pytest.raises(InputError) as error:
            resolve_instruct(instruct, "Hello.")
        assert error.value.field == "instruct"


@pytest.mark.parametrize("nothing", [None, "", "  ", ",", " ，, "])
def test_nothing(nothing):
    assert resolve_instruct(nothing, "Hello.") is None


@pytest.mark.parametrize(
    ("instruct", "text", "resolved"),
    [
        ("MALE,Young  Adult", "Hello.", "male, young adult"),
        (",male,，elderly，", "Hello.", "male, elderly"),
        ("男，low pitch", "Hello.", "male, low pitch"),
        ("女，耳语", "Hello 世界", "女，耳语"),
        ("very low pitch, child", "世界", "极低音调，儿童"),
        ("female", "こんにちは", "female"),
        ("男，indian accent", "世界", "male, indian accent"),
        ("male, 东北话", "Hello.", "男，东北话"),
        ("四川话", "Hello.", "四川话"),
        ("Russian Accent", "世界", "russian accent"),
        ("whisper, high pitch, middle-aged, female", "", "whisper, high pitch, middle-aged, female"),
    ],
)
def test_resolved(instruct, text, resolved):
    assert resolve_instruct(instruct, text) == resolved
    assert resolve_instruct(resolved, text) == resolved


@pytest.mark.parametrize(
    ("instruct", "says"),
    [
        ("femal", ["'femal'", "did you mean 'female'?"]),
        ("male, Britsh Accent", ["'Britsh Accent'", "did you mean 'british accent'?"]),
        ("四川", ["did you mean '四川话'?"]),
        ("robot voice", ["'robot voice'", "whisper", "british accent", "四川话"]),
        ("male; low pitch", ["'male; low pitch'"]),
        ("male, female", ["'male'", "'female'", "group gender"]),
        ("male, 女", ["group gender"]),
        ("male, male", ["group gender"]),
        ("low pitch, 高音调", ["group pitch"]),
        ("child, elderly", ["group age"]),
        ("american accent, indian accent", ["group accent"]),
        ("四川话，河南话", ["group dialect"]),
        ("british accent, 四川话", ["'british accent'", "'四川话'"]),
    ],
)
def test_errors_say_what_to_mend(instruct, says):
    with pytest.raises(InputError) as error:
        resolve_instruct(instruct, "Hello 世界")
    assert str(error.value).startswith("instruct: ")
    for words in says:
        assert words in str(error.value)
