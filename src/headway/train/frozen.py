"""The reference of a preference run: the log-probabilities of all answers under the model before its first step.

Asked once, by all ranks, of the engine as it was built, and kept beside the token store under a name that follows from
the weights, the data and how they are read. So training holds one model, and a resumed run finds what it had.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.checkpoint.ranks import ALONE, Ranks
from headway.data.loader import filler
from headway.data.seam import Sample, SampleSource
from headway.data.store import Split, open_split
from headway.errors import CheckpointError, DataError
from headway.parallel.seam import Engine
from headway.plan.schema import Plan
from headway.task.preference import Preference

_VERSION = 1


@dataclass(frozen=True)
class WithReference:
    """A SampleSource whose pairs know their log-probabilities. table: fp32 [windows, 2]."""

    samples: SampleSource
    table: np.ndarray

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        chosen, rejected = self.table[index].tolist()
        return replace(self.samples[index], reference=(chosen, rejected))


@dataclass(frozen=True)
class Reference:
    """The tables by split, and what was done to have them, in words."""

    tables: dict[Split, np.ndarray]
    note: str

    def around(self, split: Split, samples: SampleSource) -> SampleSource:
        return WithReference(samples, self.tables[split])


def reference_name(plan: Plan) -> str:
    """A short hash of everything that the log-probabilities follow from."""
    weights = plan.task.options["reference"] or [plan.model.config, plan.numerics.seed]
    how = [plan.data.sequence, plan.task.options["per_token"], plan.numerics.precision, plan.numerics.tf32]
    if plan.adapter is not None and plan.adapter.quantization is not None:
        how += [plan.adapter.quantization, plan.adapter.double_quantization]
    what = [_VERSION, weights, plan.data.store_hash, plan.data.weights, *how]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def with_kept_reference(plan: Plan, split: Split, samples: SampleSource) -> SampleSource:
    """The samples as a preference takes them, by the tables that its run has kept; those of other tasks as they are.

    Raises DataError where the tables are gone.
    """
    if plan.task.kind != "preference":
        return samples
    table = _read(_file(plan, split), len(samples), ALONE)
    if table is None:
        fix = "a run makes them at its start: headway resume, or headway train"
        raise DataError(f"the reference log-probabilities of these pairs are not kept: {_file(plan, split)}", fix=fix)
    return WithReference(samples, table)


def _file(plan: Plan, split: Split) -> Path:
    return Path(plan.data.store) / f"reference-{reference_name(plan)}-{split}.npy"


def make_reference(plan: Plan, engine: Engine, task: Preference, ranks: Ranks, *, is_start: bool) -> Reference:
    """The tables, read or made; collective, before any state is restored.

    Raises CheckpointError where a run goes on whose reference cannot be found nor made: its first weights are gone.
    """
    began = time.monotonic()
    splits: tuple[Split, ...] = ("train", "eval") if plan.facts.eval_windows else ("train",)
    tables: dict[Split, np.ndarray] = {}
    made = 0
    for split in splits:
        data = plan.data
        file = _file(plan, split)
        samples = open_split(Path(data.store), split, data.sequence, data.packing, data.weights)
        known = _read(file, len(samples), ranks)
        if known is None:
            if not is_start and plan.model.path is not None and not Path(plan.model.path).is_dir():
                raise CheckpointError(f"the reference log-probabilities {file} are gone, and so is {plan.model.path}")
            known = _made(plan, engine, task, samples, ranks)
            made += len(samples)
            if ranks.rank == 0:
                _keep(file, known)
        tables[split] = known
    seconds = time.monotonic() - began
    note = f"reference log-probabilities of {made} pairs computed in {seconds:.1f} s and kept" if made else ""
    return Reference(tables, note)


def _read(file: Path, count: int, ranks: Ranks) -> np.ndarray | None:
    """Rank 0's view: a table that every rank reads, or none does."""
    found: np.ndarray | None = None
    if ranks.rank == 0 and file.is_file():
        with suppress(OSError, ValueError):
            found = np.load(file)
        if found is not None and (found.shape != (count, 2) or not np.isfinite(found).all()):
            found = None
    everyones: Sequence[Any] = ranks.exchange(found)
    return everyones[0]


def _keep(file: Path, table: np.ndarray) -> None:
    """On the disk whole; a store that may only be read costs the next start its time, not this one its run."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    with suppress(OSError):
        with part.open("wb") as out:
            np.save(out, table)
        part.replace(file)


@torch.no_grad()
def _made(plan: Plan, engine: Engine, task: Preference, samples: SampleSource, ranks: Ranks) -> np.ndarray:
    """fp32 [windows, 2]. Every rank computes its share, in micro batches of the plan's size, equally many."""
    micro, size = plan.batch.micro_batch, len(ranks.exchange(None))
    mine: list[tuple[int, list[float]]] = []
    engine.model.eval()
    for number in range(-(-len(samples) // (micro * size))):
        first = (number * size + ranks.rank) * micro
        rows = [row for row in range(first, first + micro) if row < len(samples)]
        batch = task.collate(_filled([samples[row] for row in rows], micro), plan.data.sequence)
        with _precision(engine):
            found = task.log_probabilities(engine.model, batch.to(engine.device)).float().cpu()
        mine += [(row, found[place].tolist()) for place, row in enumerate(rows)]
    engine.model.train()
    table = np.full((len(samples), 2), np.nan, dtype=np.float32)
    everyones: Sequence[Any] = ranks.exchange(mine)
    for row, pair in (one for part in everyones for one in part):
        table[row] = pair
    if not np.isfinite(table).all():
        bad = int(np.flatnonzero(~np.isfinite(table).all(1))[0])
        raise DataError(f"pair {bad} has no finite log-probability under the reference model")
    return table


def _filled(samples: Sequence[Sample], count: int) -> list[Sample]:
    return [*samples, *(filler() for _ in range(count - len(samples)))]


def _precision(engine: Engine) -> AbstractContextManager[object]:
    """What the engine's own forward passes run in; an engine of the user's may have nothing of the kind."""
    return getattr(engine, "_precision", nullcontext)()
