"""The training text: sentences from Debian packages, one a line, in a fixed random order.

    python -m training.text --out corpus.txt

needs the packages wordnet-base, fortunes, fortunes-min, bible-kjv and bible-kjv-text. The held-out sentences of
heldout.txt are left out, however they are written.
"""

import argparse
import random
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

HELDOUT = Path(__file__).parent / "heldout.txt"
WORDNET = Path("/usr/share/wordnet")
FORTUNES = Path("/usr/share/games/fortunes")
LEFT_OUT = {"ascii-art", "translate-me", "ethnic", "men-women", "drugs", "perl", "linuxcookie"}

SHORTEST, LONGEST = 12, 190  # characters of a sentence
_SPEAKABLE = re.compile(r"[A-Za-z0-9 ,.;:!?'\"()-]+")
_UNFIT = re.compile(r"sex|masturb|prostitut|genital|rape|penis|vagina|fuck|shit|nigger|^Q:|^A:|^\(", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z\"'])")
_NUMBER_FORMS = (
    "The number {n} comes after {m}.",
    "In {year} there were {n} of them.",
    "It costs {n} dollars and {m} cents.",
    "Chapter {m}, page {n}.",
    "The meeting is at {hour} o'clock on the {m}th.",
    "About {n} people live here, {m} percent of them alone.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the training text.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    lines = corpus(args.seed)
    args.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} lines, {sum(map(len, lines))} characters")


def corpus(seed: int) -> list[str]:
    """All lines, shuffled: sentences from the sources, single words and phrases, and numbers."""
    rng = random.Random(seed)
    examples, glosses = wordnet()
    definitions, verses = list(clean(glosses)), list(clean(bible()))
    sentences = [*clean(examples), *clean(fortunes()), *rng.sample(definitions, 20000), *rng.sample(verses, 5000)]
    lines = [written(sentence, rng) for sentence in sentences]
    lines += words(rng, 5000) + numbers(rng, 2500)
    held = {key(line) for line in heldout()}
    lines = [line for line in dict.fromkeys(lines) if key(line) not in held]
    rng.shuffle(lines)
    return lines


def heldout() -> list[str]:
    """The evaluation's sentences, never trained on."""
    return HELDOUT.read_text(encoding="utf-8").splitlines()


def key(line: str) -> str:
    """What makes two sentences the same: their words."""
    return " ".join(re.findall(r"[a-z0-9']+", line.lower()))


def clean(texts: Iterable[str]) -> Iterator[str]:
    """The sentences that are plain enough to be read aloud, with single spaces."""
    for text in texts:
        text = " ".join(text.split())
        fits = SHORTEST <= len(text) <= LONGEST and _SPEAKABLE.fullmatch(text) and not _UNFIT.search(text)
        if fits and text.upper() != text:
            yield text


def written(sentence: str, rng: random.Random) -> str:
    """Most as a writer would: a capital first, a full stop last. One in ten stays as it is."""
    if rng.random() < 0.1:
        return sentence
    sentence = sentence[0].upper() + sentence[1:]
    return sentence if sentence[-1] in ".!?" else sentence.rstrip(" ,;:-") + "."


def wordnet() -> tuple[list[str], list[str]]:
    """WordNet's example sentences and its definitions."""
    examples, glosses = [], []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (WORDNET / f"data.{part}").read_text(encoding="latin-1").splitlines():
            _, bar, gloss = line.partition(" | ")
            if bar:
                examples += re.findall(r'"([^"]+)"', gloss)
                glosses.append(re.sub(r'[;:]?\s*"[^"]*"', "", gloss).strip(" ;"))
    return examples, glosses


def fortunes() -> Iterator[str]:
    """Sentences of the fortune cookies, without the lines that name their authors."""
    for file in sorted(FORTUNES.iterdir()):
        if file.suffix or file.name in LEFT_OUT:
            continue
        for cookie in file.read_text(encoding="utf-8", errors="ignore").split("\n%\n"):
            spoken = [line for line in cookie.splitlines() if not line.strip().startswith("--")]
            yield from _SENTENCE_END.split(" ".join(spoken))


def bible() -> Iterator[str]:
    """The King James Bible's verses."""
    printed = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    for verse in printed.splitlines():
        yield verse.partition(" ")[2]


def words(rng: random.Random, count: int) -> list[str]:
    """Single words, pairs and triples from WordNet's index, as short items are in a manifest."""
    known = [line.split()[0] for line in (WORDNET / "index.noun").read_text(encoding="latin-1").splitlines()]
    known = [word.replace("_", " ") for word in known if re.fullmatch(r"[a-z_]{3,16}", word)]
    lines = []
    for _ in range(count):
        line = " ".join(rng.sample(known, rng.choice((1, 1, 1, 2, 3))))
        lines.append(line.capitalize() + rng.choice((".", ".", "!", "?", "")))
    return lines


def numbers(rng: random.Random, count: int) -> list[str]:
    return [
        rng.choice(_NUMBER_FORMS).format(
            n=rng.choice((rng.randint(1, 99), rng.randint(100, 9999))),
            m=rng.randint(4, 20),
            hour=rng.randint(1, 12),
            year=rng.randint(1500, 2050),
        )
        for _ in range(count)
    ]


if __name__ == "__main__":
    main()
