"""An exported folder of a small model, with a tokenizer, for the tests of exports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fakes.models import VOCAB, filled, plan_for
from headway.export.card import Provenance
from headway.export.folder import ExportedFolder, export_folder
from headway.export.verify import ExportCheck, model_logits, probe_ids, verify_export
from headway.model.huggingface import HuggingFaceSource
from headway.plan.schema import Plan

RECORD = {
    "git": {"commit": "0123abcd", "dirty": True},
    "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
    "command": ["headway", "train", "run.yaml"],
    "time": 1.0,
}


def word_tokenizer(folder: Path) -> Path:
    """Words w3 .. w100; 0 begins a text, 1 ends it, 2 is any other word."""
    words = {"<s>": 0, "</s>": 1, "<unk>": 2} | {f"w{n}": n for n in range(3, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(folder)
    return folder


@dataclass
class Export:
    """A model and its folder; `again` verifies the folder as it now is."""

    plan: Plan
    model: Any
    source: HuggingFaceSource
    folder: Path
    provenance: Provenance

    def write(self) -> ExportedFolder:
        weights = [(name, parameter.detach()) for name, parameter in self.model.named_parameters()]
        return export_folder(self.source, weights, self.folder, self.provenance, model=self.model)

    def again(self) -> ExportCheck:
        ids = probe_ids(self.plan)
        return verify_export(self.folder, ids, model_logits(self.model, ids), self.provenance)

    def rewrite(self, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
        """Change the tensors of the folder's one file."""
        file = self.folder / "model.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
        save_file({k: v.contiguous() for k, v in change(tensors).items()}, file, metadata={"format": "pt"})


def make_export(base: Path, arch: str = "llama", **changes: Any) -> Export:
    """A model with weights that matter (norms that are not one), not yet written."""
    tokenizer = word_tokenizer(base / "tokenizer")
    plan = plan_for(arch, **{**changes, "data": {"tokenizer": str(tokenizer)}})
    source = HuggingFaceSource(plan)
    model = filled(source)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    provenance = Provenance(plan, RECORD, step=7, tokens=4242, evaluation={"loss": 3.25, "bits_per_byte": 1.5})
    return Export(plan, model, source, base / "export", provenance)
