"""Headway trains transformer models with PyTorch and DeepSpeed from one run file, without surprises.

A script or a notebook calls what the command line calls: `headway.plan`, `train`, `resume`, `certify`, `export`,
`generate`, `show`; and `headway.prepare` for a loop of its own (docs/library.md). Nothing is imported before its use.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# Name -> module and attribute; __init__.pyi says the same to type checkers.
_PUBLIC = {
    name: ("headway.api", name)
    for name in (
        "plan",
        "train",
        "prepare",
        "resume",
        "certify",
        "export",
        "generate",
        "evaluate",
        "runs",
        "stop",
        "find_run",
    )
} | {
    "show": ("headway.api", "summary"),
    "Loss": ("headway.train.given", "Loss"),
    "HeadwayError": ("headway.errors", "HeadwayError"),
}


_ROOMS = ("plan", "train", "certify", "export")  # packages that have the name of a verb


class _Room(ModuleType):
    """A package that is called as the verb of its name: once it is imported, it is what `headway.plan` means."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(importlib.import_module("headway.api"), self.__name__.rpartition(".")[2])(*args, **options)


class _Package(ModuleType):
    """Hears of each package that is imported: Python sets it as an attribute of the one around it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _ROOMS and isinstance(value, ModuleType):
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
