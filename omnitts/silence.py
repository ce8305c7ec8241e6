"""Shortening of silences, in reference recordings and in generated audio.

The OmniVoice decoder does it with pydub's `split_on_silence` and `detect_leading_silence`; this gives the
same result, sample for sample. Samples have 16 bits, times are whole milliseconds, and a window is silent
when its RMS is at most -50 dBFS.
"""

import numpy as np

SAMPLES_PER_MS = 24  # everything here is at 24 kHz
SEEK_MS = 10  # silences are looked for at multiples of this

# pydub cuts the RMS to an integer, and -50 dBFS is 103.6 of 32768. So a window is silent when that integer
# is at most 103: when the mean square is below 104**2.
_LOUD_MEAN_SQUARE = 104**2


def remove_silence(wave: np.ndarray, *, mid_ms: int, lead_ms: int, trail_ms: int) -> np.ndarray:
    """Shorten the silences of a 24 kHz wave.

    Of each silence of `mid_ms` or more the first and the last `mid_ms` stay, so one of up to twice that stays
    whole. Then the silence at the start is cut to `lead_ms` and that at the end to `trail_ms`.

    Args:
        wave: float32 [N]; samples beyond -1 .. 1 are clipped.
        mid_ms: at least 10, the step at which silences are looked for.

    Returns:
        float32 [M], samples truncated (towards zero) to multiples of 2**-15. M is a whole number of
        milliseconds: a last one that is over half full is completed with zeros, and less is dropped. A wave
        of `mid_ms` or more that is silent throughout gives an empty one.
    """
    samples = _whole_milliseconds((wave * 32768.0).clip(-32768, 32767).astype(np.int16))
    samples = _shorten_inner(samples, mid_ms)
    samples = _trim_start(samples, lead_ms)
    samples = _trim_start(samples[::-1], trail_ms)[::-1]
    return samples.astype(np.float32) / np.float32(32768)


def _whole_milliseconds(samples: np.ndarray) -> np.ndarray:
    length = round(len(samples) / SAMPLES_PER_MS) * SAMPLES_PER_MS
    return np.pad(samples[:length], (0, max(0, length - len(samples))))


def _cumulative_energy(samples: np.ndarray) -> np.ndarray:
    """Sum of squares before each millisecond: int64 [milliseconds + 1], exact."""
    squares = samples.astype(np.int64) ** 2
    per_ms = squares.reshape(-1, SAMPLES_PER_MS).sum(axis=1)
    return np.concatenate([[0], np.cumsum(per_ms)])


def _silent(energy: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Which of the windows [start, end), in milliseconds, are silent."""
    return energy[end] - energy[start] < _LOUD_MEAN_SQUARE * SAMPLES_PER_MS * (end - start)


def _shorten_inner(samples: np.ndarray, keep_ms: int) -> np.ndarray:
    length = len(samples) // SAMPLES_PER_MS
    sounds = _sounds(_cumulative_energy(samples), length, keep_ms)
    if not len(sounds):
        return samples[:0]
    start, end = sounds[:, 0] - keep_ms, sounds[:, 1] + keep_ms
    end[:-1] = np.minimum(end[:-1], start[1:])  # where margins overlap, all of the silence stays, once
    bounds = np.stack([start, end], axis=1).clip(0, length) * SAMPLES_PER_MS
    return np.concatenate([samples[a:b] for a, b in bounds])


def _sounds(energy: np.ndarray, length: int, min_silence_ms: int) -> np.ndarray:
    """Start and end, in ms, of the parts between silences of `min_silence_ms` or more: int [parts, 2]."""
    whole = np.array([[0, length]])
    last = length - min_silence_ms
    if last < 0:
        return whole
    starts = np.arange(0, last + 1, SEEK_MS)
    if last % SEEK_MS:
        starts = np.append(starts, last)
    starts = starts[_silent(energy, starts, starts + min_silence_ms)]
    if not len(starts):
        return whole
    # Silent windows that touch or overlap are one silence.
    gap = np.flatnonzero(np.diff(starts) > min_silence_ms)
    silence_start = starts[np.concatenate([[0], gap + 1])]
    silence_end = starts[np.append(gap, -1)] + min_silence_ms
    sounds = np.stack([np.concatenate([[0], silence_end]), np.append(silence_start, length)], axis=1)
    return sounds[sounds[:, 0] < sounds[:, 1]]


def _trim_start(samples: np.ndarray, keep_ms: int) -> np.ndarray:
    """Cut the leading silence, judged in windows of 10 ms, to `keep_ms`."""
    length = len(samples) // SAMPLES_PER_MS
    start = np.arange(0, length, SEEK_MS)
    loud = ~_silent(_cumulative_energy(samples), start, np.minimum(start + SEEK_MS, length))
    silence = start[loud.argmax()] if loud.any() else length
    return samples[max(0, silence - keep_ms) * SAMPLES_PER_MS :]
