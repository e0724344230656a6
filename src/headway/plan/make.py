"""RunConfig + facts -> Plan: every "auto" made concrete, each with a reason. A pure function of the two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headway import __version__
from headway.config.load import LoadedRun
from headway.config.schema import RunConfig
from headway.errors import PlanError
from headway.facts.model_config import locate_pretrained
from headway.facts.schema import ClusterFacts, DataFacts, ModelShape
from headway.plan.batch import sequences_of
from headway.plan.deepspeed_json import judge_json, refuse_strategy, strategy_of, with_engine
from headway.plan.intervals import plan_checkpoint, plan_evaluation
from headway.plan.launching import plan_launch
from headway.plan.ledger import Ledger
from headway.plan.memory import MemoryRequest
from headway.plan.numerics import (
    Attention,
    AttentionNeeds,
    Precision,
    plan_attention,
    plan_export_dtype,
    plan_precision,
    plan_tf32,
    with_peak,
)
from headway.plan.quantizing import bits_of, refuse_unquantizable
from headway.plan.schedule import Pace, make_schedule
from headway.plan.schema import (
    AdapterPlan,
    CodePlan,
    DataPlan,
    ExportPlan,
    LaunchPlan,
    ModelPlan,
    NumericsPlan,
    OptimizerPlan,
    Plan,
    SchedulePlan,
    StrategyPlan,
    TaskPlan,
)
from headway.plan.sizing import Sizes, first_micro_batch, size_batch, with_micro_batch
from headway.plan.sources import source_names, source_weights
from headway.plan.strategy import Rung, StrategyRequest, choose_strategy
from headway.plan.tasks import plan_task
from headway.plan.tracking import plan_trackers
from headway.units import format_count


@dataclass(frozen=True)
class AllFacts:
    """Everything that is known before the plan.

    model_config: the complete transformers config. model_path, model_revision: of a pretrained model, from
    `headway.facts.model_config.resolve_model`, as are the notes. base: the identity of the weights that an adapter
    belongs to. fresh_head: see ModelPlan. code: the user's own modules.
    """

    cluster: ClusterFacts
    shape: ModelShape
    data: DataFacts
    model_config: dict[str, Any]
    name: str
    model_path: str | None = None
    model_revision: str | None = None
    notes: tuple[str, ...] = ()
    base: str = ""
    fresh_head: bool = False
    code: tuple[CodePlan, ...] = ()


@dataclass(frozen=True)
class _Settled:
    """What follows from the run file and the machine before memory is looked at."""

    launch: LaunchPlan
    precision: Precision
    tf32: bool
    attention: Attention
    pace: Pace
    schedule: SchedulePlan


def make_plan(run: LoadedRun, facts: AllFacts) -> Plan:
    """The complete plan of a run.

    Raises:
        PlanError: no legal plan follows; every problem at once, each with its fix.
    """
    config, ledger = run.config, Ledger(run.origins)
    settled = _settle(run, facts, ledger)
    memory = _memory_request(config, facts, settled)
    asked = strategy_of(run, facts.shape.hidden, ledger)
    ledger.raise_problems()
    choice = choose_strategy(StrategyRequest(asked, config.train.activation_checkpointing, memory))
    ledger.reasons |= choice.reasons
    try:
        sizes = size_batch(memory, choice.rung, config.train, settled.pace.global_sequences, ledger)
    except PlanError as error:
        raise ledger.placed(error) from error
    return _assemble(run, facts, settled, _Chosen(choice.rung, sizes), ledger)


def _settle(run: LoadedRun, facts: AllFacts, ledger: Ledger) -> _Settled:
    """Raises PlanError with every problem of these parts at once."""
    config = run.config
    cluster, train, data = facts.cluster, config.train, facts.data
    launch = plan_launch(config.launch, config.strategy.kind, cluster, ledger)
    precision = plan_precision(config, cluster, ledger)
    refuse_strategy(config.strategy, cluster, precision, launch.processes, ledger)
    refuse_unquantizable(run, launch.device, ledger)
    tf32 = plan_tf32(config, cluster, ledger)
    needs = AttentionNeeds.of(facts.model_config, facts.shape.head_dim)
    if config.task.kind == "classification":
        needs = replace(needs, both_ways=True)
    attention = plan_attention(config.model.attention, needs, cluster, precision, ledger)
    if config.strategy.kind == "deepspeed" and config.strategy.stage == 0 and precision != "fp32":
        rule = f"DeepSpeed's stage 0 in {precision} takes another optimizer path than all other stages"
        ledger.refuse("strategy.stage", 0, rule, "strategy=ddp, or strategy=zero-1")
    if data.train_windows < 1:
        rule = f"no training window of {train.sequence} tokens can be made of {data.tokens} tokens"
        ledger.refuse("data.train", data.store, rule, "give more text, or a shorter train.sequence")
    pace = Pace(train.sequence, 1, data.train_windows, data.estimated)
    schedule = SchedulePlan(kind="constant", steps=1, tokens=1, peak_lr=0, min_lr=0, warmup_steps=0)
    with ledger.collecting():
        total, reason = sequences_of(train, launch.processes)
        ledger.because("batch.global_sequences", reason)
        pace = Pace(train.sequence, total, data.train_windows, data.estimated)
        schedule, reasons = make_schedule(config.optimizer, train.length, pace)
        ledger.reasons |= reasons
        judge_json(run, launch.processes, schedule.steps, ledger)
    ledger.raise_problems()
    return _Settled(launch, precision, tf32, attention, pace, schedule)


def _optimizer(config: RunConfig) -> OptimizerPlan:
    asked = config.optimizer
    return OptimizerPlan(
        kind=asked.kind,
        betas=asked.betas,
        eps=asked.eps,
        momentum=asked.momentum,
        weight_decay=asked.weight_decay,
        clip=asked.clip,
    )


def _memory_request(config: RunConfig, facts: AllFacts, settled: _Settled) -> MemoryRequest:
    processes = settled.launch.processes
    micro = first_micro_batch(config.train, settled.pace.global_sequences, processes)
    request = MemoryRequest(
        shape=facts.shape,
        cluster=facts.cluster,
        strategy=StrategyPlan(kind="ddp"),
        optimizer=_optimizer(config),
        precision=settled.precision,
        processes=processes,
        micro_batch=micro,
        sequence=config.train.sequence,
        activation_checkpointing=False,
        loss_chunk_tokens=0,
        attention=settled.attention,
        global_sequences=settled.pace.global_sequences,
        adapter_dropout=config.adapter is not None and config.adapter.dropout > 0,
        base_bits=bits_of(config.adapter),
        rows=2 if config.task.kind == "preference" else 1,
        language=config.task.kind != "classification",
        compiled=config.train.compile,
        trackers=tuple(tracker.kind for tracker in plan_trackers(config.track)),
    )
    return with_micro_batch(request, micro, config.train)


@dataclass(frozen=True)
class _Chosen:
    rung: Rung
    sizes: Sizes


def _assemble(run: LoadedRun, facts: AllFacts, settled: _Settled, chosen: _Chosen, ledger: Ledger) -> Plan:
    config = run.config
    train, data, steps, pace = config.train, facts.data, settled.schedule.steps, settled.pace
    evaluate = plan_evaluation(config, data, steps, pace, ledger)
    checkpoint = plan_checkpoint(config, pace, ledger)
    export = ExportPlan(
        at_end=config.export.at_end,
        dtype=plan_export_dtype(config, settled.precision, ledger),
        sample=config.export.sample,
        adapter=config.export.adapter,
        max_shard_bytes=config.export.max_shard,
    )
    numerics = NumericsPlan(
        precision=settled.precision,
        tf32=settled.tf32,
        activation_checkpointing=chosen.rung.activation_checkpointing,
        compile=train.compile,
        loss_chunk_tokens=chosen.sizes.loss_chunk_tokens,
        seed=train.seed,
    )
    if data.estimated:
        ledger.because("facts", "estimated: the token store is not built yet; `headway data build` makes it exact")
    for number, note in enumerate((*facts.notes, *data.notes, *data.lost)):
        ledger.because(f"notes.{number}", note)
    return Plan(
        name=facts.name,
        headway=__version__,
        model=_model(run, facts, settled.attention, ledger),
        task=_task(config, facts, ledger),
        adapter=_adapter(config, facts, ledger),
        data=DataPlan(
            store=data.store,
            store_hash=data.store_hash,
            tokenizer=data.tokenizer,
            sequence=train.sequence,
            packing=config.data.packing and data.layout not in ("single", "pair", "given"),
            sources=source_names(config.data),
            weights=source_weights(config.data),
        ),
        batch=chosen.sizes.batch,
        schedule=settled.schedule,
        optimizer=_optimizer(config),
        strategy=with_engine(chosen.rung.strategy, run),
        numerics=numerics,
        evaluate=evaluate,
        log_every=train.log_every,
        stop_after_seconds=train.stop_after,
        checkpoint=checkpoint,
        launch=settled.launch,
        track=plan_trackers(config.track),
        export=export,
        memory=chosen.sizes.memory,
        cluster=with_peak(facts.cluster, settled.precision, tf32=settled.tf32),
        shape=facts.shape,
        facts=data,
        reasons=ledger.reasons,
        code=facts.code,
    )


def _task(config: RunConfig, facts: AllFacts, ledger: Ledger) -> TaskPlan:
    """The task; a preference knows which weights its reference has."""
    task = plan_task(config.task, facts.data, ledger)
    if task.kind != "preference":
        return task
    return task.model_copy(update={"options": task.options | {"reference": facts.base}})


def _adapter(config: RunConfig, facts: AllFacts, ledger: Ledger) -> AdapterPlan | None:
    asked, added = config.adapter, facts.shape.adapter
    if asked is None:
        return None
    if asked.alpha == "auto":
        ledger.because("adapter.alpha", "2 x rank")
    if added is not None:
        share = added.parameters / facts.shape.parameters
        what = f"{format_count(added.parameters)} of {format_count(facts.shape.parameters)} parameters ({share:.2%})"
        held = ""
        if (bits := bits_of(asked)) is not None:
            held = f"; {format_count(added.linear_parameters)} frozen weights in {bits:.2f} bits each"
        ledger.because("adapter", f"{what} in {added.layers} layers are trained{held}")
    return AdapterPlan(
        kind=asked.kind,
        rank=asked.rank,
        alpha=2.0 * asked.rank if asked.alpha == "auto" else asked.alpha,
        dropout=asked.dropout,
        targets=asked.targets,
        base=facts.base,
        quantization=(asked.quantization or "nf4") if asked.kind == "qlora" else None,
        double_quantization=asked.kind == "qlora" and asked.double_quantization is not False,
    )


def _model(run: LoadedRun, facts: AllFacts, attention: Attention, ledger: Ledger) -> ModelPlan:
    """Where the worker takes the model from; a folder that the facts do not name is found beside the run file."""
    asked, path, revision = run.config.model, facts.model_path, facts.model_revision
    if asked.from_ is not None and path is None:
        folder, revision, _ = locate_pretrained(asked.from_, asked.revision, run.base)
        path = str(folder)
    if facts.fresh_head:
        ledger.because("model.fresh_head", "the head starts fresh: the folder's own is for other labels, or absent")
    return ModelPlan(
        kind=asked.factory or ("config" if asked.from_ is None else "pretrained"),
        path=path,
        revision=revision,
        config=facts.model_config,
        options=asked.options,
        attention=attention,
        fresh_head=facts.fresh_head,
    )
