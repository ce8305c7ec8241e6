"""Levels of recordings, and what is warned of: recordings that would be cloned as next to nothing."""

import numpy as np
import pytest
import soundfile

from omnitts.errors import InputError
from omnitts.levels import Meter, decibels, level_doubts
from omnitts.recording import probe_audio, read_audio

RATE = 24_000


def tone(level: float, seconds: float = 5.0) -> np.ndarray:
    return level * np.sin(2 * np.pi * 440 / RATE * np.arange(int(RATE * seconds)))


def noise(seed: int, level: float = 0.1, seconds: float = 5.0) -> np.ndarray:
    return level * np.random.default_rng(seed).standard_normal(int(RATE * seconds))


def click(level: float = 0.9) -> np.ndarray:
    wave = np.zeros(5 * RATE)
    wave[2 * RATE] = level
    return wave


def doubts_of(path, *channels: np.ndarray, subtype: str = "PCM_16") -> list[str]:
    soundfile.write(path, np.stack(channels, axis=1), RATE, subtype)
    return list(level_doubts(str(path), probe_audio(path).levels))


def padded(wave: np.ndarray, seconds: float) -> np.ndarray:
    return np.concatenate([np.zeros(int(RATE * seconds)), wave])


SPEECH = noise(0) * (1 + np.sin(np.arange(5 * RATE) / 2_000))

POOR = {
    "at 1/500 of full scale": ([SPEECH / np.abs(SPEECH).max() / 500], ["quiet, -70 dBFS (RMS): "]),
    "a tone at 1/500": ([tone(1 / 500)], ["quiet, -57 dBFS (RMS): "]),
    "a whole second in thirty": ([padded(tone(0.01, 0.8), 30)], ["quiet, -59 dBFS (RMS): "]),
    "a click in silence": ([click()], ["sound in only 0.05 of its 5.0 s: "]),
    "some loud clicks": (
        [sum(np.roll(click(), 3_000 * n) for n in range(5))],
        ["sound in only 0.25 of its 5.0 s: "],
    ),
    "a tenth of a second of a tone": ([padded(tone(0.5, 0.1), 4.9)], ["sound in only 0.10 of its 5.0 s: "]),
    "inverted": (
        [tone(0.5), -0.95 * tone(0.5)],
        ["its 2 channels cancel, and their mean, which is what is cloned, is 32 dB below the loudest: "],
    ),
    "inverted, quieter": (
        [SPEECH, -0.5 * SPEECH],
        ["its 2 channels cancel, and their mean, which is what is cloned, is 12 dB below the loudest: "],
    ),
    "one of two channels": (
        [SPEECH, SPEECH * 0],
        ["sound in only 1 of its 2 channels, and their mean, which is what is cloned, is 6 dB below the loudest: "],
    ),
    "one of six channels": (
        [SPEECH * 0, SPEECH * 0, SPEECH, SPEECH * 0, SPEECH * 0, SPEECH * 0],
        ["sound in only 1 of its 6 channels, and their mean, which is what is cloned, is 16 dB below the loudest: "],
    ),
    "one of two, and hiss": (
        [SPEECH, noise(1, 1e-4)],
        ["sound in only 1 of its 2 channels, and their mean, which is what is cloned, is 6 dB below the loudest: "],
    ),
    "inverted and quiet": (
        [tone(1 / 500), -0.7 * tone(1 / 500)],
        ["its 2 channels cancel, and their mean, which is what is cloned, is 16 dB below the loudest: ", "quiet, -57"],
    ),
}

GOOD = {
    "after more than a minute of silence": [padded(noise(1, 0.3, 50), 62)],
    "mono": [SPEECH],
    "stereo": [SPEECH, SPEECH],
    "wide stereo": [noise(1), noise(2)],
    "panned": [SPEECH, 0.3 * SPEECH],
    "speech in a room": [SPEECH, 0.7 * np.roll(SPEECH, 50) + noise(3, 0.02)],
    "one word": [tone(0.2, 0.3)],
    "a word in silence": [padded(tone(0.3, 0.6), 3)],
    "from afar": [tone(0.006)],
    "faint, on three channels": [noise(n, 0.01) for n in (1, 1, 2)],
}


@pytest.mark.parametrize("kind", POOR)
def test_poor_references_are_told_with_the_figure(tmp_path, kind):
    channels, wanted = POOR[kind]
    doubts = doubts_of(tmp_path / "a.wav", *channels, subtype="FLOAT")
    assert len(doubts) == len(wanted)
    for doubt, start in zip(doubts, wanted, strict=True):
        assert doubt.startswith(start)
        assert f"{tmp_path / 'a.wav'}; " in doubt and "\n" not in doubt


@pytest.mark.parametrize("kind", GOOD)
def test_ordinary_recordings_are_not_doubted(tmp_path, kind):
    assert doubts_of(tmp_path / "a.wav", *GOOD[kind]) == []


@pytest.mark.parametrize("count", [2, 4])
def test_channels_that_cancel_out_are_refused_as_that(tmp_path, count):
    path = tmp_path / "a.flac"
    soundfile.write(path, np.stack([tone(0.5), -tone(0.5)] * (count // 2), axis=1), RATE)
    for read in (probe_audio, read_audio):
        with pytest.raises(InputError, match=f"its {count} channels cancel out, their mean is silent: .*export one"):
            read(path)


@pytest.mark.parametrize("sizes", [[5 * RATE], [1, 1199, 1201, 7, 10_000], [999] * 120])
def test_a_meter_does_not_mind_how_blocks_are_cut(sizes):
    samples = np.stack([SPEECH, 0.5 * SPEECH]).astype(np.float32)[:, : sum(sizes)]
    meter, whole = Meter(RATE, 2), Meter(RATE, 2)
    whole.add(samples, samples.mean(axis=0))
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        block = samples[:, start : start + size]
        meter.add(block, block.mean(axis=0))
    levels, expected = meter.levels(), whole.levels()
    for name in ("seconds", "sounding", "peak", "rms", "loudest", "channels", "sounding_channels"):
        assert getattr(levels, name) == pytest.approx(getattr(expected, name), rel=1e-4), name
    assert levels.rms == pytest.approx(np.sqrt(np.mean(samples.mean(axis=0) ** 2)), rel=1e-4)


def test_decibels():
    assert [decibels(level) for level in (1, 0.1, 0.01)] == pytest.approx([0, -20, -40])
    assert decibels(0) == -np.inf
