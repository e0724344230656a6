"""Model states by strategy against the ZeRO paper, and how the estimate moves with what it depends on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.plans import A100_8, EXAMPLE, GIB, LAPTOP, SMALL, facts_of, plan_of, run_of, shape
from headway.facts.schema import AdapterShape, ClusterFacts, ExpertShape
from headway.plan.footprint import footprint
from headway.plan.footprint import logits_bytes as of_gpu
from headway.plan.make import make_plan
from headway.plan.memory import (
    CPU_TRACKER_BYTES,
    MemoryRequest,
    activation_bytes,
    device_limit_bytes,
    estimate_memory,
    fits,
    logits_bytes,
    loss_chunk_for,
    model_states,
    moments_of,
    setting_of,
    used_bytes,
)
from headway.plan.schema import CompressionPlan, MemoryItem, MemoryPlan, OptimizerPlan, StrategyPlan
from headway.plan.work import request_of
from headway.units import format_bytes

ADAMW = OptimizerPlan(kind="adamw", betas=(0.9, 0.95), eps=1e-8, momentum=0.9, weight_decay=0.1, clip=1.0)
PAPER = shape(7_500_000_000)


def zero(stage: int, **changes: Any) -> StrategyPlan:
    return StrategyPlan(kind="deepspeed", stage=stage, **changes)


def request(strategy: StrategyPlan, **changes: Any) -> MemoryRequest:
    base = MemoryRequest(
        shape=PAPER,
        cluster=A100_8,
        strategy=strategy,
        optimizer=ADAMW,
        precision="bf16",
        processes=64,
        micro_batch=1,
        sequence=2048,
        activation_checkpointing=False,
        loss_chunk_tokens=0,
        attention="flash",
    )
    return replace(base, **changes)


def states(strategy: StrategyPlan, **changes: Any) -> tuple[int, int]:
    """(on the device, on the host)."""
    items = model_states(request(strategy, **changes))
    return sum(i.device_bytes for i in items), sum(i.host_bytes for i in items)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_papers_numbers(stage: int, gigabytes: float) -> None:
    """7.5 B parameters on 64 devices (ZeRO, figure 1); GB there are 1e9 bytes."""
    assert round(states(zero(stage))[0] / 1e9, 1) == gigabytes


@pytest.mark.parametrize(
    ("stage", "formula"),
    [
        (0, lambda p, n: 16 * p),
        (1, lambda p, n: 4 * p + 12 * p / n),
        (2, lambda p, n: 2 * p + 14 * p / n),
        (3, lambda p, n: 16 * p / n),
    ],
)
@pytest.mark.parametrize("ranks", [1, 4, 1024])
def test_16_bit_with_a_master_copy(stage: int, formula: Any, ranks: int) -> None:
    assert states(zero(stage), processes=ranks)[0] == pytest.approx(formula(7.5e9, ranks), abs=32)


def test_states_fall_from_stage_to_stage() -> None:
    """1e9 parameters on 4 ranks: each stage keeps less than the one before."""
    kept = [states(zero(stage), shape=shape(10**9), processes=4)[0] for stage in range(4)]
    assert kept == sorted(kept, reverse=True)
    assert kept == [16 * 10**9, 7 * 10**9, 5_500_000_000, 4 * 10**9]


def test_fp32_states() -> None:
    """Without a master copy 4 + 4 + 8; DeepSpeed's stages 1 to 3 keep one all the same."""
    p, n = 10**9, 4
    few = {"shape": shape(p), "processes": n, "precision": "fp32"}
    assert states(StrategyPlan(kind="ddp"), **few)[0] == 16 * p
    assert states(zero(0), **few)[0] == 16 * p
    assert states(zero(1), **few)[0] == 8 * p + 12 * p // n
    assert states(zero(2), **few)[0] == 4 * p + 16 * p // n
    assert states(zero(3), **few)[0] == 20 * p // n


def test_ddp_in_bf16_keeps_fp32_weights_and_their_16_bit_copies() -> None:
    p = 10**9
    assert states(StrategyPlan(kind="ddp"), shape=shape(p))[0] == 16 * p + 2 * p


