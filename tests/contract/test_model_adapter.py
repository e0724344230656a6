"""LoRA: the loss and gradients of plain PEFT, pairs drawn by name, names without PEFT's wrapping, merged and apart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.adapters import ALPHA, RANK, adapted, lora_plan, pretrained
from fakes.models import SEQUENCE, config_of, window
from headway.data.seam import IGNORE
from headway.errors import ExportError, ModelError
from headway.facts.adapters import adapter_shape, with_adapter
from headway.facts.shape import shape_of
from headway.model.adapter import LoraSource
from headway.model.identity import require_base, weights_identity
from headway.model.naming import is_adapted, named_state, plain_name
from headway.model.skeleton import build_skeleton, linear_layers, model_class, read_config
from headway.task.causal_lm import CausalLM

pytestmark = pytest.mark.usefixtures("probe_here")

ARCHS = ("llama", "gpt2", "gpt_neox")


def plain_peft(folder: Path, model: Any) -> Any:
    """PEFT's own model beside the folder, with the same pairs."""
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    transposed = base.config.model_type == "gpt2"
    config = LoraConfig(
        r=RANK, lora_alpha=int(ALPHA), target_modules="all-linear", fan_in_fan_out=transposed, task_type="CAUSAL_LM"
    )
    theirs: Any = get_peft_model(base, config)
    own = dict(named_state(model))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(own.pop(plain_name(name).removeprefix("base_model.model.")))
    assert not own, "PEFT has no place for these"
    return theirs


@pytest.mark.parametrize("arch", ARCHS)
def test_loss_and_gradients_are_those_of_plain_peft(arch: str, tmp_path: Path) -> None:
    """Packed windows and the loss in the head, against one document at a time and cross entropy over its logits."""
    pretrained(tmp_path / "base", arch)
    plan = lora_plan(tmp_path / "base", arch)
    model = adapted(LoraSource(plan))
    theirs = plain_peft(tmp_path / "base", model)
    task = CausalLM(plan)
    windows = [window([7, 12], seed=1), window([20], seed=2)]
    loss = task.loss(model, task.collate(windows, SEQUENCE))["loss"]
    loss.backward()
    total = torch.zeros(())
    for one in windows:
        for number in set(one.documents.tolist()):
            mine = one.documents == number
            labels = torch.from_numpy(one.labels[mine]).long()
            logits = theirs(input_ids=torch.from_numpy(one.tokens[mine]).long()[None], use_cache=False).logits[0]
            total = total + F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
    total.backward()
    assert loss.item() == pytest.approx(total.item(), rel=1e-5)
    wanted = {
        plain_name(name).removeprefix("base_model.model."): parameter.grad
        for name, parameter in theirs.named_parameters()
        if parameter.grad is not None
    }
    assert wanted.keys() == dict(named_state(model)).keys()
    for name, parameter in named_state(model):
        assert parameter.grad is not None
        scale = wanted[name].abs().max().clamp_min(1e-6)
        assert float((parameter.grad - wanted[name]).abs().max() / scale) < 1e-5, name  # measured: at most 6.3e-7
    assert all(p.grad is None for n, p in model.named_parameters() if "lora_" not in n)


def test_training_begins_at_the_base(tmp_path: Path) -> None:
    pretrained(tmp_path / "base")
    model = adapted(LoraSource(lora_plan(tmp_path / "base")), trained=False)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    ids = torch.arange(20).view(1, 20)
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, base.eval()(input_ids=ids).logits)


def test_pairs_are_drawn_by_name_as_peft_draws_them(tmp_path: Path) -> None:
    pretrained(tmp_path / "base")
    source = LoraSource(lora_plan(tmp_path / "base"))
    model, again = adapted(source, trained=False), source.build()
    for name, part in reversed(list(again.named_modules())):
        source.fill(name, part)
    ours, theirs = dict(named_state(model)), dict(named_state(again))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    drawn = ours["model.layers.0.mlp.down_proj.lora_A.weight"].detach()
    bound = 1 / math.sqrt(drawn.shape[1])  # kaiming_uniform_ with a = sqrt(5)
    assert 0.9 * bound < drawn.abs().max() <= bound
    assert not torch.equal(drawn, ours["model.layers.1.mlp.down_proj.lora_A.weight"])
    assert ours["model.layers.0.mlp.down_proj.lora_B.weight"].abs().max() == 0


