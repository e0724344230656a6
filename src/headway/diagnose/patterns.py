"""One signature: a pattern, its cause and its fix, and the texts by which a line is passed over quickly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# strong: the failure itself; weak: healthy starts say it too (a connection tried again); echo: of another rank's end;
# launcher: that a rank ended, by one who does not know why.
Strength = Literal["strong", "weak", "echo", "launcher"]


@dataclass(frozen=True)
class Signature:
    """`cause` and `fix` may name the pattern's groups: {shape}."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    strength: Strength = "strong"
    hints: tuple[str, ...] = ()  # a line without any of them cannot fit; none: any line may

    def words(self, match: re.Match[str]) -> tuple[str, str]:
        """(cause, fix) with what the line says filled in."""
        groups = {name: value or "?" for name, value in match.groupdict().items()}
        unsaid = re.compile(r" \([^()]*\?\)")
        return unsaid.sub("", self.cause.format(**groups)), unsaid.sub("", self.fix.format(**groups))


def sign(name: str, pattern: str, cause: str, fix: str, strength: Strength = "strong") -> Signature:
    return Signature(name, re.compile(pattern, re.IGNORECASE), cause, fix, strength, hints_of(pattern))


_TOKEN = re.compile(
    r"\\(?P<escaped>.)|(?P<opens>[(\[])|(?P<times>[?*+]|\{[\d,]+\})|(?P<any>[.^$])|(?P<bar>\|)|(?P<plain>.)"
)
_LEAST = 3  # characters: shorter texts stand in too many lines


def hints_of(pattern: str) -> tuple[str, ...]:
    """Of each alternative the longest text that it cannot do without, in lower case; () where one has none.

    To look for a text is a hundred times faster than to search by the pattern, and a log has a million lines.
    """
    best, run, found, at = "", "", list[str](), 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            return ()
        at, kind = token.end(), token.lastgroup
        letter = token["plain"] or (token["escaped"] if token["escaped"] and not token["escaped"].isalnum() else "")
        if kind == "times":  # what is before it may be absent, or repeated
            run = run if token["times"] == "+" else run[:-1]
        best = max(best, run, key=len)
        run = run + letter if letter else ""
        if kind == "opens":
            at = _behind(pattern, token.start())
        elif kind == "bar":
            found.append(best)
            best = ""
    found.append(max(best, run, key=len))
    return tuple(text.lower() for text in found) if min(map(len, found)) >= _LEAST else ()


def _behind(pattern: str, start: int) -> int:
    """The place behind the group or class that opens at `start`."""
    depth, in_class, at = 0, False, start
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class = True
        else:
            depth += {"(": 1, ")": -1}.get(letter, 0)
        at += 1
        if depth == 0 and not in_class:
            return at
    return at