def test_offload_moves_states_to_the_host() -> None:
    p, n = 10**9, 4
    few = {"shape": shape(p), "processes": n}
    device, host = states(zero(2, offload_optimizer=True), **few)
    largest = 2 * 4096 * 32000  # one gradient on its way, on either side
    assert device == 2 * p + largest
    assert host == (12 + 4 + 2) * p // n + 2 * p // n + largest
    split = few | {"micro_batch": 2, "global_sequences": 64}  # stage 1 adds up whole gradients on the device
    device, host = states(zero(1, offload_optimizer=True), **split)
    assert device == (2 + 2) * p + largest
    assert host == (12 + 4) * p // n + 2 * p // n + largest
    assert states(zero(2, offload_optimizer=True), **split) == states(zero(2, offload_optimizer=True), **few)
    device, host = states(zero(3, offload_optimizer=True, offload_parameters=True), **few)
    assert device == 0
    assert host == (2 + 12 + 4 + 2) * p // n


@pytest.mark.parametrize(
    ("kind", "momentum", "count"),
    [("adamw", 0.9, 2), ("adam", 0.9, 2), ("sgd", 0.9, 1), ("sgd", 0.0, 0), ("rmsprop", 0.9, 1)],
)
def test_other_optimizers_keep_less(kind: Any, momentum: float, count: int) -> None:
    optimizer = ADAMW.model_copy(update={"kind": kind, "momentum": momentum})
    assert moments_of(optimizer) == count
    few = {"shape": shape(10**9), "precision": "fp32", "optimizer": optimizer}
    assert states(StrategyPlan(kind="ddp"), **few)[0] == (8 + 4 * count) * 10**9


def test_items_have_names_and_add_up() -> None:
    buckets = {"reduce_bucket_elements": 10**6, "prefetch_bucket_elements": 10**6}
    plan = estimate_memory(request(zero(3, **buckets), cluster=LAPTOP))
    names = [item.name for item in plan.items]
    assert names == [
        "parameters",
        "gradients",
        "optimizer states",
        "gathered parameters",
        "activations",
        "logits and loss",
        "communication buckets",
        "allocator",
        "runtime",
    ]
    assert plan.device_bytes == sum(item.device_bytes for item in plan.items)
    gathered = next(item for item in plan.items if item.name == "gathered parameters")
    assert gathered.device_bytes == 2 * (10**9 + 10**6)  # DeepSpeed keeps so many of a model of 7.5e9, and copies


def test_overlap_needs_a_second_bucket_at_stages_1_and_2() -> None:
    def buckets(strategy: StrategyPlan) -> int:
        items = estimate_memory(request(strategy, cluster=LAPTOP)).items
        return sum(item.device_bytes for item in items if item.name == "communication buckets")

    size = {"reduce_bucket_elements": 10**6}
    assert buckets(zero(2, **size)) == 2 * 10**6
    assert buckets(zero(2, **size, overlap_comm=True)) == 2 * 2 * 10**6
    assert buckets(zero(3, **size, overlap_comm=True)) == 2 * 2 * 10**6 + 2 * 10**6 // 64
    assert buckets(StrategyPlan(kind="ddp", **size)) == 0


def test_activations_grow_with_the_batch_and_shrink_by_checkpointing() -> None:
    one = activation_bytes(request(zero(2)))
    assert activation_bytes(request(zero(2), micro_batch=3)) == 3 * one
    kept = activation_bytes(request(zero(2), activation_checkpointing=True))
    assert kept < one / 5
    # only the layers' inputs and one layer: a 16-bit stream of 4096 for 2048 tokens and 36 layers is 604 MB
    assert kept == pytest.approx(604e6 + one / 36, rel=0.1)


def test_eager_attention_keeps_the_score_matrices() -> None:
    plain = activation_bytes(request(zero(2), attention="sdpa"))
    eager = activation_bytes(request(zero(2), attention="eager"))
    assert eager - plain == 36 * 32 * 2048**2 * 6  # layers x heads x sequence^2 x (fp32 and its 16-bit copy)


def test_shared_key_heads_are_repeated_only_under_a_mask() -> None:
    shared = shape(10**9, kv_heads=4)
    flash = activation_bytes(request(zero(2), shape=shared, attention="flash"))
    repeated = activation_bytes(request(zero(2), shape=shared, attention="sdpa"))
    masks = 2048**2 * 3
    assert repeated - flash - masks == 36 * 2048 * 2 * (32 - 4) * 128 * 2  # layers, tokens, key and value, width, bytes


