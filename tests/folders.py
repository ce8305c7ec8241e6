"""Random folders, where somebody's files and omnitts's lie side by side: whatever is run there, and however it ends, no
file that omnitts did not write is another one afterwards, or gone.

python -m tests.folders 2000 [SEED]; one folder again: python -m tests.folders 1 SEED FIRST
"""

import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile

from omnitts.dump.format import SUFFIX
from omnitts.fingerprint import file_digest
from omnitts.results import read_results

CHECKPOINT = Path(__file__).parent / "fixtures" / "checkpoint"
IDS = ("anna", "ben", "Anna", "results", "summary", "000000", "zoe\u0301", "zo\u00e9", "line-1", "notes", "a b")
TEXTS = ("Hello.", "Good day.", "How are you?", "Yes.")
WORDS = "The words that are spoken in it."
SYNTH_OPTIONS = (
    *([], [], ["--overwrite"], ["--retry-failed"], ["--keep-going"], ["--keep-going"], ["--limit", "2"]),
    *(["--format", "flac"], ["--layout", "nested:1"], ["--webdataset", "2"], ["--save-codes"], ["--shard", "1/2"]),
    *(["--dump-logprobs", "dumps"], ["--dump-logprobs", "."], ["--replace-files"], ["--overwrite"]),
)
FOREIGN = re.compile(r"omnitts did not write: (.*?)(?: and \d+ more)?; move them")
KILLED, ALONE = -9, ("--limit", "--shard")


def wave(random: random.Random) -> bytes:
    """A recording of half a second, another one each time."""
    noise = np.random.default_rng(random.getrandbits(32)).normal(0, 0.1, 10_000 + random.randrange(4_000))
    buffer = io.BytesIO()
    soundfile.write(buffer, noise, 24_000, format="WAV")
    return buffer.getvalue()


def state(path: Path) -> str:
    """What is at a path: a link's aim, or a file's digest."""
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    return hashlib.blake2b(path.read_bytes()).hexdigest() if path.is_file() else "nothing"


