"""QLoRA on bitsandbytes' CPU kernels: transformers' own 4-bit model to the bit, PEFT's gradients, the base's own names.

A run file asks for a GPU; what is built is the same there, but for the kernels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from fakes.adapters import ALPHA, RANK, adapted, lora_plan, pretrained, qlora_plan
from fakes.exports import RECORD, word_tokenizer
from fakes.models import SEQUENCE, window
from headway.data.seam import IGNORE
from headway.errors import ModelError
from headway.export.card import Provenance
from headway.export.compare import comparison
from headway.export.folder import export_folder
from headway.model.adapter import LoraSource
from headway.model.naming import is_adapted, named_state, plain_name
from headway.model.quantized import QloraSource, Quantizer, building_device, held_layers, quantizer_of
from headway.parallel.building import build_filled
from headway.plan.quantizing import held_bytes, planned_bits
from headway.task.causal_lm import CausalLM
from headway.train.census import census_of

pytest.importorskip("bitsandbytes", reason="the extra `qlora` is not installed")
pytestmark = pytest.mark.usefixtures("probe_here")

ARCHS = ("llama", "gpt2", "gpt_neox")
CPU = torch.device("cpu")


# bitsandbytes' CPU kernel is right for rows of whole blocks of 64 alone.
WIDE: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 64, "intermediate_size": 128},
    "gpt2": {"n_embd": 64},
    "gpt_neox": {"hidden_size": 64, "intermediate_size": 128},
}


def base(folder: Path, arch: str = "llama") -> dict[str, Any]:
    """A pretrained folder `base` in the folder; its config."""
    return pretrained(folder / "base", arch, **WIDE[arch])


def dequantised(layer: Any) -> torch.Tensor:
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(layer.weight.data, layer.quant_state)


def theirs(folder: Path, kind: str = "nf4", *, double: bool = True) -> Any:
    """transformers' own 4-bit model of the folder."""
    held = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=torch.float32,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=held, dtype=torch.float32, device_map="cpu"
    )
    for part in model.modules():
        if hasattr(part, "support_avx512bf16_for_cpu"):  # else it computes in bf16 from the first evaluation on
            part.support_avx512bf16_for_cpu = False
    return model.eval()


@pytest.mark.parametrize(("kind", "double"), [("nf4", True), ("nf4", False), ("fp4", True)])
def test_the_base_is_transformers_own_to_the_bit(kind: str, double: bool, tmp_path: Path) -> None:
    """B is zero, so the adapter adds nothing."""
    config = base(tmp_path)
    plan = qlora_plan(tmp_path / "base", kind=kind, double=double, config=config)
    model = adapted(QloraSource(plan), trained=False)
    whole = adapted(LoraSource(lora_plan(tmp_path / "base", config=config)), trained=False)
    ids = torch.arange(24).view(1, 24)
    with torch.no_grad():
        ours = model(input_ids=ids).logits
        assert torch.equal(ours, theirs(tmp_path / "base", kind, double=double)(input_ids=ids).logits)
        assert torch.equal(ours, model(input_ids=ids).logits), "evaluation does not repack the weights"
        assert float((ours - whole(input_ids=ids).logits).abs().max()) > 1e-3, "4 bits are not 32"


