"""Tokens read of each of several sources: in every checkpoint, and compared at every resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.data.ledger import Ledger
from headway.data.packing import Layout, open_index
from headway.data.store import TokenStore
from headway.errors import CheckpointError
from headway.plan.schema import Plan

SOURCES = "sources.json"


class SourceLedger:
    """The plan's sources by name; without several of them it is empty, and reads nothing."""

    def __init__(self, plan: Plan):
        self._names = plan.data.sources
        self._ledger: Ledger | None = None
        if self._names:
            store = TokenStore(Path(plan.data.store))
            layout = Layout("train", plan.data.sequence, plan.data.packing, plan.data.weights)
            self._ledger = Ledger(store, open_index(store, layout), plan.numerics.seed, len(self._names))

    def at(self, position: int) -> dict[str, int]:
        """Source -> tokens among the first `position` samples; {} for one source alone."""
        return {} if self._ledger is None else dict(zip(self._names, self._ledger.at(position), strict=True))

    def document(self, position: int) -> dict[str, bytes]:
        """What a checkpoint at `position` holds of it."""
        tokens = self.at(position)
        return {SOURCES: json.dumps({"position": position, "tokens": tokens}, indent=1).encode()} if tokens else {}

    def require_same(self, written: dict[str, Any] | None, position: int, checkpoint: str) -> None:
        """Raises CheckpointError where a checkpoint counted otherwise: then the order of samples is another one."""
        if written is None or self._ledger is None:
            return
        before, now = written["tokens"], self.at(position)
        if before != now:
            raise CheckpointError(
                f"{checkpoint} has read {before} tokens of the sources; by then this plan would have read {now}",
                fix="resume with the data, weights and seed that the run was started with",
            )
