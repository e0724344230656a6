"""Text from an exported folder, in plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from headway.errors import ExportError
from headway.export.asked import ANSWERING, task_of
from headway.export.tokenizer import load_tokenizer
from headway.export.verify import without_bars
from headway.model.skeleton import AUTO_CLASSES, seeded

_LABELS_SHOWN = 3
_GREEDY = 1e-5  # up to here the likeliest token is drawn anyway, and logits divided by less would overflow


def generate(
    folder: Path,
    prompt: str,
    *,
    max_tokens: int = 64,
    temperature: float = 0.8,
    seed: int = 0,
    rendered: bool = False,
) -> str:
    """The continuation of `prompt`, without it. Temperature 0 takes the likeliest token; else `seed` fixes the draw.

    A model of chats (see `task_of`) is asked as its user, unless the prompt is a chat `rendered` already; a classifier
    names the labels that it finds likeliest. A prompt too long for the model keeps its end.

    Raises:
        ExportError: the folder has no model or tokenizer.
    """
    task = task_of(folder)
    try:
        tokenizer = load_tokenizer(folder)[0]
        with without_bars():
            model: Any = AUTO_CLASSES.get(task, AutoModelForCausalLM).from_pretrained(folder)
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise ExportError(f"{folder} cannot be loaded: {said}", fix="give a folder that Headway exported") from error
    if task == "classification":
        return _classify(model, tokenizer, prompt)
    if task in ANSWERING and not rendered and getattr(tokenizer, "chat_template", None):
        chat = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    else:
        ids = tokenizer(prompt, add_special_tokens=not rendered)["input_ids"]
    return _continue(model, tokenizer, list(ids), max_tokens, temperature, seed)


@torch.no_grad()
def _classify(model: Any, tokenizer: Any, text: str) -> str:
    """The likeliest labels, a line each, with their probabilities."""
    room = getattr(model.config, "max_position_embeddings", None)
    inputs = tokenizer(text, return_tensors="pt", truncation=room is not None, max_length=room)
    logits = model.eval()(**inputs).logits[0].float()
    several = model.config.problem_type == "multi_label_classification"
    shares = logits.sigmoid() if several else logits.softmax(0)
    # Of labels that are each a yes or a no, all that are likelier than not, at least the likeliest few.
    shown = max(_LABELS_SHOWN, int((shares > 0.5).sum())) if several else _LABELS_SHOWN
    best = shares.topk(min(shown, len(shares)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return "\n".join(f"{model.config.id2label[number]} ({share:.2f})" for number, share in pairs)


def _continue(model: Any, tokenizer: Any, ids: list[int], max_tokens: int, temperature: float, seed: int) -> str:
    ids = ids or [first_token(tokenizer)]
    room = getattr(model.config, "max_position_embeddings", None) or len(ids) + max_tokens
    keep = max(1, room - max_tokens)
    inputs = torch.tensor([ids[-keep:]], device=model.device)
    sampling = {"do_sample": True, "temperature": temperature} if temperature > _GREEDY else {"do_sample": False}
    pad = next((t for t in (tokenizer.pad_token_id, tokenizer.eos_token_id) if t is not None), 0)
    with seeded(seed), torch.no_grad():
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=min(max_tokens, max(1, room - inputs.shape[1])),
            pad_token_id=pad,
            **sampling,
        )
    return tokenizer.decode(output[0, inputs.shape[1] :], skip_special_tokens=True)


def first_token(tokenizer: Any) -> int:
    """What an empty prompt begins with: the start token, else the end token, which stands between documents."""
    return next((t for t in (tokenizer.bos_token_id, tokenizer.eos_token_id) if t is not None), 0)
