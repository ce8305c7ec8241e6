"""Recordings of every kind: read alike by `check` and by all the rest, or refused alike, in a line."""

import os
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile

from omnitts.encoding import AudioOptions, encode_audio, write_audio
from omnitts.errors import InputError
from omnitts.recording import mean_of, probe_audio, read_audio
from tests import recordings


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


# ---- All formats and codecs ----


def written(path, format: str, subtype: str) -> bool:
    """Writes a second of a tone; False where libsndfile only reads what is asked for."""
    try:
        soundfile.write(path, 0.3 * sine(440, 24_000, 1), 24_000, subtype, format=format)
    except soundfile.SoundFileError:
        return False
    return True


CODEC_BLOCK = 1_024  # samples that codecs fill their last block up with
HEADERLESS = {"RAW"}
ONLY_READ = {("AIFF", "DWVW_12"), ("MP3", "MPEG_LAYER_I"), ("MP3", "MPEG_LAYER_II"), ("WAV", "MPEG_LAYER_III")}
OWN_RATE = {"WVE": 8_000, "XI": 44_100}  # of formats that have but one
COARSE_RATE = 0.02  # how far those are off that write rates as whole periods, HTK and VOC
TABLE = [
    (format, subtype) for format in soundfile.available_formats() for subtype in soundfile.available_subtypes(format)
]


@pytest.mark.parametrize(("format", "subtype"), TABLE)
def test_every_format_and_codec_is_read_by_both(tmp_path, format, subtype):
    path = tmp_path / f"a.{format.lower()}"
    if not written(path, format, subtype):
        assert (format, subtype) in ONLY_READ
        return
    if format in HEADERLESS:
        for read in (probe_audio, read_audio):
            with pytest.raises(InputError, match=r"cannot read as audio.*a file without a header\); convert it"):
                read(path)
        return
    probe = probe_audio(path)
    wave, rate = read_audio(path)
    assert rate == pytest.approx(OWN_RATE.get(format, 24_000), rel=COARSE_RATE)
    assert probe.seconds == len(wave) / rate
    assert abs(len(wave) - 24_000) <= CODEC_BLOCK
    assert probe.levels.rms == pytest.approx(np.sqrt(np.mean(wave**2)), rel=1e-4)
    assert 0.1 < probe.levels.rms < 0.4


def test_codecs_in_blocks_are_as_in_one_piece(tmp_path):
    """Of what soundfile reads whole, too."""
    stereo = np.stack([sine(440, 24_000, 30), sine(700, 24_000, 30)], axis=1) * 0.3
    for format, subtype in [
        ("WAV", "PCM_16"),
        ("WAV", "FLOAT"),
        ("FLAC", "PCM_24"),
        ("MP3", "MPEG_LAYER_III"),
        ("WAV", "MS_ADPCM"),
    ]:
        path = tmp_path / f"{subtype}.{format.lower()}"
        soundfile.write(path, stereo, 24_000, subtype, format=format)
        with soundfile.SoundFile(path) as file:
            whole = file.read(dtype="float32", always_2d=True)
        np.testing.assert_array_equal(read_audio(path)[0], whole.mean(axis=1))


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 7, 8, 9, 20])
def test_the_mean_of_channels_is_numpys_to_the_bit(channels):
    samples = np.random.default_rng(channels).standard_normal((5_000, channels)).astype(np.float32)
    np.testing.assert_array_equal(mean_of(np.ascontiguousarray(samples.T)), samples.mean(axis=1))


# ---- Lengths that a header does not tell ----


VARIABLE, CONSTANT = recordings.mp3(variable=True), recordings.mp3(variable=False)


def joined(frames: list[bytes]) -> bytes:
    return b"".join(frames)