@dataclass
class Folder:
    """A folder, what of it is somebody's, and the commands that were run in it."""

    root: Path
    random: random.Random
    mine: dict[Path, str] = field(default_factory=dict)  # -> its state
    inputs: set[Path] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)

    # ---- What somebody does ----

    def put(self, name: str, data: bytes) -> Path:
        """Puts down a file of somebody's, unless one is there."""
        path = self.root / name
        if not os.path.lexists(path) and path.parent.is_dir():
            path.write_bytes(data)
            self.mine[path] = state(path)
        return path

    def link(self, name: str, aim: str, soft: bool) -> None:
        path = self.root / name
        if os.path.lexists(path) or not (soft or (self.root / aim).is_file()):
            return
        if soft:
            path.symlink_to(aim)
        else:
            os.link(self.root / aim, path)
        self.mine[path] = state(path)

    def furnish(self) -> None:
        pick = self.random
        for name in ("anna.wav", "ben.wav", "rec.wav", *pick.sample(["Anna.wav", "zo\u00e9.wav", "results.wav"], 2)):
            self.put(name, wave(pick))
        if pick.random() < 0.2:
            self.put("damaged.wav", wave(pick)[:9_000])
        for name in (
            "notes.txt",
            "summary.json",
            "results.jsonl",
            "000000.tar",
            "a.codes.npy",
            ".hidden",
            "line-1.flac",
        ):
            if pick.random() < 0.12:
                # Of omnitts's own files of these names an empty one may be left, or a beginning.
                beginnings = [] if name in ("results.jsonl", "summary.json") else [b"", b'{"id": "']
                self.put(name, pick.choice([b'{"text": "mine"}\n', bytes(pick.randbytes(90)), *beginnings]))
        for folder in ("out", "dumps", "far"):
            if pick.random() < 0.4:
                (self.root / folder).mkdir()
        if pick.random() < 0.2:
            self.link("again", ".", soft=True)
        for _ in range(pick.choice([0, 0, 1, 2])):
            name = pick.choice(["hard.wav", "soft.wav", "notes.wav", "line-1.wav", "out/anna.wav", "results.jsonl"])
            if (self.root / name).parent.is_dir():
                soft = pick.random() < 0.5
                aim = pick.choice(["anna.wav", "gone.wav", "notes.txt"])
                self.link(name, os.path.relpath(self.root / aim, (self.root / name).parent) if soft else aim, soft)
        self.put("recipe.yaml", b"num_step: 1\n")

    def manifest(self) -> Path:
        """Writes a manifest, or changes the one that is there."""
        pick = self.random
        name = pick.choice(["lines.jsonl", "lines.jsonl", "other.jsonl", "list.txt", "results.jsonl", "out.jsonl"])
        path = self.root / name
        if path.suffix == ".txt":
            text = "".join(f"{pick.choice(TEXTS)}\n" for _ in range(pick.randrange(1, 4)))
        else:
            ids = pick.sample(IDS, pick.randrange(1, 5))
            text = "".join(json.dumps(self.record(id), ensure_ascii=False) + "\n" for id in ids)
        if os.path.lexists(path) and path not in self.mine:
            return path  # omnitts's own results: a bad manifest, too
        if path.is_symlink() or path.is_dir():
            return path
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
        self.mine[path] = state(path)
        return path

    def record(self, id: str) -> dict:
        pick = self.random
        record = {"id": id, "text": pick.choice([*TEXTS, *TEXTS, "..."])}
        if pick.random() < 0.4:
            record |= {
                "ref_audio": pick.choice(["anna.wav", "ben.wav", "rec.wav", f"{id}.wav", "damaged.wav", "none.wav"])
            }
            record |= {"ref_text": WORDS}
        if pick.random() < 0.1:
            record["recipe"] = "recipe.yaml"
        return record

    def meddle(self) -> None:
        """Something that befalls a folder between two runs."""
        pick = self.random
        own = [path for path in self.files() if path not in self.mine and not path.name.startswith("results")]
        kind = pick.randrange(7)
        if kind == 0 and own:  # an output is cut; a dump, which another folder's results may tell of, is then nobody's
            path = pick.choice(own)
            os.truncate(path, pick.randrange(path.stat().st_size + 1))
            if path.name.endswith(SUFFIX):
                self.mine[path] = state(path)
        elif kind == 1 and own:  # lost
            pick.choice(own).unlink()
        elif kind == 2 and own and (path := pick.choice(own)).suffix in (".wav", ".flac", ".tar", ".npy"):
            path.unlink()  # another file takes its name
            path.write_bytes(pick.randbytes(200))
            self.mine[path] = state(path)
        elif kind == 3:
            name = unicodedata.normalize(pick.choice(["NFC", "NFD"]), pick.choice(IDS))
            folder = pick.choice(["", "out/"])
            self.put(f"{folder}{name}{pick.choice(['.wav', '.flac', '.codes.npy', '.dump.safetensors'])}", wave(pick))
        elif kind == 4 and not list(self.root.rglob("results-*")):
            for path in (self.root / "results.jsonl", self.root / "out" / "results.jsonl"):
                if path.is_file() and path not in self.mine:
                    path.unlink()
            # What no line tells of any more is as good as somebody's.
            lost = [path for path in own if path.suffix in (".wav", ".flac", ".npy", ".tar") and path.exists()]
            self.mine |= {path: state(path) for path in lost}

    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())

    # ---- What omnitts does ----

    def command(self) -> list[str]:
        pick, path = self.random, self.manifest()
        kind = pick.choices(["synth", "check", "plan", "voice", "report"], [12, 1, 1, 1, 1])[0]
        self.inputs = {path, self.root / "recipe.yaml"} | {
            self.root / name for name in re.findall(r'"ref_audio": "(.*?)"', self.text_of(path))
        }
        if kind == "voice":
            self.inputs = {self.root / "anna.wav"}
            out = pick.choice(["v.safetensors", "anna.wav", "new/v.safetensors", "out/anna.dump.safetensors"])
            return ["voice", "create", "anna.wav", "--text", WORDS, "-o", out, "--model", str(CHECKPOINT)]
        if kind == "report":
            return ["dump", "report", "dumps", "--wavs", ".", "-o", pick.choice(["r.html", "lines.jsonl", "anna.wav"])]
        out = pick.choice([".", ".", ".", "out", "again", "new"])
        command = [kind, path.name, "--out", out]
        if kind != "check":
            command += ["--model", str(CHECKPOINT)]
        if kind == "synth":
            for options in pick.sample(SYNTH_OPTIONS, pick.choice([1, 1, 2, 3])):
                if options[:1] == [] or options[0] not in command:
                    command += options
            command += ["--set", "num_step=1", "--recipe", pick.choice(["default", "recipe.yaml"])]
        return command

    @staticmethod
    def text_of(path: Path) -> str:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def run(self, command: list[str], kill: float | None = None) -> tuple[int, str]:
        """Runs a command in a process of its own; returns its exit code, and what it said."""
        self.told.append(f"{' '.join(command)}{'' if kill is None else f' (killed after {kill:.2f} s)'}")
        said = self.root.parent / "said"
        said.write_bytes(b"")
        child = os.fork()
        if child == 0:
            _become(command, self.root, said)
        code = _wait(child, kill)
        text = said.read_text(encoding="utf-8", errors="replace")
        self.told.append(f"    {code}: {text.strip()[-600:]}")
        self.counts[f"{command[0]} {'killed' if code == KILLED else code}"] += 1
        assert "Traceback" not in text, "a traceback"
        assert code in (0, 1, 2, KILLED), f"exit code {code}"
        return code, text

    def step(self) -> None:
        """A command, whole or killed; then the same again, if it was."""
        command = self.command()
        kill = self.random.uniform(0, 0.4) if self.random.random() < 0.25 and command[0] == "synth" else None
        code, said = self.run(command, kill)
        self.look(command)
        if code == KILLED:
            code, said = self.run(command)
            self.look(command)
        for names in FOREIGN.findall(said) if code == 2 else []:
            for name in re.sub(r" \(changed since it was written\)", "", names).split(", "):
                assert self.is_mine(name), f"refused for a file of its own: {name}"
        if command[0] == "synth" and code == 0 and not any(option in command for option in ALONE):
            self.look_for_all(self.root / command[1], self.root / command[3])

    def look_for_all(self, manifest: Path, out: Path) -> None:
        """Raises AssertionError unless each line of a manifest has all its files, as they were written."""
        told: dict[str, dict] = {}
        for path in sorted(out.glob("results*.jsonl"), key=lambda path: path.stat().st_mtime_ns):
            told |= {line["id"]: line for line in read_results(path)}
        for number, text in enumerate(self.text_of(manifest).splitlines(), 1):
            line = told[json.loads(text)["id"] if manifest.suffix == ".jsonl" else f"{number:06d}"]
            assert line["status"] == "ok" and line["files"], line
            for name, made in line["files"].items():
                assert file_digest(out / name) == made["digest"], f"{name} is not as it was written"

    def is_mine(self, name: str) -> bool:
        path = self.root / name.strip("'").encode().decode("unicode_escape" if "\\" in name else "utf-8")
        real = Path(os.path.realpath(path.parent), path.name)
        return real in self.mine or real not in self.files()

    def look(self, command: list[str]) -> None:
        """Raises AssertionError where a file of somebody's is not as it was."""
        for path, was in list(self.mine.items()):
            if (now := state(path)) == was:
                continue
            assert "--replace-files" in command and path not in self.inputs, f"{path.name} was {was}, is {now}"
            del self.mine[path]


