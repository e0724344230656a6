"""What records hold: a text, a chat, a prompt with its response, or a text with its label. Detected, then held to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from headway.config.schema import SourceConfig
from headway.data.seam import Skip
from headway.errors import DataError, Problem

TEXT, MESSAGES, PAIR, LABELLED, SETS = "text", "messages", "prompt-response", "text-label", "text-labels"
PREFERENCE = "preference"
# What each task learns from, the preferred shape first. A user's own task takes text unless data.train.shape says more.
TASK_SHAPES = {"instruction": (MESSAGES, PAIR), "classification": (LABELLED, SETS), "preference": (PREFERENCE,)}
ANY_SHAPE = (TEXT, MESSAGES, PAIR, PREFERENCE)  # that hold words, for a tokenizer to be trained on
LOOKED_AT = 32  # records of a source that its shape is read off

_CHATS = ("messages", "conversations")
RESPONSES = ("response", "completion")
_TOOLS = "tools"
_PREFERRED = ("prompt", "chosen", "rejected")
# The words of ShareGPT's conversations, and of the data sets like it.
_ROLES = {"human": "user", **dict.fromkeys(("gpt", "chatgpt", "bot", "model", "ai"), "assistant")}
_USUAL_ROLES = ("user", "assistant", "system", "tool")
_WORDS = {
    TEXT: 'records of text, such as {{"{text}": "..."}}',
    MESSAGES: 'chats, such as {{"messages": [{{"role": "user", "content": "..."}}, {{"role": "assistant", ...}}]}}',
    PAIR: 'pairs, such as {{"prompt": "...", "response": "..."}}, of texts or of messages',
    LABELLED: 'labelled texts, such as {{"{text}": "...", "{label}": "..."}}',
    SETS: 'texts with any number of labels, such as {{"{text}": "...", "{label}": ["...", "..."]}}',
    PREFERENCE: 'preferences, such as {{"prompt": "...", "chosen": "...", "rejected": "..."}}, of texts or of messages',
}
_TASK_OF = {TEXT: "causal_lm", MESSAGES: "instruction", PAIR: "instruction"}
_TASK_OF |= {LABELLED: "classification", SETS: "classification", PREFERENCE: "preference"}

Record = Mapping[str, Any]


class Alpaca(NamedTuple):
    """The keys of Alpaca's records and of those like them; all but the instruction and the output may be absent."""

    instruction: str = "instruction"
    input: str = "input"
    output: str = "output"
    system: str = "system"
    history: str = "history"


ALPACA = Alpaca()


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
            found.add(SETS if isinstance(_listed(record[keys.label]), list | tuple) else LABELLED)
    if any(isinstance(_listed(record.get(name)), list | tuple) for name in _CHATS):
        found.add(MESSAGES)
    if ("prompt" in record and any(name in record for name in RESPONSES)) or is_alpaca(record):
        found.add(PAIR)
    if "chosen" in record and "rejected" in record:
        found.add(PREFERENCE)
    return found


def is_alpaca(record: Record) -> bool:
    return ALPACA.instruction in record and ALPACA.output in record


