"""omnitts: offline batch speech synthesis with a masked-diffusion model.

import omnitts
tts = omnitts.load("k2-fsa/OmniVoice")
speech = tts.synthesize(["Hello"], recipe="fast")[0]
speech.audio, speech.sample_rate, speech.codes
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["TTS", "InputError", "Speech", "SynthesisError", "load"]


def __getattr__(name: str) -> Any:
    # torch is imported on first use: `omnitts --help` and `omnitts check` do without it.
    if name == "InputError":
        from omnitts.errors import InputError

        return InputError
    if name in __all__:
        from omnitts import tts

        return getattr(tts, name)
    raise AttributeError(f"module 'omnitts' has no attribute {name!r}")
