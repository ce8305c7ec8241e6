import io

import numpy as np
import soundfile

from omnitts.ogg import with_serial


def vorbis(seconds: int) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 24_000)
    with soundfile.SoundFile(buffer, "w", 24_000, 1, "VORBIS", format="OGG") as file:
        for _ in range(seconds):
            file.write(noise)
    return buffer.getvalue()


def serials(stream: bytes) -> list[int]:
    pages = stream.split(b"OggS\0")[1:]
    return [int.from_bytes(page[9:13], "little") for page in pages]


def test_every_page_gets_the_serial_and_the_sound_stays():
    stream = vorbis(3)
    changed = with_serial(stream, 0xDEADBEEF)
    assert len(serials(changed)) > 3
    assert set(serials(changed)) == {0xDEADBEEF}
    before = soundfile.read(io.BytesIO(stream))[0]
    np.testing.assert_array_equal(soundfile.read(io.BytesIO(changed))[0], before)


def test_checksums_are_those_of_the_encoder():
    """The encoder's own serial, set again, must give back every byte of its file, checksums included."""
    stream = vorbis(3)
    assert with_serial(with_serial(stream, 1), serials(stream)[0]) == stream
