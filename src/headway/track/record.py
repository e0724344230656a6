"""What the local record holds of a run, in the form in which trackers get it: steps, parameters, texts.

Whatever leaves the run directory is read here, and freed of secrets here.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.plan.explain import flatten
from headway.run.journal import latest, read
from headway.run.paths import RunDir
from headway.run.record import known_secrets
from headway.run.secrets import clean, clean_text
from headway.run.whole import write_whole

EVALUATION = "eval."
TRAINING_MARK, EVALUATION_MARK = "loss", f"{EVALUATION}loss"  # a figure that every line of its kind has
_EXPLANATIONS = ("reasons", "cluster", "memory", "facts.", "shape.adapter", "code", "track", "model.config")
_LONGEST_PARAMETER = 500
_TEXTS = ("run.yaml", "plan.json", "record.json")


@dataclass(frozen=True)
class Line:
    """One line of figures; `values` hold `time`, in unix seconds. mark: see TRAINING_MARK."""

    step: int
    values: dict[str, float]
    mark: str


def evaluation_values(event: dict[str, Any]) -> dict[str, float]:
    """The figures of an `evaluation` event, under names that tell them from training's."""
    left_out = ("event", "step", "time", "seconds")
    figures = {
        f"{EVALUATION}{k}": float(v) for k, v in event.items() if k not in left_out and isinstance(v, int | float)
    }
    return {"time": event["time"], **figures} if "time" in event else figures


def standing(run: RunDir) -> list[Line]:
    """The lines that stand, in the order of their steps: of an attempt that a resume overtook, none beyond it."""
    trained = [
        Line(line["step"], {k: v for k, v in line.items() if k != "step"}, TRAINING_MARK)
        for line in read(run.metrics, latest_per_step=True)
        if isinstance(line.get("step"), int)
    ]
    evaluations = latest([line for line in read(run.events) if line.get("event") == "evaluation"])
    judged = [Line(line["step"], evaluation_values(line), EVALUATION_MARK) for line in evaluations]
    return sorted([*trained, *judged], key=lambda line: (line.step, line.mark == EVALUATION_MARK))


def parameters(plan: dict[str, Any]) -> dict[str, str]:
    """What was decided, flat; consequences and explanations stand in plan.json."""
    flat = {key: value for key, value in flatten(plan) if not key.startswith(_EXPLANATIONS)}
    values = {key: json.dumps(v, default=str) if isinstance(v, list | dict) else str(v) for key, v in flat.items()}
    return {key: value[:_LONGEST_PARAMETER] for key, value in clean(values, known_secrets()).items()}


def texts(run: RunDir) -> dict[str, str]:
    """File name -> content of the run file, the plan and the record, as far as they are there."""
    found = {name: run.path / name for name in _TEXTS}
    secrets = known_secrets()
    return {name: clean_text(path.read_text("utf-8"), secrets) for name, path in found.items() if path.is_file()}


def export_facts(folder: Path) -> dict[str, str]:
    """What identifies an exported model: where it comes from, and the hash of its record."""
    raw = (folder / "headway.json").read_bytes()
    record = json.loads(raw)
    git = (record.get("record") or {}).get("git") or {}
    facts = {name: record.get(name) for name in ("name", "step", "tokens", "data_hash", "plan_digest", "checkpoint")}
    facts |= {"code_commit": git.get("commit"), "record_sha256": hashlib.sha256(raw).hexdigest()}
    facts |= {f"{EVALUATION}{name}": value for name, value in (record.get("evaluation") or {}).items()}
    return {name: str(value) for name, value in facts.items() if value is not None}


def identity(run_dir: Path, kind: str) -> str:
    """A name for this run that no other run has, kept in the run directory before anything is made elsewhere."""
    path = run_dir / "track" / f"{kind}.json"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps({"id": uuid.uuid4().hex[:16]}))
    return str(json.loads(path.read_text())["id"])


def missing(lines: Sequence[Line], held: dict[str, set[int]], *, rewrites: bool) -> list[Line]:
    """The lines that a tracker does not hold; of one that rewrites, everything from the first of them on."""
    left = [line for line in lines if line.step not in held[line.mark]]
    return [line for line in lines if line.step >= left[0].step] if rewrites and left else left
