"""What records hold: a text, a chat, a prompt with its response, or a text with its label. Detected, then held to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headway.config.schema import SourceConfig
from headway.data.seam import Skip
from headway.errors import DataError, Problem

TEXT, MESSAGES, PAIR, LABELLED, SETS = "text", "messages", "prompt-response", "text-label", "text-labels"
PREFERENCE = "preference"
# What each task learns from, the preferred shape first. A user's own task takes text unless data.train.shape says more.
TASK_SHAPES = {"instruction": (MESSAGES, PAIR), "classification": (LABELLED, SETS), "preference": (PREFERENCE,)}
ANY_SHAPE = (TEXT, MESSAGES, PAIR)
LOOKED_AT = 32  # records of a source that its shape is read off

_CHATS = ("messages", "conversations")
_RESPONSES = ("response", "completion")
_TOOLS = "tools"
_PREFERRED = ("prompt", "chosen", "rejected")
# The words of ShareGPT's conversations.
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}
_WORDS = {
    TEXT: 'records of text, such as {{"{text}": "..."}}',
    MESSAGES: 'chats, such as {{"messages": [{{"role": "user", "content": "..."}}, {{"role": "assistant", ...}}]}}',
    PAIR: 'pairs, such as {{"prompt": "...", "response": "..."}}',
    LABELLED: 'labelled texts, such as {{"{text}": "...", "{label}": "..."}}',
    SETS: 'texts with any number of labels, such as {{"{text}": "...", "{label}": ["...", "..."]}}',
    PREFERENCE: 'preferences, such as {{"prompt": "...", "chosen": "...", "rejected": "..."}}, of texts or of messages',
}
_TASK_OF = {TEXT: "causal_lm", MESSAGES: "instruction", PAIR: "instruction"}
_TASK_OF |= {LABELLED: "classification", SETS: "classification", PREFERENCE: "preference"}

Record = Mapping[str, Any]


class BadRecord(ValueError):
    """A record that is not of its source's shape. `reason` counts it among its like; the message is the rule."""

    def __init__(self, reason: str, rule: str, fix: str = ""):
        super().__init__(rule)
        self.reason, self.rule, self.fix = reason, rule, fix


@dataclass(frozen=True)
class Keys:
    """The names of the text and the label in a source's records, and their shape, where it is known.

    source: the run file's key, for errors.
    """

    text: str = "text"
    label: str = "label"
    source: str = "data.train"
    shape: str = "auto"

    @staticmethod
    def of(config: SourceConfig, key: str) -> Keys:
        return Keys(config.text_key, config.label_key, key, config.shape)


@dataclass(frozen=True)
class Chat:
    """messages: mappings with `role` and `content` (or `tool_calls`), None values dropped. tools: JSON schemas."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[Any, ...] | None = None


def shapes_for(task: str) -> tuple[str, ...]:
    """The shapes that a task learns from, the preferred one first."""
    return TASK_SHAPES.get(task, (TEXT,))


def identity(config: SourceConfig) -> dict[str, Any]:
    """What of a concrete config decides which documents come of the files, as JSON."""
    unused = {"shape", "label_key"} if config.shape in ("auto", TEXT) else set[str]()
    return config.model_dump(mode="json", exclude={"paths", "weight", *unused})


def expected(shape: str, keys: Keys) -> str:
    """A shape in a person's words, with an example."""
    return _WORDS[shape].format(text=keys.text, label=keys.label)


def fitting(record: Record, keys: Keys) -> set[str]:
    """The shapes that a record's keys fit."""
    found: set[str] = set()
    if keys.text in record:
        found.add(TEXT)
        if keys.label in record:
            found.add(SETS if isinstance(record[keys.label], list | tuple) else LABELLED)
    if any(isinstance(record.get(name), list | tuple) for name in _CHATS):
        found.add(MESSAGES)
    if "prompt" in record and any(name in record for name in _RESPONSES):
        found.add(PAIR)
    if "chosen" in record and "rejected" in record:
        found.add(PREFERENCE)
    return found


def columns(shape: str, keys: Keys) -> tuple[str, ...]:
    """The keys that a shape may read, for files that are read by column."""
    return {
        TEXT: (keys.text,),
        MESSAGES: (*_CHATS, _TOOLS),
        PAIR: ("prompt", *_RESPONSES, _TOOLS),
        LABELLED: (keys.text, keys.label),
        SETS: (keys.text, keys.label),
        PREFERENCE: (*_PREFERRED, _TOOLS),
    }[shape]


