"""A dump as a picture: when each cell was revealed, and how surely, over the time of the audio."""

import textwrap
import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from omnitts import __version__
from omnitts.dump.figures import by_step_and_codebook, reveal_order, thinned
from omnitts.dump.format import Dump
from omnitts.errors import InputError
from omnitts.targets import Kind, Target, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


# Both are even in lightness and the same to the colour-blind. The darkest is the earliest step, the least certain cell.
_ORDER, _CERTAINTY = "viridis", "cividis"
_UNKNOWN = "white"  # grey is a colour of cividis
_WAVE = "#31688e"
_WAVE_BINS = 4000
_MOST_COLUMNS = 2000  # of an image: more than there are pixels would be drawn at random, or blurred
_TITLE_COLUMNS = 100
_MARKED = {"png": "Software", "svg": "Creator"}  # the metadata that name the program
_START = 1 << 12  # bytes of a file, in which they are


def _is_plot(path: Path) -> bool:
    with open(path, "rb") as file:
        start = file.read(_START)
    if start.startswith(b"\x89PNG"):
        return b"tEXtSoftware\0omnitts " in start
    return b"<dc:title>omnitts " in start and b"<svg" in start


KIND = Kind("a picture of a dump", (".png", ".svg"), _is_plot)


def write_plot(path: str | PathLike | Target, dump: Dump, audio: tuple[np.ndarray, int] | None = None) -> None:
    """Writes the picture as PNG or SVG, by the suffix of `path`, whole or not at all.

    audio: float32 [N] and its sample rate, for the waveform. Raises InputError when matplotlib is not installed or
    the dump has no frames, OSError when the disk refuses.
    """
    format = Path(path).suffix[1:].lower()
    figure = draw(dump, audio)
    with writing(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of a script that the font lacks: boxes
        figure.savefig(temporary, format=format, dpi=130, metadata={_MARKED[format]: f"omnitts {__version__}"})


def draw(dump: Dump, audio: tuple[np.ndarray, int] | None = None) -> "Figure":
    """The figure: reveal order, confidence at reveal, the waveform if there is audio, logprob by step and codebook."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise InputError("pictures need matplotlib: pip install matplotlib, or the extra plot") from error
    if not dump.frames:
        raise InputError(f"nothing to draw: {dump.id} has no frames")
    heights = [3, 3, *([1.6] if audio else []), 3]
    figure = matplotlib.figure.Figure(
        figsize=(_width(dump.seconds), 1.2 + 0.8 * sum(heights)), layout="constrained", facecolor="white"
    )
    order, certainty, *waveform, by_step = figure.subplots(len(heights), height_ratios=heights)
    figure.suptitle(_title(dump), fontsize=11)
    end = dump.seconds if audio is None else max(dump.seconds, len(audio[0]) / audio[1])
    _draw_order(order, dump)
    _draw_certainty(certainty, dump)
    if audio:
        _draw_waveform(waveform[0], *audio)
    over_time = (order, certainty, *waveform)
    for axes in over_time:
        axes.set_xlim(0, end)
    over_time[-1].set_xlabel("seconds")
    _draw_steps(by_step, dump)
    return figure


def _width(seconds: float) -> float:
    """Inches: wide enough to tell the frames of a long clip apart, within what a screen shows."""
    return float(np.clip(8 + seconds / 4, 9, 22))


def _title(dump: Dump) -> str:
    # "$" would begin a formula.
    text = textwrap.shorten(dump.text, _TITLE_COLUMNS, placeholder=" ...") or dump.text[:_TITLE_COLUMNS]
    return f"{dump.id}\n{text}".replace("$", r"\$")


def _draw_order(axes: "Axes", dump: Dump) -> None:
    """Coloured by the share of cells revealed by then: most are revealed in the last few steps."""
    shares = reveal_order(dump)
    image = _cells(axes, dump, shares[dump.revealed], _ORDER, (0, 1))
    axes.set_title("Reveal order: the step that revealed each cell", loc="left", fontsize=10)
    bar = axes.figure.colorbar(image, ax=axes, label="step", pad=0.01, aspect=12)
    run = np.unique(dump.revealed)
    marked = np.unique(run[np.abs(shares[run, None] - np.linspace(0, 1, 6)).argmin(axis=0)])
    bar.set_ticks(shares[marked], labels=[str(step) for step in marked])


def _draw_certainty(axes: "Axes", dump: Dump) -> None:
    probability = np.exp(dump.at_reveal(dump.confidence))
    image = _cells(axes, dump, probability, _CERTAINTY, (0, 1))
    unknown = "; white: that step was not dumped" if np.isnan(probability).any() else ""
    axes.set_title(f"Confidence at reveal: probability of the likeliest token{unknown}", loc="left", fontsize=10)
    axes.figure.colorbar(image, ax=axes, label="probability", pad=0.01, aspect=12)


def _cells(axes: "Axes", dump: Dump, values: np.ndarray, colours: str, limits: tuple[float, float]) -> "AxesImage":
    """An image [C, T] over seconds, the coarsest codebook on top."""
    extent = (0, dump.seconds, dump.codebooks - 0.5, -0.5)
    image = _image(axes, thinned(values, _MOST_COLUMNS), colours, limits, extent)
    axes.set_ylabel("codebook")
    axes.set_yticks(range(dump.codebooks))
    return image


def _image(
    axes: "Axes",
    values: np.ndarray,
    colours: str,
    limits: tuple[float, float],
    extent: tuple[float, float, float, float],
) -> "AxesImage":
    import matplotlib

    return axes.imshow(
        np.ma.masked_invalid(values),
        cmap=matplotlib.colormaps[colours].with_extremes(bad=_UNKNOWN),
        aspect="auto",
        interpolation="nearest",
        extent=extent,
        vmin=limits[0],
        vmax=limits[1],
    )


def _draw_waveform(axes: "Axes", wave: np.ndarray, rate: int) -> None:
    """Its envelope: a bin's lowest and highest sample, which loses no click as drawing every nth sample would."""
    size = max(1, len(wave) // _WAVE_BINS)
    bins = wave[: len(wave) // size * size].reshape(-1, size)
    seconds = (np.arange(len(bins)) + 0.5) * size / rate
    axes.fill_between(seconds, bins.min(axis=1), bins.max(axis=1), color=_WAVE, linewidth=0.4)
    peak = max(float(np.abs(wave).max(initial=0)), 1e-3) * 1.05
    axes.set_ylim(-peak, peak)
    axes.set_ylabel("amplitude")
    axes.set_title(
        f"Finished audio, {len(wave) / rate:.2f} s: shifted where silence was cut or added", loc="left", fontsize=10
    )


def _draw_steps(axes: "Axes", dump: Dump) -> None:
    means = by_step_and_codebook(dump)
    known = means[np.isfinite(means)]
    limits = (float(known.min()), float(known.max())) if known.size else (-1.0, 0.0)
    extent = (-0.5, dump.num_step - 0.5, dump.codebooks - 0.5, -0.5)
    image = _image(axes, np.where(np.isfinite(means), means, np.nan), _CERTAINTY, limits, extent)
    axes.set_title(
        "Mean logprob of the cells still masked at each step; white: none left, or not dumped", loc="left", fontsize=10
    )
    axes.set_xlabel("step")
    axes.set_ylabel("codebook")
    axes.set_yticks(range(dump.codebooks))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.figure.colorbar(image, ax=axes, label="logprob, nats", pad=0.01, aspect=12)
