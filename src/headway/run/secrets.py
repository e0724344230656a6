"""Remove secrets from what is recorded: by the name that they stand under, by their form, and by their value.

The value of every environment variable with a secret-like name is removed wherever it turns up, so a token that was
also given on the command line or stands in a changed file does not leak through there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

REMOVED = "[removed]"

# 'HF_TOKEN', 'api-key' and 'db_password' are secrets; 'TOKENIZERS_PARALLELISM' and 'max_tokens' are not.
_SECRET_NAME = re.compile(
    r"(?i)(?:^|[^a-z]|access|auth|refresh|api|bearer)token$|secret|passw|passphrase|[_.-]pwd$|credential"
    r"|(?:api|access|private|signing|encryption|ssh|account|license|storage|wandb|auth)[_.-]?key"
    r"|(?:^|[_.-])(?:auth|authorization|bearer|cookie|jwt|dsn|sas|webhook|signature|sig|pat)(?:$|[_.-])"
)
# Words of tokenizers: `eos_token` is no secret.
_TOKENIZER_WORD = re.compile(
    r"(?i)(?:^|[_.-])(?:pad|eos|bos|unk|mask|cls|sep|special|image|audio|video|start|end|stop|next|last|per|new|one)"
    r"[_-]?token$"
)
_SECRET_VARIABLE = re.compile(r"(?i)(?:^|_)key$")  # OPENAI_KEY; but the option `text_key` is none

_FORMS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}"),
    re.compile(r"\b(?:ghp|gho|ghu|ghs|ghr|github_pat)_[A-Za-z0-9_]{16,}"),
    re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}"),
    re.compile(r"\bwandb_v\d+_[A-Za-z0-9_]{16,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"),
    re.compile(r"\bya29\.[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\b(?:pypi|nvapi|dapi)-?[A-Za-z0-9_-]{32,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}"),
)
_AUTHORIZATION = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_URL_USERS = (
    re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s?#'\"<>]*@"),
    re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s?#'\"<>:@]*:(?!\d+/)[^\s'\"<>@]*@"),  # a '/' in the password
)
# name=value, name: value, "name": "value", ?name=value&
_ASSIGNMENT = re.compile(
    r"""(?P<name>[A-Za-z][A-Za-z0-9_.-]*)(?P<between>["']?\s*[:=]\s*)"""
    r"""(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s"'&,;{}\[\]()]+)"""
)
_KEY_LIKE = re.compile(r"(?=.*\d)[A-Za-z0-9+/=_~!@#$%^*-]{8,}")
_MINIMUM_LENGTH = 6  # shorter values ('1', 'true', 'none') would remove harmless text


def is_secret_name(name: str) -> bool:
    """Whether a key or option of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None and _TOKENIZER_WORD.search(name) is None


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name holds a secret; here every `..._KEY` does."""
    return is_secret_name(name) or _SECRET_VARIABLE.search(name) is not None


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables with a secret-like name, longest first, so that no part of one stays behind."""
    names = filter(is_secret_variable, environment)
    values = {environment[name] for name in names if len(environment[name]) >= _MINIMUM_LENGTH}
    return tuple(sorted(values, key=len, reverse=True))


def has_secret(text: str, values: Iterable[str] = ()) -> bool:
    """Whether a text holds one of these values, or something in the form of a known service's token or key."""
    return any(value in text for value in values) or any(form.search(text) for form in _FORMS)


def clean_text(text: str, values: Iterable[str] = ()) -> str:
    """The text without known values, tokens of known forms, user parts of URLs, and values of secret-like names."""
    return _clean_assignments(_clean_forms(text, values), lambda value: True)


def clean_source(text: str, values: Iterable[str] = ()) -> str:
    """Like `clean_text` for source code, where `token = batch[0]` is a statement and only a literal may be a secret."""
    return _clean_assignments(_clean_forms(text, values), _is_literal)


def clean_arguments(arguments: Sequence[str], values: Iterable[str] = ()) -> list[str]:
    """A command line; `--token VALUE` loses its value too."""
    known = tuple(values)
    cleaned: list[str] = []
    for position, argument in enumerate(arguments):
        before = arguments[position - 1] if position else ""
        follows_secret = before.startswith("-") and "=" not in before and is_secret_name(before.lstrip("-"))
        cleaned.append(REMOVED if follows_secret and not argument.startswith("--") else clean_text(argument, known))
    return cleaned


def clean(value: Any, values: Iterable[str] = ()) -> Any:
    """A JSON value, cleaned throughout: strings by `clean_text`, entries with a secret-like name whole."""
    known = tuple(values)
    if isinstance(value, str):
        return clean_text(value, known)
    if isinstance(value, Mapping):
        items = cast("Mapping[object, Any]", value).items()
        return {
            str(key): REMOVED if isinstance(item, str) and item and is_secret_name(str(key)) else clean(item, known)
            for key, item in items
        }
    if isinstance(value, list | tuple):
        return [clean(item, known) for item in cast("Iterable[Any]", value)]
    return value


def _clean_forms(text: str, values: Iterable[str]) -> str:
    for value in values:
        text = text.replace(value, REMOVED)
    for form in _FORMS:
        text = form.sub(REMOVED, text)
    for url in _URL_USERS:
        text = url.sub(rf"\1{REMOVED}@", text)
    return _AUTHORIZATION.sub(rf"\1 {REMOVED}", text)


def _clean_assignments(text: str, is_secret: Callable[[str], bool]) -> str:
    pieces: list[str] = []
    done = position = 0
    while match := _ASSIGNMENT.search(text, position):
        value = match["value"]
        if not (is_secret_name(match["name"]) and is_secret(value)):
            position = match.start("value")  # the value may hold an assignment itself: https://host/?token=...
            continue
        quote = value[0] if value[0] in "\"'" else ""
        pieces += [text[done : match.start("value")], quote, REMOVED, quote]
        done = position = match.end()
    return "".join([*pieces, text[done:]])


def _is_literal(value: str) -> bool:
    content = value.strip("\"'")
    # Unquoted (YAML, .env): expressions have dots, calls and names; keys have digits.
    key_like = value[0] in "\"'" or _KEY_LIKE.fullmatch(content) is not None
    return len(content) >= _MINIMUM_LENGTH and key_like