@pytest.mark.parametrize("arch", ARCHS)
def test_merged_weights_give_the_adapters_logits(arch: str, tmp_path: Path) -> None:
    pretrained(tmp_path / "base", arch)
    source = LoraSource(lora_plan(tmp_path / "base", arch))
    model = adapted(source)
    merged, apart = tmp_path / "merged", tmp_path / "adapter"
    merged.mkdir()
    apart.mkdir()
    source.save(merged, named_state(model), model)
    source.save_adapter(apart, dict(named_state(model)))
    ids = torch.arange(24).view(1, 24)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
        before = base(input_ids=ids).logits
        whole = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)(input_ids=ids).logits
        beside = PeftModel.from_pretrained(base, str(apart))(input_ids=ids).logits
    assert float((before - wanted).abs().max()) > 1e-3, "the adapter changes something"
    assert float((whole - wanted).abs().max()) < 2e-6  # measured: at most 1.7e-7
    assert float((beside - wanted).abs().max()) < 2e-6


def test_named_targets_and_a_short_name_that_would_mean_others(tmp_path: Path) -> None:
    pretrained(tmp_path / "base")
    few = adapted(LoraSource(lora_plan(tmp_path / "base", targets=["q_proj", "v_proj"])))
    assert len(dict(named_state(few))) == 2 * 2 * 2
    one = LoraSource(lora_plan(tmp_path / "base", targets=["layers.1.self_attn.q_proj"]))
    assert list(dict(named_state(adapted(one)))) == [
        "model.layers.1.self_attn.q_proj.lora_A.weight",
        "model.layers.1.self_attn.q_proj.lora_B.weight",
    ]


def test_a_target_that_means_no_linear_layer_is_named(tmp_path: Path) -> None:
    pretrained(tmp_path / "base")
    for target in ("q_prj", "embed_tokens", "lm_head"):
        with pytest.raises(ModelError, match=f"{target}.*no linear layer"):
            LoraSource(lora_plan(tmp_path / "base").model_copy(update={"adapter": _targeting(tmp_path, target)}))
    with pytest.raises(ModelError, match="did you mean q_proj"):
        lora_plan(tmp_path / "base", targets=["q_prj"])


def _targeting(tmp_path: Path, target: str) -> Any:
    plan = lora_plan(tmp_path / "base").adapter
    return plan and plan.model_copy(update={"targets": (target,)})


def test_lost_pairs_are_no_adapter(tmp_path: Path) -> None:
    pretrained(tmp_path / "base")
    source = LoraSource(lora_plan(tmp_path / "base"))
    kept = dict(list(named_state(adapted(source)))[:-1])
    with pytest.raises(ExportError, match="1 missing"):
        list(source.merged(kept))


def test_names_are_those_without_an_adapter() -> None:
    assert plain_name("model.layers.0.q_proj.base_layer.weight") == "model.layers.0.q_proj.weight"
    assert plain_name("model.layers.0.q_proj.lora_A.default.weight") == "model.layers.0.q_proj.lora_A.weight"
    assert plain_name("encoder.default.weight") == "encoder.default.weight"
    assert not is_adapted(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("arch", "targets"),
    [
        ("llama", "all-linear"),
        ("qwen2", ["q_proj", "down_proj"]),
        ("gemma2", "all-linear"),
        ("gpt2", "all-linear"),
        ("gpt2", ["transformer.h.0.attn.c_attn"]),
        ("gpt_neox", ["query_key_value"]),
        ("gpt_neox", "all-linear"),
        ("granite", "all-linear"),
        ("gemma3_text", "all-linear"),
        ("olmo2", ["v_proj", "gate_proj"]),
        ("phi3", "all-linear"),
        ("opt", "all-linear"),
    ],
)
def test_the_planner_counts_what_is_built(arch: str, targets: list[str] | str) -> None:
    """By formula where the blocks hold every linear layer, by the probe for the others."""
    config = config_of(arch)
    shape = with_adapter(shape_of(config), config, RANK, targets)
    read = read_config(config)
    skeleton = build_skeleton(model_class(read), read)
    built = adapter_shape(linear_layers(skeleton), targets, RANK)
    assert shape.adapter == built
    assert shape.trainable_parameters == built.parameters
    assert shape.parameters == shape_of(config).parameters + built.parameters


def test_the_base_is_known_by_its_weights_wherever_it_lies(tmp_path: Path) -> None:
    pretrained(tmp_path / "base")
    plan = lora_plan(tmp_path / "base")
    moved = (tmp_path / "base").rename(tmp_path / "elsewhere")
    there = plan.model_copy(update={"model": plan.model.model_copy(update={"path": str(moved)})})
    require_base(there)
    file = moved / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(ModelError, match="another base model"):
        require_base(there)
    with pytest.raises(ModelError, match="has no safetensors"):
        weights_identity(tmp_path, tmp_path)


def test_the_skeleton_of_the_base_is_untouched(tmp_path: Path) -> None:
    """What the base's source asks it (ties, saved names) is asked of a model without an adapter."""
    pretrained(tmp_path / "base")
    source = LoraSource(lora_plan(tmp_path / "base"))
    source.build()
    assert not any("lora_" in name for name, _ in source.base.skeleton.named_parameters())
    assert AutoConfig.from_pretrained(tmp_path / "base").model_type == source.base.config.model_type
