"""Names of utterances, which become names of files: what no system shall be asked for, and what not all can hold.

An id that breaks a rule of `refusal` is refused everywhere. One that breaks a rule of `doubts` is a good name here and
a bad one elsewhere, where the files may be copied to: it is warned of, or refused where that is asked for.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from numbers import Integral

from omnitts.errors import InputError
from omnitts.recipe import shown

MAX_ID_BYTES = 200  # leaves room in a file name, which has 255, for a suffix and a temporary name
_MOST_DIGITS_BITS = 4 * MAX_ID_BYTES  # of a whole number: Python does not print the largest ones

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HALF = re.compile(r"[\ud800-\udfff]")
_RESERVED = re.compile(r'[<>:"|?*]')
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\.|$)", re.IGNORECASE)
# What is not seen: what Unicode lets be ignored in display, controls of direction, joining and notes among them; and
# what is no character at all. As ranges, for asking each character for its category takes long.
_IGNORED = (
    r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    r"\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_NO_CHARACTER = r"\ufdd0-\ufdef" + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_HIDDEN = re.compile(f"[{_IGNORED}{_NO_CHARACTER}]")


def read_id(value: object) -> str:
    """An id as JSON or Python gives it, a whole number as its digits. Raises InputError for what cannot be one."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        if int(value).bit_length() > _MOST_DIGITS_BITS:
            raise InputError(f"an enormous number cannot name a file: give a name of 1 to {MAX_ID_BYTES} bytes")
        value = str(int(value))
    if not isinstance(value, str):
        raise InputError(f"wanted a text in quotes or a whole number, got {shown(value)}{_mend(value)}")
    if not value.strip():
        raise InputError("is blank: give a name, or leave it out and the line's number is taken")
    if (why := refusal(value)) is not None:
        raise InputError(f"{shown(value)} cannot name a file: {why}")
    return value


def _mend(value: object) -> str:
    if not isinstance(value, float):
        return ""
    whole = f"{int(value)}, or " if value.is_integer() and abs(value) < 1e15 else ""
    return f': write {whole}"{value!r}"'


def refusal(id: str) -> str | None:
    """Why an id may name no file, each of the rules that it breaks with its mend; None for one that may."""
    broken = []
    if "/" in id:
        broken.append("has a slash, which parts folders: write _ in its place")
    if "\\" in id:
        broken.append("has a backslash, which parts folders on Windows: write _ in its place")
    if found := _CONTROL.search(id):
        broken.append(f"has a control character or line break, {_called(found[0])}: leave it out")
    if found := _HALF.search(id):
        broken.append(f"has half a surrogate pair, {_called(found[0])}, which is no text: leave it out")
    if id[0] == ".":
        broken.append("begins with a dot, which hides files: write another character before it")
    if id[0] == "-":
        broken.append("begins with a dash, which commands take for an option: write another character before it")
    if id[0].isspace() and not _CONTROL.match(id):
        broken.append("begins with a blank: leave it out")
    if id[-1].isspace() and not _CONTROL.match(id[-1]):
        broken.append("ends with a blank: leave it out")
    size = len(id.encode("utf-8", "surrogatepass"))
    if size > MAX_ID_BYTES:
        broken.append(f"is {size:,} bytes long in UTF-8, of {MAX_ID_BYTES} that there is room for: shorten it")
    return "it " + ", and ".join(broken) if broken else None


def doubts(id: str) -> Iterator[tuple[str, str]]:
    """The rules that an id breaks which may name a file here, but not everywhere, as (rule, what to say of it)."""
    if found := _DEVICE.match(id):
        yield "device", f"{shown(id)} is no file to Windows, where {found[1].lower()!r} is a device: write another name"
    if found := _RESERVED.search(id):
        yield "reserved", f"{shown(id)} has {found[0]}, which no name may have on Windows: write - or _ in its place"
    if id[-1] == ".":
        yield "dot", f"{shown(id)} ends with a dot, which Windows cuts off: leave it out"
    if found := _HIDDEN.search(id):
        what = f"has {_called(found[0])}, which is not seen and not kept everywhere"
        yield "hidden", f"{shown(id)} {what}: leave it out"
    if not unicodedata.is_normalized("NFC", id):
        composed = "is not in Unicode's form NFC, into which some systems turn names"
        yield "form", f"{shown(id)} {composed}: write it so, with composed letters"


def _called(character: str) -> str:
    """`U+202E RIGHT-TO-LEFT OVERRIDE`."""
    return f"U+{ord(character):04X} {unicodedata.name(character, '')}".rstrip()


def name_hash(name: str) -> int:
    """64 bits that stand for a name: among a million, two share them once in thirty million manifests."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def folded(id: str) -> str:
    """What an id comes to on the most forgetful of file systems: without case, form and unseen characters.

    Equal for two ids that are one name on some file system: those of Windows and macOS, or ext4 with folded case.
    """
    if id.isascii():
        return id.lower()
    seen = _HIDDEN.sub("", id)
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", seen).casefold())


@dataclass
class Names:
    """The ids of a manifest so far, as hashes: a million names take a tenth of the memory so."""

    lines: dict[int, int] = field(default_factory=dict)  # of the id itself -> its line
    folds: dict[int, int] = field(default_factory=dict)  # of what it comes to, where that is another name

    def add(self, id: str, line: int) -> tuple[int | None, int | None]:
        """The line before that has this id, and one that has, folded, the same; None without one."""
        own, fold = name_hash(id), folded(id)
        if (first := self.lines.setdefault(own, line)) != line:
            return first, None
        if fold == id:
            return None, self.folds.get(own)
        key = name_hash(fold)
        twin = self.lines.get(key, self.folds.get(key))
        self.folds.setdefault(key, line)
        return None, twin


def twin_doubt(id: str, other: str) -> str:
    """What to say of an id that is another's twin. other: where that one is, `line 3`."""
    blind = "that ignore case or the form of letters, such as those of Windows and macOS"
    return f"{shown(id)} and the id of {other} are one name to file systems {blind}: change one of them"
