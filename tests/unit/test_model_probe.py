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
