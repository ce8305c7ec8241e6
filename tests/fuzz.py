"""Random mutations of a manifest and of a recipe: whatever they are, a command ends with 0, 1 or 2, and says why.

python -m tests.fuzz 10000 [SEED]
"""

import contextlib
import io
import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile

from omnitts import cli
from omnitts.model.voice import Voice, save_voice

RECORDS = (
    {"id": "a", "text": "Hello there.", "language": "en", "instruct": "female, low pitch", "speed": 1.2},
    {"id": "b", "text": "[laughter] Guten Tag!", "lang": "de", "duration": 2.5, "seed": 7, "recipe": {"num_step": 8}},
    {"id": "c", "text": "你好，世界。", "recipe": "fast", "seed": "random"},
    {"id": "d", "text": "Hi.", "ref_audio": "a.wav", "ref_text": "So."},
    {"id": "e", "text": "Hi.", "voice": "a.safetensors"},
)
RECIPE = "num_step: 16\nguidance_scale: 1.5\nt_shift: 0.2\nprecision: auto\nseed: 3\npreprocess_prompt: true\n"
VALUES = (
    *(None, True, False, 0, -1, 1e308, -0.0, 10**30, float("nan"), float("inf"), "", " ", "\0", "\ud800", "a" * 5000),
    *([], [1], {}, {"num_step": 0}, {"recipe": "fast"}, "../../etc/passwd", ".", "-", "fast", "random", "\u202e", "ﬀ"),
)
ALPHABET = '{}[]:,"\\\n\r\t \0\ufeff\u2028aé你0-.eE'


def mutated_record(random: random.Random) -> str:
    record = dict(random.choice(RECORDS))
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        key = random.choice([*record, "unknown", "", "ID"])
        if random.random() < 0.2:
            record.pop(key, None)
        else:
            record[key] = random.choice(VALUES)
    return json.dumps(record, ensure_ascii=random.random() < 0.5)


def mutated(random: random.Random, data: bytes) -> bytes:
    """Some bytes changed, cut out, doubled or put in."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 0, 1, 1, 2, 5))):
        at, length = random.randrange(len(changed) + 1), random.choice((1, 1, 2, 20))
        kind = random.randrange(4)
        if kind == 0:
            changed[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 1:
            del changed[at : at + length]
        elif kind == 2:
            changed[at:at] = changed[at : at + length]
        else:
            changed[at:at] = "".join(random.choices(ALPHABET, k=length)).encode()
    return bytes(changed)


def run(*arguments: str) -> tuple[int, str]:
    """A command in this process: (exit code, what went to stderr)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(list(arguments))
        except SystemExit as ended:
            return ended.code or 0, err.getvalue()
    raise AssertionError("a command did not end")


def fuzz(count: int, seed: int) -> dict[int, int]:
    """How often each exit code came. Raises AssertionError for another one, or for one without a word."""
    chance, codes = random.Random(seed), {0: 0, 1: 0, 2: 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        soundfile.write(folder / "a.wav", 0.1 * np.sin(np.arange(24_000) / 20), 24_000)
        save_voice(folder / "a.safetensors", Voice(np.zeros((8, 25), np.int16), "So.", 0.1, "0123"))
        for number in range(count):
            lines = [mutated_record(chance) for _ in range(chance.randint(0, 4))]
            manifest = folder / f"lines{chance.choice(('.jsonl', '.jsonl', '.txt', '.lst', ''))}"
            text = "\n".join(lines).encode("utf-8", "surrogatepass")
            manifest.write_bytes(mutated(chance, text))
            recipe = folder / "recipe.yaml"
            recipe.write_bytes(mutated(chance, RECIPE.encode()))
            options = ["--recipe", str(recipe)] if chance.random() < 0.5 else []
            if chance.random() < 0.2:
                options += ["--set", mutated(chance, b"num_step=4").decode("utf-8", "replace").replace("\0", "")]
            command = "plan" if chance.random() < 0.05 else "check"
            code, said = run(command, str(manifest), *options)
            assert code in codes, (number, code, said)
            assert code != 2 or "error: " in said, (number, code, said)
            assert "Traceback" not in said, (number, said)
            codes[code] += 1
            manifest.unlink()
    return codes


if __name__ == "__main__":
    print(fuzz(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