def test_chunks_bound_the_logits() -> None:
    gradients = 4 * 32000 * 4096 + 2 * 2048 * 4096  # of the head's weight in fp32, of the hidden states
    long = {"sequence": 2**17}
    assert logits_bytes(request(zero(2), loss_chunk_tokens=512)) == 2 * gradients  # backward scales them: two copies
    whole = logits_bytes(request(zero(2), **long))
    chunked = logits_bytes(request(zero(2), **long, loss_chunk_tokens=2**15))
    assert whole - chunked == (2**17 - 2**15) * 32000 * 6  # fp32 and its 16-bit copy
    assert logits_bytes(request(zero(2), **long, loss_chunk_tokens=10**6)) == whole
    capped = request(zero(2), shape=shape(10**9, head="pieces"))
    assert logits_bytes(capped) == 2048 * 32000 * 14
    assert loss_chunk_for(2048, 32000)[0] == 0  # 0.24 GiB
    chunk, reason = loss_chunk_for(32 * 2048, 32000)
    assert chunk % 256 == 0
    assert 0.9 * GIB < chunk * 32000 * 4 <= GIB
    assert "7.81 GiB" in reason
    assert loss_chunk_for(8192, 10**7)[0] == 256  # one chunk alone is above the bound: no smaller


def test_limits() -> None:
    assert device_limit_bytes(A100_8, 8) == int(0.9 * 80 * GIB)
    one, two = device_limit_bytes(LAPTOP, 1), device_limit_bytes(LAPTOP, 2)
    assert one == int(0.9 * 24 * GIB - GIB)
    assert two == pytest.approx(one / 2, abs=1)


def test_on_a_cpu_what_is_offloaded_stays_in_the_same_memory() -> None:
    offload = zero(2, offload_optimizer=True)
    small = {"shape": shape(10**8), "cluster": LAPTOP, "precision": "fp32", "processes": 2, "sequence": 8}
    memory = estimate_memory(request(offload, **small))
    assert memory.host_bytes > 0
    assert used_bytes(memory, LAPTOP) == memory.device_bytes + memory.host_bytes
    assert used_bytes(memory, A100_8) == memory.device_bytes
    full = MemoryPlan(items=memory.items, device_limit_bytes=memory.device_bytes + 1)
    assert not fits(full, LAPTOP, 2)
    assert fits(full, A100_8, 2)


def test_the_host_must_hold_what_all_its_processes_put_there() -> None:
    memory = estimate_memory(request(zero(3, offload_optimizer=True), processes=8, activation_checkpointing=True))
    assert memory.device_bytes < memory.device_limit_bytes
    assert fits(memory, A100_8, 8)
    assert not fits(memory, A100_8.model_copy(update={"host_memory_bytes": 120 * GIB}), 8)


def test_a_gpu_holds_what_the_estimate_of_gpus_says() -> None:
    """One count for the choice of a strategy, for the checks and for the forecast."""
    ways = (StrategyPlan(kind="ddp"), zero(2, overlap_comm=True), *(zero(n, offload_optimizer=True) for n in (1, 2, 3)))
    for strategy in ways:
        asked = request(strategy, shape=shape(10**9), processes=4, global_sequences=64)
        memory, made = estimate_memory(asked), footprint(setting_of(asked))
        assert memory.items[:-1] == made.items
        assert memory.device_bytes == pytest.approx(made.device_bytes, abs=100)
        assert memory.host_bytes == made.host_bytes + memory.items[-1].host_bytes
        states = {item.name: item.device_bytes for item in memory.items}
        counted = {item.name: item.device_bytes for item in model_states(asked)}
        for name in ("parameters", "gradients", "optimizer states"):
            assert states.get(name, 0) == pytest.approx(counted.get(name, 0), abs=4), name


def test_overlap_needs_a_second_bucket_on_a_gpu_too() -> None:
    def peak(**changes: Any) -> int:
        asked = request(zero(2, reduce_bucket_elements=10**9, **changes), activation_checkpointing=True, sequence=64)
        return footprint(setting_of(asked)).device_bytes

    assert peak(overlap_comm=True) > peak()


def test_pln_01_states_of_each_stage_are_those_of_the_formula() -> None:
    """The upstream estimator forgot that stage 2 shares the gradients out: 6.5 GB in place of 5.5."""
    case = json.loads((Path(__file__).parents[1] / "cases" / "pln-01" / "plan.json").read_text())
    count, ranks = case["params"], case["gpus"]
    found = [states(zero(stage), shape=shape(count), processes=ranks)[0] for stage in range(4)]
    formula = [16 * count, 4 * count + 12 * count / ranks, 2 * count + 14 * count / ranks, 16 * count / ranks]
    assert found == pytest.approx(formula, rel=0.01)
    assert found == sorted(found, reverse=True)
    assert found[2] < case["upstream_zero2_bytes"]
    assert format_bytes(found[2]) == "5.12 GiB"


