"""What one device has to do in one step, in the units that a calibration has rates for."""

from __future__ import annotations

from dataclasses import dataclass

from headway.facts.schema import ModelShape
from headway.plan.memory import MemoryRequest, activation_bytes, logits_bytes
from headway.plan.quantizing import gathered_numbers, planned_bits
from headway.plan.schema import Plan


@dataclass(frozen=True)
class Work:
    """One device's part of one step.

    flops: of matrix products, forward, backward and recomputed. stream_bytes: what autograd keeps, times the passes
    that make it: a measure of all that moves through memory. layer_passes: layers x micro batches.
    reduced_bytes: gradients that an all-reduce takes; gathered_bytes: weights that are gathered, each time.
    """

    flops: float
    stream_bytes: float
    layer_passes: float
    updated_parameters: float
    reduced_bytes: float
    gathered_bytes: float
    messages: int


def work_of(plan: Plan) -> Work:
    """Counted from the plan alone."""
    shape, batch, numerics = plan.shape, plan.batch, plan.numerics
    tokens = batch.micro_batch * rows_of(plan) * plan.data.sequence
    flops = tokens * flops_per_token(plan)
    kept = _kept_bytes(plan) * (4 / 3 if numerics.activation_checkpointing else 1)
    ranks = 1 if plan.strategy.kind == "single" else batch.data_parallel_size
    zero = plan.strategy.stage if plan.strategy.kind == "deepspeed" else 0
    element = 4 if numerics.precision == "fp32" else 2
    gathers = (0, 1, 1, 2 * batch.accumulation)[zero] * (1.5 if zero == 3 and numerics.activation_checkpointing else 1)
    reductions = batch.accumulation if zero >= 2 else 1
    size = element * shape.trainable_parameters
    gathered = (
        gathered_numbers(shape, planned_bits(plan.adapter), element)[0] if zero == 3 else shape.trainable_parameters
    )
    return Work(
        flops=flops * batch.accumulation,
        stream_bytes=kept * batch.accumulation,
        layer_passes=shape.layers * batch.accumulation,
        updated_parameters=shape.trainable_parameters / (ranks if zero else 1),
        reduced_bytes=size * reductions if ranks > 1 else 0,
        gathered_bytes=element * gathered * gathers if ranks > 1 else 0,
        messages=shape.layers * batch.accumulation * (3 if zero == 3 else 1) if ranks > 1 else 0,
    )


def forward_work(plan: Plan) -> Work:
    """One micro batch's forward pass alone: one pass of the three over layers and memory, and no update.

    ZeRO-3 gathers the weights once.
    """
    shape, ranks = plan.shape, plan.batch.data_parallel_size
    tokens = plan.batch.micro_batch * rows_of(plan) * plan.data.sequence
    gathered = plan.strategy.kind == "deepspeed" and plan.strategy.stage == 3 and ranks > 1
    element = 4 if plan.numerics.precision == "fp32" else 2
    return Work(
        flops=tokens * flops_per_token(plan, passes=1.0),
        stream_bytes=_kept_bytes(plan) / 3,
        layer_passes=shape.layers / 3,
        updated_parameters=0.0,
        reduced_bytes=0.0,
        gathered_bytes=element * gathered_numbers(shape, planned_bits(plan.adapter), element)[0] if gathered else 0.0,
        messages=shape.layers if gathered else 0,
    )


def flops_per_token(plan: Plan, *, passes: float | None = None) -> float:
    """Of matrix products and attention. passes: over each product, 2 FLOPs a weight; None: of a training step.

    A frozen weight wants no gradient of its own: two passes (forward, and backward to its input) in place of three.
    Recomputation passes through the layers once more, not through the head.
    """
    shape, again = plan.shape, 1.0 if plan.numerics.activation_checkpointing and passes is None else 0.0
    every = passes or (2.0 if shape.adapter else 3.0)
    head = shape.vocab * shape.hidden if plan.task.kind != "classification" else 0
    lookup = 0 if shape.tied and head else shape.vocab * shape.hidden
    idle = shape.experts.idle_parameters if shape.experts else 0
    added = shape.adapter.parameters if shape.adapter else 0
    body = shape.parameters - lookup - head - idle - added
    # Headway masks by document: on a CPU every score is computed, also the half that is masked away.
    scores = 2 * shape.layers * shape.heads * shape.head_dim * plan.data.sequence
    of_scores = (passes or 3.0) + again
    of_added = (passes or 3.0) + again
    return 2 * ((every + again) * body + of_added * added + every * head + of_scores * scores)


def useful_flops_per_token(shape: ModelShape, sequence: int) -> float:
    """Forward and backward operations for one token of a full window: what MFU counts, in a plan and in a run.

    6 per matrix weight that the token passes through (Kaplan et al. 2020) plus attention, 6 x layers x heads x head_dim
    x sequence: half of PaLM's 12 (Chowdhery et al. 2022, appendix B), since a causal product needs only half. An untied
    input embedding is a look-up, not a product; recomputation by activation checkpointing is not counted (model, not
    hardware, FLOPs). A frozen weight has no gradient of its own: 4 in place of 6.
    """
    lookup = 0 if shape.tied else shape.vocab * shape.hidden
    idle = shape.experts.idle_parameters if shape.experts else 0
    frozen = max(0, shape.parameters - shape.trainable_parameters - lookup - idle) if shape.adapter else 0
    passed = shape.parameters - lookup - idle
    return 6 * passed - 2 * frozen + 6 * shape.layers * shape.heads * shape.head_dim * sequence


def request_of(plan: Plan) -> MemoryRequest:
    """The memory question that this plan answers."""
    return MemoryRequest(
        shape=plan.shape,
        cluster=plan.cluster,
        strategy=plan.strategy,
        optimizer=plan.optimizer,
        precision=plan.numerics.precision,
        processes=plan.launch.processes,
        micro_batch=plan.batch.micro_batch,
        sequence=plan.data.sequence,
        activation_checkpointing=plan.numerics.activation_checkpointing,
        loss_chunk_tokens=plan.numerics.loss_chunk_tokens,
        attention=plan.model.attention,
        adapter_dropout=plan.adapter is not None and plan.adapter.dropout > 0,
        base_bits=planned_bits(plan.adapter),
        global_sequences=plan.batch.global_sequences,
        language=plan.task.kind != "classification",
        rows=rows_of(plan),
        compiled=plan.numerics.compile,
        trackers=tuple(tracker.kind for tracker in plan.track),
    )


def rows_of(plan: Plan) -> int:
    """Sequences in one item of the batch: a preference has two answers."""
    return 2 if plan.task.kind == "preference" else 1


def _kept_bytes(plan: Plan) -> float:
    """Activations of all layers and the logits, whether they are kept or made twice."""
    whole = request_of(plan.model_copy(update={"numerics": plan.numerics.model_copy(
        update={"activation_checkpointing": False})}))  # fmt: skip
    return activation_bytes(whole) + logits_bytes(whole)
