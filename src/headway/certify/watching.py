"""The real session with an observer in the engine's place: it notes what passes, and changes nothing."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from headway.certify.effects import Exchanges, measure_effects
from headway.certify.inspecting import full_gradients, gradient_bytes, state_bytes
from headway.certify.outcome import OUTCOME, write_outcome
from headway.certify.reference import filler_name, row_names
from headway.certify.watching_job import Job
from headway.model.naming import named_state
from headway.parallel.collectives import barrier, exchange, world
from headway.parallel.live import settings
from headway.parallel.seam import Engine, EngineState, Guard, Slice, SliceReader, StepResult
from headway.task.seam import Batch, Totals
from headway.train.build import Parts
from headway.train.loop import mean_loss
from headway.train.progress import Progress
from headway.train.session import Session


class WatchedEngine:
    """An Engine around an Engine."""

    def __init__(self, engine: Engine, parts: Parts, job: Job):
        self._engine, self._parts, self._job = engine, parts, job
        self.model, self.module, self.device = engine.model, engine.module, engine.device
        self._weights = {name: term.weight for name, term in parts.task.terms.items()}
        self.found: dict[str, Any] = {
            "first_step": parts.progress.step + 1,
            "losses": [],
            "norms": [],
            "rates": [],
            "tokens": [],
            "samples": [],
            "applied": [],
            "gradient bytes": 0,
        }
        self._filler = filler_name(parts.task, parts.plan.data.sequence)
        self.exchanges = Exchanges(engine)
        self._weigh_gradients()
        if parts.resumed_from:
            self.found["restored"] = state_hash(engine.state())
        self._last_batches: Sequence[Batch] = ()
        self._note_state(parts.progress.step)

    def train_step(self, micro_batches: Sequence[Batch], lr: float, guard: Guard) -> StepResult:
        step = self.found["first_step"] + len(self.found["losses"])

        def watched(means: dict[str, float], grad_norm: float) -> bool:
            if step in self._job.gradients_at:
                for name, gradient in full_gradients(self._engine):
                    self.found[f"gradient@{step}/{name}"] = gradient.numpy()
            self._weigh()
            return guard(means, grad_norm)

        self._last_batches = micro_batches
        result = self._engine.train_step(micro_batches, lr, watched)
        self.found["losses"].append(mean_loss(result.totals, self._weights))
        self.found["norms"].append(result.grad_norm)
        self.found["rates"].append(result.lr)
        self.found["tokens"].append(result.tokens)
        self.found["applied"].append(result.applied)
        self.found["samples"].append(sample_names(micro_batches, self._filler))
        self._note_state(step)
        if step == self._job.kill_after:
            barrier()  # every rank has done the step, and none has begun the next
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def _note_state(self, step: int) -> None:
        """Weights and moments as they stand after `step`; of a buffer, plain PyTorch's one process has another."""
        if not self._job.states:
            return
        parameters = {name for name, _ in named_state(self.module)}
        for name, weight in self._engine.full_weights():
            if name in parameters:
                self.found[f"weight@{step}/{name}"] = weight.float().clone().numpy()
        for name, moment in whole_moments(self._engine.state()).items():
            self.found[f"moment@{step}/{name}"] = moment

    def _weigh_gradients(self) -> None:
        """After each backward pass too: what is on its way then may be gone when the norm is taken."""
        engine: Any = self._engine
        backward = engine._backward

        def weighed(*arguments: Any) -> None:
            backward(*arguments)
            self._weigh()

        engine._backward = weighed

    def _weigh(self) -> None:
        self.found["gradient bytes"] = max(self.found["gradient bytes"], gradient_bytes(self._engine))

    def evaluate(self, batches: Iterable[Batch]) -> Totals:
        return self._engine.evaluate(batches)

    def state(self) -> EngineState:
        return self._engine.state()

    def restore(self, reader: SliceReader, *, weights_only: bool = False) -> None:
        self._engine.restore(reader, weights_only=weights_only)

    def full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._engine.full_weights()

    def close(self) -> None:
        self._engine.close()

    def conclude(self) -> dict[str, Any]:
        """What was found, with the state's hash, bytes, settings and effects as they are now."""
        found = self.found
        found["state"] = state_hash(self._engine.state())
        found["bytes"] = exchange(state_bytes(self._engine) | {"gradients": found.pop("gradient bytes")})
        found["settings"] = settings(self._engine)
        found["exchanges"] = self.exchanges.counted
        if self._job.effects:
            found["effects"] = measure_effects(self._engine, self._parts, self._last_batches)
        return found


class WatchedSession(Session):
    """The real session; the observer stands where the engine stood, and its finds are written by rank 0."""

    watched: WatchedEngine

    def _build(self) -> Parts:
        parts = super()._build()
        self.watched = WatchedEngine(parts.engine, parts, Job.read(self.run_dir))
        parts.engine = self.watched
        return parts

    def _verified(self, parts: Parts) -> list[str]:
        del parts  # claim 3 reads the same settings back, and says by how much they are off
        return []

    def _save(self, parts: Parts, progress: Progress) -> None:
        super()._save(parts, progress)
        self.watched.found.setdefault("saved", {})[str(progress.step)] = state_hash(parts.engine.state())

    def _concluded(self, parts: Parts) -> None:
        found = self.watched.conclude()
        found["differences"] = parts.progress.differences(self.plan)
        if world()[0] == 0:
            write_outcome(self.run_dir.path / OUTCOME, found)


def sample_names(micro_batches: Sequence[Batch], filler: str = "") -> list[str]:
    """The names of a step's samples in the order of their slots, fillers left out; equal on all ranks."""
    mine = [row_names(batch, filler) for batch in micro_batches]
    every = exchange(mine)
    turns = [rows for turn in range(len(mine)) for rows in (rank[turn] for rank in every)]
    return [name for rows in turns for name in rows if name]


def state_hash(state: EngineState) -> dict[str, str]:
    """name|kind -> sha256 of the whole state, put together from all ranks' slices; equal on all ranks."""
    import hashlib

    rows = [(s.name, s.kind, s.offset, _bytes(s)) for s in state.slices]
    gathered = sorted(row for rank_rows in exchange(rows) for row in rank_rows)
    whole: dict[str, Any] = {}
    for name, kind, _, content in gathered:
        whole.setdefault(f"{name}|{kind}", hashlib.sha256()).update(content)
    return {key: digest.hexdigest() for key, digest in whole.items()}


def whole_moments(state: EngineState) -> dict[str, np.ndarray]:
    """ "moment/KIND/PARAMETER" -> its optimizer state, whole, put together from all ranks' slices."""
    rows = [(s.name, s.kind, s.shape, s.offset, s.data.detach().float().cpu().numpy()) for s in state.slices]
    whole: dict[str, np.ndarray] = {}
    for name, kind, shape, offset, run in (row for rank_rows in exchange(rows) for row in rank_rows):
        if kind not in ("weight", "buffer"):
            target = whole.setdefault(f"{kind}/{name}", np.full(math.prod(shape), np.nan, dtype=np.float32))
            target[offset : offset + len(run)] = run
    return whole


def _bytes(item: Slice) -> bytes:
    return item.data.detach().cpu().contiguous().numpy().tobytes()
