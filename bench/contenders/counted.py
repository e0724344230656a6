"""Additions to a transformers Trainer that count what a step reads and note when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recorder import Recorder
from transformers import TrainerCallback


class Counted:
    """Mixed in before a Trainer: tokens, targets and loss of the present step."""

    tokens = targets = 0
    loss: Any = None

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        mask = inputs.get("attention_mask")
        if mask is not None and mask.dim() == 2:  # padded: what the mask shows is real, its first column no target
            self.tokens, self.targets = mask.sum(), mask[:, 1:].sum()
        else:
            self.tokens, self.targets = inputs["input_ids"].numel(), (inputs["labels"][:, 1:] != -100).sum()
        self.loss = super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        return self.loss


class Marks(TrainerCallback):
    """require: raises where the wrapped model is not the engine that the table says."""

    def __init__(self, trainer: Any, record: Recorder, require: Callable[[Any], None]):
        self.trainer, self.record, self.require = trainer, record, require

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.require(self.trainer.model_wrapped)
        self.record.mark("engine")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        self.record.step(state.global_step, trainer.tokens, trainer.targets, trainer.loss)
