"""Text from an exported folder, in plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from headway.errors import ExportError
from headway.export.tokenizer import load_tokenizer
from headway.export.verify import without_bars
from headway.model.skeleton import seeded


def generate(folder: Path, prompt: str, *, max_tokens: int = 64, temperature: float = 0.8, seed: int = 0) -> str:
    """The continuation of `prompt`, without it. Temperature 0 takes the likeliest token; else `seed` fixes the draw.

    A prompt too long for the model keeps its end. Raises ExportError where the folder has no model or tokenizer.
    """
    try:
        tokenizer = load_tokenizer(folder)[0]
        with without_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(folder)
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise ExportError(f"{folder} cannot be loaded: {said}", fix="give a folder that Headway exported") from error
    return continue_text(model, tokenizer, prompt, max_tokens, temperature, seed)


def continue_text(model: Any, tokenizer: Any, prompt: str, max_tokens: int, temperature: float, seed: int) -> str:
    """As `generate`, with a loaded model and tokenizer."""
    ids = tokenizer(prompt)["input_ids"] or [first_token(tokenizer)]
    room = getattr(model.config, "max_position_embeddings", None) or len(ids) + max_tokens
    keep = max(1, room - max_tokens)
    inputs = torch.tensor([ids[-keep:]], device=model.device)
    sampling = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
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
