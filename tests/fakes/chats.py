"""Chat templates, a tokenizer that has one, and files of chats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fakes.corpora import prose, tokenizer_for, write_texts

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As some models' templates do: what stands in an earlier answer is not what stood in it when it was the last.
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
)
STRICT = "{% if messages[0].role != 'user' %}{{ raise_exception('the user must begin') }}{% endif %}" + PLAIN

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


CHATS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [turn("user", "the sea?"), turn("assistant", "the grey sea.")]},
    "two turns": {
        "messages": [
            turn("user", "the lantern under the stone?"),
            turn("assistant", "nobody walked."),
            turn("user", "quietly"),
            turn("assistant", "the morning light\nof the sea"),
        ]
    },
    "system": {
        "messages": [
            turn("system", "walk quietly"),
            turn("user", "light?"),
            turn("assistant", "under the stone 你好 😀"),
        ]
    },
    "tools": {
        "messages": [
            turn("user", "add the stone"),
            turn("assistant", "walked"),
            turn("tool", "42"),
            turn("assistant", "the grey morning is 42"),
        ],
        "tools": TOOLS,
    },
}


def chat_tokenizer(base: Path, template: str | None = PLAIN, name: str = "tokenizer") -> Path:
    """A small trained tokenizer with <|im_start|> and <|im_end|>, the latter its end token, and a chat template."""
    source = write_texts(base / f"{name}-corpus", [prose(seed, 60) for seed in range(8)])
    folder = base / name
    shutil.copytree(tokenizer_for(base, source), folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    size = 1 + max(token["id"] for token in content["added_tokens"])
    size = max(size, len(content["model"]["vocab"]))
    for number, token in enumerate(("<|im_start|>", "<|im_end|>")):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        content["added_tokens"].append({"id": size + number, "content": token, "special": True, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        settings = json.loads((folder / file).read_text()) | {"eos_token": "<|im_end|>"}
        (folder / file).write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def write_jsonl(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
