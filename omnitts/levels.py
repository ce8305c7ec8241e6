"""How loud a recording is, and what is left of it once its channels are one: a reference's level is the output's."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from omnitts.errors import shown_path

# The peak that recordings must exceed: about three 16-bit steps, so that dither alone counts as silence.
SILENT_PEAK = 1e-4

QUIET = -50.0  # dBFS, from which on one is warned of a level
LOST = -4.5  # dB that the mean of the channels may lie below the loudest of them; two that are unlike lose 3
BRIEF = 0.5  # seconds of sound, fewer of which make no voice
_WINDOW = 0.05  # seconds
_FAR_BELOW = 1e-3  # of a power: 30 dB. Windows and channels that lie so far below the loudest count as silent.


def is_silent(wave: np.ndarray) -> bool:
    """Whether no sample exceeds `SILENT_PEAK`; true of an empty wave."""
    return bool(np.abs(wave).max(initial=0.0) <= SILENT_PEAK)


@dataclass(frozen=True)
class Levels:
    """Of a recording, or as much as was measured. Levels are RMS values, 1 being full scale."""

    seconds: float
    sounding: float  # seconds that are less than 30 dB below the loudest 0.05 s
    peak: float  # of the mean of the channels
    rms: float  # of the mean of the channels
    loudest: float  # of the loudest channel
    channels: int
    sounding_channels: int  # those less than 30 dB below the loudest


class Meter:
    """Measures a recording that comes in blocks."""

    def __init__(self, sample_rate: int, channels: int):
        self.sample_rate = sample_rate
        self.peak = 0.0
        self.channel_peak = 0.0
        self._samples = 0
        self._channels = np.zeros(channels)  # sums of squares
        self._window = max(1, round(sample_rate * _WINDOW))
        self._powers: list[np.ndarray] = []  # sums of squares of whole windows
        self._rest = np.zeros(0, np.float32)  # squares of the last window, which is not yet full

    def add(self, channels: np.ndarray, wave: np.ndarray) -> None:
        """A block: float32 [channels, frames], and their mean, [frames]."""
        self.peak = max(self.peak, _peak(wave))
        self.channel_peak = max(self.channel_peak, _peak(channels))
        self._samples += len(wave)
        with np.errstate(over="ignore"):  # samples of 1e30 are somebody else's to refuse
            self._channels += np.einsum("cn,cn->c", channels, channels)
            squares = np.concatenate([self._rest, np.square(wave)])
        whole = len(squares) // self._window * self._window
        self._powers.append(squares[:whole].reshape(-1, self._window).sum(axis=1, dtype=np.float64))
        self._rest = squares[whole:]

    @property
    def cancelled(self) -> bool:
        """Whether there is sound, but none in the mean of the channels."""
        return self.peak <= SILENT_PEAK < self.channel_peak

    def levels(self) -> Levels:
        """Of all that was added, at least one sample."""
        rest = [self._rest.sum(dtype=np.float64)] if len(self._rest) else []
        powers = np.concatenate([*self._powers, rest])
        sounding = np.count_nonzero(powers > powers.max() * _FAR_BELOW) * self._window
        return Levels(
            seconds=self._samples / self.sample_rate,
            sounding=min(sounding, self._samples) / self.sample_rate,
            peak=self.peak,
            rms=math.sqrt(powers.sum() / self._samples),
            loudest=math.sqrt(self._channels.max() / self._samples),
            channels=len(self._channels),
            sounding_channels=int(np.count_nonzero(self._channels > self._channels.max() * _FAR_BELOW)),
        )


def _peak(samples: np.ndarray) -> float:
    return float(max(samples.max(initial=0.0), -samples.min(initial=0.0)))


def decibels(ratio: float) -> float:
    """Of amplitudes; of a level, its dBFS."""
    return 20 * math.log10(ratio) if ratio > 0 else -math.inf


def level_doubts(path: str, levels: Levels) -> Iterator[str]:
    """What speaks against a recording as a reference, one line each, with the figure and the mend."""
    where = shown_path(path)
    lost = decibels(levels.rms) - decibels(levels.loudest)
    level = levels.rms
    if levels.channels > 1 and lost < LOST:
        level = levels.loudest  # a channel by itself would be so loud
        below = f"their mean, which is what is cloned, is {-lost:.0f} dB below"
        mend = "export one channel as a mono file"
        if levels.sounding_channels < levels.channels:
            what = f"sound in only {levels.sounding_channels} of its {levels.channels} channels"
        else:
            what = f"its {levels.channels} channels cancel"
        yield f"{what}, and {below} the loudest: {where}; {mend}"
    if levels.sounding < min(BRIEF, levels.seconds / 2):
        yield (
            f"sound in only {levels.sounding:.2f} of its {levels.seconds:.1f} s: {where}; choose one with 3 to 10 s of "
            "speech in it"
        )
    elif decibels(level) < QUIET:
        yield (
            f"quiet, {decibels(level):.0f} dBFS (RMS): {where}; speech is made as loud as its reference, so amplify "
            "it to about -20 dBFS, or have match_loudness: false in the recipe"
        )
