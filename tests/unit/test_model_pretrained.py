"""A pretrained folder gives every tensor that transformers would load from it, or one message that says why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from fakes.models import CONFIGS, config_of, filled, plan_for
from headway.errors import ModelError
from headway.model.huggingface import HuggingFaceSource


def saved(folder: Path, arch: str, *, shard: str = "5GB", dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of(arch, **changes)))
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder


def loaded(folder: Path, arch: str, **plan: Any) -> PreTrainedModel:
    return filled(
        HuggingFaceSource(plan_for(arch, config=config_from(folder), path=str(folder), **plan)), backwards=True
    )


def config_from(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def assert_as_transformers_loads(folder: Path, arch: str) -> None:
    mine, theirs = loaded(folder, arch), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    one, other = mine.state_dict(), theirs.state_dict()
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    buffers = dict(theirs.named_buffers())
    assert [name for name, buffer in mine.named_buffers() if not torch.equal(buffer, buffers[name])] == []


@pytest.mark.parametrize("arch", CONFIGS)
def test_equals_from_pretrained(tmp_path: Path, arch: str) -> None:
    assert_as_transformers_loads(saved(tmp_path, arch), arch)


@pytest.mark.parametrize("arch", ["llama", "mixtral"])
def test_sharded_and_rounded_weights(tmp_path: Path, arch: str) -> None:
    saved(tmp_path, arch, shard="20KB", dtype=torch.bfloat16)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_as_transformers_loads(tmp_path, arch)


def test_weights_of_the_bare_body_get_their_prefix(tmp_path: Path) -> None:
    """gpt2 as the Hub has it: saved from the body, so without `transformer.`; its head is the embedding."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of("gpt2")))
    model.transformer.save_pretrained(tmp_path)
    assert "wte.weight" in load_file(tmp_path / "model.safetensors")
    assert_as_transformers_loads(tmp_path, "gpt2")


def test_a_tied_weight_may_be_stored_under_either_name(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    embedding = "model.embed_tokens.weight"
    rewrite(tmp_path, lambda tensors: {("lm_head.weight" if k == embedding else k): v for k, v in tensors.items()})
    assert_as_transformers_loads(tmp_path, "llama")
    model = loaded(tmp_path, "llama")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(change(tensors), file, metadata={"format": "pt"})


def without(*names: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def refused(folder: Path, arch: str = "qwen2") -> str:
    with pytest.raises(ModelError) as caught:
        loaded(folder, arch)
    return str(caught.value)


def test_a_missing_tensor_is_named_and_never_drawn(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2")
    rewrite(tmp_path, without("model.layers.1.mlp.up_proj.weight", "lm_head.weight"))
    said = refused(tmp_path)
    assert "2 tensors of the model are missing" in said
    assert "lm_head.weight, model.layers.1.mlp.up_proj.weight" in said


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2", num_hidden_layers=3)
    config = {**config_from(tmp_path), "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "model.layers.2.input_layernorm.weight" in refused(tmp_path)


def test_other_shapes_are_named(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2")
    (tmp_path / "config.json").write_text(json.dumps({**config_from(tmp_path), "intermediate_size": 64}))
    said = refused(tmp_path)
    assert "model.layers.0.mlp.up_proj.weight: is stored as [48, 32], the config makes it [64, 32]" in said


def test_two_tensors_for_one_tied_parameter_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2")
    (tmp_path / "config.json").write_text(json.dumps({**config_from(tmp_path), "tie_word_embeddings": True}))
    assert "two different tensors" in refused(tmp_path)


def test_damage_and_absence_are_named(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2", shard="20KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:100])
    assert f"{shard} cannot be read" in refused(tmp_path)
    shard.unlink()
    assert f"files that are absent: {shard.name}" in refused(tmp_path)
    for path in tmp_path.glob("*.safetensors*"):
        path.unlink()
    assert "has no safetensors" in refused(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pickles (pytorch_model.bin)" in refused(tmp_path)


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2")
    config = {**config_from(tmp_path), "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "quantised" in refused(tmp_path)
