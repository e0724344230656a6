"""What a rule on Python reads: the parsed file, its names, and what the files given beside it say."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.check.scripts.material import Fault, Script
from headway.check.scripts.names import Names


@dataclass(frozen=True)
class Beside:
    """What the other files that were given say of a Python file."""

    torchrun: tuple[str, ...] = ()  # lines of launch scripts that start it with torchrun
    configs: tuple[Path, ...] = ()  # DeepSpeed JSONs


@dataclass(frozen=True)
class Code:
    """A Python file that was parsed, and what the files given beside it say."""

    script: Script
    tree: ast.Module
    names: Names
    beside: Beside


Rule = Callable[[Code], Iterator[Fault]]
