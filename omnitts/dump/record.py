"""From what was seen of an utterance's loops to its dump."""

import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version

import numpy as np

from omnitts import __version__
from omnitts.dump.format import Dump, Piece
from omnitts.speech import Speech
from omnitts.trace import Trace
from omnitts.tts import TTS, dtype_name

_NUMBERS = ("logprobs", "confidence", "scores", "cond_logprobs", "uncond_logprobs")


def dump_of(speech: Speech, tts: TTS, dtype: type[np.floating] = np.float16) -> Dump:
    """The dump of a speech that was watched; dtype: of its numbers."""
    watched, utterance = speech.watched, speech.watched.utterance
    traces = watched.traces
    steps = sorted({seen.step for trace in traces for seen in trace.seen})
    return Dump(
        id=speech.id,
        text=utterance.text,
        language=utterance.language,
        instruct=utterance.instruct,
        reference=utterance.voice or utterance.ref_audio,
        pieces=tuple(Piece(len(t.revealed), seed) for t, seed in zip(traces, watched.seeds, strict=True)),
        recipe=asdict(speech.recipe),
        model_digest=tts.checkpoint.digest,
        device=str(tts.device),
        dtype=dtype_name(tts.dtype),
        versions={"python": platform.python_version(), "omnitts": __version__, "torch": version("torch")},
        engine_seconds=watched.engine_seconds,
        error=speech.error,
        steps=np.array(steps, np.int32),
        revealed=np.concatenate([trace.revealed for trace in traces]).T,
        codes=np.concatenate(watched.codes, axis=1),
        tokens=_joined("tokens", traces, steps, np.int16, -1),
        **{name: _joined(name, traces, steps, dtype, 0) for name in _NUMBERS},
        **_top(traces, steps, dtype),
    )


def _top(traces: Sequence[Trace], steps: Sequence[int], dtype: type[np.floating]) -> dict[str, np.ndarray]:
    if not any(seen.top_tokens is not None for trace in traces for seen in trace.seen):
        return {}
    return {
        "top_tokens": _joined("top_tokens", traces, steps, np.int16, -1),
        "top_logprobs": _joined("top_logprobs", traces, steps, dtype, -np.inf),
    }


def _joined(name: str, traces: Sequence[Trace], steps: Sequence[int], dtype: type, absent: float) -> np.ndarray:
    """An array of all traces end to end: [S, C, T, ...], `absent` where a piece did not run a step."""
    example = next((getattr(seen, name) for trace in traces for seen in trace.seen), None)
    codebooks, rest = traces[0].revealed.shape[1], () if example is None else example.shape[2:]
    joined = np.full((len(steps), codebooks, sum(len(t.revealed) for t in traces), *rest), absent, dtype)
    frame = 0
    for trace in traces:
        frames = slice(frame, frame + len(trace.revealed))
        frame = frames.stop
        for seen in trace.seen:
            joined[steps.index(seen.step), :, frames] = _stored(getattr(seen, name), dtype).swapaxes(0, 1)
    return joined


def _stored(values: np.ndarray, dtype: type) -> np.ndarray:
    """In the dtype of the file. Numbers that are none, of logits that were not finite, count as impossible."""
    if dtype is np.int16:
        return values
    values = np.nan_to_num(values, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    most = np.finfo(dtype).max
    return np.where(np.isfinite(values), values.clip(-most, most), values).astype(dtype)
