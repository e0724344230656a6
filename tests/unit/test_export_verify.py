"""What is not the trained model is caught, marked, and ends with the export's exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fakes.exports import Export, make_export
from headway.errors import ExportError

Tensors = dict[str, torch.Tensor]
Fault = Callable[[Export], None]
LAYER = "model.layers.1."


def tensors(change: Callable[[Tensors], Tensors]) -> Fault:
    return lambda export: export.rewrite(change)


def config(**changes: object) -> Fault:
    def fault(export: Export) -> None:
        file = export.folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return fault


def replaced(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    return tensors(lambda all_: {**all_, name: change(all_[name])})


def nudged(weight: torch.Tensor) -> torch.Tensor:
    weight[0, 3] += 1e-6
    return weight


def cut(export: Export) -> None:
    file = export.folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def emptied(export: Export) -> None:
    (export.folder / "model.safetensors").unlink()


# fault -> (what is done to the folder, what the verdict must say)
FAULTS: dict[str, tuple[Fault, str]] = {
    "lost": (tensors(lambda t: {k: v for k, v in t.items() if k != LAYER + "mlp.up_proj.weight"}), "up_proj"),
    "lost norm": (tensors(lambda t: {k: v for k, v in t.items() if k != "model.norm.weight"}), "model.norm.weight"),
    "transposed": (replaced(LAYER + "self_attn.o_proj.weight", torch.t), "changed: " + LAYER + "self_attn.o_proj"),
    "swapped layers": (
        tensors(lambda t: {k.replace("layers.0", "layers.X").replace("layers.1", "layers.0").replace("X", "1"): v
                           for k, v in t.items()}),
        "changed",
    ),
    "untied": (
        tensors(lambda t: {**t, "lm_head.weight": t["model.embed_tokens.weight"] + 1e-3}),
        "untied: lm_head.weight",
    ),
    "head of its own": (config(tie_word_embeddings=False), "lm_head.weight"),
    "one element": (replaced(LAYER + "mlp.up_proj.weight", nudged), "changed"),
    "rounded": (tensors(lambda t: {k: v.bfloat16().float() for k, v in t.items()}), "changed"),
    "a tensor too many": (tensors(lambda t: {**t, "model.stray.weight": torch.ones(2)}), "model.stray.weight"),
    "other rotary base": (config(rope_parameters={"rope_type": "default", "rope_theta": 100.0}), "logits differ"),
    "other norm": (config(rms_norm_eps=0.5), "logits differ"),
    "cut": (cut, "cannot be loaded"),
    "gone": (emptied, "cannot be loaded"),
    "other width": (config(intermediate_size=40), "NOT VERIFIED"),
}  # fmt: skip


@pytest.fixture
def export(tmp_path: Path) -> Export:
    made = make_export(tmp_path, "llama")
    made.write()
    return made


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(export: Export, fault: str) -> None:
    assert export.again().verified
    damage, words = FAULTS[fault]
    damage(export)
    check = export.again()
    assert not check.verified
    assert words in check.sentence()
    assert json.loads((export.folder / "headway.json").read_text())["verified"] is False
    assert "NOT VERIFIED" in (export.folder / "README.md").read_text()
    with pytest.raises(ExportError, match="not the trained model") as caught:
        check.require()
    assert caught.value.exit_code == 7


def test_nan_logits_are_not_verified(export: Export) -> None:
    with torch.no_grad():
        export.model.model.norm.weight.fill_(float("nan"))
    export.write()
    assert not export.again().verified


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_faults_are_caught_in_every_dtype_by_the_census(tmp_path: Path, dtype: str) -> None:
    """bf16's bound on logits is wide; the tensors themselves must still be equal to the bit."""
    export = make_export(tmp_path, "llama", export={"dtype": dtype})
    export.write()
    assert export.again().verified
    export.rewrite(lambda t: {**t, "model.norm.weight": t["model.norm.weight"] * 1.01})
    check = export.again()
    assert check.max_difference < check.bound or dtype == "fp32"
    assert not check.verified
    assert check.census.changed == ("model.norm.weight",)


def test_verification_leaves_the_model_training(export: Export) -> None:
    export.model.train()
    export.again()
    assert export.model.training