def every_column(keys: Keys) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for shape in _WORDS for name in columns(shape, keys)))


@dataclass(frozen=True)
class Found:
    """A detected shape and the record that it was read off."""

    shape: str
    where: str


def detect(items: Iterable[tuple[str, Record] | Skip], accepted: Sequence[str], keys: Keys) -> Found | None:
    """The first accepted shape that a record fits, of the first records; None where there is no record at all.

    Raises:
        DataError: records are there, but none of an accepted shape; names the first and what would do.
    """
    first: tuple[str, Record] | None = None
    for item, _ in zip(items, range(LOOKED_AT), strict=False):
        if isinstance(item, Skip):
            continue
        where, record = item
        fits = fitting(record, keys)
        for shape in accepted:
            if shape in fits:
                return Found(shape, where)
        first = first or item
    if first is None:
        return None
    raise DataError(problems=[_no_shape(*first, accepted, keys)])


def _no_shape(where: str, record: Record, accepted: Sequence[str], keys: Keys) -> Problem:
    wanted = " or ".join(expected(shape, keys) for shape in accepted)
    fits = sorted(fitting(record, keys), key=list(_WORDS).index, reverse=True)
    rule = f"holds no {wanted}; the record's keys: {_named(record)}"
    named = {"text_key": TEXT in accepted or LABELLED in accepted, "label_key": LABELLED in accepted}
    words = " and ".join(f"{keys.source}.{name}" for name, used in named.items() if used)
    fix = f"name the keys with {words}, or rename them" if words else "rename the keys, or give such records"
    if fits:
        rule = f"holds {_WORDS[fits[0]].partition(',')[0]}, but the task learns from {wanted}"
        fix = f"write task: {_TASK_OF[fits[0]]}, or give such records"
    return Problem(keys.source, rule, where=where, fix=fix)


def _named(record: Record) -> str:
    return ", ".join(map(repr, record)) or "none"


def readable(record: Record, shape: str, keys: Keys) -> str:
    """A record's words without template or label, for a tokenizer to be trained on. '' where it is no such record."""
    try:
        if shape == MESSAGES:
            return "\n".join(_contents(read_chat(record).messages))
        if shape == PAIR:
            return "\n".join(read_pair(record))
        if shape == PREFERENCE:
            return "\n".join(_texts_of(record.get(name)) for name in _PREFERRED)
    except BadRecord:
        return ""
    text = record.get(keys.text)
    return text if isinstance(text, str) else ""


def _texts_of(given: object) -> str:
    if isinstance(given, str):
        return given
    messages = [part for part in cast("list[object]", given) if isinstance(part, Mapping)] if given else []
    return "\n".join(_contents(cast("list[Record]", messages)))


