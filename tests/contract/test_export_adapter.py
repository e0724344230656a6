"""An adapter's export: beside the merged model, alone, or merged only; each compared, each fault caught."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fakes.adapters import adapted, lora_plan, pretrained
from fakes.exports import RECORD, word_tokenizer
from headway.errors import ExportError
from headway.export.card import Provenance
from headway.export.folder import export_folder
from headway.export.sample import generate
from headway.export.verify import ExportCheck, model_logits, probe_ids, verify_export
from headway.model.adapter import LoraSource
from headway.model.naming import named_state


class Adapted:
    """A trained adapter and its export."""

    def __init__(self, base: Path, form: str, dtype: str = "fp32"):
        pretrained(base / "base")
        tokenizer = word_tokenizer(base / "tokenizer")
        export = {"adapter": form, "dtype": dtype}
        self.plan = lora_plan(base / "base", data={"tokenizer": str(tokenizer)}, export=export)
        self.source = LoraSource(self.plan)
        self.model: Any = adapted(self.source)
        self.folder = base / "export"
        self.provenance = Provenance(self.plan, RECORD, step=7, tokens=4242)
        weights = [(name, p.detach()) for name, p in named_state(self.model)]
        self.written = export_folder(self.source, weights, self.folder, self.provenance, model=self.model)

    def verify(self) -> ExportCheck:
        ids = probe_ids(self.plan)
        return verify_export(self.folder, ids, model_logits(self.model, ids), self.provenance)


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "headway.json").read_text())


def test_both_forms_are_written_and_compared(tmp_path: Path) -> None:
    run = Adapted(tmp_path, "both")
    check = run.verify()
    assert check.verified, check.sentence()
    assert check.max_difference < 2e-6
    inner = run.folder / "adapter"
    for folder, loader in ((run.folder, "plain transformers"), (inner, "PEFT beside its base model")):
        assert record(folder)["verified"] is True
        assert f"Verified: loaded in {loader}" in (folder / "README.md").read_text()
        assert (folder / "tokenizer.json").is_file()
    assert {"adapter/adapter_model.safetensors", "model.safetensors"} <= set(run.written.files)
    assert record(inner)["check"]["census"]["tensors"] == len(dict(named_state(run.model)))
    said = json.loads((inner / "adapter_config.json").read_text())
    assert said["base_model_name_or_path"] == run.plan.model.path
    assert (said["r"], said["lora_alpha"], said["task_type"]) == (4, 12.0, "CAUSAL_LM")
    assert f"base_model: {run.plan.model.path}" in (inner / "README.md").read_text()


def test_the_readers_two_lines_load_it(tmp_path: Path) -> None:
    run = Adapted(tmp_path, "both")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    ids = probe_ids(run.plan)
    theirs = model_logits(PeftModel.from_pretrained(base, str(run.folder / "adapter")), ids)
    assert float((theirs - model_logits(run.model, ids)).abs().max()) < 2e-6


@pytest.mark.parametrize(("form", "present", "absent"), [
    ("adapter", "adapter_model.safetensors", "model.safetensors"),
    ("merged", "model.safetensors", "adapter"),
])  # fmt: skip
def test_one_form_alone(form: str, present: str, absent: str, tmp_path: Path) -> None:
    run = Adapted(tmp_path, form)
    check = run.verify()
    assert check.verified, check.sentence()
    assert (run.folder / present).is_file()
    assert not (run.folder / absent).exists()
    assert isinstance(generate(run.folder, "w3 w4", max_tokens=3), str)


def test_bf16_is_within_its_wider_bound(tmp_path: Path) -> None:
    check = Adapted(tmp_path, "both", dtype="bf16").verify()
    assert check.verified, check.sentence()
    assert 0 < check.max_difference < check.bound


@pytest.mark.parametrize(("file", "word"), [("adapter/adapter_model.safetensors", "lora_B"), ("model.safetensors", "")])
def test_a_changed_tensor_in_either_form_is_caught(file: str, word: str, tmp_path: Path) -> None:
    run = Adapted(tmp_path, "both")
    tensors = {name: tensor.clone() for name, tensor in load_file(run.folder / file).items()}
    name = next(name for name in tensors if word in name and tensors[name].dim() == 2)
    tensors[name][0, 0] += 1e-3
    save_file(tensors, run.folder / file, metadata={"format": "pt"})
    check = run.verify()
    assert not check.verified
    assert len(check.census.changed) == 1
    with pytest.raises(ExportError, match="not the trained model"):
        check.require()


def test_another_scale_is_caught_by_the_logits(tmp_path: Path) -> None:
    run = Adapted(tmp_path, "adapter")
    file = run.folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_alpha": 24.0}))
    check = run.verify()
    assert not check.verified
    assert check.census.whole
