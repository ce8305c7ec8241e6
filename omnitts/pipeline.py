"""A run from utterances to finished speech: prepare -> engine -> decode -> finish, a window of utterances at a time.

Where the stages have threads, the loop here does nothing but feed the engine: the next window is made ready while one
runs, and the clips of a batch are decoded, finished and delivered while the next batch is generated. At most one window
is ahead, and the audio of at most three batches behind, so memory does not grow with a manifest.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from omnitts.audio import join_chunks, postprocess
from omnitts.clips import too_long
from omnitts.engine import Request, costs, generate, release
from omnitts.errors import InputError, reason
from omnitts.manifest import Utterance
from omnitts.model.decoding import decode_padding
from omnitts.model.voice import Voice
from omnitts.packing import halves
from omnitts.prepare import Piece, plan_batches, plan_pieces, utterance_seed, windows
from omnitts.speech import Speech, SynthesisError, Watched
from omnitts.stages import Stages
from omnitts.stats import Stats
from omnitts.trace import Trace, Watch

if TYPE_CHECKING:
    from omnitts.tts import TTS

BATCHES_BEHIND = 2  # that may wait for their decoding and files while another is generated

_OUT_OF_MEMORY = re.compile("CUDA (error: )?out of memory|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED")


# What to do about a failure that is nobody's mistake.
_TRY_AGAIN = "run this line again, and report it if it fails once more"
_TRY_ANOTHER_SEED = "give the line another seed, or other words"
_NO_MEMORY = "the GPU's memory is too small for it"


class Progress(Protocol):
    """Hears of the work: references made ready, frames (25 a second) that a window will need, and frames done."""

    def prepared(self, utterances: int, of: int) -> None: ...

    def planned(self, utterances: int, frames: int) -> None: ...

    def advanced(self, frames: float) -> None: ...


class Silent:
    """The Progress that tells nobody."""

    def prepared(self, utterances: int, of: int) -> None:
        pass

    def planned(self, utterances: int, frames: int) -> None:
        pass

    def advanced(self, frames: float) -> None:
        pass


@dataclass
class Take:
    """An utterance on its way: its pieces' codes fill `chunks`, or `error` says why it cannot be made."""

    utterance: Utterance
    seed: int
    file: str | None = None  # the manifest, as messages call it
    voice: Voice | None = None
    chunks: dict[int, np.ndarray] = field(default_factory=dict)
    chunk_count: int = 0
    error: str | None = None
    watch: Watch | None = None
    traces: dict[int, Trace] = field(default_factory=dict)  # by chunk, as `seeds` are
    seeds: dict[int, int] = field(default_factory=dict)
    engine_seconds: float = 0.0

    @property
    def ended(self) -> bool:
        return self.error is not None or len(self.chunks) == self.chunk_count

    def watched(self) -> Watched | None:
        """What was seen of its loops, if it was watched and they all came to their end."""
        if self.watch is None or len(self.traces) < self.chunk_count:
            return None
        each = [
            [values[chunk] for chunk in range(self.chunk_count)] for values in (self.traces, self.chunks, self.seeds)
        ]
        return Watched(self.utterance, *each, self.engine_seconds)

    def fail(self, message: str, field: str = "text") -> None:
        """Sets `error`, with its place, as the check of a manifest words its own."""
        self.error = str(InputError(message, file=self.file, line=self.utterance.line, field=field))


@dataclass(frozen=True)
class Window:
    """Utterances made ready. The pieces' owners index `takes`; `refused` are takes without pieces."""

    takes: list[Take]
    pieces: list[Piece]
    refused: list[Take]


def out_of_memory(error: Exception) -> bool:
    """Whether it was the GPU's memory that an operation found too small."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


class DeviceLost(RuntimeError):
    """The GPU answers no more, and will not for as long as this process lives."""


def check_device(device: torch.device, failure: str) -> None:
    """After something failed: raises DeviceLost if nothing can go on."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            raise DeviceLost(
                f"the GPU no longer works for this process ({failure}): look at nvidia-smi and the system's log; "
                "the same command goes on from here"
            ) from None