def _contents(messages: Iterable[Record]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            yield from (part["text"] for part in cast("list[Record]", content) if isinstance(part.get("text"), str))


def read_chat(record: Record) -> Chat:
    """The chat of a record of messages (or of ShareGPT's conversations). Raises BadRecord."""
    name = next((name for name in _CHATS if record.get(name) is not None), None)
    if name is None:
        raise BadRecord("no chat", f"has no 'messages'; its keys: {_named(record)}", f"expected {_words(MESSAGES)}")
    given = record[name]
    if not isinstance(given, list | tuple) or not given:
        raise BadRecord("no chat", f"holds {_kind(given)} as {name!r}, not a list of messages")
    messages = tuple(_message(message, name, n) for n, message in enumerate(cast("list[object]", given), start=1))
    return Chat(messages, _tools(record.get(_TOOLS)))


def _message(given: object, name: str, number: int) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise BadRecord("no chat", f"holds {_kind(given)} as message {number}, not an object with role and content")
    message = {key: value for key, value in cast("Record", given).items() if value is not None}
    if name == "conversations" and "from" in message:
        role = message.pop("from")
        message = {"role": _ROLES.get(role, role), "content": message.pop("value", None), **message}
    if not isinstance(message.get("role"), str):
        raise BadRecord("no chat", f"has no 'role' in message {number}; that one's keys: {_named(message)}")
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise BadRecord("no chat", f"has no 'content' in message {number} ({message['role']})")
    if content is not None and not isinstance(content, str | list):
        said = f"holds {_kind(content)} as the 'content' of message {number} ({message['role']}), not text"
        raise BadRecord("no chat", said)
    return message


def _tools(given: object) -> tuple[Any, ...] | None:
    """Tools as they stand in the record, or as the JSON text that some data sets hold."""
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else None
        except ValueError as error:
            raise BadRecord("bad tools", f"holds text as 'tools' that is not JSON: {error}") from error
    if given is None or given == []:
        return None
    if not isinstance(given, list | tuple):
        raise BadRecord("bad tools", f"holds {_kind(given)} as 'tools', not a list of JSON schemas")
    return tuple(cast("list[Any]", given))


def read_pair(record: Record) -> tuple[str, str]:
    """(prompt, response). Raises BadRecord."""
    name = next((name for name in _RESPONSES if record.get(name) is not None), None)
    if record.get("prompt") is None or name is None:
        rule = f"has no 'prompt' with a 'response'; its keys: {_named(record)}"
        raise BadRecord("no pair", rule, f"expected {_words(PAIR)}")
    prompt, response = record["prompt"], record[name]
    for key, value in (("prompt", prompt), (name, response)):
        if not isinstance(value, str):
            raise BadRecord("no pair", f"holds {_kind(value)} as {key!r}, not text")
    if not response.strip():
        raise BadRecord("empty response", f"has an empty {name!r}: there is nothing to learn")
    return prompt, response


def is_pair(record: Record, keys: Keys) -> bool:
    """Whether a record is to be read as a pair: as its source says, else as it looks."""
    return keys.shape == PAIR or (keys.shape != MESSAGES and MESSAGES not in fitting(record, keys))


def pair_as_chat(record: Record) -> Chat:
    """A prompt and its response as the two messages of a chat."""
    prompt, response = read_pair(record)
    messages = ({"role": "user", "content": prompt}, {"role": "assistant", "content": response})
    return Chat(messages, _tools(record.get(_TOOLS)))


def read_label(record: Record, keys: Keys) -> tuple[str, str]:
    """(text, name of its label). A whole number is the name that it is written as. Raises BadRecord."""
    text, label = _labelled_text(record, keys), record.get(keys.label)
    if label is None or label == "":
        raise _without_label(record, keys)
    if isinstance(label, list | tuple):
        rule = f"{keys.label!r} holds a list, and the labels before it are one each"
        raise BadRecord("bad label", rule, f"{keys.source}.shape: {SETS} reads lists: [] is no label, [one] is one")
    return text, _label_name(label, keys)


def read_labels(record: Record, keys: Keys) -> tuple[str, tuple[str, ...]]:
    """(text, names of its labels, sorted, each once). Raises BadRecord."""
    text, labels = _labelled_text(record, keys), record.get(keys.label)
    if keys.label not in record:
        raise _without_label(record, keys)
    if not isinstance(labels, list | tuple):
        rule = f"{keys.label!r} holds {_kind(labels)}: expected a list of labels, as in the records before it"
        raise BadRecord("bad label", rule, "write [] for no label, [one] for one")
    return text, tuple(sorted({_label_name(label, keys) for label in cast("list[object]", labels)}))


def _labelled_text(record: Record, keys: Keys) -> str:
    text = record.get(keys.text)
    if not isinstance(text, str):
        rule = f"has no {keys.text!r}; its keys: {_named(record)}"
        rule = f"holds {_kind(text)} as {keys.text!r}, not text" if keys.text in record else rule
        raise BadRecord("no text", rule, f"name the text's key with {keys.source}.text_key")
    return text


def _without_label(record: Record, keys: Keys) -> BadRecord:
    rule = f"has no {keys.label!r}; its keys: {_named(record)}"
    return BadRecord("no label", rule, f"name the label's key with {keys.source}.label_key")


def _label_name(label: object, keys: Keys) -> str:
    if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
        rule = f"holds {_kind(label)} as {keys.label!r}: a label is one text or one whole number"
        raise BadRecord("bad label", rule)
    return str(label)


def _words(shape: str) -> str:
    return expected(shape, Keys())


def _kind(value: object) -> str:
    empty = "an empty " if isinstance(value, list | str) and not value else ""
    return f"{empty}{type(value).__name__}"