def _become(command: list[str], folder: Path, said: Path) -> None:
    from omnitts import cli

    os.chdir(folder)
    for stream in (1, 2):
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600), stream)
    code = 99
    try:
        cli.main(command)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, kill: float | None) -> int:
    if kill is not None:
        end = time.monotonic() + kill
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def load_once() -> None:
    """All of it is imported and the model is loaded before processes are made, which share them."""
    import torch

    from omnitts import dump, fleet, job, losses, tts  # noqa: F401
    from omnitts.dump import report  # noqa: F401
    from omnitts.model.checkpoint import open_checkpoint

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    loaded = tts.load_checkpoint(open_checkpoint(CHECKPOINT), torch.device("cpu"), torch.float32, encoder=True)
    tts.load_checkpoint = lambda *arguments, **options: loaded


def try_folders(count: int, seed: int, first: int = 0) -> Counter:
    """Raises AssertionError with the seed, the folder and all that was done in it."""
    counts: Counter = Counter()
    for number in range(first, first + count):
        top = Path(tempfile.mkdtemp(prefix="omnitts-folders-"))
        (top / "root").mkdir()
        folder = Folder(top / "root", random.Random(f"{seed} {number}"), counts=counts)
        try:
            folder.furnish()
            for _ in range(folder.random.randrange(1, 5)):
                folder.step()
                folder.meddle()
        except Exception as error:
            history = "\n".join(folder.told)
            raise AssertionError(f"python -m tests.folders 1 {seed} {number}: {error}; in {top}\n{history}") from error
        counts["folders"] += 1
        shutil.rmtree(top)
    return counts


def main() -> None:
    numbers = [int(argument) for argument in sys.argv[1:]]
    count, seed, first = (*numbers, *(100, 0, 0)[len(numbers) :])
    load_once()
    start = time.monotonic()
    counts = try_folders(count, seed, first)
    print(f"{counts.pop('folders'):,} folders in {time.monotonic() - start:.0f} s: {dict(sorted(counts.items()))}")


if __name__ == "__main__":
    main()