WHOLE = {
    "streamed FLAC": recordings.streamed_flac(),
    "streamed AU": recordings.with_size("AU", b".snd", 8, b"\xff" * 4),
    "streamed WAV": recordings.with_size("WAV", b"data", 4, b"\xff" * 4),
    "streamed WAV of size 0": recordings.with_size("WAV", b"data", 4, bytes(4)),
    "streamed µ-law WAV of size 0": recordings.with_size("WAV", b"data", 4, bytes(4), "ULAW"),
    "streamed CAF": recordings.with_size("CAF", b"data", 4, b"\xff" * 8),
    "streamed W64": recordings.with_size("W64", b"data", 16, b"\xff" * 8),
    "streamed AIFF": recordings.with_size("AIFF", b"SSND", 4, bytes(4)),
    "MP3 with Xing": joined(VARIABLE),
    "MP3 with Info": joined(CONSTANT),
    "MP3 with Xing and a cover": recordings.id3(60_000) + joined(VARIABLE),
    "MP3 with two covers": recordings.id3(60_000) + recordings.id3(300) + joined(CONSTANT),
    "variable MP3": joined(VARIABLE[1:]),
    "variable MP3, loud first": joined(VARIABLE[len(VARIABLE) // 2 :] + VARIABLE[1 : len(VARIABLE) // 2]),
    "variable MP3 and a cover": recordings.id3(30_000) + joined(VARIABLE[1:]),
    "constant MP3": joined(CONSTANT[1:]),
    "constant MP3 and a cover": recordings.id3(200_000) + joined(CONSTANT[1:]),
    "constant MP3 and an ID3v1 tag": joined(CONSTANT[1:]) + b"TAG" + bytes(125),
    "MP3 of two rates": joined(CONSTANT[1:41] + VARIABLE[41:]),
    "MP3 with VBRI": recordings.vbri(VARIABLE, len(VARIABLE) - 1) + joined(VARIABLE[1:]),
    "MP3 of free format": recordings.free_format(CONSTANT[1:]),
    "MP3 in a WAV": recordings.in_wav(joined(CONSTANT)),
    "variable MP3 in a WAV": recordings.in_wav(joined(VARIABLE[1:])),
    "MPEG layer I": recordings.layer_one(333),
}


APPENDED = {
    "two MP3s with Xing": joined(VARIABLE) + joined(VARIABLE),
    "one with Xing and one with Info, with tags": joined(VARIABLE) + b"TAG" + bytes(125) + WHOLE["MP3 with two covers"],
    "two MP3s of no noted length": joined(VARIABLE[1:] + CONSTANT[1:]),
    "one without and one with Info": joined(CONSTANT[1:]) + recordings.id3(500) + joined(CONSTANT),
}


@pytest.mark.parametrize("kind", APPENDED)
def test_an_mp3_appended_to_another_is_read_too(tmp_path, kind):
    path = tmp_path / "recording"
    path.write_bytes(APPENDED[kind])
    probe, (wave, rate) = probe_audio(path), read_audio(path)
    assert probe.seconds == len(wave) / rate
    assert 2 * recordings.SECONDS <= probe.seconds <= 2 * recordings.SECONDS + 8 * recordings.BLOCK
    assert np.abs(wave[len(wave) * 3 // 4 :]).max() > 0.2


@pytest.mark.parametrize("kind", WHOLE)
def test_lengths_that_no_header_tells_are_counted(tmp_path, kind):
    path = tmp_path / "recording"
    path.write_bytes(WHOLE[kind])
    probe, (wave, rate) = probe_audio(path), read_audio(path)
    assert probe.seconds == len(wave) / rate
    assert recordings.SECONDS - 0.01 <= probe.seconds <= recordings.SECONDS + 4 * recordings.BLOCK
    assert probe.levels.rms > 0.05 and probe.levels.sounding > 3.8


@pytest.mark.parametrize("kind", ["MP3 with Xing", "MP3 with two covers", "MP3 with VBRI"])
def test_an_mp3_is_cut_short_where_its_length_is_noted(tmp_path, kind):
    path = tmp_path / "recording"
    path.write_bytes(WHOLE[kind][: -(len(joined(VARIABLE)) // 2)])
    for read in (probe_audio, read_audio):
        with pytest.raises(InputError, match=r"cut short, [123]\.\d+ s of 4\.\d+ s are there: .*; copy it anew"):
            read(path)


@pytest.mark.parametrize("kind", ["variable MP3", "constant MP3", "MP3 of free format"])
def test_an_mp3_that_promises_nothing_is_what_is_there(tmp_path, kind):
    path = tmp_path / "recording"
    path.write_bytes(WHOLE[kind][: len(WHOLE[kind]) // 2])
    probe, (wave, rate) = probe_audio(path), read_audio(path)
    assert probe.seconds == len(wave) / rate and 0.9 < probe.seconds < 3.5


@pytest.mark.parametrize(
    ("format", "subtype"),
    [("NIST", "PCM_16"), ("NIST", "ULAW"), ("AVR", "PCM_16"), ("SVX", "PCM_16"), ("VOC", "PCM_16")],
)
def test_rarer_formats_cut_short(tmp_path, format, subtype):
    path = tmp_path / "recording"
    data = recordings.encoded(format, subtype)
    path.write_bytes(data[: len(data) // 2])
    for read in (probe_audio, read_audio):
        with pytest.raises(InputError, match="audio file cut short"):
            read(path)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_what_would_be_read_in_part_is_refused(tmp_path, subtype):
    path = tmp_path / "recording"
    path.write_bytes(recordings.chained(subtype))
    for read in (probe_audio, read_audio):
        with pytest.raises(InputError, match=r"several recordings one after another in an Ogg file.*convert it to WAV"):
            read(path)


def test_a_header_that_tells_of_no_samples_says_so(tmp_path):
    """With another chunk where the samples would be."""
    path = tmp_path / "recording"
    listed = b"LIST" + (192_000 - 8).to_bytes(4, "little") + bytes(192_000 - 8)
    path.write_bytes(recordings.with_size("WAV", b"data", 4, bytes(4) + listed))
    for read in (probe_audio, read_audio):
        with pytest.raises(InputError, match=r"without samples, by its header \(192,044 bytes in all\)"):
            read(path)


@pytest.mark.parametrize("rate", [1, 44, 2**31 - 1])
def test_rates_that_no_recording_has(tmp_path, rate):
    path = tmp_path / "a.wav"
    soundfile.write(path, sine(440, 24_000, 1), rate)
    for read in (probe_audio, read_audio):
        with pytest.raises(InputError, match=rf"audio file of {rate:,} samples a second.*Convert it anew"):
            read(path)


# ---- Whatever a file holds ----


FUZZED = {(format, subtype): None for format, subtype in TABLE if format not in HEADERLESS | {"SD2"}}


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_read_alike_or_refused(tmp_path, seed):
    """Bytes changed, put in, cut out and cut off, in headers more than elsewhere; and the wildest recordings above."""
    chance = random.Random(seed)
    files = list(WHOLE.values())
    for format, subtype in FUZZED:
        if written(tmp_path / "whole", format, subtype):
            files.append((tmp_path / "whole").read_bytes())
    for number, data in enumerate(files):
        for _ in range(6):
            path = tmp_path / f"{number}"
            path.write_bytes(damaged(chance, data))
            outcomes = [outcome(read, path) for read in (probe_audio, read_audio)]
            assert outcomes[0] == outcomes[1] or "silent audio file" in outcomes[0], outcomes


def damaged(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 2, 10))):
        at = chance.randrange(chance.choice((64, 200, len(changed) + 1)))
        kind = chance.randrange(4)
        if kind == 0:
            changed[at : at + 1] = chance.randbytes(1)
        elif kind == 1:
            changed[at : at + 4] = chance.choice((b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"))
        elif kind == 2:
            del changed[at : at + chance.choice((1, 20))]
        elif len(changed) > 100:
            tail = changed[chance.randrange(100) :]
            changed[-len(tail) :] = chance.choice((b"", chance.randbytes(len(tail))))
    return bytes(changed[: chance.randrange(len(changed) + 1)] if chance.random() < 0.3 else changed) or b"\0"


def outcome(read, path) -> str:
    """The error, or how many seconds there are."""
    try:
        found = read(path)
    except InputError as error:
        assert "\n" not in str(error) and str(path) in str(error)
        return str(error)
    seconds = found.seconds if read is probe_audio else len(found[0]) / found[1]
    return f"{seconds:.2f}" if seconds < 60 else "long"


# ---- The process ----


def test_threads_that_read_leave_stderr_as_it_was(tmp_path):
    path = tmp_path / "a.mp3"
    write_audio(path, sine(440, 24000, 0.2), 24000, AudioOptions("mp3"))
    before = os.fstat(2)
    with ThreadPoolExecutor(8) as threads:
        waves = list(threads.map(lambda _: read_audio(path)[0], range(100)))
    assert os.path.samestat(os.fstat(2), before)
    assert all(np.array_equal(wave, waves[0]) for wave in waves)
