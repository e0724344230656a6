"""A user's own task: causal_lm that writes down which windows it learns from, and breaks where a test tells it to.

    task: {kind: "fakes.watched_task:Watched", options: {folder: FOLDER}}

Every training micro batch of rank N among W adds its windows as a line to FOLDER/windows-W-N.jsonl. FOLDER/fault.json,
where it stands, plants one of FAULTS in one rank: before a micro batch, counted from 0 in each process, or while the
loader makes the batch that holds a window: {"rank": 1, "micro_batch": 9, "fault": "kill"}.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headway.data.seam import Sample
from headway.parallel.collectives import world
from headway.plan.schema import Plan
from headway.task.causal_lm import CausalLM
from headway.task.seam import Batch

ERROR = "the lantern went out"
_LONGEST_HOLD_SECONDS = 600  # a test that fails must not leave a rank behind for ever


def _kill(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(_: Path) -> None:
    raise ArithmeticError(ERROR)


def _hold(folder: Path) -> None:
    """Stay here until FOLDER/go stands or this rank has been asked to stop."""
    (folder / "holding").touch()
    handler: Any = signal.getsignal(signal.SIGTERM)
    deadline = time.monotonic() + _LONGEST_HOLD_SECONDS
    while not (folder / "go").exists() and handler.__self__.received is None:
        time.sleep(0.01)
        if time.monotonic() > deadline:
            raise TimeoutError("held for too long")


def _spoil(_: Path) -> None:
    """Nothing here: the loss of this micro batch becomes NaN."""


FAULTS: dict[str, Callable[[Path], None]] = {"kill": _kill, "raise": _raise, "hold": _hold, "spoil": _spoil}


class Watched(CausalLM):
    """As CausalLM, watched."""

    def __init__(self, plan: Plan):
        super().__init__(plan.model_copy(update={"task": plan.task.model_copy(update={"options": {}})}))
        self.folder = Path(plan.task.options["folder"])
        self.rank, self.world = world()
        self.micro_batches = 0

    def collate(self, samples: Sequence[Sample], sequence: int) -> Batch:
        batch = super().collate(samples, sequence)
        batch.inputs["windows"] = torch.tensor([sample.index for sample in samples])
        if torch.is_grad_enabled():  # not in the evaluation, here and below
            for sample in samples:
                self._break(window=sample.index)
        return batch

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        spoilt = False
        if torch.is_grad_enabled():
            spoilt = self._break(micro_batch=self.micro_batches) == "spoil"
            with (self.folder / f"windows-{self.world}-{self.rank}.jsonl").open("a") as file:
                file.write(json.dumps(batch.inputs["windows"].tolist()) + "\n")
            self.micro_batches += 1
        terms = super().loss(model, batch)
        return {name: value * math.nan for name, value in terms.items()} if spoilt else terms

    def _break(self, **here: int) -> str:
        """The fault that was planted here, once it has been done; "" where there is none."""
        path = self.folder / "fault.json"
        if not path.exists():
            return ""
        planted = json.loads(path.read_text())
        if planted["rank"] != self.rank or not here.items() <= planted.items():
            return ""
        FAULTS[planted["fault"]](self.folder)
        return planted["fault"]
