"""Records of a preference: a prompt with a chosen and a rejected answer, as texts or as messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.data.pairs import alpaca_prompt, check_answer, messages_of, repeats
from headway.data.shapes import (
    ALPACA,
    PREFERENCE,
    BadRecord,
    Chat,
    Keys,
    expected,
    listed_messages,
    named_keys,
    read_chat,
)

_ANSWERS = ("chosen", "rejected")


@dataclass(frozen=True)
class Preference:
    """Both answers behind their prompt. plain: (prompt, answer) of each, where all three are texts.

    asked: messages of the prompt, equal in both; what the assistant says in them is not learnt.
    """

    chosen: Chat
    rejected: Chat
    asked: int
    plain: tuple[tuple[str, str], tuple[str, str]] | None


def read_preference(record: Mapping[str, Any]) -> Preference:
    """A record of `chosen` and `rejected` with a `prompt`, or of two whole chats that begin alike. Raises BadRecord."""
    prompt, given = listed_messages(record.get("prompt")), [listed_messages(record.get(name)) for name in _ANSWERS]
    if any(answer is None for answer in given):
        rule = f"has no 'chosen' and 'rejected'; its keys: {named_keys(record)}"
        raise BadRecord("no preference", rule, f"expected {expected(PREFERENCE, Keys())}")
    if given[0] == given[1]:
        raise BadRecord("no preference", "prefers an answer to itself: chosen and rejected are equal")
    asked = _prompt(record, prompt)
    if not asked and any(isinstance(answer, str) for answer in given):
        rule = "has no 'prompt' before its answers"
        raise BadRecord("no prompt", rule, "add it, or give chosen and rejected as whole lists of messages")
    apart = bool(asked) and not all(repeats(asked, answer) for answer in given)
    before = asked if apart else []
    chats = [_chat(record, [*before, *messages_of(answer, name, "assistant")]) for name, answer in _named(given)]
    count = len(before) if apart else _alike(*chats)
    for name, chat in zip(_ANSWERS, chats, strict=True):
        check_answer(chat, count, name, apart=apart)
    texts = len(asked) == 1 and all(isinstance(answer, str) for answer in given) and not isinstance(prompt, list)
    plain = tuple((asked[0]["content"], answer) for answer in given) if texts else None
    return Preference(chats[0], chats[1], count, plain)  # pyright: ignore[reportArgumentType]


def _prompt(record: Mapping[str, Any], prompt: Any) -> list[Any]:
    """The messages of the prompt; [] where there is none."""
    if prompt is not None:
        return messages_of(prompt, "prompt", "user")
    return alpaca_prompt(record) if isinstance(record.get(ALPACA.instruction), str) else []


def _named(given: list[Any]) -> zip[tuple[str, Any]]:
    return zip(_ANSWERS, given, strict=True)


def _chat(record: Mapping[str, Any], messages: list[Any]) -> Chat:
    return read_chat({"messages": messages, "tools": record.get("tools")})


def _alike(chosen: Chat, rejected: Chat) -> int:
    """How many messages both chats begin with."""
    pairs = zip(chosen.messages, rejected.messages, strict=False)
    count = 0
    for a, b in pairs:
        if a != b:
            break
        count += 1
    if not count:
        raise BadRecord("no prompt", "has two chats that do not begin alike: there is no prompt", "give 'prompt' apart")
    return count
