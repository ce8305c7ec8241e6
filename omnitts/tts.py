"""Text in, speech out: loads a checkpoint and runs prepare -> engine -> codec for any number of utterances."""

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from os import PathLike
from typing import Any

import numpy as np
import torch

from omnitts.audio import SAMPLE_RATE
from omnitts.engine import FLOAT8, Engine, accelerated, weights_dtype
from omnitts.errors import InputError, reason
from omnitts.manifest import Utterance, read_utterances
from omnitts.model.backbone import OmniVoice
from omnitts.model.checkpoint import Checkpoint, load_model, load_tokenizer, open_checkpoint, resolve_model
from omnitts.model.codec import load_codec
from omnitts.model.text import find_tags, has_words
from omnitts.model.voice import Voice, load_voice, prepare_reference
from omnitts.packing import DEFAULT_MAX_POSITIONS
from omnitts.pipeline import Pipeline, Progress, Silent
from omnitts.prepare import check_voices, tag_doubts
from omnitts.recipe import Recipe, load_recipe, shown, with_settings
from omnitts.recording import read_audio
from omnitts.speech import Speech, SynthesisError
from omnitts.stages import stages_for
from omnitts.stats import Stats
from omnitts.trace import Watch

WORTH_MEASURING = 200  # utterances

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "fp8": FLOAT8}
_FLOAT8_CAPABILITY = (8, 9)  # Ada, Hopper: the first whose matrix units take e4m3


def load(
    model: str | PathLike | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    cuda_graphs: bool = True,
) -> "TTS":
    """Loads a checkpoint: a folder, a hub id such as "k2-fsa/OmniVoice", or None for the bundled one.

    device: "auto" (the first GPU, else the CPU), "cpu", "cuda", "cuda:N", or a torch.device.
    dtype: of the backbone: "float32", "bfloat16", "float16", "fp8" (layers' products in e4m3, the rest in bfloat16; on
    a GPU that can), or "auto": float32 on the CPU, bfloat16 on a GPU; or torch's own.
    cuda_graphs: on a GPU, whether steps are captured as CUDA graphs; without them they take longer, and no capture.
    Raises InputError when the checkpoint or the device is not as it should be.
    """
    torch_device = resolve_device(device)
    checkpoint = open_checkpoint(resolve_model(model))
    return load_checkpoint(checkpoint, torch_device, resolve_dtype(dtype, torch_device), cuda_graphs=cuda_graphs)


def load_checkpoint(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    *,
    encoder: bool = False,
    cuda_graphs: bool = True,
) -> "TTS":
    """Reads the tensors of an opened checkpoint; with `encoder` also those that only references need.

    Without it these are read with the first reference.
    """
    tokenizer = load_tokenizer(checkpoint)
    model = load_engine(checkpoint, device, dtype, cuda_graphs=cuda_graphs)
    with _loading(checkpoint, device):
        codec = load_codec(checkpoint, device)
        if encoder:
            codec.encoder  # noqa: B018 (loads it, or says what is wrong with it)
    return TTS(checkpoint, tokenizer, model, codec, device, dtype)


def load_engine(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, *, cuda_graphs: bool = True
) -> OmniVoice | Engine:
    """The backbone alone, as what runs it fastest. dtype: as `resolve_dtype` gives it."""
    with _loading(checkpoint, device):
        model = load_model(checkpoint, device, weights_dtype(dtype))
        return accelerated(model, float8=dtype == FLOAT8, cuda_graphs=cuda_graphs)


