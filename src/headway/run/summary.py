"""What became of a run, from its files only: `headway show` needs no process and loads no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from headway.errors import EXIT_OK, HeadwayError, Stopped, WorkerFailed
from headway.run.journal import read
from headway.run.lock import live_holder
from headway.run.paths import CHECKPOINT_MANIFEST, RunDir, list_runs

State = Literal["new", "running", "done", "failed", "stopped", "crashed"]


@dataclass(frozen=True)
class CheckpointSummary:
    """A complete checkpoint, as its manifest tells; its files are not checked here."""

    name: str
    step: int
    size_bytes: int
    time: float  # unix seconds


@dataclass(frozen=True)
class RunSummary:
    """One run. None where the run has not got so far.

    state: new (never started), running, done, failed (a rank said why), stopped (on request, resumable), crashed (its
    process is gone without a word: a kill, an out-of-memory kill, a power cut).
    exit_code: what the last attempt ended with; None while it runs or where nothing is known.
    """

    name: str
    path: Path
    state: State
    step: int
    total_steps: int | None
    loss: float | None
    tokens: int | None
    tokens_per_second: float | None
    strategy: str
    best_eval: dict[str, Any] | None  # the evaluation event of lowest loss
    checkpoints: tuple[CheckpointSummary, ...]  # oldest first
    export: dict[str, Any] | None  # the last export event
    error: str | None
    started: float | None  # unix seconds, first attempt
    updated: float | None  # unix seconds, last line written
    attempts: int
    exit_code: int | None


def summarise(run: RunDir) -> RunSummary:
    """Read a run's files. Torn lines, absent files and a damaged plan.json leave gaps, never an error."""
    events = read(run.events)
    metrics = read(run.metrics, latest_per_step=True)
    last = metrics[-1] if metrics else {}
    plan = _json(run.plan).get("plan", {})
    state = _state(run, events)
    failure = _last(events, "failed")
    times = [line["time"] for line in (*events[:1], *events[-1:], *metrics[-1:]) if "time" in line]
    return RunSummary(
        name=run.name,
        path=run.path,
        state=state,
        step=_step(last, events),
        total_steps=plan.get("schedule", {}).get("steps"),
        loss=last.get("loss"),
        tokens=last.get("tokens"),
        tokens_per_second=last.get("tokens_per_second"),
        strategy=_strategy(plan.get("strategy", {})),
        best_eval=_best_eval(events),
        checkpoints=list_checkpoints(run),
        export=_last(events, "export"),
        error=str(failure.get("error", "")) if failure and state == "failed" else None,
        started=times[0] if times else None,
        updated=max(times, default=None),
        attempts=sum(line.get("event") == "started" for line in events),
        exit_code=_exit_code(run, state, failure),
    )


def summarise_all(root: Path) -> list[RunSummary]:
    """Every run under `root`, oldest first."""
    return [summarise(run) for run in list_runs(root)]


def list_checkpoints(run: RunDir) -> tuple[CheckpointSummary, ...]:
    """The complete checkpoints in the order in which they were saved."""
    found: list[tuple[int, CheckpointSummary]] = []
    for path in run.checkpoints.glob(f"*/{CHECKPOINT_MANIFEST}"):
        manifest = _json(path).get("manifest", {})
        try:
            size_bytes = sum(int(entry["size_bytes"]) for entry in manifest["files"])
            summary = CheckpointSummary(path.parent.name, manifest["step"], size_bytes, manifest["time"])
            found.append((manifest["serial"], summary))
        except (KeyError, TypeError, ValueError):
            continue
    return tuple(summary for _, summary in sorted(found, key=lambda item: item[0]))


def _state(run: RunDir, events: list[dict[str, Any]]) -> State:
    if live_holder(run) is not None:
        return "running"
    ended: State = "new"
    for line in events:
        match line.get("event"):
            case "done":
                ended = "done"
            case "failed":
                ended = "failed"
            # A rank that fails while others stop has failed.
            case "stopping" if ended != "failed":
                ended = "stopped"
            case "started":
                ended = "crashed"
            case _:
                # Only a new attempt changes an end that was written; the export of a finished run follows `done`.
                ended = "crashed" if ended == "new" else ended
    return ended


def _exit_code(run: RunDir, state: State, failure: dict[str, Any] | None) -> int | None:
    if state == "done":
        return EXIT_OK
    if state == "stopped":
        return Stopped.exit_code
    if state != "failed" or failure is None:
        return None
    rank = failure.get("rank")
    said = _json(run.rank_error(rank)) if isinstance(rank, int) else {}
    code = failure.get("exit_code", said.get("exit_code"))
    return code if isinstance(code, int) else (WorkerFailed if rank is not None else HeadwayError).exit_code


def _best_eval(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    evaluations = [line for line in events if line.get("event") == "evaluation" and "loss" in line]
    comparable = [line for line in evaluations if line["loss"] == line["loss"]]  # a NaN is the lowest of nothing
    return min(comparable, key=lambda line: line["loss"], default=None)


def _last(events: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((line for line in reversed(events) if line.get("event") == name), None)


def _step(last: dict[str, Any], events: list[dict[str, Any]]) -> int:
    """The last step known: metrics may be logged more rarely than every step."""
    done = _last(events, "done") or {}
    return max(int(last.get("step", 0)), int(done.get("steps", 0)))


def _strategy(strategy: dict[str, Any]) -> str:
    if strategy.get("kind") != "deepspeed":
        return str(strategy.get("kind", ""))
    offloads = [name for name in ("optimizer", "parameters") if strategy.get(f"offload_{name}")]
    return f"zero-{strategy.get('stage')}" + (f" +offload({', '.join(offloads)})" if offloads else "")


def _json(path: Path) -> dict[str, Any]:
    try:
        content: object = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}
