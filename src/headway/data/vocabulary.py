"""What a tokenizer's folder says, read without transformers: its size, its begin and end tokens, its hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
# Encoders such as BERT name the ends of a text otherwise.
_BEGIN, _END = ("bos_token", "cls_token"), ("eos_token", "sep_token")
MAX_VOCABULARY = 2**31  # samples hold token ids as int32


@dataclass(frozen=True)
class Vocabulary:
    """`size` is the highest token id plus one: what an embedding must have at least.

    begin, end: ids that stand around every document in the token store. adds_begin, adds_end: whether the tokenizer
    itself puts them around a text that it encodes with special tokens.
    """

    folder: Path
    sha256: str
    size: int
    begin: int
    end: int
    pad: int | None
    adds_begin: bool
    adds_end: bool


def load_tokenizer(folder: Path) -> Tokenizer:
    """The folder's tokenizer, set to encode a text whole: no truncation, no padding.

    Raises:
        ModelError: tokenizer.json is absent or cannot be read.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} holds no tokenizer.json", fix="name a tokenizer's folder, or train one")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{path} cannot be read: {error}", fix="copy the tokenizer's files again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read a folder with tokenizer.json.

    Raises:
        ModelError: the folder cannot be read, or has neither a begin nor an end token, or more ids than int32 holds.
    """
    return _read(folder, hash_tokenizer(folder))


@lru_cache(maxsize=8)
def _read(folder: Path, sha256: str) -> Vocabulary:
    """Once for each content: a large tokenizer takes 0.15 s to read, and a plan asks for it twice."""
    tokenizer = load_tokenizer(folder)
    settings = _settings(folder)
    end = _token_id(tokenizer, settings, _END)
    begin = _token_id(tokenizer, settings, _BEGIN)
    if begin is None and end is None:
        raise ModelError(
            f"the tokenizer in {folder} names neither a begin nor an end token",
            fix='write "eos_token" (the token that ends a document) into its tokenizer_config.json',
        )
    # A model without a begin token has seen each document after the end of another.
    first = begin if begin is not None else end
    last = end if end is not None else begin
    size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
    if size > MAX_VOCABULARY:
        raise ModelError(f"the tokenizer in {folder} has ids up to {size - 1}; token ids must fit 31 bits")
    adds_begin, adds_end = _added(tokenizer, settings, _present(first), _present(last))
    return Vocabulary(
        folder=folder,
        sha256=sha256,
        size=size,
        begin=_present(first),
        end=_present(last),
        pad=_token_id(tokenizer, settings, ("pad_token",)),
        adds_begin=adds_begin,
        adds_end=adds_end,
    )


def hash_tokenizer(folder: Path) -> str:
    """sha256 over the files that decide how text is encoded."""
    whole = hashlib.sha256()
    for name in TOKENIZER_FILES:
        path = folder / name
        if path.is_file():
            whole.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def _added(tokenizer: Tokenizer, settings: dict[str, Any], begin: int, end: int) -> tuple[bool, bool]:
    """Whether encoding with special tokens puts `begin` before and `end` behind a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    before = whole[:1] == [begin] and whole[1 : 1 + len(plain)] == plain
    behind = whole[-1:] == [end] and len(whole) > len(plain) + before
    # transformers makes the post-processor anew where these are written out.
    said_before, said_behind = settings.get("add_bos_token"), settings.get("add_eos_token")
    return (
        said_before if isinstance(said_before, bool) else before,
        said_behind if isinstance(said_behind, bool) else behind,
    )


def _present(token: int | None) -> int:
    if token is None:
        raise ModelError("the tokenizer has no end token")
    return token


def _settings(folder: Path) -> dict[str, Any]:
    """Token names by role; tokenizer_config.json wins over special_tokens_map.json, ids of config.json come last."""
    settings: dict[str, Any] = {}
    for name in ("config.json", "special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ModelError(f"{path} is not JSON: {error}") from error
        settings.update({key: value for key, value in content.items() if value is not None})
    return settings


def _token_id(tokenizer: Tokenizer, settings: dict[str, Any], roles: tuple[str, ...]) -> int | None:
    for role in roles:
        token = settings.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and (found := tokenizer.token_to_id(text)) is not None:
            return found
    for role in roles:
        number = settings.get(f"{role}_id")
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and tokenizer.id_to_token(number) is not None:
            return number
    return None
