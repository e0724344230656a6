"""Chats as the tokenizer's own template renders them, and which characters the assistant wrote. No torch.

transformers' own renderer does the rendering, so the text is what `apply_chat_template` gives. What the assistant wrote
is marked by the template ({% generation %}), or found by rendering the chat up to each of its answers: where one of
these is not the beginning of the whole, the spans are not known and the record is refused.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from headway.data.shapes import BadRecord, Chat
from headway.errors import ModelError

Spans = tuple[tuple[int, int], ...]

TEMPLATE_FILE, MORE_TEMPLATES = "chat_template.jinja", "additional_chat_templates"
_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
_ASSISTANT = "assistant"


@dataclass(frozen=True)
class Rendered:
    """A chat as text; `spans` are the assistant's, as (first, end) characters, in order."""

    text: str
    spans: Spans


@dataclass(frozen=True)
class ChatTemplate:
    """A tokenizer's templates by name, `default` among them, its special tokens by role, and all that there are."""

    by_name: Mapping[str, str]
    special_tokens: Mapping[str, str]
    control_tokens: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        content = json.dumps([dict(self.by_name), dict(self.special_tokens)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def writes_the_date(self) -> bool:
        return any("strftime_now" in text for text in self.by_name.values())

    @property
    def is_marked(self) -> bool:
        """Whether the template itself marks what the assistant wrote."""
        return all(_MARKED.search(text) for text in self.by_name.values())

    def render_all(self, chat: Chat) -> Rendered:
        """The whole chat as one span. Raises BadRecord with the template's own words."""
        text, _ = self._run(self._template(chat), chat)
        return Rendered(text, ((0, len(text)),))

    def render(self, chat: Chat) -> Rendered:
        """The whole chat, and the assistant's spans. Raises BadRecord, also where the spans cannot be told."""
        template = self._template(chat)
        if _MARKED.search(template):
            text, spans = self._run(template, chat, marks=True)
            return Rendered(text, tuple((a, b) for a, b in spans if b > a))
        text, _ = self._run(template, chat)
        return Rendered(text, tuple(self._found(template, chat, text)))

    def _template(self, chat: Chat) -> str:
        if chat.tools is not None and "tool_use" in self.by_name:
            return self.by_name["tool_use"]
        return self.by_name["default"]

    def _found(self, template: str, chat: Chat, whole: str) -> Iterator[tuple[int, int]]:
        """Each answer's span: from the end of the prompt that asks for it to the end of the chat up to it."""
        for number, message in enumerate(chat.messages):
            if message["role"] != _ASSISTANT:
                continue
            if number == 0:
                raise BadRecord("spans unknown", "begins with the assistant's own words", _MARKS)
            before, _ = self._run(template, Chat(chat.messages[:number], chat.tools), prompt=True)
            upto, _ = self._run(template, Chat(chat.messages[: number + 1], chat.tools))
            if not (whole.startswith(before) and upto.startswith(before) and whole.startswith(upto)):
                rule = f"does not begin as the template renders its first {number + 1} messages"
                raise BadRecord("spans unknown", f"{rule}: what the assistant wrote cannot be told", _MARKS)
            yield len(before), self._without_tail(whole, len(before), len(upto))

    def _without_tail(self, whole: str, first: int, end: int) -> int:
        """The end of an answer without the white space behind its last special token: no model is asked for that."""
        tail = whole[first:end]
        kept = tail.rstrip()
        return first + len(kept) if kept.endswith(self.control_tokens) else end

    def _run(
        self, template: str, chat: Chat, *, marks: bool = False, prompt: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        from jinja2 import TemplateSyntaxError
        from transformers.utils import chat_template_utils

        renderer: Any = chat_template_utils.render_jinja_template
        try:
            texts, spans = renderer(
                [list(chat.messages)],
                tools=None if chat.tools is None else list(chat.tools),
                chat_template=template,
                return_assistant_tokens_mask=marks,
                add_generation_prompt=prompt,
                **self.special_tokens,
            )
        except TemplateSyntaxError as error:
            fix = f"correct it in the tokenizer's {TEMPLATE_FILE} or tokenizer_config.json"
            raise ModelError(
                f"the chat template is not valid, line {error.lineno}: {error.message}", fix=fix
            ) from error
        except Exception as error:  # a template is code: it may fail in any way, each time over one record
            said = " ".join(str(error).split()) or type(error).__name__
            raise BadRecord("template error", f"is refused by the chat template: {said}") from error
        return texts[0], spans[0] if marks else []


_MARKS = (
    "mark the assistant's part in the tokenizer's template ({% generation %} ... {% endgeneration %}), or loss_on: all"
)


def load_renderer_alone() -> None:
    """Import transformers' renderer, and of transformers only the files that it reads: 0.15 s in place of 1.4.

    For a process that renders and ends: no other part of transformers can be imported in it afterwards. Where the
    installed release does not let its renderer stand alone, nothing is changed.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None or "transformers" in sys.modules:
        return
    root = Path(spec.origin).parent
    for name, folder in (("transformers", root), ("transformers.utils", root / "utils")):
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    try:
        importlib.import_module("transformers.utils.chat_template_utils")
    except ImportError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
            del sys.modules[name]


def read_template(folder: Path, control_tokens: Iterable[str] = ()) -> ChatTemplate | None:
    """The chat template in a tokenizer's folder, where transformers looks for it; None where there is none.

    control_tokens: the tokenizer's special tokens.
    """
    settings = _json(folder / "tokenizer_config.json")
    by_name: dict[str, str] = {}
    given = settings.get("chat_template")
    if isinstance(given, str):
        by_name["default"] = given
    elif isinstance(given, list):
        by_name |= {entry["name"]: entry["template"] for entry in given}
    if (folder / TEMPLATE_FILE).is_file():
        by_name["default"] = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja")):
        by_name[path.stem] = path.read_text(encoding="utf-8")
    if "default" not in by_name:
        return None
    named = _json(folder / "special_tokens_map.json")
    # As transformers: the older file wins, unless the newer one is written in today's form.
    named = named | settings if "added_tokens_decoder" in settings else settings | named
    return ChatTemplate(by_name, _special_tokens(named), tuple(control_tokens))


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, ... as text."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