@contextmanager
def _loading(checkpoint: Checkpoint, device: torch.device) -> Iterator[None]:
    """InputError where the device lacks the memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's own out-of-memory errors are RuntimeErrors
        raise InputError(f"cannot be loaded on {device}: {reason(error)}", file=checkpoint.path) from None


def needs_encoder(utterances: Iterable[Utterance]) -> bool:
    """Whether there are references to encode."""
    return any(utterance.ref_audio is not None for utterance in utterances)


def resolve_device(device: str | torch.device) -> torch.device:
    """ "auto" | "cpu" | "cuda" | "cuda:N" -> torch.device; InputError when it is not there."""
    name = str(device) if isinstance(device, torch.device) else device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if not isinstance(name, str) or not re.fullmatch("cuda(:[0-9]+)?", name):
        raise InputError(f"no device is called {shown(name)}: use auto, cpu, cuda or cuda:N", field="device")
    if not torch.cuda.is_available():
        raise InputError("torch sees no CUDA device here: use cpu, or install a CUDA build of torch", field="device")
    _, _, index = name.partition(":")
    last = torch.cuda.device_count() - 1
    if int(index or 0) > last:
        raise InputError(f"there is no {name}: the devices here are cuda:0 to cuda:{last}", field="device")
    return torch.device("cuda", int(index)) if index else torch.device("cuda")


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """A dtype, or the one of a name; auto is float32 on the CPU, where it repeats to the bit, and bfloat16 on a GPU.

    That of "fp8" is torch.float8_e4m3fn. Raises InputError for an unknown name, and for fp8 where it cannot run.
    """
    name = dtype_name(dtype) if isinstance(dtype, torch.dtype) else dtype
    if name == "auto":
        name = "float32" if device.type == "cpu" else "bfloat16"
    if not isinstance(name, str) or name not in _DTYPES:
        raise InputError(f"no dtype is called {shown(name)}: use auto, {', '.join(_DTYPES)}", field="dtype")
    if _DTYPES[name] == FLOAT8:
        _check_float8(device)
    return _DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """As recipes and `resolve_dtype` call it."""
    return next((name for name, known in _DTYPES.items() if known == dtype), str(dtype).removeprefix("torch."))


def _check_float8(device: torch.device) -> None:
    needed = "fp8 needs a GPU of compute capability 8.9 or later"
    if device.type == "cpu":
        raise InputError(f"{needed}, and this is a CPU: use bfloat16, or float32", field="dtype")
    capability = torch.cuda.get_device_capability(device)
    if capability < _FLOAT8_CAPABILITY:
        has = ".".join(map(str, capability))
        message = f"{needed}, and {torch.cuda.get_device_name(device)} has {has}: use bfloat16"
        raise InputError(message, field="dtype")


def _plain(value: Any) -> Any:
    """numpy's scalars, as data frames give them, are not numbers to what checks the fields of a line."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _listed(items: Any) -> Iterable[Any]:
    """The items as something to go through; a text or a mapping that stands alone is one of them."""
    if isinstance(items, str | Mapping):
        return [items]
    # Bytes and data frames can be gone through too, but are not what they give: numbers, and the names of columns.
    if not isinstance(items, Iterable) or isinstance(items, bytes | bytearray) or hasattr(items, "columns"):
        raise InputError(f"wanted a text, a mapping with one, or a list of these, got {shown(items)}", field="items")
    return items


def _record(number: int, item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, Mapping):
        return _plain(item)
    raise InputError(f"wanted a text or a mapping with one, got {shown(item)}", file="items", line=number)


def _as_it_is(speech: Speech) -> Speech:
    return speech


def _not_watched(utterance: Utterance) -> None:
    return None


def _never() -> bool:
    return False


