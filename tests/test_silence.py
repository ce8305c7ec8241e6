"""The lengths and checksums of the mixtures were made with pydub 0.25.1."""

import zlib

import numpy as np
import pytest

from omnitts.silence import remove_silence

OUTPUT = {"mid_ms": 500, "lead_ms": 100, "trail_ms": 100}
PROMPT = {"mid_ms": 200, "lead_ms": 100, "trail_ms": 200}
SOUND, SILENCE = 0.25, 0.0


def blocks(*parts: tuple[float, int]) -> np.ndarray:
    """A wave of constant pieces: (level, milliseconds) ..."""
    return np.concatenate([np.full(24 * ms, level, np.float32) for level, ms in parts])


def runs(wave: np.ndarray) -> list[tuple[float, float]]:
    """The inverse of `blocks`."""
    starts = np.flatnonzero(np.diff(wave, prepend=np.nan))
    return [(float(wave[a]), (b - a) / 24) for a, b in zip(starts, np.append(starts[1:], len(wave)), strict=True)]


def mixture(length: int, seed: int) -> np.ndarray:
    """Sound and near-silence in turns of uneven lengths, in exact arithmetic: the same on every machine."""
    n = np.arange(length, dtype=np.int64)
    noise = (n * n * 31 + n * 7919 + seed * 101) % 2048 - 1024
    turn = (n + seed * 1234) // 7411
    level = np.array([16, 0, 2, 3, 0, 1, 0, 0, 4, 0, 0])[(turn * (seed + 3)) % 11]
    return (noise * level / 2**16).astype(np.float32)


def test_published_prompt(vectors):
    trimmed = remove_silence(vectors["post/input"].numpy(), **PROMPT)
    np.testing.assert_array_equal(trimmed, vectors["post/prompt_trim"].numpy())


@pytest.mark.parametrize(
    ("silence", "left"),
    [(490, 490), (500, 500), (750, 750), (1000, 1000), (1010, 1000), (1500, 1000), (4000, 1000)],
)
def test_inner_silence_keeps_its_margins(silence, left):
    wave = remove_silence(blocks((SOUND, 300), (SILENCE, silence), (SOUND, 200)), **OUTPUT)
    assert runs(wave) == [(SOUND, 300), (SILENCE, left), (SOUND, 200)]


def test_edges_keep_their_margins():
    wave = blocks((SILENCE, 730), (SOUND, 300), (SILENCE, 940))
    assert runs(remove_silence(wave, **OUTPUT)) == [(SILENCE, 100), (SOUND, 300), (SILENCE, 100)]
    assert runs(remove_silence(wave, **PROMPT)) == [(SILENCE, 100), (SOUND, 300), (SILENCE, 200)]


def test_edges_shorter_than_their_margins_stay():
    wave = blocks((SILENCE, 60), (SOUND, 300), (SILENCE, 90))
    np.testing.assert_array_equal(remove_silence(wave, **OUTPUT), wave)


@pytest.mark.parametrize(("level", "silent"), [(103.9, True), (-103.9, True), (104, False), (-104, False)])
def test_threshold_is_the_rms_in_whole_steps(level, silent):
    wave = blocks((SOUND, 300), (level / 32768, 2000), (SOUND, 300))
    assert len(remove_silence(wave, **OUTPUT)) == 24 * (1600 if silent else 2600)
    edge = blocks((level / 32768, 300), (SOUND, 100))
    assert len(remove_silence(edge, **OUTPUT)) == 24 * (200 if silent else 400)


def test_samples_are_truncated_and_clipped():
    wave = np.array([0.5, 1.5, -1.5, 100.9 / 32768, -100.9 / 32768], np.float32).repeat(24 * 20)
    expected = np.array([16384, 32767, -32768, 100, -100]).repeat(24 * 20) / 32768
    np.testing.assert_array_equal(remove_silence(wave, **OUTPUT), expected)


@pytest.mark.parametrize(
    ("extra", "length"), [(0, 960), (11, 960), (12, 960), (13, 984), (23, 984), (24, 984), (36, 1008)]
)
def test_length_is_rounded_to_milliseconds(extra, length):
    wave = remove_silence(np.full(960 + extra, SOUND, np.float32), **OUTPUT)
    assert len(wave) == length
    assert (wave[: 960 + extra] == SOUND).all()
    assert (wave[960 + extra :] == 0).all()


@pytest.mark.parametrize(("ms", "left"), [(0, 0), (7, 7), (100, 100), (480, 100), (500, 0), (5000, 0)])
def test_all_silent(ms, left):
    """From `mid_ms` on nothing is left; below it, only the edges are cut."""
    assert len(remove_silence(np.zeros(24 * ms, np.float32), **OUTPUT)) == 24 * left


@pytest.mark.parametrize(
    ("length", "seed", "settings", "left", "crc"),
    [
        (100_000, 1, PROMPT, 94_728, 0x681D8CED),
        (123_457, 2, OUTPUT, 123_456, 0xAD07280E),
        (123_457, 2, PROMPT, 84_816, 0x5642E4D3),
        (77_777, 4, PROMPT, 72_504, 0x7D8FE650),
        (48_013, 5, OUTPUT, 25_920, 0xEBB3C727),
        (48_012, 5, PROMPT, 28_320, 0x4DBEED3E),
        (200_000, 5, OUTPUT, 147_600, 0x3F67F519),
        (200_000, 7, OUTPUT, 175_440, 0x34A4E64E),
        (200_000, 11, OUTPUT, 125_280, 0xC06C096D),
    ],
)
def test_mixtures_as_pydub(length, seed, settings, left, crc):
    wave = remove_silence(mixture(length, seed), **settings)
    assert len(wave) == left
    assert zlib.crc32((wave * 32768).astype("<i2").tobytes()) == crc
