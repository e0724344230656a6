"""The order of construction: source, task, engine, then the state to go on from, then the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headway.checkpoint.load import newest_complete, open_reader
from headway.checkpoint.random_state import restore_random_state
from headway.checkpoint.ranks import Ranks
from headway.checkpoint.store import LocalStore
from headway.data.loader import LoaderSpec, StepLoader, eval_batches
from headway.data.seam import Sample, SampleSource
from headway.data.store import Split, open_split
from headway.errors import CheckpointError, ModelError
from headway.export.compare import Comparison
from headway.model.identity import require_base
from headway.model.seam import ModelSource
from headway.model.source import source_of
from headway.parallel.collectives import exchange, world
from headway.parallel.compression import RESUMED
from headway.parallel.seam import Engine
from headway.plan.schema import DataPlan, Plan
from headway.registry import resolve
from headway.run.paths import RunDir
from headway.task.own import checked, task_of, unwrapped
from headway.task.preference import Preference
from headway.task.seam import Batch, Task
from headway.train.census import CENSUS, census_of, encoded, require_same
from headway.train.context import RankContext, seed_everything
from headway.train.frozen import Reference, make_reference
from headway.train.progress import Progress
from headway.train.sources import SOURCES, SourceLedger


@dataclass(frozen=True)
class Given:
    """What a user's script hands over in place of what the plan names (headway.train.given); None: the plan's."""

    source: ModelSource | None = None
    task: Task | None = None
    comparison: Comparison | None = None  # of an export with the module


@dataclass
class Parts:
    """All that the loop and the ending need."""

    plan: Plan
    run: RunDir
    context: RankContext
    source: ModelSource
    task: Task
    engine: Engine
    store: LocalStore
    ranks: Ranks
    progress: Progress
    resumed_from: str | None
    notices: tuple[str, ...]
    sources: SourceLedger
    comparison: Comparison | None = None
    reference: Reference | None = None  # of a preference


def build(plan: Plan, run: RunDir, context: RankContext, given: Given | None = None) -> Parts:
    """Everything but the data loader; the engine holds the weights (and state) that training goes on from."""
    given = given or Given()
    rank, size = world()
    ranks = Ranks(rank, size, exchange)
    if plan.adapter is not None:
        _require_base(plan, ranks)
    source: ModelSource = given.source or source_of(plan)
    task: Task = task_of(plan) if given.task is None else checked(given.task)
    engine: Engine = resolve("strategy", plan.strategy.kind)().prepare(source, task, plan)
    store = LocalStore(run.checkpoints)
    sources = SourceLedger(plan if rank == 0 else plan.model_copy(update={"data": _one_source(plan)}))
    parts = Parts(plan, run, context, source, task, engine, store, ranks, Progress(), None, (), sources)
    parts.comparison = given.comparison
    going_on = context.resume or _was_trained(run, ranks)
    learnt = unwrapped(task)
    if isinstance(learnt, Preference):
        parts.reference = make_reference(plan, engine, learnt, ranks, is_start=not going_on)
    seed_everything(plan.numerics.seed, rank)
    if going_on:
        _resume(parts)
    return parts


def _one_source(plan: Plan) -> DataPlan:
    """Ranks other than 0 count nothing."""
    return plan.data.model_copy(update={"sources": ()})


def _require_base(plan: Plan, ranks: Ranks) -> None:
    """Rank 0 reads the base model's files; all ranks raise its ModelError."""
    failure: ModelError | None = None
    if ranks.rank == 0:
        try:
            require_base(plan)
        except ModelError as error:
            failure = error
    said = ranks.exchange(str(failure) if failure else "")[0]
    if said:
        raise failure or ModelError(str(said))


def _was_trained(run: RunDir, ranks: Ranks) -> bool:
    """A run directory with checkpoints goes on, also under the user's own torchrun, whose restarts say nothing.

    A folder without a file is what a kill just after its making leaves: no checkpoint was begun.
    """
    seen = any(run.checkpoints.glob("step-*/*"))
    return any(ranks.exchange(seen))


def _resume(parts: Parts) -> None:
    ref = newest_complete(parts.store, ranks=parts.ranks)
    with open_reader(parts.store, ref) as reader:
        state = reader.state
        census = reader.document(CENSUS)
        if census is not None:
            require_same(census, census_of(parts.engine.module, parts.plan), ref.name)
        samples = state.step * parts.plan.batch.global_sequences
        if state.position != samples:
            raise CheckpointError(
                f"{ref.name} stands at sample {state.position}; with this plan's global batch it would be {samples}",
                fix="resume with the global batch that the run was started with",
            )
        if parts.ranks.rank == 0:
            parts.sources.require_same(reader.document(SOURCES), state.position, ref.name)
        parts.engine.restore(reader)
        mine = reader.random_state(parts.ranks.rank)
        if mine is not None:  # a rank that the checkpoint does not know keeps its fresh state
            restore_random_state(mine, parts.engine.device)
    parts.progress = Progress.from_state(state)
    parts.resumed_from, parts.notices = ref.name, ref.notices
    compression = parts.plan.strategy.compression
    if compression is not None and compression.kind == "powersgd":
        parts.notices += (RESUMED.format(steps=compression.start_step),)


def samples_of(parts: Parts, split: Split) -> SampleSource:
    """The windows as the task takes them: of a preference, with the reference's log-probabilities."""
    samples = open_data(parts.plan, split)
    return samples if parts.reference is None else parts.reference.around(split, samples)


def open_data(plan: Plan, split: Split) -> SampleSource:
    return open_split(Path(plan.data.store), split, plan.data.sequence, plan.data.packing, plan.data.weights)


def step_loader(parts: Parts) -> StepLoader:
    """This rank's micro batches of every step that is left."""
    plan = parts.plan
    rank, size = world()
    samples = samples_of(parts, "train")
    spec = LoaderSpec(
        seed=plan.numerics.seed,
        windows=len(samples),
        global_sequences=plan.batch.global_sequences,
        micro_batch=plan.batch.micro_batch,
        accumulation=plan.batch.accumulation,
        rank=rank,
        world=size,
        first_step=parts.progress.step + 1,
        last_step=plan.schedule.steps,
    )
    return StepLoader(samples, partial(_collate, parts.task, plan.data.sequence), spec)


def held_out(parts: Parts) -> Iterator[Batch]:
    """This rank's held-out batches; all ranks have equally many."""
    rank, size = world()
    collate = partial(_collate, parts.task, parts.plan.data.sequence)
    return eval_batches(samples_of(parts, "eval"), collate, parts.plan.batch.micro_batch, rank, size)


def _collate(task: Task, sequence: int, samples: Sequence[Sample]) -> Batch:
    return task.collate(samples, sequence)


def documents(parts: Parts) -> dict[str, bytes]:
    """What stands beside the slices in every checkpoint: the census, the resolved plan and the record."""
    run = parts.run
    found = {"plan.json": run.plan, "record.json": run.record, "record.diff": run.record_diff}
    files = {name: path.read_bytes() for name, path in found.items() if path.is_file()}
    counted = parts.sources.document(parts.progress.position)
    return {CENSUS: encoded(census_of(parts.engine.module, parts.plan)), **files, **counted}
