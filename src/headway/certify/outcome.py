"""What a certify run leaves for the judge: arrays and plain figures in one safetensors file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

OUTCOME = "outcome.safetensors"


@dataclass(frozen=True)
class Outcome:
    """figures: lists and numbers by name. arrays: "gradient@STEP/PARAMETER", and as they stand after the step (after
    step 0: at the start) "weight@STEP/PARAMETER" and "moment@STEP/KIND/PARAMETER".
    """

    figures: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def group(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays below `prefix/`, without it."""
        head = f"{prefix}/"
        return {name.removeprefix(head): array for name, array in self.arrays.items() if name.startswith(head)}


def write_outcome(path: Path, found: dict[str, Any]) -> None:
    arrays = {name: np.ascontiguousarray(value) for name, value in found.items() if isinstance(value, np.ndarray)}
    figures = {name: value for name, value in found.items() if not isinstance(value, np.ndarray)}
    partial = path.with_suffix(".partial")
    save_file(arrays, partial, metadata={"figures": json.dumps(figures)})
    partial.replace(path)


def read_outcome(path: Path) -> Outcome:
    with safe_open(path, framework="numpy") as file:
        figures = json.loads((file.metadata() or {})["figures"])
        return Outcome(figures, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
