"""What certify makes of a plan that it cannot run as it stands: what it puts in place of what, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.plans import A100_8, LAPTOP, SMALL, plan_of
from headway.certify.material import with_material
from headway.certify.shrink import HIDDEN, SEQUENCE, Small, shrink, with_dropout
from headway.data.facts import data_facts
from headway.data.handmade import Material, write_store
from headway.data.manifest import TokenizerRecord
from headway.errors import DataError, ModelError
from headway.facts.shape import shape_of
from headway.plan.schema import ModelPlan, Plan
from tests.certify.faults import plan_for


def said(small: Small) -> str:
    return "\n".join(small.substitutions)


def test_buckets_shrink_with_the_model() -> None:
    plan = plan_for("strategy=zero-3")
    small = shrink(plan, 2).plan
    assert small.shape.parameters < plan.shape.parameters / 10
    assert 0 < small.strategy.reduce_bucket_elements <= small.shape.parameters // 4
    ratio = small.strategy.persistence_threshold_elements / plan.strategy.persistence_threshold_elements
    assert ratio == pytest.approx(small.shape.parameters / plan.shape.parameters, rel=0.01)


def test_every_option_that_changes_the_computation_stays() -> None:
    words = ("strategy=zero-3", "train.activation_checkpointing=true", "optimizer.kind=sgd", "data.packing=false")
    plan = plan_for(*words, "train.global_batch=13 sequences")
    small = shrink(plan, 2).plan
    assert small.strategy.stage == 3
    assert small.numerics == plan.numerics
    assert small.optimizer.kind == "sgd"
    assert not small.data.packing
    assert small.batch.global_sequences < small.batch.slots, "the fillers of an uneven batch are kept"


def test_fp16_of_a_gpu_plan_is_computed_in_fp32_and_said() -> None:
    plan = plan_of(SMALL, A100_8, "train.precision=fp16", "launch.processes=8", estimated=True, tokenizer="")
    assert plan.numerics.precision == "fp16"
    on_a_cpu = plan.model_copy(update={"cluster": LAPTOP})
    small = shrink(on_a_cpu, 2)
    assert small.plan.numerics.precision == "fp32"
    assert small.plan.launch.device == "cpu"
    assert small.plan.launch.backend == "gloo"
    assert "fp32 in place of fp16" in said(small)
    assert "loss scaling is unproven" in said(small)
    assert "2 processes in place of 8" in said(small)


def test_on_one_process_ddp_is_a_single_process() -> None:
    small = shrink(plan_for("strategy=ddp"), 1)
    assert small.plan.strategy.kind == "single"
    assert "one process in place of 2" in said(small)


def test_dropout_is_left_to_the_claim_that_needs_it() -> None:
    plan = plan_for("model.config.dropout=0.3")
    small = shrink(plan, 2)
    assert small.plan.model.config["attention_dropout"] == 0.0
    assert "no dropout (attention_dropout)" in said(small)
    assert with_dropout(small.plan).model.config["attention_dropout"] > 0.0


class Large:
    """A user's own model."""


class Shrinkable:
    @staticmethod
    def certify(plan: Plan) -> tuple[ModelPlan, Any]:
        config = plan.model.config | {"layers": 2}
        return plan.model.model_copy(update={"config": config}), plan.shape.model_copy(update={"parameters": 1000})


def own_model(kind: str, parameters: int) -> Plan:
    plan = plan_for("strategy=ddp")
    model = ModelPlan(kind=f"tests.certify.test_shrink:{kind}", config={"layers": 48})
    return plan.model_copy(update={"model": model, "shape": plan.shape.model_copy(update={"parameters": parameters})})


def test_an_own_model_that_is_small_stays_as_it_is() -> None:
    plan = own_model("Large", 5_000_000)
    small = shrink(plan, 2)
    assert small.plan.model == plan.model
    assert "at its own size" in said(small)


def test_an_own_model_may_give_a_small_one() -> None:
    small = shrink(own_model("Shrinkable", 7_000_000_000), 2)
    assert small.plan.model.config == {"layers": 2}
    assert small.plan.shape.parameters == 1000
    assert "Shrinkable.certify" in said(small)


def test_a_large_model_that_cannot_be_made_small_is_refused_with_the_way_out() -> None:
    with pytest.raises(ModelError) as caught:
        shrink(own_model("Large", 7_000_000_000), 2)
    text = str(caught.value)
    assert "7000 M parameters" in text
    assert "certify(vocab)" in text


def test_an_architecture_without_the_usual_keys_is_named() -> None:
    plan = plan_for("strategy=ddp")
    odd = plan.model.model_copy(update={"config": {"model_type": "odd", "d_model": 512}})
    large = plan.shape.model_copy(update={"parameters": 10**9})
    with pytest.raises(ModelError, match="hidden_size, num_hidden_layers"):
        shrink(plan.model_copy(update={"model": odd, "shape": large}), 2)


@pytest.mark.parametrize("arch", ["gpt2", "gpt_neox", "qwen2", "mistral", "gemma", "phi", "gemma2"])
def test_every_architecture_shrinks_to_a_width_that_all_share(arch: str) -> None:
    data = SMALL | {
        "model": {"config": {"arch": arch, "hidden": 256, "layers": 4, "heads": 4}, "tokenizer": {"train": 4096}}
    }
    plan = plan_of(data, LAPTOP, estimated=True, tokenizer="")
    small = shrink(plan, 2).plan
    assert small.shape == shape_of(small.model.config)
    assert small.shape.hidden == HIDDEN
    assert small.shape.layers == 2


def store_of(folder: Path, tokens: int) -> Plan:
    """A plan on a real store of two documents with so many tokens together."""
    tokenizer = TokenizerRecord(path="", sha256="", vocab=4096, begin=0, end=0)
    half = np.arange(tokens // 2, dtype=np.int64)
    store = write_store(folder / "theirs", Material([half, half]), tokenizer)
    plan = plan_for("strategy=ddp")
    facts = data_facts(store, plan.data.sequence, packing=True)
    data = plan.data.model_copy(update={"store": str(store)})
    return plan.model_copy(update={"facts": facts, "data": data})


def test_data_too_small_says_how_much_is_needed(tmp_path: Path) -> None:
    plan = store_of(tmp_path, 100)
    small = shrink(plan, 2)
    needed = small.plan.batch.global_sequences * SEQUENCE
    with pytest.raises(DataError, match=f"{needed} tokens are needed"):
        with_material(small, plan, tmp_path / "ours")


def test_few_long_documents_are_read_piece_by_piece(tmp_path: Path) -> None:
    plan = store_of(tmp_path, 8000)
    small = with_material(shrink(plan, 2), plan, tmp_path / "ours")
    assert "pieces of documents" in said(small)
    assert small.plan.facts.train_windows > 0
