"""A unified diff as the hunks a reviewer walks, each with a hash that survives line shifts."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as PatchHunk
from unidiff.patch import PatchSet

MAX_DIFF_LINES = 20_000

_MARK = re.compile(r"^hunk:([0-9a-f]{12})(?: |$)")
_QUOTED = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


class UnreadableDiff(ValueError):
    """The text is not a unified diff."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """One block of a file's diff, seen from the new side."""

    path: str
    hash: str
    """12 hex digits over the path, the changed lines and the nearest context line on either side."""
    start: int
    lines: tuple[tuple[int, str, bool], ...] = field(repr=False)
    """`(line number in the new file, text, was it added)` of every line the new file has here."""

    @property
    def added(self) -> dict[int, str]:
        """The added lines by their number in the new file: the lines a comment may hang on."""
        return {number: text for number, text, is_added in self.lines if is_added}


def hunks(diff: str) -> list[Hunk]:
    """The hunks of a diff that add something; removed files, binaries and pure renames have none."""
    found = []
    for path, hunk, key in _walk(_parse(diff)):
        lines = tuple(
            (line.target_line_no or 0, line.value.rstrip("\r\n"), line.is_added) for line in hunk.target_lines()
        )
        if any(is_added for _, _, is_added in lines):
            found.append(Hunk(path=path, hash=key, start=hunk.target_start, lines=lines))
    return found


def mark(diff: str) -> str:
    """The same diff with `hunk:HASH` in each hunk's header, so that whoever reads it can name a hunk."""
    patch = _parse(diff)
    for _, hunk, key in list(_walk(patch)):
        if not _MARK.match(hunk.section_header):
            hunk.section_header = f"hunk:{key} {hunk.section_header}".rstrip()
    return str(patch)


def shortened(diff: str, left_out: Sequence[str] = ()) -> str:
    """The files of a diff that fit in MAX_DIFF_LINES together, after a line for each that was left out."""
    kept: list[str] = []
    notes = list(left_out)
    used = 0
    # Lines inside a hunk begin with a space, + or -, so only a file's header starts with these words.
    for part in filter(None, re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE)):
        size = part.count("\n")
        if used + size <= MAX_DIFF_LINES:
            kept.append(part)
            used += size
        else:
            notes.append(f"{_path_in_header(part)}, too long ({size:,} lines)")
    return "".join(f"Left out: {note}\n" for note in notes) + "".join(kept)


def _path_in_header(part: str) -> str:
    header = part.partition("\n")[0]
    if header.endswith('"'):
        return _unquoted('"' + header.rpartition('"b/')[2])
    return header.rpartition(" b/")[2]


def notes_of(diff: str) -> list[str]:
    """What `shortened` left out."""
    head = diff.partition("diff --git ")[0]
    return [line.removeprefix("Left out: ") for line in head.splitlines() if line.startswith("Left out: ")]


def _parse(diff: str) -> PatchSet:
    try:
        return PatchSet(diff)
    except (UnidiffParseError, AssertionError) as error:
        raise UnreadableDiff(f"This is not a unified diff: {error}.") from error


def _walk(patch: PatchSet) -> Iterator[tuple[str, PatchHunk, str]]:
    for patched in patch:
        path = _unquoted(patched.path)
        seen: Counter[str] = Counter()
        for hunk in patched:
            marked = _MARK.match(hunk.section_header)
            key = marked[1] if marked else _hash(path, hunk, seen)
            yield path, hunk, key


def _unquoted(path: str) -> str:
    """A path as it is; git writes one with other characters than plain ASCII in quotes, bytes as octal numbers."""
    if not (len(path) > 1 and path.startswith('"') and path.endswith('"')):
        return path

    def character(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 255]) if len(code) == 3 else _ESCAPES.get(code, code)

    return _QUOTED.sub(character, path[1:-1].encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _hash(path: str, hunk: PatchHunk, seen: Counter[str]) -> str:
    changed = [index for index, line in enumerate(hunk) if line.is_added or line.is_removed]
    # One context line on each side tells apart two places that get the same change; with more of them the
    # hash would follow edits nearby.
    first, last = (changed[0], changed[-1]) if changed else (0, len(hunk) - 1)
    before = next((line for line in reversed(hunk[:first]) if line.value.strip()), None)
    after = next((line for line in hunk[last + 1 :] if line.is_context and line.value.strip()), None)
    parts = [
        path,
        *(str(line).rstrip() for line in (before, *hunk[first : last + 1], after) if line is not None),
    ]
    text = "\n".join(parts)
    seen[text] += 1
    if seen[text] > 1:
        text += f"\n#{seen[text]}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
