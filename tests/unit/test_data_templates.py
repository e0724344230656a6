"""Chats as transformers renders and encodes them, and what the assistant wrote in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.chats import CHATS, FORGETFUL, MARKED, PLAIN, STRICT, chat_tokenizer, turn
from headway.data.shapes import BadRecord, Chat, read_chat
from headway.data.templates import ChatTemplate, read_template
from headway.errors import ModelError

ENDS = ("<|im_start|>", "<|im_end|>")


def template(text: str, **named: str) -> ChatTemplate:
    return ChatTemplate({"default": text, **named}, {"eos_token": "<|im_end|>"}, ENDS)


def learnt(text: str, chat: dict[str, Any]) -> list[str]:
    rendered = template(text).render(read_chat(chat))
    return [rendered.text[first:end] for first, end in rendered.spans]


@pytest.mark.parametrize("text", [PLAIN, MARKED])
@pytest.mark.parametrize("name", CHATS)
def test_a_chat_is_what_transformers_makes_of_it(tmp_path: Path, text: str, name: str) -> None:
    from transformers import AutoTokenizer

    folder = chat_tokenizer(tmp_path, text)
    theirs = AutoTokenizer.from_pretrained(folder)
    found = read_template(folder)
    assert found is not None
    assert dict(found.special_tokens) == theirs.special_tokens_map
    chat = CHATS[name]
    whole = theirs.apply_chat_template(chat["messages"], tools=chat.get("tools"), tokenize=False)
    assert found.render(read_chat(chat)).text == whole


ALONE = """
import json, sys
from headway.data import templates
{before}
templates.load_renderer_alone()
from headway.data.shapes import read_chat
made = []
for text, chats in json.load(sys.stdin):
    own = templates.ChatTemplate({{"default": text}}, {{"eos_token": "<|im_end|>"}}, ("<|im_start|>", "<|im_end|>"))
    made += [[(r := own.render(read_chat(chat))).text, r.spans] for chat in chats]
print(json.dumps([made, [name for name in ("torch", "transformers.models") if name in sys.modules]]))
"""


@pytest.mark.parametrize("before", ["", "sys.path.insert(0, sys.argv[1])"], ids=["alone", "whole"])
def test_the_renderer_alone_renders_as_the_whole_package(tmp_path: Path, before: str) -> None:
    """Also where a release's renderer needs its package: the whole is imported then."""
    utils = tmp_path / "transformers" / "utils"
    utils.mkdir(parents=True)
    (tmp_path / "transformers" / "__init__.py").write_text("needed = 1\n")
    (utils / "__init__.py").write_text("")
    body = "from .. import needed\ndef render_jinja_template(chats, **words):\n    return ['whole'], [[(0, 5)]]\n"
    (utils / "chat_template_utils.py").write_text(body)
    asked = [[text, [chat for chat in CHATS.values() if "tools" not in chat]] for text in (PLAIN, MARKED)]
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(before=before), str(tmp_path)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    made, heavy = json.loads(done.stdout)
    if before:
        assert made[-1] == ["whole", [[0, 5]]]
        return
    assert heavy == []
    here = [template(text).render(read_chat(chat)) for text, chats in asked for chat in chats]
    assert made == [[one.text, [list(span) for span in one.spans]] for one in here]


@pytest.mark.parametrize("name", CHATS)
def test_marked_and_found_spans_are_the_same(name: str) -> None:
    chat = {"messages": CHATS[name]["messages"]}
    answers = [f"{m['content']}<|im_end|>" for m in chat["messages"] if m["role"] == "assistant"]
    assert learnt(PLAIN, chat) == learnt(MARKED, chat) == answers


def test_without_a_prompt_for_the_answer_its_header_is_learnt_too() -> None:
    """The model is then asked with nothing behind the question: it must begin the answer itself."""
    text = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    chat = {"messages": [turn("user", "alpha?"), turn("assistant", "beta.")]}
    assert learnt(text, chat) == ["<|assistant|>beta.<|end|>"]


def test_white_space_that_ends_an_answer_is_learnt_where_no_token_does() -> None:
    text = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert learnt(text, CHATS["one turn"]) == ["assistant: the grey sea.\n"]


def test_a_template_that_rewrites_earlier_answers_is_refused() -> None:
    one = learnt(FORGETFUL, CHATS["one turn"])
    assert one == ["<|im_start|>assistant\n<think></think>the grey sea.<|im_end|>"]
    with pytest.raises(BadRecord, match="does not begin as the template renders its first 2 messages") as caught:
        learnt(FORGETFUL, CHATS["two turns"])
    assert "{% generation %}" in caught.value.fix
    assert "loss_on: all" in caught.value.fix


def test_a_templates_own_errors_are_passed_on() -> None:
    with pytest.raises(BadRecord, match="is refused by the chat template: the user must begin"):
        learnt(STRICT, CHATS["system"])
    with pytest.raises(BadRecord, match="'dict object' has no attribute 'absent'"):
        learnt("{{ messages[0].absent.deeper }}", CHATS["one turn"])
    with pytest.raises(ModelError, match="the chat template is not valid, line 1"):
        learnt("{% for m in messages %}", CHATS["one turn"])
    with pytest.raises(BadRecord, match="begins with the assistant's own words"):
        learnt(PLAIN, {"messages": [turn("assistant", "hello"), turn("user", "x")]})


def test_templates_are_found_where_transformers_looks(tmp_path: Path) -> None:
    assert read_template(tmp_path) is None
    settings = {"chat_template": "old {{ messages[0].content }}", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    chat, tools = read_chat(CHATS["one turn"]), Chat(read_chat(CHATS["one turn"]).messages, ({"name": "add"},))
    found = read_template(tmp_path)
    assert found is not None
    assert found.render(chat).text == "old the sea?"
    assert dict(found.special_tokens) == {"bos_token": "<s>", "eos_token": "</s>"}
    named = [
        {"name": "default", "template": "{{ bos_token }}"},
        {"name": "tool_use", "template": "{{ tools | length }}"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": named}))
    found = read_template(tmp_path)
    assert found is not None
    before = found.sha256
    assert (found.render(chat).text, found.render(tools).text) == ("<s>", "1")
    (tmp_path / "chat_template.jinja").write_text("new")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("new tools")
    found = read_template(tmp_path)
    assert found is not None
    assert found.sha256 != before
    assert (found.render(chat).text, found.render(tools).text) == ("new", "new tools")


def test_templates_say_what_they_do() -> None:
    assert template(MARKED).is_marked
    assert not template(PLAIN).is_marked
    assert template("{{ strftime_now('%d') }}").writes_the_date
    assert not template(PLAIN).writes_the_date


def test_rendering_loads_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from headway.data.templates import ChatTemplate; from headway.data.shapes import Chat;"
        "print(ChatTemplate({'default': 'x'}, {}).render(Chat(({'role': 'user', 'content': 'y'},))).text,"
        " 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == ["x", "False"], done.stderr
