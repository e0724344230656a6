"""Records of a prompt with its response, as texts or as messages, in the words of TRL or of Alpaca."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.data.shapes import (
    ALPACA,
    PAIR,
    RESPONSES,
    BadRecord,
    Chat,
    Keys,
    expected,
    is_alpaca,
    kind_of,
    listed_messages,
    named_keys,
    read_chat,
)

_ASKING = ("system", "user")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """A prompt and its response as one chat.

    asked: messages of the prompt; what the assistant says in them is not learnt. plain: (prompt, response), where both
    are texts and nothing else belongs to them.
    """

    chat: Chat
    asked: int
    plain: tuple[str, str] | None


def read_pair(record: Record) -> Pair:
    """A record of a prompt (or Alpaca's instruction) with a response. Raises BadRecord."""
    asked, answered = _pair_keys(record)
    prompt, response = listed_messages(record.get(asked)), listed_messages(record.get(answered))
    if prompt is None or response is None:
        rule = f"has no 'prompt' with a 'response'; its keys: {named_keys(record)}"
        raise BadRecord("no pair", rule, f"expected {expected(PAIR, Keys())}")
    if asked == ALPACA.instruction:
        for name, value in ((asked, prompt), (answered, response)):
            if not isinstance(value, str):
                raise BadRecord("no pair", f"holds {kind_of(value)} as {name!r}, not text")
        before = alpaca_prompt(record)
    else:
        before = messages_of(prompt, asked, "user")
    if isinstance(response, str) and not response.strip():
        raise BadRecord("empty response", f"has an empty {answered!r}: there is nothing to learn")
    after = messages_of(response, answered, "assistant")
    count = len(before)
    if repeats(before, after):  # a whole chat behind its own beginning
        before, count = [], 1 + max(after.index(message) for message in before)
    chat = read_chat({"messages": [*before, *after], "tools": record.get("tools")})
    check_answer(chat, count, answered)
    texts = isinstance(prompt, str) and isinstance(response, str) and len(chat.messages) == 2
    plain = (chat.messages[0]["content"], response) if texts else None
    # What Alpaca's history says is part of the conversation, and learnt.
    return Pair(chat, 0 if asked == ALPACA.instruction else count, plain)


def _pair_keys(record: Record) -> tuple[str, str]:
    if record.get("prompt") is None and is_alpaca(record):
        return ALPACA.instruction, ALPACA.output
    return "prompt", next((name for name in RESPONSES if record.get(name) is not None), RESPONSES[0])


def alpaca_prompt(record: Record) -> list[Any]:
    """Messages of an instruction with its input, a blank line between; before it the system's and the history's."""
    instruction, about, system = (record.get(name) for name in (ALPACA.instruction, ALPACA.input, ALPACA.system))
    for name, value in ((ALPACA.input, about), (ALPACA.system, system)):
        if value is not None and not isinstance(value, str):
            raise BadRecord("no pair", f"holds {kind_of(value)} as {name!r}, not text")
    asked = f"{instruction}\n\n{about}" if about and about.strip() else instruction
    first = [{"role": "system", "content": system}] if system and system.strip() else []
    return [*first, *_history(record.get(ALPACA.history)), {"role": "user", "content": asked}]


def _history(given: Any) -> list[Any]:
    """Earlier turns: [[question, answer], ...]."""
    turns: list[Any] = []
    for turn in given or ():
        if not (isinstance(turn, list | tuple) and len(turn) == 2 and all(isinstance(part, str) for part in turn)):
            rule = f"holds something else as {ALPACA.history!r} than pairs of texts"
            raise BadRecord("no pair", rule, 'write [["question", "answer"], ...]')
        turns += [{"role": role, "content": part} for role, part in zip(("user", "assistant"), turn, strict=True)]
    return turns


def messages_of(given: Any, name: str, role: str) -> list[Any]:
    """Messages as they stand in the record, or a text as the one message of `role`. Raises BadRecord."""
    if isinstance(given, str):
        if role == "assistant" and not given.strip():
            raise BadRecord("no answer", f"has an empty {name!r}")
        return [{"role": role, "content": given}]
    if not isinstance(given, list | tuple) or not given:
        raise BadRecord("no messages", f"holds {kind_of(given)} as {name!r}, not a text or a list of messages")
    return list(given)


def repeats(prompt: Sequence[Any], answer: Any) -> bool:
    """Whether an answer is a whole chat that holds its prompt already, as UltraFeedback's are."""
    return isinstance(answer, list | tuple) and bool(prompt) and all(message in answer for message in prompt)


def check_answer(chat: Chat, count: int, name: str, *, apart: bool = True) -> None:
    """That the assistant answers behind the first `count` messages. Raises BadRecord.

    name: the answer's key. apart: the prompt has a key of its own.
    """
    if len(chat.messages) <= count or chat.messages[-1]["role"] != "assistant":
        raise BadRecord("no answer", f"has no message of the assistant's at the end of {name!r}")
    first = chat.messages[count]["role"]
    if apart and first in _ASKING:
        rule = f"goes on behind 'prompt' with a message of the {first}'s in {name!r}"
        fix = "leave 'prompt' out and give whole chats, or begin with the answer"
        raise BadRecord("two prompts", rule, fix)