@pytest.mark.parametrize("cluster", [A100_8, LAPTOP])
def test_compressed_gradients_need_memory_of_their_own(cluster: Any) -> None:
    """PowerSGD with error feedback keeps a whole fp32 gradient more, without thin matrices alone; casts are 2 bytes."""

    def item(**told: Any) -> int:
        compression = CompressionPlan.model_validate({"rank": 2, "start_step": 5, "error_feedback": True} | told)
        strategy = StrategyPlan(kind="ddp", compression=compression)
        found = estimate_memory(request(strategy, cluster=cluster)).items
        return next(each.device_bytes for each in found if each.name == "gradient compression")

    count = PAPER.trainable_parameters
    assert item(kind="bf16") == item(kind="fp16") == 2 * count
    assert 4 * count < item(kind="powersgd") < 4.2 * count
    assert 0 < item(kind="powersgd", error_feedback=False) < 0.05 * count
    plain = estimate_memory(request(StrategyPlan(kind="ddp"), cluster=cluster))
    assert all(each.name != "gradient compression" for each in plain.items)


def test_trackers_are_counted_on_a_cpu() -> None:
    plain = plan_of(SMALL, LAPTOP)
    tracked = plan_of(SMALL | {"track": {"tensorboard": True, "mlflow": {}}}, LAPTOP)
    items = {item.name: item.device_bytes for item in tracked.memory.items}
    assert items["trackers"] == CPU_TRACKER_BYTES["tensorboard"] + CPU_TRACKER_BYTES["mlflow"]
    assert tracked.memory.device_bytes - plain.memory.device_bytes == items["trackers"]
    assert estimate_memory(request_of(tracked)) == tracked.memory


STATES = (
    "parameters",
    "gradients",
    "optimizer states",
    "second copy of the parameters",
    "offload staging",
    "16-bit copies of the weights",
    "dequantised matrix",
)
EXPERTS = ExpertShape(count=8, per_token=2, ffn=14336, layers=36, parameters=36 * 8 * 3 * 4096 * 14336)
ADAPTED = AdapterShape(parameters=10**7, layers=252, rank=16, inputs=10**6, linear_parameters=7_000_000_000)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("of", ["dense", "experts", "quantised"])
def test_gpus_and_cpus_count_the_same_states(precision: Any, of: str) -> None:
    """On either side of the offload: a CPU's figures are those that are counted on the live engine."""
    ways = [StrategyPlan(kind="ddp"), StrategyPlan(kind="single"), *(zero(stage) for stage in range(4))]
    ways += [zero(stage, offload_optimizer=True) for stage in (1, 2, 3)]
    ways += [zero(3, offload_optimizer=on, offload_parameters=True, secondary_partition=4) for on in (True, False)]
    ways.append(zero(3, secondary_partition=2))
    model = {
        "dense": shape(7_500_000_000),
        "experts": shape(7_500_000_000 + EXPERTS.parameters, experts=EXPERTS),
        "quantised": shape(7_510_000_000, trainable_parameters=10**7, adapter=ADAPTED),
    }[of]
    for strategy in ways:
        for sequences in (8, 64):
            asked = request(
                strategy,
                shape=model,
                precision=precision,
                processes=8,
                global_sequences=sequences,
                base_bits=4.5 if of == "quantised" else None,
            )
            made = by_name(estimate_memory(asked).items)
            counted = by_name(model_states(asked))
            for name in STATES:
                found = made.get(name, (0, 0))
                assert found == pytest.approx(counted.get(name, (0, 0)), abs=8), (strategy.label, name)


def by_name(items: Iterable[MemoryItem]) -> dict[str, tuple[int, int]]:
    """name -> (bytes on the device, on the host), whichever of its two names an item has."""
    found: dict[str, tuple[int, int]] = {}
    for item in items:
        name = item.name.removeprefix("offloaded ")
        device, host = found.get(name, (0, 0))
        found[name] = device + item.device_bytes, host + item.host_bytes
    return found