def test_loss_and_gradients_are_those_of_plain_peft(tmp_path: Path) -> None:
    plan = qlora_plan(tmp_path / "base", config=base(tmp_path))
    model = adapted(QloraSource(plan))
    config = LoraConfig(r=RANK, lora_alpha=int(ALPHA), target_modules="all-linear", task_type="CAUSAL_LM")
    other: Any = get_peft_model(theirs(tmp_path / "base"), config)
    own = dict(named_state(model))
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(own.pop(plain_name(name).removeprefix("base_model.model.")))
    assert not own, "PEFT has no place for these"
    task = CausalLM(plan)
    one = window([20], seed=2)
    loss = task.loss(model, task.collate([one], SEQUENCE))["loss"]
    loss.backward()
    logits = other(input_ids=torch.from_numpy(one.tokens).long()[None], use_cache=False).logits[0]
    wanted = F.cross_entropy(logits, torch.from_numpy(one.labels).long(), ignore_index=IGNORE, reduction="sum")
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    gradients = {
        plain_name(name).removeprefix("base_model.model."): parameter.grad
        for name, parameter in other.named_parameters()
        if parameter.grad is not None
    }
    assert gradients.keys() == dict(named_state(model)).keys()
    for name, parameter in named_state(model):
        assert parameter.grad is not None
        scale = gradients[name].abs().max().clamp_min(1e-6)
        assert float((parameter.grad - gradients[name]).abs().max() / scale) < 1e-5, name  # sums in another order
    assert all(p.grad is None for n, p in model.named_parameters() if "lora_" not in n)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_held_in_4_bits_and_what_is_not(arch: str, tmp_path: Path) -> None:
    """Every linear layer but the head; a census of the base's own names and shapes; its own weights on request."""
    config = base(tmp_path, arch)
    folder = tmp_path / "base"
    plan, plain = qlora_plan(folder, arch, config=config), lora_plan(folder, arch, config=config)
    source = QloraSource(plan)
    model, whole = build_filled(source, CPU), build_filled(LoraSource(plain), CPU)
    assert is_adapted(model)
    assert census_of(model, plan) == census_of(whole, plain)
    layers = held_layers(model)
    assert sorted(layers) == sorted(source.held)
    assert not any("head" in name or "embed" in name for name in layers)
    others = [p for n, p in model.named_parameters() if plain_name(n).rpartition(".")[0] not in layers]
    assert {p.dtype for p in others} == {torch.float32}
    for name, layer in layers.items():
        weight = dict(source.base.values(name, source.base.skeleton.get_submodule(name)))["weight"]
        turned = weight.t() if arch == "gpt2" else weight
        # The widest gap of NF4's 16 values is 0.304 of a block's largest; double quantisation moves that by a little.
        assert float((dequantised(layer) - turned).abs().max()) < 0.16 * float(weight.abs().max()), name
    ids = torch.arange(24).view(1, 24)
    with torch.no_grad(), source.whole_base(model):
        assert torch.equal(model(input_ids=ids).logits, whole(input_ids=ids).logits)


def test_a_layer_computes_with_its_dequantised_weights(tmp_path: Path) -> None:
    model = build_filled(QloraSource(qlora_plan(tmp_path / "base", config=base(tmp_path))), CPU)
    layer = held_layers(model)["model.layers.1.mlp.down_proj"]
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(1), requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert x.grad is not None
    other = x.detach().clone().requires_grad_()
    wanted = F.linear(other, dequantised(layer))
    wanted.sum().backward()
    assert other.grad is not None
    assert torch.equal(y, wanted)  # the same product of the same numbers
    assert torch.equal(x.grad, other.grad)


def test_a_layer_lets_go_of_its_weights_between_forward_and_backward(tmp_path: Path) -> None:
    """ZeRO-3 brings them back in other memory; bitsandbytes' own function would go on with the first."""
    model = build_filled(QloraSource(qlora_plan(tmp_path / "base", config=base(tmp_path))), CPU)
    layer = held_layers(model)["model.layers.1.mlp.down_proj"]
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(1), requires_grad=True)
    wanted = torch.ones(5, 64) @ dequantised(layer)
    y = layer(x)
    first = layer.weight.data
    layer.weight.data = first.clone()
    first.zero_()
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, wanted)


@pytest.mark.parametrize("double", [True, False])
def test_the_planner_counts_the_bytes_that_are_held(double: bool, tmp_path: Path) -> None:
    """All but the codebooks, 16 and 256 fp32 values a layer, and the offset."""
    config = pretrained(tmp_path / "base", hidden_size=256, intermediate_size=512)
    plan = qlora_plan(tmp_path / "base", double=double, config=config)
    assert plan.adapter is not None
    layers = held_layers(build_filled(QloraSource(plan), CPU))
    bytes_held = 0
    for layer in layers.values():
        state = layer.quant_state
        bytes_held += layer.weight.nbytes + state.absmax.nbytes + (state.state2.absmax.nbytes if double else 0)
    count, planned, _ = held_bytes(plan.shape, planned_bits(plan.adapter))
    assert count == sum(layer.in_features * layer.out_features for layer in layers.values())
    assert planned == pytest.approx(bytes_held, rel=1e-3)


def test_rows_that_a_cpu_gets_wrong_are_refused(tmp_path: Path) -> None:
    pretrained(tmp_path / "base")
    with pytest.raises(ModelError, match="rows of 32 weights wrongly"):
        adapted(QloraSource(qlora_plan(tmp_path / "base")))


