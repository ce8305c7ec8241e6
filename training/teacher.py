"""The teacher: the voices slt and rms of flite, through its C library.

The library and voices come with Debian's package libflite1; FLITE_PATH names another folder that has them.
"""

import ctypes
import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

RATE = 16_000  # samples a second
PHONE_RATE = 50  # phone labels a second: two a frame
SPEAKERS = ("slt", "rms")
GENDERS = ("female", "male")

PHONES = (
    *("pau", "aa", "ae", "ah", "ao", "aw", "ax", "ay", "b", "ch", "d", "dh", "eh", "er", "ey", "f", "g", "hh", "ih"),
    *("iy", "jh", "k", "l", "m", "n", "ng", "ow", "oy", "p", "r", "s", "sh", "t", "th", "uh", "uw", "v", "w", "y"),
    *("z", "zh"),
)
_PHONE_NUMBER = {name: number for number, name in enumerate(PHONES)}


@dataclass(frozen=True)
class Spoken:
    """What flite made of a text."""

    wave: np.ndarray  # int16 [N] at 16 kHz
    phones: np.ndarray  # uint8 [ceil(N / 320)], numbers in PHONES, 50 a second
    order: np.ndarray  # int16, as long: which of the utterance's phones it is, counted from 0


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _Relation(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("name", "features", "utterance", "head", "tail"))


class _Voice(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


class Teacher:
    """Both voices, loaded once a process."""

    def speak(self, text: str, speaker: int, stretch: float = 1.0) -> Spoken:
        """Says an ASCII text; `stretch` multiplies all durations."""
        flite, voice = self._library, self._voices[speaker]
        flite.flite_feat_set_float(voice.contents.features, b"duration_stretch", stretch)
        utterance = flite.flite_synth_text(text.encode("ascii"), voice)
        try:
            wave = flite.utt_wave(utterance).contents
            samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).copy()
            return Spoken(samples, *self._labels(utterance, len(samples)))
        finally:
            flite.delete_utterance(utterance)

    def _labels(self, utterance: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
        flite = self._library
        names, ends = [], []
        item = flite.utt_relation(utterance, b"Segment").contents.head
        while item:
            names.append(_PHONE_NUMBER.get(flite.item_feat_string(item, b"name").decode(), 0))
            ends.append(flite.item_feat_float(item, b"end"))
            item = flite.item_next(item)
        if not names:
            names, ends = [0], [0.0]
        middle = (np.arange(-(-samples * PHONE_RATE // RATE)) + 0.5) / PHONE_RATE
        order = np.searchsorted(ends, middle).clip(max=len(names) - 1)
        return np.array(names, np.uint8)[order], order.astype(np.int16)

    @cached_property
    def _library(self) -> ctypes.CDLL:
        flite = _load("flite")
        for name in ("usenglish", "cmulex"):
            _load(f"flite_{name}")
        flite.flite_init()
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        for name, result, *arguments in (
            ("flite_synth_text", pointer, text, ctypes.POINTER(_Voice)),
            ("flite_feat_set_float", None, pointer, text, ctypes.c_float),
            ("utt_wave", ctypes.POINTER(_Wave), pointer),
            ("utt_relation", ctypes.POINTER(_Relation), pointer, text),
            ("item_feat_string", text, pointer, text),
            ("item_feat_float", ctypes.c_float, pointer, text),
            ("item_next", pointer, pointer),
            ("delete_utterance", None, pointer),
        ):
            function = getattr(flite, name)
            function.restype, function.argtypes = result, arguments
        return flite

    @cached_property
    def _voices(self) -> list:
        _ = self._library  # the voices are linked to it
        voices = []
        for speaker in SPEAKERS:
            register = getattr(_load(f"flite_cmu_us_{speaker}"), f"register_cmu_us_{speaker}")
            register.restype, register.argtypes = ctypes.POINTER(_Voice), [ctypes.c_void_p]
            voices.append(register(None))
        return voices


def _load(name: str) -> ctypes.CDLL:
    file = f"lib{name}.so.1"
    folder = os.environ.get("FLITE_PATH")
    return ctypes.CDLL(os.path.join(folder, file) if folder else file, mode=ctypes.RTLD_GLOBAL)
