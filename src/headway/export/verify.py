"""Is the exported folder the model? It is loaded in plain transformers and compared, tensor by tensor and in logits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from headway.errors import ExportError
from headway.export.card import Provenance, render_card
from headway.export.census import Census, count
from headway.export.folder import ADAPTER, CARD, DTYPES, RECORD, is_adapter, read_record, write_json
from headway.export.tokenizer import load_tokenizer
from headway.model.adapter import PREFIX, without_old_names
from headway.model.huggingface import HuggingFaceSource
from headway.model.naming import is_partitioned
from headway.model.quantized import QloraSource, building_device, hold_in_4_bits, quantizer_of
from headway.model.skeleton import AUTO_CLASSES
from headway.parallel.collectives import world
from headway.plan.schema import Plan

# Largest difference of a logit that rounding explains, as a share of the largest logit (at least 1), and why.
BOUNDS = {
    "fp32": (1e-4, "fp32 sums in another order: 6e-8 an operation, through every layer"),
    "tf32": (2e-2, "TF32 and fp16 keep 10 bits of a product: 5e-4 an operation"),
    "fp16": (2e-2, "TF32 and fp16 keep 10 bits of a product: 5e-4 an operation"),
    "bf16": (1e-1, "bf16 keeps 7 bits of a number: 4e-3 an operation, in the weights and in each layer"),
}
_COARSENESS = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True)
class ExportCheck:
    """What was found. `bound` is absolute; `reason` says where it comes from."""

    verified: bool
    max_difference: float
    bound: float
    reason: str
    census: Census
    folder: str = ""
    remarks: tuple[str, ...] = ()  # what a user of the folder should know
    loader: str = "plain transformers"
    compared: str = "logits"

    def sentence(self) -> str:
        """The verdict, for people."""
        measured = (
            f"{self.compared} differ by at most {self.max_difference:.2e} (bound {self.bound:.2e}: {self.reason})"
        )
        if self.verified:
            remarks = "".join(f" **Note**: {remark}." for remark in self.remarks)
            return f"Verified: loaded in {self.loader}, {self.census.tensors} tensors equal; {measured}.{remarks}"
        found = "; ".join(self.census.words()) or "all tensors are equal"
        return f"**NOT VERIFIED. Do not use this folder**: {found}; {measured}."

    def require(self) -> None:
        """Raises ExportError where the folder is not the model. The weights stay where they are."""
        if not self.verified:
            raise ExportError(
                f"the export {self.folder} is not the trained model: {self.sentence()}",
                fix="the checkpoints are safe; report this, and export again",
            )


def probe_ids(plan: Plan, rows: int = 2) -> torch.Tensor:
    """int64 [rows, length]: fixed pseudo-random tokens, the same on every rank, at most 128 and the plan's sequence."""
    generator = torch.Generator().manual_seed(plan.numerics.seed + 1)
    return torch.randint(0, plan.shape.vocab, (rows, min(128, plan.data.sequence)), generator=generator)


@torch.no_grad()
def model_logits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """fp32 [rows, length, entries] on the host, in evaluation mode. All ranks call it together: ZeRO-3 gathers."""
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    try:
        logits: torch.Tensor = model(input_ids=ids.to(device), use_cache=False).logits
    finally:
        model.train(training)
    return logits.float().cpu()


def quantised_logits(model: nn.Module, ids: torch.Tensor, plan: Plan) -> torch.Tensor:
    """fp32 [2, rows, length, entries]: of a model beside a base in 4 bits, and of the same beside its own weights.

    Rank 0 reads the base once more for the second; the others, which only help to gather under ZeRO-3, give the first
    twice.
    """
    held = model_logits(model, ids)
    if world()[0] != 0:
        if is_partitioned(model):
            model_logits(model, ids)
        return torch.stack([held, held])
    # A compiled layer would be compiled anew around files that are read.
    eager = torch.compiler.set_stance("force_eager") if plan.numerics.compile else nullcontext()
    with eager, QloraSource(plan).whole_base(model):
        return torch.stack([held, model_logits(model, ids)])


def verify_export(folder: Path, ids: torch.Tensor, reference: torch.Tensor, provenance: Provenance) -> ExportCheck:
    """Load the folder in plain transformers, compare it with the engine, and write the verdict into record and card.

    An adapter's folder is loaded by PEFT beside its base model; one within a merged model's folder is compared too, and
    the worse of the two is returned. Does not raise for a folder that differs: it is marked unverified, and
    `check.require()` raises ExportError.

    Args:
        ids: int64 [rows, length].
        reference: fp32 [rows, length, entries], of a classifier [rows, labels]: the engine's logits for them
            (`model_logits`); of a plan with a base in 4 bits two such, beside it and beside the base's own weights
            (`quantised_logits`).
    """
    check = _verified(folder, ids, reference, provenance)
    if not (folder / ADAPTER / RECORD).is_file():
        return check
    within = _verified(folder / ADAPTER, ids, reference, provenance)
    worse = max(check, within, key=lambda one: (not one.verified, one.max_difference))
    return replace(worse, remarks=tuple(dict.fromkeys((*check.remarks, *within.remarks))))