def test_weights_that_fill_no_whole_number_are_refused() -> None:
    """bitsandbytes would cut the last off; on a CPU no rows of whole blocks are such."""
    quantizer = Quantizer("nf4", False, torch.bfloat16, torch.bfloat16)
    layer = quantizer.empty(nn.Linear(3, 2, device="meta"))
    layer.weight = nn.Parameter(torch.empty(0, dtype=torch.bfloat16, device="meta"))
    with pytest.raises(ModelError, match="2 x 3 weights cannot be packed"):
        quantizer.fill(layer, torch.ones(2, 3))


def test_after_a_run_the_base_is_quantised_where_it_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with a GPU as the training did; a CPU's blocks could round another way."""
    config = base(tmp_path)
    launch = {"launch": {"device": "cuda"}}
    held = qlora_plan(tmp_path / "base", config=config, **launch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert building_device(held) == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert building_device(held) == torch.device("cuda", 1)
    assert building_device(lora_plan(tmp_path / "base", config=config, **launch)) == CPU


def test_a_layer_that_was_not_filled_is_named(tmp_path: Path) -> None:
    config = base(tmp_path)
    source = QloraSource(qlora_plan(tmp_path / "base", config=config))
    model = source.build()
    with pytest.raises(ModelError, match=r"14 layers of the base were not quantised: model\.layers\.0"):
        source.prepare_for_training(model)
    with pytest.raises(ModelError, match="no base in 4 bits"):
        quantizer_of(lora_plan(tmp_path / "base", config=config))


def test_an_export_in_bf16_is_within_its_wider_bound(tmp_path: Path) -> None:
    """Trained, computed and saved in bf16; the base is quantised from bf16 values on both sides."""
    sections = {"numerics": {"precision": "bf16"}, "export": {"adapter": "both", "dtype": "bf16"}}
    plan = qlora_plan(tmp_path / "base", config=base(tmp_path), **sections)
    source = QloraSource(plan)
    model = adapted(source)
    provenance, folder = Provenance(plan, RECORD, step=7, tokens=4242), tmp_path / "export"
    export_folder(source, [(n, p.detach()) for n, p in named_state(model)], folder, provenance, model=model)
    compared = comparison(plan, CausalLM(plan))
    check = compared.verify(folder, compared.measure(model), provenance)
    assert check.verified, check.sentence()
    assert 0 < check.max_difference < 0.3 * check.bound


@pytest.mark.parametrize("double", [True, False])
def test_both_exports_are_verified_and_the_merged_one_says_how_far_it_moved(double: bool, tmp_path: Path) -> None:
    """The adapter over the same 4-bit base; the merged model against the adapter over the base's own weights."""
    config = base(tmp_path)
    tokenizer = word_tokenizer(tmp_path / "tokenizer")
    sections = {"data": {"tokenizer": str(tokenizer)}, "export": {"adapter": "both", "dtype": "fp32"}}
    plan = qlora_plan(tmp_path / "base", double=double, config=config, **sections)
    source = QloraSource(plan)
    model = adapted(source)
    provenance = Provenance(plan, RECORD, step=7, tokens=4242)
    folder = tmp_path / "export"
    export_folder(source, [(n, p.detach()) for n, p in named_state(model)], folder, provenance, model=model)
    compared = comparison(plan, CausalLM(plan))
    measured = compared.measure(model)
    check = compared.verify(folder, measured, provenance)
    assert check.verified, check.sentence()
    assert check.max_difference < 2e-6
    remark = next(text for text in check.remarks if "4 bits" in text)
    assert f"{float((measured[1] - measured[0]).abs().max()):.2g}" in remark
    merged, inner = (folder / "README.md").read_text(), (folder / "adapter" / "README.md").read_text()
    assert "merged into the unquantised one" in merged
    assert "Verified: loaded in PEFT beside its base model in nf4" in inner
    assert f"bnb_4bit_use_double_quant={double}" in inner
    assert "A QLoRA adapter of" in inner
    ids = torch.arange(24).view(1, 24)
    with torch.no_grad():
        beside = PeftModel.from_pretrained(theirs(tmp_path / "base", double=double), str(folder / "adapter"))
        assert float((beside(input_ids=ids).logits - model(input_ids=ids).logits).abs().max()) < 2e-6
    changed = json.loads((folder / "adapter" / "adapter_config.json").read_text()) | {"lora_alpha": 24.0}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(changed))
    assert not compared.verify(folder, measured, provenance).verified
