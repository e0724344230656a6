"""Fresh weights: the architecture's scheme, equal whatever the order, the device that builds and the dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.models import CONFIGS, config_of, filled, model_for, plan_for
from headway.errors import ModelError
from headway.model.huggingface import HuggingFaceSource


def state_of(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def assert_equal(one: Any, other: Any) -> None:
    mine, theirs = state_of(one), state_of(other)
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


@pytest.mark.parametrize("arch", CONFIGS)
def test_order_and_device_of_building_change_no_bit(arch: str) -> None:
    expected = model_for(arch)
    source = HuggingFaceSource(plan_for(arch))
    assert_equal(filled(source, backwards=True), expected)
    with torch.device("meta"):
        late: Any = source.build()
    assert all(tensor.device.type == "meta" for tensor in late.parameters())
    late = late.to_empty(device="cpu")
    late.tie_weights()  # to_empty makes new parameters, and so unties them
    for name, part in late.named_modules():
        source.fill(name, part)
    assert_equal(late, expected)


@pytest.mark.parametrize("arch", CONFIGS)
def test_buffers_are_those_of_a_plain_model(arch: str) -> None:
    config: Any = AutoConfig.for_model(**config_of(arch))
    plain = AutoModelForCausalLM.from_config(config)
    assert dict(model_for(arch).named_buffers()).keys() == dict(plain.named_buffers()).keys()
    for name, buffer in plain.named_buffers():
        assert torch.equal(model_for(arch).get_buffer(name), buffer), name


@pytest.mark.parametrize("arch", CONFIGS)
def test_values_follow_the_architecture(arch: str) -> None:
    """Mean and spread of each parameter are those of a model that transformers initialised."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of(arch))).state_dict()
    for name, mine in model_for(arch).state_dict().items():
        theirs = plain[name].float()
        if float(theirs.std()) == 0.0:  # norms and biases
            assert torch.equal(mine, theirs), name
        else:
            assert float(mine.std() / theirs.std()) == pytest.approx(1, abs=0.15), name
            assert abs(float(mine.mean())) < 5 * float(theirs.std()) / theirs.numel() ** 0.5, name


def test_gpt2_scales_what_feeds_the_residual_stream() -> None:
    model = model_for("gpt2")
    weights = model.state_dict()
    plain, scaled = weights["transformer.h.1.mlp.c_fc.weight"], weights["transformer.h.1.mlp.c_proj.weight"]
    assert float(scaled.std() / plain.std()) == pytest.approx((2 * 2) ** -0.5, rel=0.1)


def test_the_seed_and_the_name_decide() -> None:
    one, other = model_for("llama"), model_for("llama", numerics={"seed": 1})
    layers: Any = one.model.layers  # pyright: ignore[reportAttributeAccessIssue]
    assert not torch.equal(one.get_input_embeddings().weight, other.get_input_embeddings().weight)
    assert not torch.equal(layers[0].mlp.up_proj.weight, layers[1].mlp.up_proj.weight)


def test_the_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model_for("gpt2")
    assert torch.equal(torch.get_rng_state(), before)


def test_lower_precision_rounds_the_same_values() -> None:
    source, exact = HuggingFaceSource(plan_for("llama")), model_for("llama")
    model: Any = source.build().to(torch.bfloat16)
    for name, part in model.named_modules():
        source.fill(name, part)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, exact.get_parameter(name).to(torch.bfloat16)), name
    # What the constructor computed must not be rounded: rotary frequencies stay fp32.
    assert torch.equal(model.get_buffer("model.rotary_emb.inv_freq"), exact.get_buffer("model.rotary_emb.inv_freq"))


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_tied_embeddings_are_one_parameter(arch: str) -> None:
    model = model_for(arch)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert "lm_head.weight" not in dict(model.named_parameters())


def test_names_are_those_of_the_plain_model() -> None:
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of("llama")))
    model = model_for("llama")
    assert list(model.state_dict()) == list(plain.state_dict())
    assert type(model).__name__ == type(plain).__name__


def test_a_partitioned_parameter_is_refused() -> None:
    source = HuggingFaceSource(plan_for("llama"))
    model: Any = source.build()
    model.model.norm.weight.data = torch.empty(0)
    with pytest.raises(ValueError, match=r"model\.norm\.weight is not whole"):
        source.fill("model.norm", model.model.norm)


def test_faults_of_a_config_are_one_message() -> None:
    with pytest.raises(ModelError, match="not an architecture"):
        HuggingFaceSource(plan_for("llama", config={"model_type": "lama"}))
    with pytest.raises(ModelError, match="not a multiple of the number of attention heads"):
        HuggingFaceSource(plan_for("llama", config=config_of("llama", num_attention_heads=3)))
    with pytest.raises(ModelError, match="eager"):
        HuggingFaceSource(plan_for("gemma2", model={"attention": "sdpa"}))
    with pytest.raises(ModelError, match="backward"):
        HuggingFaceSource(plan_for("llama", model={"attention": "flex"}))
    mamba = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 101}
    with pytest.raises(ModelError, match=r"packing"):
        HuggingFaceSource(plan_for("llama", config=mamba))
