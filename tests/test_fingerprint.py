import pytest

from omnitts.fingerprint import State, file_digest, fingerprint, state_of

DATA = bytes(range(200))


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (DATA, State.WHOLE),
        (DATA[::-1], State.WHOLE),  # as long, which is all that is looked at; `status --verify` compares digests
        (DATA[:100], State.DAMAGED),
        (DATA[:1], State.DAMAGED),
        (b"", State.DAMAGED),
        (DATA + b"more", State.DAMAGED),
        (b"another" * 20, State.CHANGED),
        (None, State.MISSING),
    ],
)
def test_what_became_of_a_file_is_seen(tmp_path, content, state):
    made, path = fingerprint(DATA), tmp_path / "a.wav"
    if content is not None:
        path.write_bytes(content)
    assert state_of(path, made.bytes, made.head) is state


def test_without_a_length_any_byte_will_do(tmp_path):
    path = tmp_path / "a.wav"
    for content, state in ((b"", State.DAMAGED), (b"x", State.WHOLE)):
        path.write_bytes(content)
        assert state_of(path, None, None) is state


def test_a_digest_is_that_of_the_whole_file(tmp_path):
    (tmp_path / "a").write_bytes(DATA)
    assert file_digest(tmp_path / "a") == fingerprint(DATA).digest != fingerprint(DATA + b"x").digest
    assert fingerprint(DATA).head == fingerprint(DATA[:64]).digest == fingerprint(DATA[:100]).head
