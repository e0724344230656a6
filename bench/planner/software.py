"""What a software does where a row is silent, and what generation of it a row means."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import get_args

from doubt import NotJudged, Row
from words import said, stated, whole

from headway.plan.setting import Kernels, LossKind, Software

# What a row names that did not exist before: a lower bound of its date.
DATED = (("simplefsdp", "2025-03"),)
# bitsandbytes 0.43.2 stopped to keep the inputs of products whose weights are frozen (its pull request 1270).
_LEAN_QUANTIZED = ("2024-08", (0, 43, 2))
# torch.optim updates lists of tensors at once since 2.0; the Trainer asks for one kernel since torch 2.8.
_LISTS = ("2023-03", "2025-08")


@dataclass(frozen=True)
class Defaults:
    """What a software does where nothing is said: its kernels, its loss by month of release, its checkpointing.

    lists: months between which its optimizer keeps a list of temporaries as large as the gradients.
    whole_accumulation: its FSDP exchanges the gradients of the last micro batch alone.
    frozen_gathered: its FSDP has frozen and trained weights in one unit, held to the end of the backward pass.
    trainer: transformers' models and Trainer: logits cast in the model, DeepSpeed's buckets "auto", hidden x hidden.
    autocast: its 16-bit training runs under it, beside FSDP too.
    plain_models: the architecture whose code all its models with layer norms share; both have one kernel for GELU.
    fused_inputs: query, key and value are one matrix, and an adapter beside them reads one input.
    """

    pattern: str
    kernels: str = "eager"
    loss: tuple[tuple[str, str], ...] = (("", "whole"),)  # (from this month on, kind)
    compiled_loss: tuple[tuple[str, str], ...] = ()
    checkpointing: str = "none"
    engine: str = ""
    interleaved: bool = False  # its recipes cut each pipeline stage into chunks of a few layers
    flash: str = "flash"
    expandable_since: str = ""  # month from which its launch script lets the allocator's segments grow
    ends_apart: bool = False
    dropout: bool = False  # trained with it, as was usual until about 2022
    lists: tuple[str, str] = ("", "")
    whole_accumulation: bool = False
    frozen_gathered: bool = False
    trainer: bool = False
    plain_models: str = ""
    autocast: bool = False
    fused_inputs: bool = False
    adapter_dropout: bool = False


# Kernels that are put into another software's model, where the strategy names them.
PATCHES = {
    "liger": {"kernels": "fused", "loss": (("", "linear"),)},
    "unsloth": {"kernels": "fused", "loss": (("", "chunked"),), "checkpointing": "full"},
}
# Read in order: the first whose pattern is found in family, source or strategy.
SOFTWARE = (
    Defaults(
        "torchtitan",
        loss=(("", "whole"),),
        compiled_loss=(("", "whole"), ("2025-03", "compiled")),
        checkpointing="selective",
        engine="fsdp",
        expandable_since="2025-03",
    ),
    Defaults("torchao|github:ao\\b", loss=(("", "whole"),), checkpointing="selective", engine="fsdp"),
    Defaults("torchtune", loss=(("", "chunked"),), engine="fsdp", ends_apart=True),
    Defaults(
        "litgpt|lit-gpt",
        engine="fsdp",
        lists=("2023-03", "9999"),
        whole_accumulation=True,
        frozen_gathered=True,
        plain_models="gpt_neox",
        fused_inputs=True,
        adapter_dropout=True,
    ),
    # each a model that computes its loss itself, so torch.compile fuses it
    Defaults("nanogpt|llm\\.c\\b", compiled_loss=(("", "compiled"),), plain_models="nanogpt"),
    Defaults("llm-foundry|llmfoundry|composer", engine="fsdp", flash="flash1"),
    Defaults("internevo|internlm", kernels="fused", loss=(("", "compiled"),), engine="megatron", flash="flash1"),
    Defaults("megatron-deepspeed|vtrain|bigscience", engine="megatron", dropout=True),
    Defaults(
        "megatron-?bridge|transformer.?engine",
        kernels="fused",
        loss=(("", "compiled"),),
        engine="megatron",
        flash="flash3",
        interleaved=True,
    ),
    Defaults("nemo", kernels="fused", loss=(("", "compiled"),), engine="megatron", interleaved=True),
    Defaults(
        "nemo|megatron|korthikanti|2205.05198|2104.04473",
        kernels="fused",
        loss=(("", "compiled"),),
        engine="megatron",
    ),
    Defaults(
        "hf trainer|huggingface trainer|transformers trainer|\\bpeft\\b|\\btrl\\b",
        compiled_loss=(("", "compiled"),),  # its models compute it
        lists=_LISTS,
        whole_accumulation=True,
        trainer=True,
        autocast=True,
    ),
    Defaults("deepspeed", engine="deepspeed"),
    Defaults("mingpt", engine="fsdp", plain_models="gpt2", autocast=True),
    Defaults("lightning", autocast=True, engine="fsdp", frozen_gathered=True),
    Defaults("fsdp", engine="fsdp"),
)


def defaults_of(row: Row) -> Defaults:
    """By its strategy, its family and its source; notes tell of the run, and name other software too."""
    source = re.sub(r"github:\s*[\w.-]+/", "github:", said(row, "source"))  # an owner is no software
    text = said(row, "strategy") + " | " + said(row, "family", "software") + " | " + source
    found = next((entry for entry in SOFTWARE if re.search(entry.pattern, text)), Defaults(""))
    strategy = said(row, "strategy")
    for name, kernels in PATCHES.items():
        if name in strategy and f"no {name}" not in strategy:
            found = replace(found, **kernels)
    return found


def month_of(row: Row) -> str:
    """'2025-06' of the newest date that the row names; '' where it names none."""
    text = said(row, "date", "source", "notes")
    found = [f"{y}-{m}" for y, m in re.findall(r"(?<!\d)(20[12]\d)-?(0[1-9]|1[0-2])(?!\d)", text)]
    months = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
    for name, year in re.findall(r"\b([a-z]{3})[a-z]*[- ](20[12]\d)", text):
        if name in months:
            found.append(f"{year}-{months.index(name) + 1:02d}")
    found += [since for word, since in DATED if word in said(row, "strategy", "notes")]
    return max(found, default="")


def at(choices: tuple[tuple[str, str], ...], month: str) -> str:
    return [kind for since, kind in choices if since <= month or not since][-1]


def software_of(row: Row, known: Defaults) -> Software:
    text, month = stated(row), month_of(row)
    compiled = said(row, "compile").startswith(
        ("yes", "true", "graph", "inductor", "aot", "max-", "reduce-", "torch.compile")
    )
    fused = re.search(r"fused (?:rms|layer)?[- ]?norm", text)
    kernels = "compiled" if compiled else "fused" if fused else known.kernels
    flash = said(row, "flash_attn")
    attention = "eager" if re.match(r"(no|false|0|eager|math)\b", flash) else known.flash
    if re.search(r"fa-?[34]|flash.?attention.?3|cudnn", flash + " " + text):
        attention = "flash3"
    return Software(
        kernels=_one_of(row, "kernels", get_args(Kernels)) or kernels,  # pyright: ignore[reportArgumentType]
        attention=attention,  # pyright: ignore[reportArgumentType]
        loss=_one_of(row, "loss", get_args(LossKind)) or _loss(row, known, compiled=compiled),  # pyright: ignore
        loss_chunk_tokens=1024,  # read for `linear` alone: libraries take a few hundred to a few thousand
        fused_optimizer=not _by_lists(row, known),
        expandable_segments=bool(known.expandable_since) and month >= known.expandable_since,
        ends_apart=known.ends_apart,
        overlapped_tensor_parallel="asynctp" in text or "async tp" in text or known.interleaved,
        virtual_stages=4 if known.interleaved and whole(row, "pp", 1) > 1 else 1,
        whole_accumulation=known.whole_accumulation,
        held_logit_bytes=4 if "holds the fp32 logits" in text else 0 if known.trainer else 2,
        wide_base=_casts_the_base(row, known),
        autocast=known.autocast and "mixed" in said(row, "precision") and "fsdp" in said(row, "strategy"),
        quantized_inputs=_keeps_quantized_inputs(row),
    )


def _one_of(row: Row, key: str, words: tuple[str, ...]) -> str:
    """A cell that takes few words; '' where it is empty."""
    found = said(row, key).strip()
    if found and found not in words:
        raise NotJudged(f"its {key} is none of {', '.join(words)}")
    return found


def _loss(row: Row, known: Defaults, *, compiled: bool) -> str:
    text, month = stated(row), month_of(row)
    fuses = compiled and not said(row, "compile").startswith(("graph", "aot"))
    loss = at(known.compiled_loss, month) if fuses and known.compiled_loss else at(known.loss, month)
    if re.search(r"chunked (cross.entropy|ce|loss)|chunked-ce", text):
        loss = "chunked"
    if re.search(r"linear cross.entropy|cut cross.entropy|fused linear|\bcce\b|liger", text) and "no liger" not in text:
        loss = "linear"
    if "full logits" in text:
        loss = "whole"
    if re.search(r"(?:16|half|bf16|fp16)[- ]?(?:bit|precision)? logits", text):
        loss = "half"
    return loss


def _by_lists(row: Row, known: Defaults) -> bool:
    """Whether the optimizer is torch's loop over lists of tensors, not one kernel."""
    text = said(row, "strategy", "optimizer", "notes")
    if re.search(r"fused ?= ?(?:false|no|0)|foreach", text):
        return True
    if re.search(r"fused ?= ?(?:true|yes|1)|\bfused adam", text):
        return False
    first, last = known.lists
    return bool(first) and first <= month_of(row) < last


def _casts_the_base(row: Row, known: Defaults) -> bool:
    """PEFT's preparation of a quantised model; DeepSpeed and FSDP bring what it cast back to 16 bits."""
    text = said(row, "strategy", "precision", "model")
    if not known.trainer or re.search(r"deepspeed|zero|fsdp", text) or "no cast to fp32" in said(row, "notes"):
        return False
    return bool(re.search(r"qlora|nf4|int[48]|[48]-?bit", text))


def _keeps_quantized_inputs(row: Row) -> bool:
    """Of an old bitsandbytes, by its version where the row names one, else by the row's date."""
    text = said(row, "software", "strategy", "notes", "precision")
    if named := re.search(r"bitsandbytes v?(\d+)\.(\d+)(?:\.(\d+))?", text):
        version = (int(named[1]), int(named[2]), int(named[3] or 0))
        return version < _LEAN_QUANTIZED[1]
    month = month_of(row)
    return bool(month) and month < _LEAN_QUANTIZED[0] and bool(re.search(r"bnb|bitsandbytes|nf4", text))