def _listed(value: Any) -> Any:
    """A list where the value is the JSON text of one, as a csv and many Parquet files hold lists; else the value."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def listed_messages(value: Any) -> Any:
    """A list of messages where the value is the JSON text of one; any other text, a list among them, is a text."""
    found = _listed(value)
    parts = cast("list[object]", found) if isinstance(found, list | tuple) else []
    messages = parts and all(isinstance(part, Mapping) and ("role" in part or "from" in part) for part in parts)
    return found if messages else value


def columns(shape: str, keys: Keys) -> tuple[str, ...]:
    """The keys that a shape may read, for files that are read by column."""
    return {
        TEXT: (keys.text,),
        MESSAGES: (*_CHATS, _TOOLS),
        PAIR: ("prompt", *RESPONSES, *ALPACA, _TOOLS),
        LABELLED: (keys.text, keys.label),
        SETS: (keys.text, keys.label),
        PREFERENCE: (*_PREFERRED, *ALPACA, _TOOLS),
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
    faults: list[Problem] = []
    for item, _ in zip(items, range(LOOKED_AT), strict=False):
        if isinstance(item, Skip):
            faults += [item.problem] if item.problem is not None else []
            continue
        where, record = item
        fits = fitting(record, keys)
        for shape in accepted:
            if shape in fits:
                return Found(shape, where)
        first = first or item
    if first is None:
        return None
    # What could not be read comes first: a record may lack just that.
    raise DataError(problems=[*faults, _no_shape(*first, accepted, keys)])


def _no_shape(where: str, record: Record, accepted: Sequence[str], keys: Keys) -> Problem:
    wanted = " or ".join(expected(shape, keys) for shape in accepted)
    fits = sorted(fitting(record, keys), key=list(_WORDS).index, reverse=True)
    rule = f"holds no {wanted}; the record's keys: {named_keys(record)}"
    named = {"text_key": TEXT in accepted or LABELLED in accepted, "label_key": LABELLED in accepted}
    words = " and ".join(f"{keys.source}.{name}" for name, used in named.items() if used)
    fix = f"name the keys with {words}, or rename them" if words else "rename the keys, or give such records"
    held = next((name for name in _CHATS if name in record), None)
    if fits == [TEXT] and LABELLED in accepted:
        rule = f"holds texts without {keys.label!r}, but the task learns from {wanted}; keys: {named_keys(record)}"
        fix = f"name the label's key with {keys.source}.label_key, or write task: causal_lm"
    elif not fits and held is not None and MESSAGES in accepted:
        rule = f"holds {kind_of(record[held])} as {held!r}, not a list of messages; the task learns from {wanted}"
    elif fits:
        rule = f"holds {_WORDS[fits[0]].partition(',')[0]}, but the task learns from {wanted}"
        fix = f"write task: {_TASK_OF[fits[0]]}, or give such records"
    return Problem(keys.source, rule, where=where, fix=fix)


def named_keys(record: Record) -> str:
    """A record's keys, for a person."""
    return ", ".join(map(repr, record)) or "none"


def readable(record: Record, shape: str, keys: Keys) -> str:
    """A record's words without template or label, for a tokenizer to be trained on. '' where it is no such record."""
    try:
        if shape == MESSAGES:
            return "\n".join(_contents(read_chat(record).messages))
        if shape in (PAIR, PREFERENCE):
            held = (_texts_of(record.get(name)) for name in columns(shape, keys) if name != _TOOLS)
            return "\n".join(filter(None, held))
    except BadRecord:
        return ""
    text = record.get(keys.text)
    return text if isinstance(text, str) else ""


def _texts_of(given: object) -> str:
    """The words of a text or of messages; '' of anything else."""
    given = listed_messages(given)
    if isinstance(given, str):
        return given
    messages = cast("list[object]", given) if isinstance(given, list | tuple) else []
    return "\n".join(_contents(cast("Record", part) for part in messages if isinstance(part, Mapping)))


def _contents(messages: Iterable[Record]) -> Iterator[str]:
    return (content for message in messages if isinstance(content := message.get("content"), str))


def read_chat(record: Record) -> Chat:
    """The chat of a record of messages (or of ShareGPT's conversations). Raises BadRecord."""
    name = next((name for name in _CHATS if record.get(name) is not None), None)
    if name is None:
        null = next((name for name in _CHATS if name in record), None)
        rule = f"holds null as {null!r}" if null else f"has no 'messages'; its keys: {named_keys(record)}"
        raise BadRecord("no chat", rule, f"expected {_words(MESSAGES)}")
    given = _listed(record[name])
    if not isinstance(given, list | tuple) or not given:
        raise BadRecord("no chat", f"holds {kind_of(given)} as {name!r}, not a list of messages")
    messages = tuple(_message(message, n) for n, message in enumerate(cast("list[object]", given), start=1))
    return Chat(messages, _tools(record.get(_TOOLS)))


def _message(given: object, number: int) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise BadRecord("no chat", f"holds {kind_of(given)} as message {number}, not an object with role and content")
    message = {key: value for key, value in cast("Record", given).items() if value is not None}
    if "role" not in message and isinstance(message.get("from"), str):  # as ShareGPT says it
        said = message.pop("from")
        message = {"role": _ROLES.get(said.lower(), said), "content": message.pop("value", None), **message}
    role = message.get("role")
    if not isinstance(role, str):
        raise BadRecord("no chat", f"has no 'role' in message {number}; that one's keys: {named_keys(message)}")
    if role not in _USUAL_ROLES and (meant := role.strip().lower()) in _USUAL_ROLES:
        raise BadRecord("bad role", f"has the role {role!r} in message {number}", f"write {meant!r}")
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise BadRecord("no chat", f"has no 'content' in message {number} ({role})")
    if isinstance(content, list | tuple):
        message["content"] = _joined(cast("list[object]", content), f"message {number} ({role})")
    elif content is not None and not isinstance(content, str):
        said = f"holds {kind_of(content)} as the 'content' of message {number} ({role}), not text"
        raise BadRecord("no chat", said)
    return message


