"""Secrets never stand in a run file: it is copied into the run directory, checkpoints and exports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from headway.config.reader import KeyPath

FIX = (
    "remove it here and set it in the environment, for example HF_TOKEN; Headway passes it on and never writes it down"
)

_KEY = re.compile(
    r"token|.*(password|passwd|passphrase|secret|credentials?|private_?key|api_?key|access_?key)"
    r"|.*(auth|access|api|hf|hub|bearer|wandb|mlflow|github)_?token",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{30,}|\w+://[^/\s:@]+:[^/\s@]+@"
)


def is_secret_key(key: object) -> bool:
    """`token`, `hf_token`, `api_key`, ...; not `pad_token`, which is a word of a vocabulary."""
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def is_secret_value(value: object) -> bool:
    """A text in the shape of a known service's token, or a URL with a password in it."""
    return isinstance(value, str) and _VALUE.search(value) is not None


def find_secrets(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The path of each key or value that looks like a secret."""
    if path and (is_secret_key(path[-1]) or is_secret_value(value)):
        yield path
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from find_secrets(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from find_secrets(item, (*path, index))
