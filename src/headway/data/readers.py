"""From a document to what is encoded: its text, which characters of it are learnt, its label."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headway.data.holdout import encode_text
from headway.data.pairs import read_pair
from headway.data.preferences import Preference, read_preference
from headway.data.reading import LossOn, Reading
from headway.data.seam import Document
from headway.data.shapes import (
    PAIR,
    SETS,
    BadRecord,
    Chat,
    Keys,
    is_pair,
    read_chat,
    read_label,
    read_labels,
)
from headway.data.templates import ChatTemplate, Rendered, Spans, read_template
from headway.errors import ModelError, Problem

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SILENT = "hold an answer of the assistant's without a word: to end at once is learnt there"
NO_TOOLS = "bring tools, and the chat template does not write them"
SPELT_OUT = "spell out control tokens of the chat in their messages, and are read as these tokens"


@dataclass(frozen=True)
class Prepared:
    """A document ready to be encoded.

    text: without lone surrogates. hashed: what decides whether it is held out. counted: what its targets stand for, for
    bits per byte. spans: of characters that are learnt; None: all. framed: between a begin and an end token.
    label: the name of its class; of a text with any number of labels, their names as a JSON list.
    remarks: what to count in the report.
    """

    text: str
    hashed: bytes
    counted: bytes
    spans: Spans | None = None
    framed: bool = True
    label: str | None = None
    repaired: bool = False
    remarks: tuple[str, ...] = field(default=())
    second: Prepared | None = None  # of a preference: the rejected answer behind the same prompt


class Reader(Protocol):
    """One for each kind of store."""

    def read(self, document: Document, keys: Keys) -> Prepared | None:
        """What to encode; None for an empty text. Raises BadRecord."""
        ...


class TextReader:
    """A document is its text, all of it learnt."""

    def read(self, document: Document, keys: Keys) -> Prepared | None:
        if not document.text.strip():
            return None
        raw, repaired = encode_text(document.text)
        return Prepared(raw.decode("utf-8") if repaired else document.text, raw, raw, repaired=repaired > 0)


class LabelReader:
    """A text and the name of its class; `several`: texts of any number of labels."""

    def __init__(self, *, several: bool):
        self.several = several

    def read(self, document: Document, keys: Keys) -> Prepared | None:
        record: dict[str, Any] = dict(document.record or {})
        label_repaired = False
        if keys.label in record:
            record[keys.label], label_repaired = _mended(record[keys.label])
        if self.several:
            # A source of single labels may stand beside one of lists, as held-out data say.
            text, names = read_labels(record, keys) if keys.shape == SETS else _alone(*read_label(record, keys))
            label = json.dumps(names)
        else:
            text, label = read_label(record, keys)
        if not text.strip():
            return None
        raw, repaired = encode_text(text)
        return Prepared(raw.decode("utf-8"), raw, raw, label=label, repaired=repaired > 0 or label_repaired)


def _alone(text: str, label: str) -> tuple[str, tuple[str, ...]]:
    return text, (label,)


class ChatReader:
    """A chat in the tokenizer's template; a pair as a chat of two messages, or plainly where there is no template."""

    def __init__(self, template: ChatTemplate | None, loss_on: LossOn):
        self.template, self.loss_on = template, loss_on
        spelt = sorted(template.control_tokens, key=len, reverse=True) if template else []
        self._control = re.compile("|".join(map(re.escape, spelt))) if spelt else None

    def read(self, document: Document, keys: Keys) -> Prepared | None:
        record, repaired = _mended(document.record or {})
        remarks: tuple[str, ...] = ()
        if self.template is None:
            rendered = self._plain(record)
        else:
            pair = read_pair(record) if is_pair(record, keys) else None
            chat, asked = (pair.chat, pair.asked) if pair else (read_chat(record), 0)
            if self.loss_on == "all":
                rendered = self.template.render_all(chat)
            else:
                rendered = _behind(self.template.render(chat), chat, asked)
            remarks = self._checked(chat, chat.messages[asked:], rendered)
        spans = rendered.spans
        learnt = "".join(rendered.text[first:end] for first, end in spans)
        return Prepared(
            rendered.text,
            rendered.text.encode(),
            learnt.encode(),
            spans=spans,
            framed=self.template is None,
            repaired=repaired,
            remarks=(*remarks, SPELT_OUT) if self._spells_out(record) else remarks,
        )

    def _checked(self, chat: Chat, taught: Sequence[Mapping[str, Any]], rendered: Rendered) -> tuple[str, ...]:
        """Remarks on what the rendered chat lacks; the answers among `taught` are learnt.

        Raises BadRecord where nothing, or something empty, is learnt.
        """
        answers = [message for message in taught if message["role"] == "assistant"]
        if self.loss_on == "assistant" and not (answers and rendered.spans):
            roles = ", ".join(dict.fromkeys(repr(message["role"]) for message in chat.messages))
            rule = f"has no word of the assistant's: nothing of it would be learnt; its roles: {roles}"
            raise BadRecord("nothing to learn", rule, "task.loss_on: all learns the whole chat")
        lost = [name for message in answers for name in _called(message) if name not in rendered.text]
        if lost:
            rule = f"calls a tool ({lost[0]}), and the chat template does not write it: silence would be learnt"
            raise BadRecord("tool calls lost", rule, "take a template that writes tool_calls, or write them as content")
        silent = [message for message in answers if not (message.get("content") or "").strip() and not _called(message)]
        if self.loss_on == "assistant" and len(silent) == len(answers):
            raise BadRecord("empty response", "has empty answers of the assistant's only: there is nothing to learn")
        unread = chat.tools is not None and not any("tools" in text for text in self._templates())
        return (*((SILENT,) if silent else ()), *((NO_TOOLS,) if unread else ()))

    def _templates(self) -> Collection[str]:
        return self.template.by_name.values() if self.template else ()

    def _plain(self, record: Mapping[str, Any]) -> Rendered:
        plain = read_pair(record).plain
        if plain is None:
            raise _no_template()
        prompt, response = plain
        first = 0 if self.loss_on == "all" else len(prompt)
        return Rendered(prompt + response, ((first, len(prompt) + len(response)),))

    def _spells_out(self, value: object) -> bool:
        if self._control is None:
            return False
        if isinstance(value, str):
            return self._control.search(value) is not None
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        return any(self._spells_out(part) for part in inner)