def _request(piece: Piece, take: Take) -> Request:
    reference = None
    if piece.follows_first:
        reference = take.chunks[0]
    elif take.voice is not None:
        reference = take.voice.codes
    return Request(piece.prompt_ids, reference, piece.target_frames, piece.recipe, piece.seed, take.watch)


class Pipeline:
    """One run. `deliver` is called with each Speech as soon as it is there, by any of the finishing threads."""

    def __init__(
        self,
        tts: "TTS",
        stages: Stages,
        max_positions: int,
        progress: Progress,
        stats: Stats,
        deliver: Callable[[Speech], Any],
        watch: Callable[[Utterance], Watch | None],
        stopping: Callable[[], bool],
        file: str | None = None,
    ):
        self.tts = tts
        self.stages = stages
        self.max_positions = max_positions  # shrinks when memory runs out
        self.progress = progress
        self.stats = stats
        self.deliver = deliver
        self.file = file
        self.watch = watch  # what to keep of an utterance's loops
        self.stopping = stopping  # whether to end after the batch at hand
        self._waiting = not stages.threaded  # for a window: only then may its progress be told
        self._behind: deque[Future] = deque()  # decodings, each of which comes to the futures of its takes
        self._engine = Lock()  # held while a batch runs: who lacks memory beside it waits for it

    def run(self, utterances: Iterable[Utterance]) -> Iterator[Any]:
        """Yields what `deliver` made of each utterance, in the order in which they ended.

        An exception of `deliver` ends the run. So does a KeyboardInterrupt, after what the engine made is delivered.
        """
        before = costs(self.tts.model)
        try:
            for window in self._windows(utterances):
                yield from self._run_window(window)
                if self.stopping():
                    break
            yield from self._ended(0)
        except KeyboardInterrupt:
            self._settle()
            raise
        finally:
            self.stages.close()
            self.stats.add(**(costs(self.tts.model) - before))

    # ---- Before the engine ----

    def _windows(self, utterances: Iterable[Utterance]) -> Iterator[Window]:
        if not self.stages.threaded:
            for lines in windows(utterances):
                with self.stats.timing("prepare"):
                    window = self._prepare(lines)
                yield window
            return
        begun = (self.stages.preparer.submit(self._prepare, lines) for lines in windows(utterances))
        upcoming = next(begun, None)
        while upcoming is not None:
            self._waiting = True
            with self.stats.timing("prepare"):
                window = upcoming.result()
            self._waiting = False
            upcoming = next(begun, None)
            yield window

    def _prepare(self, utterances: list[Utterance]) -> Window:
        takes = []
        for number, take in enumerate(self.stages.readers.map(self._take, utterances), 1):
            takes.append(take)
            if self._waiting:
                self.progress.prepared(number, len(utterances))
            if self.stopping():
                return Window([], [], [])
        refused = [take for take in takes if take.error is not None]
        takes = [take for take in takes if take.error is None]
        pieces = plan_pieces(
            self.tts.tokenizer, [t.utterance for t in takes], [t.voice for t in takes], [t.seed for t in takes]
        )
        for piece in pieces:
            take = takes[piece.owner]
            take.chunk_count += 1
            if message := too_long(piece.target_frames):
                take.fail(message)
        refused += [take for take in takes if take.error is not None]
        return Window(takes, [piece for piece in pieces if takes[piece.owner].error is None], refused)

    def _take(self, utterance: Utterance) -> Take:
        """An utterance with its reference read and encoded, or the error."""
        take = Take(utterance, utterance_seed(utterance), self.file, watch=self.watch(utterance))
        with self.stages.on_stream():
            if self._add_voice(take):
                with self._engine:  # beside it memory was too small
                    self._add_voice(take)
        return take

    def _add_voice(self, take: Take) -> bool:
        """Sets `voice`, or `error`; returns whether it was memory that was missing."""
        try:
            take.voice, take.error = self.tts.voice_of(take.utterance), None
        except InputError as error:
            take.fail(str(error), take.utterance.reference_field)
        except Exception as error:  # whatever a strange recording sets off
            too_large = out_of_memory(error)
            why = _NO_MEMORY if too_large else reason(error)
            check_device(self.tts.device, why)
            mend = "choose a shorter recording" if too_large else "choose another recording"
            place = take.utterance.ref_audio or take.utterance.voice
            take.fail(f"{place} cannot be encoded: {why}; {mend}", take.utterance.reference_field)
            return too_large
        return False

    # ---- The engine ----

    def _run_window(self, window: Window) -> Iterator[Any]:
        takes, pieces = window.takes, window.pieces
        yield from self._hand_over(window.refused)
        self.progress.planned(len(takes) + len(window.refused), sum(piece.target_frames for piece in pieces))
        batches = deque(plan_batches(pieces, self.max_positions))
        while batches and not self.stopping():
            batch = [piece for piece in batches.popleft() if takes[piece.owner].error is None]
            budget = self.max_positions
            self._generate(batch, takes)
            owners = dict.fromkeys(piece.owner for piece in batch)
            yield from self._hand_over([takes[owner] for owner in owners if takes[owner].ended])
            if self.max_positions < budget:
                batches = deque(plan_batches([piece for batch in batches for piece in batch], self.max_positions))

    def _generate(self, pieces: list[Piece], takes: list[Take]) -> None:
        """Generates the codes of a batch; when that fails, its parts get a try each, so that one costs no other.

        Where memory was too small these are its halves, and later batches have no more positions than a half; after
        any other failure they are the single pieces.
        """
        requests = [_request(piece, takes[piece.owner]) for piece in pieces]
        if not requests:
            return
        began = perf_counter()
        try:
            with self.stats.timing("step"), self._engine:
                results = generate(self.tts.model, requests, on_step=self.progress.advanced)
        except Exception as error:
            failure, too_large = reason(error), out_of_memory(error)
        else:
            positions = sum(piece.positions for piece in pieces)
            a_position = (perf_counter() - began) / positions
            for piece, result in zip(pieces, results, strict=True):
                take = takes[piece.owner]
                take.chunks[piece.chunk] = result.codes
                take.engine_seconds += a_position * piece.positions
                if result.trace is not None:
                    take.traces[piece.chunk], take.seeds[piece.chunk] = result.trace, piece.seed
                if result.status:
                    take.fail(f"generation failed: the model's logits were not finite; {_TRY_ANOTHER_SEED}")
            self.stats.add(batches=1, clips=len(pieces), positions=positions)
            return
        # Out here, where the error is gone: it holds on to the batch's memory, which may be what ran out.
        check_device(self.tts.device, failure)
        if len(pieces) == 1:
            if too_large:
                failure = _NO_MEMORY
            mend = "lower audio_chunk_threshold, or shorten the reference" if too_large else _TRY_AGAIN
            takes[pieces[0].owner].fail(f"generation failed: {failure}; {mend}")
            return
        for part in self._parts(pieces, too_large):
            self._generate([piece for piece in part if takes[piece.owner].error is None], takes)

    def _parts(self, pieces: list[Piece], too_large: bool) -> list[list[Piece]]:
        if not too_large:
            return [[piece] for piece in pieces]
        with self._engine:
            release(self.tts.model)
        positions = [piece.positions for piece in pieces]
        self.max_positions = max(1, min(self.max_positions, sum(positions) // 2))
        self.stats.add(splits=1)
        self.stats.max_positions = self.max_positions
        cut = halves(positions)
        return [pieces[:cut], pieces[cut:]]

    # ---- Behind the engine ----

    def _hand_over(self, takes: list[Take]) -> Iterator[Any]:
        """Sends ended takes on, and yields what has become of earlier ones."""
        together = [takes] if takes else []
        for group in together if self.stages.threaded else [[take] for take in takes]:
            with self.stats.timing("finish"):
                self._behind.append(self.stages.decoder.submit(self._decode, group))
            yield from self._ended(BATCHES_BEHIND)

    def _ended(self, most: int) -> Iterator[Any]:
        """What was made of the takes that are done; waits until at most so many groups are not."""
        while self._behind and (len(self._behind) > most or _all_done(self._behind[0])):
            with self.stats.timing("finish"):
                made = [future.result() for future in self._behind[0].result()]
            self._behind.popleft()
            yield from made

    def _settle(self) -> None:
        """Waits for all that was handed over, whatever becomes of it."""
        for decoding in self._behind:
            if decoding.exception() is None:
                wait(decoding.result())

    def _decode(self, takes: list[Take]) -> list[Future]:
        """Decodes the clips of the takes together and sends each take on to be finished."""
        clips = {id(take): [codes for _, codes in sorted(take.chunks.items())] for take in takes if take.error is None}
        with self.stats.timing("decode"), self.stages.on_stream():
            waves = iter(self._waves([codes for chunks in clips.values() for codes in chunks]))
        submit = self.stages.finishers.submit
        return [submit(self._finish, take, [next(waves) for _ in clips.get(id(take), ())]) for take in takes]

    def _waves(self, clips: list[np.ndarray], alone: bool = False) -> list[np.ndarray | str]:
        """Codes int16 [codebooks, T] -> float32 waveforms, or the reasons why there are none.

        `alone`: the engine waits meanwhile, and memory is what there is.
        """
        codec = self.tts.codec
        if not clips:
            return []
        try:
            waves = codec.decode_batch(clips)
        except Exception as error:
            failure, too_large = reason(error), out_of_memory(error)
        else:
            frames = [clip.shape[-1] for clip in clips]
            self.stats.add(decoded_frames=sum(frames), padded_frames=decode_padding(frames, codec.device))
            return waves
        check_device(codec.device, failure)
        if len(clips) == 1:
            if not too_large:
                return [f"decoding failed: {failure}; {_TRY_AGAIN}"]
            if alone:
                return [f"decoding failed: {_NO_MEMORY}; lower audio_chunk_threshold"]
            with self._engine:
                return self._waves(clips, alone=True)
        cuts = [halves([clip.shape[-1] for clip in clips])] if too_large else range(1, len(clips))
        bounds = [0, *cuts, len(clips)]
        return [wave for i, j in pairwise(bounds) for wave in self._waves(clips[i:j], alone)]

    def _finish(self, take: Take, waves: list[np.ndarray | str]) -> Any:
        """Delivers the result of a take that has ended: its audio, post-processed, or its error."""
        utterance = take.utterance
        speech = Speech(utterance.id, utterance.recipe, take.seed, self.tts.sample_rate, line=utterance.line)
        if take.error is None:
            try:
                with self.stats.timing("postprocess"):
                    audio = self._audio(waves, take)
                codes = np.concatenate([codes for _, codes in sorted(take.chunks.items())], axis=1)
                speech = replace(speech, audio=audio, codes=codes)
            except SynthesisError as error:
                take.fail(str(error))
            except Exception as error:
                take.fail(f"finishing failed: {reason(error)}; {_TRY_AGAIN}")
        speech = replace(speech, error=take.error, watched=take.watched())
        take.chunks.clear()
        take.traces.clear()
        with self.stats.timing("write"):
            return self.deliver(speech)

    def _audio(self, waves: list[np.ndarray | str], take: Take) -> np.ndarray:
        """The waveform of each chunk -> the finished one, float32 [samples]."""
        for wave in waves:
            if isinstance(wave, str):
                raise SynthesisError(wave)
        wave = join_chunks(waves)
        if not np.isfinite(wave).all():
            raise SynthesisError(f"the decoded audio is not finite: {_TRY_ANOTHER_SEED}")
        audio = postprocess(
            wave,
            ref_rms=None if take.voice is None else take.voice.rms,
            postprocess_output=take.utterance.recipe.postprocess_output,
            match_loudness=take.utterance.recipe.match_loudness,
        )
        if not audio.any():
            raise SynthesisError(f"came out as silence throughout: {_TRY_ANOTHER_SEED}")
        return audio


def _all_done(decoding: Future) -> bool:
    return decoding.done() and (decoding.exception() is not None or all(f.done() for f in decoding.result()))
