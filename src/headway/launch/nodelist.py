"""Slurm's short form of host names: `node[3,7]`, `rack-a-n[009-011]`, `a1,b[2-3]`."""

from __future__ import annotations

import re
from collections import Counter

from headway.errors import Problem, UserError

_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_MOST_HOSTS = 100_000


def expand_nodelist(text: str) -> list[str]:
    """The names in order; the first is where rank 0 runs. Zeros before a number stay.

    Raises UserError where it is no such list.
    """
    names = [name for part in _parts(text) for name in _expand(part, text)]
    if not names:
        raise _wrong(text, "names no host")
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise _wrong(text, f"names {twice} twice")
    return names


def _parts(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth, current = [""], 0, 0
    for letter in text.strip():
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise _wrong(text, "its brackets do not close")
        if letter == "," and depth == 0:
            parts.append("")
            current += 1
        else:
            parts[current] += letter
    if depth:
        raise _wrong(text, "its brackets do not close")
    return [part.strip() for part in parts if part.strip()]


def _expand(part: str, whole: str) -> list[str]:
    match = _BRACKET.search(part)
    if match is None:
        return [part]
    found: list[str] = []
    for piece in match[1].split(","):
        ends = re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", piece)
        if ends is None or (ends[2] and int(ends[2]) < int(ends[1])):
            raise _wrong(whole, f"[{match[1]}] holds {piece!r}, which is no number or range")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        for number in range(first, last + 1):
            if len(found) > _MOST_HOSTS:
                raise _wrong(whole, f"is more than {_MOST_HOSTS} hosts")
            found += _expand(f"{part[: match.start()]}{number:0{len(ends[1])}d}{part[match.end() :]}", whole)
    return found


def _wrong(text: str, rule: str) -> UserError:
    return UserError(problems=[Problem("nodelist", rule, text, "write it as Slurm does: node[1-4,7]")])