class PreferenceReader(ChatReader):
    """Two answers to one prompt, rendered as chats or, without a template, plainly; the answers' tokens are learnt."""

    def read(self, document: Document, keys: Keys) -> Prepared | None:
        record, repaired = _mended(document.record or {})
        found = read_preference(record)
        sides = [self._side(found, number) for number in (0, 1)]
        if sides[0].text == sides[1].text:
            raise BadRecord("no preference", "has two answers that the chat template writes alike")
        remarks = (SPELT_OUT,) if self._spells_out(record) else ()
        hashed = "\0".join(side.text for side in sides).encode()
        chosen, rejected = (
            Prepared(side.text, hashed, b"", spans=side.spans, framed=self.template is None) for side in sides
        )
        return replace(chosen, second=rejected, repaired=repaired, remarks=remarks)

    def _side(self, found: Preference, number: int) -> Rendered:
        if self.template is None:
            if found.plain is None:
                raise _no_template()
            prompt, answer = found.plain[number]
            return Rendered(prompt + answer, ((len(prompt), len(prompt) + len(answer)),))
        chat = (found.chosen, found.rejected)[number]
        rendered = _behind(self.template.render(chat), chat, found.asked)
        if not rendered.spans:
            raise _unknown_spans()
        return rendered


def _behind(rendered: Rendered, chat: Chat, asked: int) -> Rendered:
    """The same without the spans of the first `asked` messages. Raises BadRecord where these cannot be told."""
    turns = [message["role"] == "assistant" for message in chat.messages]
    earlier = sum(turns[:asked])
    if earlier and len(rendered.spans) != sum(turns):
        raise _unknown_spans()
    return Rendered(rendered.text, rendered.spans[earlier:])


def _unknown_spans() -> BadRecord:
    rule = "has messages of the assistant's whose place in the rendered chat cannot be told"
    return BadRecord("spans unknown", rule, "one message of the assistant's in each answer")


def _no_template() -> BadRecord:
    rule = "holds messages, and the tokenizer has no chat template"
    return BadRecord("no template", rule, "give texts, or take the tokenizer of the model's chat variant")


def _called(message: Mapping[str, Any]) -> list[str]:
    """The names of the tools that a message calls."""
    calls = message.get("tool_calls")
    parts = (
        [call.get("function", call) for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    )
    return [part["name"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("name"), str)]


def _mended(value: Any) -> tuple[Any, bool]:
    """A record with U+FFFD in place of lone surrogates, and whether there were any."""
    if isinstance(value, str):
        raw, repaired = encode_text(value)
        return raw.decode("utf-8"), repaired > 0
    if isinstance(value, Mapping):
        parts = {key: _mended(inner) for key, inner in value.items()}
        return {key: part for key, (part, _) in parts.items()}, any(changed for _, changed in parts.values())
    if isinstance(value, list | tuple):
        items = [_mended(inner) for inner in value]
        return [item for item, _ in items], any(changed for _, changed in items)
    return value, False


def template_of(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template in the tokenizer's folder."""
    added = tokenizer.get_added_tokens_decoder().values()
    return read_template(folder, [str(token.content) for token in added if token.special])


def reader_for(reading: Reading, folder: Path, tokenizer: Tokenizer, shapes: Collection[str]) -> Reader:
    """The reader of a store. Raises ModelError for chats without a template.

    folder: the tokenizer's. shapes: of all sources. Prompts with responses need no template.
    """
    if reading.kind == "labelled":
        return LabelReader(several=SETS in shapes)
    if reading.kind == "text":
        return TextReader()
    template = template_of(folder, tokenizer)
    if reading.kind == "preference":
        return PreferenceReader(template, "assistant")
    if template is None and set(shapes) != {PAIR}:
        rule = f"the tokenizer in {folder} has no chat template, and the data holds chats"
        fix = "take the tokenizer of the model's chat variant, or put a chat_template.jinja into the folder"
        raise ModelError(problems=[Problem("model.tokenizer", rule, fix=fix)])
    return ChatReader(template, reading.loss_on)