def _joined(parts: Sequence[object], where: str) -> str:
    """The text of a content in parts: a template for texts would write the list itself. Raises BadRecord."""
    texts: list[str] = []
    for part in parts:
        part = {"type": "text", "text": part} if isinstance(part, str) else part
        text = cast("Record", part).get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = cast("Record", part).get("type") if isinstance(part, Mapping) else None
            what = f"a part of type {kind!r}" if kind and kind != "text" else "a part without text"
            raise BadRecord("not text", f"has {what} in {where}: texts are trained on, nothing else")
        texts.append(text)
    return "".join(texts)


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
        raise BadRecord("bad tools", f"holds {kind_of(given)} as 'tools', not a list of JSON schemas")
    return tuple(cast("list[Any]", given))


def is_pair(record: Record, keys: Keys) -> bool:
    """Whether a record is to be read as a pair: as its source says, else as it looks."""
    return keys.shape == PAIR or (keys.shape != MESSAGES and MESSAGES not in fitting(record, keys))


def read_label(record: Record, keys: Keys) -> tuple[str, str]:
    """(text, name of its label). A whole number is the name that it is written as. Raises BadRecord."""
    text, label = _labelled_text(record, keys), record.get(keys.label)
    if label is None or label == "":
        raise _without_label(record, keys)
    if isinstance(_listed(label), list | tuple):
        rule = f"holds a list as {keys.label!r}, and the labels before it are one each"
        raise BadRecord("bad label", rule, f"{keys.source}.shape: {SETS} reads lists: [] is no label, [one] is one")
    return text, _label_name(label, keys)


def read_labels(record: Record, keys: Keys) -> tuple[str, tuple[str, ...]]:
    """(text, names of its labels, sorted, each once). Raises BadRecord."""
    text, labels = _labelled_text(record, keys), _listed(record.get(keys.label))
    if labels is None:
        raise _without_label(record, keys, "write [] for no label")
    if not isinstance(labels, list | tuple):
        rule = f"holds {kind_of(labels)} as {keys.label!r}: expected a list of labels, as in the records before it"
        raise BadRecord("bad label", rule, "write [] for no label, [one] for one")
    return text, tuple(sorted({_label_name(label, keys) for label in cast("list[object]", labels)}))


def _labelled_text(record: Record, keys: Keys) -> str:
    text = record.get(keys.text)
    if not isinstance(text, str):
        rule = f"has no {keys.text!r}; its keys: {named_keys(record)}"
        rule = f"holds {kind_of(text)} as {keys.text!r}, not text" if keys.text in record else rule
        raise BadRecord("no text", rule, f"name the text's key with {keys.source}.text_key")
    return text


def _without_label(record: Record, keys: Keys, more: str = "") -> BadRecord:
    if keys.label in record:
        return BadRecord("no label", f"has nothing as {keys.label!r}", more or "give it one, or leave it out")
    rule = f"has no {keys.label!r}; its keys: {named_keys(record)}"
    return BadRecord("no label", rule, f"name the label's key with {keys.source}.label_key")


def _label_name(label: object, keys: Keys) -> str:
    """A label as text, without white space around it; a number as it is written, true and false as JSON writes them."""
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float) and label.is_integer():  # a column of whole numbers with gaps is read as these
        return str(int(label))
    name = str(label).strip() if isinstance(label, str | int) else ""
    if not name:
        fix = "numbers that are no classes cannot be learnt here" if isinstance(label, float) else ""
        rule = f"holds {kind_of(label)} as {keys.label!r}: a label is one text, one whole number, true or false"
        raise BadRecord("bad label", rule, fix)
    return name


def _words(shape: str) -> str:
    return expected(shape, Keys())


def kind_of(value: object) -> str:
    """What a value is, in a person's words."""
    if value is None:
        return "null"
    empty = "an empty " if isinstance(value, list | str) and not value else ""
    return f"{empty}{type(value).__name__}"