def _verified(folder: Path, ids: torch.Tensor, reference: torch.Tensor, provenance: Provenance) -> ExportCheck:
    record = read_record(folder)
    load = _with_adapter if is_adapter(folder) else _alone
    try:
        with without_bars():
            loaded = load(folder, provenance.plan, record)
        wanted, apart = _wanted(folder, reference, provenance.plan)
        check = _compare(loaded, ids, wanted, provenance.plan)
        remark = load_tokenizer(folder)[1] if provenance.plan.data.tokenizer else ""
        check = replace(check, remarks=tuple(text for text in (remark, apart) if text))
    except Exception as error:  # whatever transformers, safetensors or torch say of a bad folder
        nothing = Census(len(record["tensors"]))
        check = ExportCheck(False, math.inf, 0.0, f"it cannot be loaded: {' '.join(str(error).split())}", nothing)
    check = replace(check, folder=str(folder))
    write_json(folder / RECORD, {**record, "verified": check.verified, "check": asdict(check)})
    card = render_card(provenance, check.sentence(), adapter=is_adapter(folder))
    (folder / CARD).write_text(card, encoding="utf-8")
    return check


def _wanted(folder: Path, reference: torch.Tensor, plan: Plan) -> tuple[torch.Tensor, str]:
    """What the folder's logits must be; of a merged model whose base was trained beside in 4 bits, how far it moved.

    Its adapter was merged into the base's own weights: they compute what the training computed but for the rounding.
    """
    if plan.adapter is None or plan.adapter.quantization is None:
        return reference, ""
    held, whole = reference
    if is_adapter(folder):
        return held, ""
    moved, largest = float((whole - held).abs().max()), float(held.abs().max())
    said = "the adapter was trained beside a base in 4 bits and is merged into the unquantised one: logits differ "
    said += f"from those of the training by up to {moved:.2g} (the largest is {largest:.2g}); the trained model itself "
    return whole, said + "is the adapter over the 4-bit base"


@dataclass(frozen=True)
class _Loaded:
    model: nn.Module
    census: Census
    loader: str


def _alone(folder: Path, plan: Plan, record: dict[str, Any]) -> _Loaded:
    auto = AUTO_CLASSES.get(plan.task.kind, AUTO_CLASSES["causal_lm"])
    with without_bars():
        loaded, info = auto.from_pretrained(folder, dtype=DTYPES[plan.export.dtype], output_loading_info=True)
    census = count(loaded.state_dict(), record["tensors"], record["tied"])
    # transformers fills what a file lacks with fresh values and says so here only.
    fresh = sorted({*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])} - set(census.lost))
    census = replace(census, lost=(*census.lost, *fresh), added=(*census.added, *sorted(info["unexpected_keys"])))
    return _Loaded(loaded.float(), census, "plain transformers")


def _with_adapter(folder: Path, plan: Plan, record: dict[str, Any]) -> _Loaded:
    from peft import PeftModel, get_peft_model_state_dict

    base, beside = _base(plan), "its base model"
    if plan.adapter is not None and plan.adapter.quantization:
        beside = f"its base model in {plan.adapter.quantization}"
        hold_in_4_bits(base, quantizer_of(plan, torch.float32), building_device(plan))
        base.__dict__["is_loaded_in_4bit"] = True  # by which PEFT takes its own 4-bit layer
    with without_old_names():
        loaded: Any = PeftModel.from_pretrained(base, str(folder))
    stored = get_peft_model_state_dict(loaded)
    census = count({name.removeprefix(PREFIX): tensor for name, tensor in stored.items()}, record["tensors"], ())
    return _Loaded(loaded.float(), census, f"PEFT beside {beside}")


def _base(plan: Plan) -> Any:
    """The base model in plain transformers, fp32."""
    auto = AUTO_CLASSES.get(plan.task.kind, AUTO_CLASSES["causal_lm"])
    if plan.model.path is not None:
        return auto.from_pretrained(plan.model.path, dtype=torch.float32)
    source = HuggingFaceSource(plan)
    model = auto.from_config(source.config, dtype=torch.float32)
    model.load_state_dict(dict(source.weights()), strict=False)
    return model


def _compare(loaded: _Loaded, ids: torch.Tensor, reference: torch.Tensor, plan: Plan) -> ExportCheck:
    logits = model_logits(loaded.model, ids)
    share, reason = BOUNDS[coarsest(plan)]
    bound = share * max(1.0, float(reference.abs().max()))
    same_shape = logits.shape == reference.shape
    difference = float((logits - reference).abs().max()) if same_shape else math.inf
    verified = loaded.census.whole and difference <= bound  # a nan is not
    return ExportCheck(verified, difference, bound, reason, loaded.census, loader=loaded.loader)


def coarsest(plan: Plan) -> str:
    """The precision that decides the bound: of the training, its products, or the folder."""
    tf32 = {"tf32"} if plan.numerics.tf32 and plan.launch.device == "cuda" else set[str]()
    return max({plan.numerics.precision, plan.export.dtype, *tf32}, key=_COARSENESS.index)


@contextmanager
def without_bars() -> Iterator[None]:
    """No progress bar of transformers', in a rank's log or under a command's answer."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
