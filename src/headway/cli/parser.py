"""The command line: from the table of verbs to argparse, with help that fits on a screen and errors that help."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from headway import __version__
from headway.cli.deepspeed import overrides_of
from headway.cli.verbs import VERBS, Verb
from headway.errors import UserError

_HEAD = """\
usage: headway VERB [...]

Train transformer models from one run file: planned, checked, resumable, exported.
"""
_TAIL = """\
  headway VERB --help    what a verb does, with an example
  headway --version
"""


class _Parser(argparse.ArgumentParser):
    """Raises UserError in place of printing a usage text and leaving."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}", fix=f"see {self.prog} --help")


def help_text() -> str:
    """The page of `headway --help`."""
    width = max(len(verb.name) for verb in VERBS) + 2
    lines = [_HEAD]
    lines += [f"  {verb.name.ljust(width)}{verb.summary}" for verb in VERBS if not verb.more]
    lines += ["", "more:"]
    lines += [f"  {verb.name.ljust(width)}{verb.summary}" for verb in VERBS if verb.more]
    return "\n".join([*lines, "", _TAIL])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of one verb; `options.run(options)` does it.

    KEY=VALUE words are overrides wherever they stand, so they may come between options.

    Raises:
        UserError: no such verb or option, or something is missing.
        SystemExit: help or version was asked for, and printed.
    """
    words = list(arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        raise SystemExit(0)
    if words[0] in ("--version", "version"):
        print(f"headway {__version__}")
        raise SystemExit(0)
    verb, rest = _verb(words)
    parser = _parser(verb)
    options, unread = parser.parse_known_args(rest)
    extra = [word for word in unread if _is_override(word)]
    wrong = [word for word in unread if not _is_override(word)]
    if verb.takes_overrides:
        _collect_overrides(options, extra, wrong)
    elif extra:
        raise _unread(wrong or extra, parser)
    if wrong:
        raise _unread(wrong, parser)
    for action in parser._actions:
        if action.required and getattr(options, action.dest) is None:
            parser.error(f"the following arguments are required: {action.metavar}")
    options.run = verb.run
    return options


def _verb(words: list[str]) -> tuple[Verb, list[str]]:
    for count in (2, 1):
        for verb in VERBS:
            if verb.name == " ".join(words[:count]):
                return verb, words[count:]
    names = [verb.name for verb in VERBS]
    starting = [name for name in names if name.startswith(f"{words[0]} ")]
    near = get_close_matches(" ".join(words[:2]), names, n=1) or get_close_matches(words[0], names, n=1) or starting
    fix = f"did you mean `headway {near[0]}`?" if near else "`headway --help` lists them"
    raise UserError(f"there is no verb {words[0]!r}", fix=fix)


def _parser(verb: Verb) -> _Parser:
    parser = _Parser(
        prog=f"headway {verb.name}",
        description=verb.description or f"{verb.summary[0].upper()}{verb.summary[1:]}.",
        epilog="example:\n" + "\n".join(f"  {line}" for line in verb.example),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verb.arguments(parser)
    if verb.takes_overrides:
        parser.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key; a bare KEY=VALUE does too"
        )
    return parser


def _is_override(word: str) -> bool:
    """KEY=VALUE; a file of such a name, as a sweep may have, is a file."""
    return "=" in word and not word.startswith("-") and not os.path.exists(word)


def _collect_overrides(options: argparse.Namespace, extra: list[str], wrong: list[str]) -> None:
    """A KEY=VALUE that argparse took for the run or the file is an override; its place is that of the next word."""
    taken: list[str] = []
    for name in ("run_name", "file"):
        word = getattr(options, name, None)
        if isinstance(word, str) and _is_override(word):
            taken.append(word)
            here = wrong and not wrong[0].startswith("-")
            setattr(options, name, wrong.pop(0) if here else None)
    options.overrides = [*overrides_of(options), *taken, *extra, *options.set]


def _unread(wrong: list[str], parser: _Parser) -> UserError:
    option = wrong[0].partition("=")[0]
    near = get_close_matches(option, _options(parser), n=1)
    others = [verb.name for verb in VERBS if option.startswith("--") and option in _options(_parser(verb))]
    fix = f"did you mean {near[0]}?" if near else f"see {parser.prog} --help"
    fix = f"{option} belongs to headway {', '.join(others)}" if 0 < len(others) < 4 else fix
    return UserError(f"{parser.prog} takes no {' '.join(wrong)!r}", fix=fix)


def _options(parser: _Parser) -> list[str]:
    return [word for action in parser._actions for word in action.option_strings]
