"""What a task makes of the data: which records it takes, what a document of its store is, what of it is learnt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.data.manifest import Kind
from headway.data.shapes import shapes_for

LossOn = Literal["assistant", "all"]
_KINDS: dict[str, Kind] = {"instruction": "chat", "classification": "labelled", "preference": "preference"}


@dataclass(frozen=True)
class Reading:
    """task: its kind. loss_on: of a chat, the assistant's tokens (for a pair: the response) or all."""

    task: str = "causal_lm"
    loss_on: LossOn = "assistant"

    @property
    def kind(self) -> Kind:
        return _KINDS.get(self.task, "text")

    @property
    def shapes(self) -> tuple[str, ...]:
        """The shapes of records that are taken, the preferred one first."""
        return shapes_for(self.task)
