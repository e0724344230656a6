"""A pretrained folder: no code and no pickles, special tokens that can be learnt, a generation config that saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from headway.check.report import Verdict, green, red, yellow
from headway.check.subject import Subject
from headway.facts.generation import generation_note


def _json(path: Path) -> dict[str, Any]:
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def safety(name: str, subject: Subject) -> Verdict:
    """Code that a model's folder asks to run, and weights that are pickles: neither is read."""
    path = subject.plan.model.path
    options = [key for key in ("trust_remote_code",) if subject.plan.model.options.get(key)]
    if options and subject.plan.model.kind == "huggingface":
        return red(
            name, "trust_remote_code runs code from the model's folder", "leave it out; use model.factory instead"
        )
    if path is None:
        return green(name, "no downloaded folder is read")
    folder = Path(path)
    if _json(folder / "config.json").get("auto_map"):
        what = "the model's config asks for code of its own (auto_map), which is never run"
        return yellow(name, what, "read that code, and name it yourself: model.factory=module:function", evidence=path)
    pickles = sorted(one.name for form in ("*.bin", "*.pt", "*.pth", "*.pkl") for one in folder.glob(form))
    if pickles and not any(folder.glob("*.safetensors")):
        what = "the weights are pickles, which can run code when they are read"
        fix = "convert them where you trust them: model.save_pretrained(FOLDER, safe_serialization=True)"
        return red(name, what, fix, evidence=f"{path}/{pickles[0]}")
    return green(name, "safetensors only, no code of the folder's own", evidence=path)


def special_tokens(name: str, subject: Subject) -> Verdict:
    """pad that is the end token, and a begin token that a chat template and the tokenizer would both write."""
    if not subject.plan.data.tokenizer:
        return green(name, "the tokenizer is not known yet")
    folder = Path(subject.plan.data.tokenizer)
    settings = _json(folder / "tokenizer_config.json") | _json(folder / "special_tokens_map.json")
    roles = {role: _content(settings.get(role)) for role in ("bos_token", "eos_token", "pad_token")}
    said = ", ".join(f"{role.removesuffix('_token')} {text!r}" for role, text in roles.items() if text) or "none named"
    template = str(settings.get("chat_template") or "") + _text(folder / "chat_template.jinja")
    begin = roles["bos_token"]
    if begin and settings.get("add_bos_token") and ("bos_token" in template or begin in template):
        what = f"the chat template writes {begin!r}, and the tokenizer adds it again; Headway writes it once"
        return yellow(
            name, what, "where you encode the rendered text yourself: add_special_tokens=False", evidence=said
        )
    if roles["pad_token"] and roles["pad_token"] == roles["eos_token"]:
        what = "pad is the end token; Headway masks by position, so the end is learnt all the same"
        return green(name, what, evidence=said)
    return green(name, said)


def _content(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def generation(name: str, subject: Subject) -> Verdict:
    """transformers refuses to save a generation config that contradicts itself: after the training."""
    path = subject.plan.model.path
    if path is None or not (said := generation_note(Path(path))):
        return green(name, "nothing that contradicts itself")
    where = f"{path}/generation_config.json"
    return yellow(name, said, f"none is needed; to be rid of this, correct {where}", evidence=where)