class TTS:
    """A loaded checkpoint. `synthesize` is for Python, `stream` for jobs, `encode_voice` for references."""

    sample_rate = SAMPLE_RATE

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: Any,
        model: Any,
        codec: Any,
        device: torch.device,
        dtype: torch.dtype,
    ):
        self.checkpoint = checkpoint
        self.tokenizer = tokenizer
        self.model = model
        self.codec = codec
        self.device = device
        self.dtype = dtype
        self._reference_voice = lru_cache(maxsize=4096)(self._encode_reference)
        self._stored_voice = lru_cache(maxsize=4096)(load_voice)

    def synthesize(
        self,
        items: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]],
        *,
        recipe: str | PathLike | Recipe = "default",
        max_positions: int | None = None,
        **settings: Any,
    ) -> list[Speech]:
        """Makes speech of texts, or of mappings with a manifest line's fields, and returns it in their order.

        items: a text or mapping that stands alone is taken as a list of one. Messages count from 1: items:1.
        recipe: a name, a file or a Recipe; further keywords override its settings (num_step=24).
        max_positions: most positions in a batch; None suits the device: 1024 on a CPU, 8192 on a GPU or, for 200
        utterances and more, what takes the least time there (measured once for a card, and kept).
        Raises InputError for bad input before any work starts; SynthesisError, which has the audio of the others,
        when an utterance fails.
        """
        records = [_record(number, item) for number, item in enumerate(_listed(items), 1)]
        chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
        chosen = with_settings(chosen, _plain(settings))
        self._check_precision(chosen)
        utterances = read_utterances(records, recipe=chosen)
        voices: dict[str, int] = {}
        tags: dict[str, int] = {}
        for utterance in utterances:
            if utterance.voice is not None:
                voices.setdefault(utterance.voice, utterance.line)
            for tag in find_tags(utterance.text):
                tags.setdefault(tag, utterance.line)
        check_voices(self.checkpoint, voices, file="items")
        for message in tag_doubts(self.checkpoint, tags, file="items"):
            warnings.warn(message, stacklevel=2)
        if needs_encoder(utterances):
            self.codec.encoder  # noqa: B018 (loads it, or says what is wrong with it)
        made = self.stream(utterances, max_positions=max_positions, file="items")
        done = {speech.id: speech for speech in made}
        results = [done[utterance.id] for utterance in utterances]
        failures = [f"{speech.id}: {speech.error}" for speech in results if speech.error is not None]
        if failures:
            raise SynthesisError("\n".join(failures), results)
        return results

    def stream(
        self,
        utterances: Collection[Utterance],
        *,
        max_positions: int | None = None,
        progress: Progress | None = None,
        stats: Stats | None = None,
        deliver: Callable[[Speech], Any] = _as_it_is,
        file: str | None = None,
        watch: Callable[[Utterance], Watch | None] = _not_watched,
        stopping: Callable[[], bool] = _never,
    ) -> Iterator[Any]:
        """Makes all utterances and yields each as soon as it is complete, in the order in which they are.

        An utterance's result does not depend on the others, nor on max_positions (on the CPU, to the last bit).
        One that fails, for whatever reason, is a Speech with an `error`, and costs no other.

        deliver: is called with each Speech as soon as that is there, and makes what is yielded of it. With a GPU
        several threads call it, while the engine goes on. stats: gets the run's times added.
        file: the manifest, as errors call it. watch: what to keep of an utterance's loops, for its Speech's `watched`.
        stopping: is asked between batches; once it says so the run ends, with what was begun.
        Raises DeviceLost when the GPU fails for good.
        """
        if max_positions is None:
            max_positions = self.positions_for(len(utterances))
        if not isinstance(max_positions, int | np.integer) or max_positions < 1:
            raise InputError(f"wanted a whole number from 1, got {shown(max_positions)}", field="max_positions")
        stages = stages_for(self.device)
        told = progress or Silent(), stats or Stats()
        yield from Pipeline(self, stages, int(max_positions), *told, deliver, watch, stopping, file).run(utterances)

    def positions_for(self, utterances: int) -> int:
        """Positions in a batch: those that suit the device, measured where that is worth its seconds."""
        if self.device.type == "cuda" and utterances >= WORTH_MEASURING and not isinstance(self.model, OmniVoice):
            from omnitts.knee import best_positions

            return best_positions(self.model)
        return DEFAULT_MAX_POSITIONS[self.device.type]

    def encode_voice(self, ref_audio: str | PathLike, text: str, *, preprocess: bool = True) -> Voice:
        """Encodes reference audio and its transcript once, for use as a `voice`. Raises InputError."""
        if not isinstance(ref_audio, str | PathLike):
            raise InputError(f"wanted a path, got {shown(ref_audio)}", field="ref_audio")
        if not isinstance(text, str) or not has_words(text):
            raise InputError(f"wanted the words spoken in the recording, got {shown(text)}", field="text")
        audio, sample_rate = read_audio(ref_audio)
        try:
            reference = prepare_reference(audio, sample_rate, text, preprocess=preprocess)
        except InputError as error:
            raise InputError(error.message, file=ref_audio) from None
        codes = self.codec.encode(reference.wave)
        return Voice(codes, reference.text, reference.rms, self.checkpoint.codec_digest)

    def _check_precision(self, recipe: Recipe) -> None:
        loaded = dtype_name(self.dtype)
        if recipe.precision not in ("auto", loaded):
            raise InputError(
                f"{recipe.precision}, but the model was loaded in {loaded}: give load() this dtype", field="precision"
            )

    def voice_of(self, utterance: Utterance) -> Voice | None:
        """The reference of an utterance: a stored voice, encoded audio (cached), or None. Raises InputError."""
        if utterance.voice is not None:
            return self._stored_voice(utterance.voice)
        if utterance.ref_audio is not None:
            return self._reference_voice(utterance.ref_audio, utterance.ref_text, utterance.recipe.preprocess_prompt)
        return None

    def _encode_reference(self, ref_audio: str, ref_text: str, preprocess: bool) -> Voice:
        return self.encode_voice(ref_audio, ref_text, preprocess=preprocess)
