"""Recordings of every kind: read alike by `check` and by all the rest, or refused alike, in a line."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile

from omnitts.encoding import AudioOptions, encode_audio, write_audio
from omnitts.errors import InputError
from omnitts.recording import probe_audio, read_audio


def sine(frequency: float, rate: int, seconds: float, dtype=np.float32) -> np.ndarray:
    return np.sin(2 * np.pi * frequency / rate * np.arange(int(rate * seconds))).astype(dtype)


def test_read_gives_the_mean_of_the_channels_and_the_rate(tmp_path):
    stereo = np.array([[0.5, -0.25], [0.25, 0.25], [-1.0, 0.0]])
    soundfile.write(tmp_path / "a.wav", stereo, 22_050, "PCM_16")
    wave, rate = read_audio(tmp_path / "a.wav")
    assert rate == 22_050
    assert wave.dtype == np.float32
    np.testing.assert_array_equal(wave, [0.125, 0.25, -0.5])


def bad_files(folder):
    """Name -> (path, what the message must say) for files that neither reader accepts."""
    (folder / "folder.wav").mkdir()
    (folder / "text.wav").write_text("no audio here")
    (folder / "headerless.raw").write_bytes(bytes(100))
    (folder / "nothing.wav").write_bytes(b"")
    soundfile.write(folder / "no-samples.wav", np.zeros(0), 24_000)
    soundfile.write(folder / "nan.wav", np.array([0.0, np.nan]), 24_000, "FLOAT")
    flac = encode_audio(sine(440, 24_000, 1), 24_000, AudioOptions("flac"))
    (folder / "damaged.flac").write_bytes(flac[:100] + bytes(len(flac) - 100))
    return {
        "missing": (folder / "missing.wav", "no such file"),
        "name too long": (folder / ("a" * 5000), "no such file"),
        "folder": (folder / "folder.wav", "a folder, not an audio file"),
        "not audio": (folder / "text.wav", "cannot read as audio"),
        "headerless": (folder / "headerless.raw", "cannot read as audio"),
        "zero bytes": (folder / "nothing.wav", "an empty file, of 0 bytes"),
        "no samples": (folder / "no-samples.wav", "without samples"),
        "not finite": (folder / "nan.wav", "not finite"),
        "damaged": (
            folder / "damaged.flac",
            "damaged audio file, not all of it can be decoded: .*; copy or convert it",
        ),
    }


@pytest.mark.parametrize("read", [read_audio, probe_audio])
@pytest.mark.parametrize(
    "kind",
    [
        "missing",
        "name too long",
        "folder",
        "not audio",
        "headerless",
        "zero bytes",
        "no samples",
        "not finite",
        "damaged",
    ],
)
def test_bad_files_are_input_errors_of_one_line(tmp_path, read, kind):
    path, says = bad_files(tmp_path)[kind]
    with pytest.raises(InputError, match=says) as error:
        read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("format", ["wav", "aiff", "au", "w64", "rf64"])
def test_recordings_cut_short_are_told_by_their_header(tmp_path, format):
    path = tmp_path / f"a.{format}"
    soundfile.write(path, sine(200, 24000, 2.0), 24000, format=format.upper())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    for read in (read_audio, probe_audio):
        with pytest.raises(InputError, match=r"audio file cut short, [0-9,]+ of [0-9,]+ bytes are there"):
            read(path)


def test_an_mp3_cut_short_is_told_when_it_is_read(tmp_path):
    path = tmp_path / "a.mp3"
    soundfile.write(path, sine(200, 24000, 4.0), 24000)
    assert len(read_audio(path)[0]) > 95_000
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"cut short, [12]\.\d+ s of 4\.00 s"):
        read_audio(path)


def test_an_ogg_cut_short_is_told_by_its_missing_last_page(tmp_path):
    path = tmp_path / "a.ogg"
    soundfile.write(path, sine(200, 24000, 4.0), 24000)
    assert len(read_audio(path)[0]) == 96_000
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    for read in (read_audio, probe_audio):
        with pytest.raises(InputError, match="cut short, its last page is missing"):
            read(path)


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.wav")  # opened, it would wait for a writer
    with pytest.raises(InputError, match="not a regular file"):
        probe_audio(tmp_path / "a.wav")


def test_damaged_mp3s_say_nothing_of_their_own(tmp_path, capfd):
    path = tmp_path / "a.mp3"
    soundfile.write(path, sine(200, 24000, 4.0), 24000)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_audio(path)
    path.write_bytes(data[:40])
    with pytest.raises(InputError, match="no audio in it"):
        probe_audio(path)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000])
def test_a_wav_whose_writer_did_not_know_its_length_is_whole(tmp_path, size):
    wave = sine(200, 24000, 1.0)
    soundfile.write(tmp_path / "a.wav", wave, 24000)
    data = bytearray((tmp_path / "a.wav").read_bytes())
    data[40:44] = size.to_bytes(4, "little")
    (tmp_path / "a.wav").write_bytes(data)
    assert len(read_audio(tmp_path / "a.wav")[0]) == len(wave)


def test_probe_finds_sound_after_a_long_silence(tmp_path):
    wave = np.zeros(5 * 16_000)
    wave[-1] = -0.01
    soundfile.write(tmp_path / "a.wav", wave, 16_000)
    assert probe_audio(tmp_path / "a.wav").seconds == 5.0


def test_probe_reads_a_minute(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.wav", np.full(8_000 * 1_000, 0.5), 8_000)
    read = []
    original = soundfile.SoundFile.read
    monkeypatch.setattr(
        soundfile.SoundFile, "read", lambda self, n, **kwargs: read.append(n) or original(self, n, **kwargs)
    )
    probe = probe_audio(tmp_path / "a.wav")
    assert probe.seconds == 1000
    assert 60 <= probe.levels.seconds < 100 and sum(read) < 8_000 * 100


@pytest.mark.parametrize("level", [0.0, 3 / 32768])
def test_probe_refuses_silence(tmp_path, level):
    soundfile.write(tmp_path / "a.wav", np.full(50_000, level), 24_000, "PCM_16")
    with pytest.raises(InputError, match="silent audio file"):
        probe_audio(tmp_path / "a.wav")


def test_probe_accepts_the_faintest_sound(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(50_000, 4 / 32768), 24_000, "PCM_16")
    assert probe_audio(tmp_path / "a.wav").seconds == 50_000 / 24_000


def test_threads_that_read_leave_stderr_as_it_was(tmp_path):
    path = tmp_path / "a.mp3"
    write_audio(path, sine(440, 24000, 0.2), 24000, AudioOptions("mp3"))
    before = os.fstat(2)
    with ThreadPoolExecutor(8) as threads:
        waves = list(threads.map(lambda _: read_audio(path)[0], range(100)))
    assert os.path.samestat(os.fstat(2), before)
    assert all(np.array_equal(wave, waves[0]) for wave in waves)
