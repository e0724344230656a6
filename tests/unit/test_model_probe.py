"""The probe counts what transformers builds, in the form that the planner reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.models import CONFIGS, config_of
from headway.facts.schema import ModelShape
from headway.facts.shape import shape_of
from headway.model import probe


def probed(tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any]) -> ModelShape:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert probe.main([str(file)]) == 0
    return ModelShape.model_validate_json(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("arch", CONFIGS)
def test_counts_are_those_of_the_built_model(tmp_path: Path, capsys: pytest.CaptureFixture[str], arch: str) -> None:
    shape = probed(tmp_path, capsys, config_of(arch))
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of(arch)))
    assert shape.parameters == shape.trainable_parameters == sum(p.numel() for p in model.parameters())
    assert (shape.hidden, shape.layers, shape.heads, shape.vocab) == (32, 2, 4, 101)
    assert shape.tied is (model.get_output_embeddings().weight is model.get_input_embeddings().weight)
    assert shape.embedding_parameters == 101 * 32 * (1 if shape.tied else 2)
    assert not shape.estimated


@pytest.mark.parametrize("arch", ["llama", "gpt2", "gpt_neox", "mistral", "qwen2", "gemma2"])
def test_probe_and_formula_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str], arch: str) -> None:
    by_formula = shape_of(config_of(arch)).model_dump(exclude={"estimated", "max_sequence"})
    assert probed(tmp_path, capsys, config_of(arch)).model_dump(exclude={"estimated", "max_sequence"}) == by_formula


def test_a_config_that_cannot_be_built_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "lama"}))
    assert probe.main([str(file)]) == 3
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_layer_of_experts_that_no_host_could_hold_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A parameter of 2 TB: nothing of it may pass through the host's memory."""
    small = {"model_type": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
             "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 101, "intermediate_size": 64,
             "num_experts_per_tok": 2}  # fmt: skip
    large = small | {"hidden_size": 2**15, "num_experts": 256, "moe_intermediate_size": 2**15}
    shape = probed(tmp_path, capsys, large)
    assert shape.experts is not None
    assert shape.experts.parameters == 256 * 3 * 2**30


@pytest.mark.parametrize(("arch", "why"), [("t5", "an encoder with a decoder"), ("modernbert", "has none")])
def test_what_continues_no_text_is_refused_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arch: str, why: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": arch}))
    assert probe.main([str(file)]) == 3
    said = capsys.readouterr().err
    assert f"no model that continues a text of the architecture {arch}" in said
    assert why in said
    assert "task: classification" in said


def test_of_a_model_for_images_and_text_its_language_model_is_counted_where_that_is_a_class_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "vocab_size": 101, "intermediate_size": 64, "intermediate_size_mlp": 96,
            "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1}  # fmt: skip
    whole = {"model_type": "llama4", "text_config": text, "vision_config": {"num_hidden_layers": 1}}
    alone = probed(tmp_path, capsys, {"model_type": "llama4_text", **text})
    assert probed(tmp_path, capsys, whole) == alone
    assert alone.experts is not None
    assert (alone.experts.count, alone.experts.ffn, alone.experts.shared_ffn) == (4, 64, 64)
