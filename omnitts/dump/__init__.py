"""Dumps: what the decoder saw at each step of an utterance, one file each. docs/dumps.md has the format.

dump = omnitts.dump.load("dumps/greeting.dump.safetensors")
dump.logprobs[-1].mean()
"""

from omnitts.dump.format import SUFFIX, Dump, Piece, load, paths, save

__all__ = ["SUFFIX", "Dump", "Piece", "load", "paths", "save"]