def test_a_second_copy_of_the_parameters_is_counted() -> None:
    """ZeRO++ (Wang et al. 2023, section 3.2): 16-bit parameters once more, over the ranks of a group."""
    plain, twice = (estimate_memory(request(zero(3, secondary_partition=group))) for group in (1, 8))
    assert twice.device_bytes - plain.device_bytes == pytest.approx(2 * 7.5e9 / 8, rel=0.001)
    wider = estimate_memory(request(zero(3, secondary_partition=4096)))  # no more ranks than there are
    assert wider.device_bytes - plain.device_bytes == pytest.approx(2 * 7.5e9 / 64, rel=0.001)


def test_a_token_passes_through_several_experts() -> None:
    """On a CPU too each keeps its activations: twice those of one MLP of that width."""

    def kept(**changes: Any) -> int:
        return activation_bytes(request(zero(2), cluster=LAPTOP, shape=shape(10**9, ffn=14336, **changes)))

    two = kept(experts=EXPERTS)
    one = kept(experts=EXPERTS.model_copy(update={"per_token": 1}))
    assert one == kept()
    assert two - one == 36 * 2048 * 4 * 14336 * 2


@pytest.mark.parametrize("cluster", [A100_8, LAPTOP])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_head_that_is_no_plain_layer_keeps_its_logits(cluster: ClusterFacts, precision: Any) -> None:
    """Logits as they are made, an fp32 copy where that is another, log-softmax and gradient: of a piece, or of all."""
    each = 12 + (2 if precision == "bf16" else 0)

    def loss(head: str, chunk: int, **changes: Any) -> float:
        model = shape(10**9, head=head)
        made = request(zero(2), cluster=cluster, precision=precision, shape=model, loss_chunk_tokens=chunk, **changes)
        on_gpu = of_gpu(setting_of(made)) if cluster.device == "cuda" else None
        return logits_bytes(made) if on_gpu is None else on_gpu

    tokens = 2048
    assert loss("pieces", 256) == 256 * 32000 * each
    assert loss("pieces", 0) == tokens * 32000 * each
    assert loss("capped", 256) == 256 * 32000 * 16  # its tanh beside them, in 4 bytes, or in 2 of 16
    assert loss("whole", 256) == loss("whole", 0) >= tokens * 32000 * each
    assert loss("linear", 256, rows=2) == loss("pieces", 256, rows=2) == 256 * 32000 * each
    assert loss("whole", 256, rows=2) >= 2 * tokens * 32000 * each


def test_a_head_that_cannot_be_cut_is_not_planned_in_pieces() -> None:
    words = EXAMPLE | {"train": {"length": "1B tokens", "sequence": 2048, "global_batch": "512 sequences"}}
    run, facts = run_of(words), facts_of(run_of(words), A100_8, vocab=32000)
    plain = make_plan(run, facts)
    whole = make_plan(run, replace(facts, shape=facts.shape.model_copy(update={"head": "whole"})))
    assert plain.numerics.loss_chunk_tokens > 0
    assert whole.numerics.loss_chunk_tokens == 0
    assert "all tokens at once" in whole.reasons["numerics.loss_chunk_tokens"]
    assert (
        whole.memory.device_bytes > plain.memory.device_bytes + 15 * GIB
    )  # 65,536 tokens x 32,000 entries x 14 bytes are 27


def test_what_the_c_library_keeps() -> None:
    """Of what a step frees, up to what it gives back; and the gaps that the loading of frozen weights leaves."""

    def items(parameters: int, strategy: StrategyPlan, trained: float = 1) -> dict[str, int]:
        asked = request(strategy, cluster=LAPTOP, precision="fp32", processes=2, sequence=128)
        narrow = {"hidden": 64, "layers": 2, "ffn": 128, "vocab": 512} if parameters < 10**8 else {}
        model = shape(parameters, trainable_parameters=int(trained * parameters), **narrow)
        return {item.name: item.device_bytes for item in estimate_memory(replace(asked, shape=model)).items}

    ddp = StrategyPlan(kind="ddp")
    small, large = items(10**6, ddp), items(10**9, ddp)
    freed = small["activations"] + small["logits and loss"]
    assert small["allocator"] == pytest.approx(0.6 * freed, abs=2)
    assert large["allocator"] == 115 * 1024**2
    frozen = items(10**9, ddp, trained=0.25)
    assert frozen["allocator"] == pytest.approx(large["allocator"] + 0.75 * 0.55 * frozen["parameters"], abs=2)
    shared = items(10**9, zero(3), trained=0.25)
    assert shared["allocator"] == pytest.approx(115 * 1024**2 + 0.75 * 1.7 * shared["gathered parameters"], abs=2)
