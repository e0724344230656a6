"""From a run file and facts to a complete plan with its reasons, for machines that are not here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.plans import A100_8, EXAMPLE, GIB, LAPTOP, SMALL, V100, facts_of, plan_of, run_of
from headway.errors import PlanError
from headway.plan.explain import flatten
from headway.plan.make import make_plan
from headway.plan.schedule import table
from headway.plan.schema import IntervalPlan, Plan

LLAMA_8B = EXAMPLE | {
    "model": {
        "config": {"arch": "llama", "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336},
        "tokenizer": {"train": "128k"},
    },
    "train": {"length": "10B tokens", "sequence": 4096, "global_batch": "0.5M tokens"},
}
LLAMA_70B = EXAMPLE | {
    "model": {
        "config": {"arch": "llama", "hidden": 8192, "layers": 80, "heads": 64, "kv_heads": 8, "ffn": 28672},
        "tokenizer": {"train": "32k"},
    },
}
ROOMY = A100_8.model_copy(update={"host_memory_bytes": 2000 * GIB})


def test_the_readmes_example_on_8_a100() -> None:
    plan = plan_of(EXAMPLE, A100_8, vocab=32000)
    assert plan.strategy.label == "ddp"
    assert plan.numerics.precision == "bf16"
    assert not plan.numerics.activation_checkpointing
    assert plan.batch.global_sequences == 244  # 0.5 M tokens / 2048 = 244.14
    assert plan.batch.slots - 244 < 8  # less than one filler a rank
    assert plan.schedule.steps == 20012  # 10e9 / (244 x 2048), rounded up
    assert plan.schedule.warmup_steps == 200
    assert (plan.schedule.peak_lr, plan.schedule.min_lr) == (6e-4, pytest.approx(6e-5))
    assert len(table(plan.schedule)) == 20012
    assert (plan.launch.processes, plan.launch.backend, plan.launch.device) == (8, "nccl", "cuda")
    assert plan.checkpoint.every == IntervalPlan(seconds=1800)
    assert (plan.optimizer.betas, plan.optimizer.weight_decay, plan.optimizer.clip) == ((0.9, 0.95), 0.1, 1.0)
    assert plan.memory.device_bytes <= plan.memory.device_limit_bytes == int(0.9 * 80 * GIB)
    assert plan.evaluate == IntervalPlan(steps=2002)
    assert plan.cluster.matmul_flops == 312e12
    assert plan.reasons["batch.micro_batch"].endswith("of 72.0 GiB")


def test_the_quickstart_case() -> None:
    plan = plan_of(SMALL, LAPTOP)
    assert plan.strategy.label == "zero-2"
    assert (plan.launch.processes, plan.launch.threads, plan.launch.backend) == (2, 1, "gloo")
    assert (plan.numerics.precision, plan.numerics.tf32, plan.numerics.loss_chunk_tokens) == ("fp32", False, 0)
    assert plan.model.attention == "sdpa"
    assert (plan.batch.micro_batch, plan.batch.accumulation) == (8, 1)
    assert 3e6 < plan.shape.parameters < 6e6
    assert plan.strategy.reduce_bucket_elements == plan.shape.parameters  # capped to the model
    assert plan.strategy.overlap_comm is False
    assert plan.export.dtype == "fp32"


def test_three_processes_with_a_global_batch_of_eight() -> None:
    plan = plan_of(SMALL, LAPTOP, "launch.processes=3", "train.global_batch=8 sequences")
    assert (plan.batch.micro_batch, plan.batch.accumulation, plan.batch.slots) == (3, 1, 9)
    assert "1 of 9 places hold a filler of zero count" in plan.reasons["batch.accumulation"]


def test_every_derived_value_has_a_reason_under_its_own_path() -> None:
    for plan in (plan_of(EXAMPLE, A100_8, vocab=32000), plan_of(SMALL, LAPTOP), plan_of(LLAMA_70B, ROOMY)):
        paths = [path for path, _ in flatten(plan.model_dump(mode="json"))]
        for key in plan.reasons:
            if not key.startswith(("strategy.rejected.", "notes.")):
                assert any(path == key or path.startswith(f"{key}.") for path in paths), key
        assert all(plan.reasons.values())
        needed = ["batch.global_sequences", "batch.micro_batch", "batch.accumulation", "schedule.steps", "strategy"]
        needed += ["numerics.precision", "numerics.activation_checkpointing", "numerics.loss_chunk_tokens"]
        needed += ["launch.processes", "launch.threads", "model.attention", "evaluate", "checkpoint.every"]
        assert set(needed) <= plan.reasons.keys()


def test_a_plan_is_the_same_every_time() -> None:
    assert plan_of(EXAMPLE, A100_8).digest() == plan_of(EXAMPLE, A100_8).digest()
    assert plan_of(EXAMPLE, A100_8).digest() != plan_of(EXAMPLE, A100_8, "train.seed=1").digest()


def test_memory_decides_the_strategy() -> None:
    plan = plan_of(LLAMA_8B, A100_8, vocab=128_000)
    assert plan.strategy.kind == "deepspeed"
    rejected = [reason for key, reason in plan.reasons.items() if key.startswith("strategy.rejected.")]
    assert rejected[0].startswith("ddp: ")
    assert "of 72.0 GiB; " in rejected[0]
    assert plan.memory.device_bytes <= plan.memory.device_limit_bytes


def test_offload_before_giving_up() -> None:
    plan = plan_of(LLAMA_70B, ROOMY, vocab=32000)
    assert plan.strategy.label == "zero-3 +offload(optimizer)"
    assert plan.numerics.activation_checkpointing


def test_a_model_that_fits_nowhere_says_what_would_be_needed() -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(LLAMA_70B, A100_8, vocab=32000)
    text = str(caught.value)
    assert "the model fits no strategy on this machine" in text
    assert "zero-3 +offload(optimizer, parameters) +activation checkpointing: host memory" in text
    assert "fits on 32 devices like these" in text
    with pytest.raises(PlanError, match="GiB of memory for each of 2 processes"):
        plan_of(LLAMA_8B, LAPTOP, "launch={processes: 2}")


def test_a_host_that_is_too_small_is_named_as_that() -> None:
    bare = A100_8.model_copy(update={"host_memory_bytes": 2**30})
    with pytest.raises(PlanError) as caught:
        plan_of(LLAMA_8B, bare, vocab=128_000)
    text = str(caught.value)
    assert "zero-3: host memory 16.0 of 0.0 GiB; process, libraries and loader 2.0" in text
    assert "devices like these" not in text  # more of them would help nobody
    assert re.search(r"would need \d+\.\d GiB of memory a device and 16 GiB a host", text)


def test_the_users_strategy_is_kept_even_where_it_does_not_fit() -> None:
    plan = plan_of(LLAMA_8B, A100_8, "strategy=ddp", vocab=128_000)
    assert plan.strategy.label == "ddp"
    assert plan.batch.micro_batch == 1
    assert plan.memory.device_bytes > plan.memory.device_limit_bytes
    assert "it does not fit" in plan.reasons["strategy"]


def test_checkpointing_as_the_user_says() -> None:
    on = plan_of(EXAMPLE, A100_8, "train.activation_checkpointing=true")
    assert on.numerics.activation_checkpointing
    with pytest.raises(PlanError, match="fits no strategy") as caught:
        plan_of(LLAMA_8B, A100_8, "train.activation_checkpointing=false", "train.sequence=32768", vocab=128_000)
    assert "activation checkpointing:" not in str(caught.value).partition("fix:")[0]


def test_the_micro_batch_is_the_largest_that_fits() -> None:
    plan = plan_of(EXAMPLE, A100_8, "train.global_batch=4096 sequences", vocab=32000)
    assert plan.reasons["batch.micro_batch"].startswith("largest that fits is ")
    assert plan.batch.micro_batch & (plan.batch.micro_batch - 1) == 0
    with_twice = plan_of(
        EXAMPLE,
        A100_8,
        "train.global_batch=4096 sequences",
        f"train.micro_batch={2 * plan.batch.micro_batch}",
        "train.activation_checkpointing=false",
        "strategy=ddp",
        vocab=32000,
    )
    assert with_twice.memory.device_bytes > with_twice.memory.device_limit_bytes >= plan.memory.device_bytes


def test_a_cpu_takes_a_modest_micro_batch() -> None:
    plan = plan_of(SMALL, LAPTOP, "train.global_batch=256 sequences")
    assert plan.batch.micro_batch * plan.data.sequence == 4096
    assert "4096 tokens at once" in plan.reasons["batch.micro_batch"]


def test_large_vocabularies_are_computed_in_chunks() -> None:
    plan = plan_of(LLAMA_8B, A100_8, vocab=128_000)
    assert 0 < plan.numerics.loss_chunk_tokens < plan.batch.micro_batch * 4096
    told = plan_of(LLAMA_8B, A100_8, "train.loss_chunk=512", vocab=128_000)
    assert told.numerics.loss_chunk_tokens == 512
    assert told.reasons["numerics.loss_chunk_tokens"] == "train.loss_chunk"
    assert plan_of(SMALL, LAPTOP, "train.loss_chunk=1M").numerics.loss_chunk_tokens == 0  # all at once anyway


def test_impossible_triples_name_the_file_and_the_legal_ones() -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(SMALL, LAPTOP, "train.micro_batch=3", "train.accumulation=1")
    text = str(caught.value)
    assert text.startswith("--set: train.accumulation = 1: micro_batch 3 x accumulation 1 x 2 ranks = 6 does not cover")
    assert "train.micro_batch=4 train.accumulation=2  (4 x 2 x 2 = 16)" in text


def test_all_problems_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(
            SMALL,
            LAPTOP,
            "launch={gpus: 8}",
            "train.precision=fp16",
            "model.attention=flex",
            "optimizer.warmup=300 steps",
            "train.length=2 epochs",
            train_windows=100,
        )
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["launch.gpus", "train.precision", "model.attention", "optimizer.warmup"]
    assert all(problem.fix for problem in caught.value.problems)
    assert all(problem.where for problem in caught.value.problems)


def test_more_gpus_than_there_are() -> None:
    with pytest.raises(PlanError, match=r"this machine has 8 .*one process runs on each") as caught:
        plan_of(EXAMPLE, A100_8, "launch.gpus=16")
    assert "launch.gpus=8, or launch.gpus=null launch.device=cpu launch.processes=2" in str(caught.value)


def test_the_fixes_can_be_pasted() -> None:
    """What an error of the plan proposes is accepted as overrides."""
    fix = ["launch.gpus=null", "launch.device=cpu", "launch.processes=2"]
    assert plan_of(EXAMPLE, LAPTOP, *fix).launch.processes == 2
    assert plan_of(SMALL, LAPTOP, "train.global_batch='6 sequences'", "train.micro_batch=3").batch.slots == 6
    assert plan_of(SMALL, LAPTOP, "strategy=zero-3").strategy.label == "zero-3"


@pytest.mark.parametrize(
    ("asked", "processes", "threads"),
    [
        ("launch={}", 2, 1),
        ("launch={processes: 1}", 1, 2),
        ("launch={processes: 4}", 4, 1),
        ("launch={threads: 3}", 2, 3),
    ],
)
def test_processes_and_threads_on_a_cpu(asked: str, processes: int, threads: int) -> None:
    launch = plan_of(SMALL, LAPTOP, asked).launch
    assert (launch.processes, launch.threads) == (processes, threads)


def test_one_process_is_single() -> None:
    assert plan_of(SMALL, LAPTOP, "strategy=auto", "launch={processes: 1}").strategy.label == "single"
    assert plan_of(SMALL, LAPTOP, "strategy=single", "launch={}").launch.processes == 1
    assert plan_of(SMALL, LAPTOP, "strategy=auto").strategy.label == "ddp"
    one_core = LAPTOP.model_copy(update={"devices_per_host": 1})
    assert plan_of(SMALL, one_core, "strategy=auto", "launch={}").launch.processes == 1


def test_precision_follows_the_device() -> None:
    old = plan_of(EXAMPLE, V100)
    assert (old.numerics.precision, old.numerics.tf32) == ("fp32", False)
    assert "no bf16" in old.reasons["numerics.precision"]
    assert old.cluster.matmul_flops == 15.7e12
    half = plan_of(EXAMPLE, V100, "train.precision=fp16")
    assert half.cluster.matmul_flops == 125e12
    exact = plan_of(EXAMPLE, A100_8, "train.precision=fp32")
    assert (exact.numerics.tf32, exact.cluster.matmul_flops) == (False, 19.5e12)
    fast = plan_of(EXAMPLE, A100_8, "train.precision=fp32", "train.tf32=true")
    assert fast.cluster.matmul_flops == 156e12
    with pytest.raises(PlanError, match="Tesla V100-SXM2-32GB has no bf16 arithmetic"):
        plan_of(EXAMPLE, V100, "train.precision=bf16")


def test_attention_follows_the_device_and_the_model() -> None:
    """flash, then flex, then SDPA, then eager: the first that can do what the model needs."""

    def llama(**extra: Any) -> dict[str, Any]:
        return EXAMPLE | {"model": {**EXAMPLE["model"], "config": {**EXAMPLE["model"]["config"], **extra}}}

    assert plan_of(EXAMPLE, A100_8).model.attention == "flash"
    assert plan_of(EXAMPLE, A100_8, "train.precision=fp32").model.attention == "flex"
    assert plan_of(EXAMPLE, V100, "train.precision=fp16").model.attention == "flex"
    assert plan_of(llama(dropout=0.1), A100_8).model.attention == "sdpa"
    assert plan_of(llama(heads=64), A100_8).model.attention == "flex"  # heads of 12 dimensions
    assert plan_of(llama(arch="gemma2"), A100_8).model.attention == "flex"
    with pytest.raises(PlanError, match="needs 16-bit precision"):
        plan_of(EXAMPLE, A100_8, "train.precision=fp32", "model.attention=flash")
    with pytest.raises(PlanError, match="has no dropout"):
        plan_of(llama(dropout=0.1), A100_8, "model.attention=flash")


def test_capped_scores_need_another_kernel() -> None:
    gemma2 = SMALL | {"model": {**SMALL["model"], "config": {**SMALL["model"]["config"], "arch": "gemma2"}}}
    plan = plan_of(gemma2, LAPTOP)
    assert plan.model.attention == "eager"
    assert plan.reasons["model.attention"].startswith("sdpa cannot cap attention scores")
    with pytest.raises(PlanError, match="cannot cap attention scores"):
        plan_of(gemma2, LAPTOP, "model.attention=sdpa")


def test_deepspeed_stage_0_only_in_fp32() -> None:
    assert plan_of(SMALL, LAPTOP, "strategy=zero-0").strategy.label == "zero-0"
    with pytest.raises(PlanError, match="stage 0 in bf16 takes another optimizer path"):
        plan_of(EXAMPLE, A100_8, "strategy=zero-0")


def test_the_users_knobs_are_kept() -> None:
    asked = (
        "strategy={kind: zero-3, reduce_bucket: 1000, allgather_bucket: 2000, prefetch_bucket: 300, overlap_comm: true}"
    )
    strategy = plan_of(SMALL, LAPTOP, asked).strategy
    assert (strategy.reduce_bucket_elements, strategy.allgather_bucket_elements) == (1000, 2000)
    assert (strategy.prefetch_bucket_elements, strategy.persistence_threshold_elements) == (300, 100_000)
    assert strategy.overlap_comm
    on_gpu = plan_of(EXAMPLE, A100_8, "strategy=zero-2", vocab=32000).strategy
    assert on_gpu.overlap_comm
    offload = plan_of(SMALL, LAPTOP, "strategy={kind: zero-3, offload: [optimizer, parameters]}").strategy
    assert offload.offload_optimizer
    assert offload.offload_parameters


def test_a_users_own_strategy_gets_its_words() -> None:
    strategy = plan_of(SMALL, LAPTOP, "strategy={kind: 'mine.module:Spread', reduce_bucket: 7}").strategy
    assert (strategy.kind, strategy.reduce_bucket_elements) == ("mine.module:Spread", 7)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.eval_every=null", IntervalPlan()),
        ("train.eval_every=50 steps", IntervalPlan(steps=50)),
        ("train.eval_every=40960 tokens", IntervalPlan(steps=10)),
        ("train.eval_every=10 min", IntervalPlan(seconds=600)),
        ("train.eval_every=auto", IntervalPlan(steps=20)),
        ("train.length=1M steps", IntervalPlan(steps=5000)),
    ],
)
def test_evaluations(override: str, expected: IntervalPlan) -> None:
    assert plan_of(SMALL, LAPTOP, override).evaluate == expected


def test_no_evaluation_without_held_out_data() -> None:
    plan = plan_of(SMALL, LAPTOP, eval_windows=0)
    assert plan.evaluate == IntervalPlan()
    assert "no held-out data" in plan.reasons["evaluate"]


def test_checkpoints() -> None:
    assert plan_of(SMALL, LAPTOP, "checkpoint.every=auto").checkpoint.every == IntervalPlan(seconds=1800)
    assert plan_of(SMALL, LAPTOP, "checkpoint.every=null").checkpoint.every == IntervalPlan()
    assert plan_of(SMALL, LAPTOP, "checkpoint.every=8192 tokens").checkpoint.every == IntervalPlan(steps=2)


def test_data_without_one_window_is_refused() -> None:
    with pytest.raises(PlanError, match="no training window of 256 tokens"):
        plan_of(SMALL, LAPTOP, train_windows=0)


def test_estimated_data_is_marked() -> None:
    plan = plan_of(SMALL, LAPTOP, "train.length=1 epochs", estimated=True)
    assert "estimated" in plan.reasons["schedule.steps"]
    assert "estimated" in plan.reasons["facts"]


def test_a_pretrained_folder(tmp_path: Path) -> None:
    import json

    run = run_of(SMALL)
    config = facts_of(run, LAPTOP).model_config
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    data: dict[str, Any] = SMALL | {"model": "./model"}
    run = run_of(data, base=tmp_path)
    facts = facts_of(run, LAPTOP)
    plan = make_plan(run, facts)
    assert (plan.model.kind, plan.model.path) == ("pretrained", str(tmp_path / "model"))
    without_path = type(facts)(facts.cluster, facts.shape, facts.data, facts.model_config, facts.name)
    assert make_plan(run, without_path).model == plan.model


def test_plans_survive_json() -> None:
    plan = plan_of(EXAMPLE, A100_8)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_planning_and_checking_import_no_torch() -> None:
    names = "headway.plan.make, headway.plan.explain, headway.plan.files, headway.check.checks"
    names += ", headway.facts.cluster, headway.facts.shape, headway.facts.model_config, headway.facts.hub"
    heavy = "{'torch', 'transformers', 'deepspeed', 'numpy', 'huggingface_hub', 'rich'} & sys.modules.keys()"
    code = f"import sys, {names}; sys.exit(str({heavy}) if {heavy} else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["quantized_weights", "quantized_gradients"])
def test_zero_plus_plus_is_refused_on_a_cpu_and_planned_on_gpus(name: str) -> None:
    overrides = ("strategy={kind: zero-3, " + name + ": true}", "launch.processes=2")
    with pytest.raises(PlanError) as caught:
        plan_of(SMALL, LAPTOP, *overrides)
    (problem,) = caught.value.problems
    assert problem.key == f"strategy.{name}"
    assert "has no kernel on a CPU" in problem.rule
    assert problem.fix == f"strategy.{name}=false"
    assert getattr(plan_of(SMALL, A100_8, *overrides).strategy, name)
