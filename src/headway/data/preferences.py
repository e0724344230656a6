"""Records of a preference: a prompt with a chosen and a rejected answer, as texts or as messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.data.shapes import PREFERENCE, BadRecord, Chat, Keys, expected, read_chat

_ANSWERS = ("chosen", "rejected")
_ASKING = ("system", "user")


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
    prompt, given = record.get("prompt"), [record.get(name) for name in _ANSWERS]
    if any(answer is None for answer in given):
        keys = ", ".join(map(repr, record)) or "none"
        rule = f"has no 'chosen' and 'rejected'; its keys: {keys}"
        raise BadRecord("no preference", rule, f"expected {expected(PREFERENCE, Keys())}")
    if prompt is None and any(isinstance(answer, str) for answer in given):
        rule = "has no 'prompt' before its answers"
        raise BadRecord("no prompt", rule, "add it, or give chosen and rejected as whole lists of messages")
    if given[0] == given[1]:
        raise BadRecord("no preference", "prefers an answer to itself: chosen and rejected are equal")
    if prompt is not None and _hold_prompt(prompt, given):
        prompt = None
    asked = [] if prompt is None else _messages(prompt, "prompt", "user")
    chats = [_chat(record, [*asked, *_messages(answer, name, "assistant")]) for name, answer in _named(given)]
    count = len(asked) if prompt is not None else _alike(*chats)
    for name, chat in zip(_ANSWERS, chats, strict=True):
        if len(chat.messages) <= count or chat.messages[-1]["role"] != "assistant":
            rule = f"has no message of the assistant's at the end of {name!r}"
            raise BadRecord("no answer", rule)
        first = chat.messages[count]["role"]
        if prompt is not None and first in _ASKING:
            rule = f"goes on behind 'prompt' with a message of the {first}'s in {name!r}"
            raise BadRecord("two prompts", rule, "leave 'prompt' out where the chats hold it, or begin with the answer")
    texts = all(isinstance(part, str) for part in (prompt, *given))
    plain = ((prompt, given[0]), (prompt, given[1])) if texts else None
    return Preference(chats[0], chats[1], count, plain)  # pyright: ignore[reportArgumentType]


def _hold_prompt(prompt: Any, given: list[Any]) -> bool:
    """Whether both answers are whole chats that hold the prompt already, as UltraFeedback's are."""
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return all(
        isinstance(answer, list | tuple)
        and isinstance(asked, list | tuple)
        and bool(asked)
        and all(message in answer for message in asked)
        for answer in given
    )


def _named(given: list[Any]) -> zip[tuple[str, Any]]:
    return zip(_ANSWERS, given, strict=True)


def _messages(given: Any, name: str, role: str) -> list[Any]:
    if isinstance(given, str):
        if role == "assistant" and not given.strip():
            raise BadRecord("no answer", f"has an empty {name!r}")
        return [{"role": role, "content": given}]
    if not isinstance(given, list | tuple) or not given:
        raise BadRecord("no preference", f"holds {type(given).__name__} as {name!r}, not a text or a list of messages")
    return list(given)


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
