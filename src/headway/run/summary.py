"""What became of a run, from its files only: `headway show` needs no process and loads no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from headway.errors import EXIT_OK, HeadwayError, Stopped, WorkerFailed
from headway.run.journal import read
from headway.run.lock import Holder, is_alive, live_holder
from headway.run.paths import CHECKPOINT_MANIFEST, RunDir, list_runs

State = Literal["new", "running", "done", "stopped", "failed", "crashed"]


@dataclass(frozen=True)
class CheckpointSummary:
    """A checkpoint on the disk; `complete` is False where its manifest is absent or a file has another size."""

    name: str
    step: int
    bytes: int
    time: float  # unix seconds
    complete: bool = True


@dataclass(frozen=True)
class RunSummary:
    """One run. None and 0 where it has not got so far.

    state: new (never started), running, done, stopped (on request, resumable), failed (something said why), crashed
    (its process is gone without a word: a kill, a power cut).
    """

    name: str
    path: Path
    state: State
    started: float | None = None  # unix seconds, first attempt
    ended: float | None = None  # unix seconds, last line written; None while it runs
    attempts: int = 0
    step: int = 0
    steps: int = 0  # planned
    tokens: int = 0
    tokens_planned: int = 0
    strategy: str = ""  # "zero-2 +offload(optimizer)"
    last: dict[str, Any] = field(default_factory=dict[str, Any])  # the newest line of metrics
    evaluation: dict[str, Any] | None = None  # the newest
    best_evaluation: dict[str, Any] | None = None  # the one of lowest loss
    checkpoints: tuple[CheckpointSummary, ...] = ()  # in the order in which they were saved
    events: tuple[dict[str, Any], ...] = ()  # the newest last
    export: dict[str, Any] | None = None  # the newest export event: path, verified, max_difference
    failure: str = ""  # of a failed or crashed run, as far as something was written
    exit_code: int | None = None  # of the last attempt; None while it runs or where nothing is known
    logs: tuple[Path, ...] = ()  # by rank
    forecast: dict[str, Any] = field(default_factory=dict[str, Any])  # what the plan promised, from the record
    actual: dict[str, Any] = field(default_factory=dict[str, Any])  # what the newest ended attempt took


def summarise(run: RunDir) -> RunSummary:
    """Read a run's files. Torn lines, absent files and a damaged plan.json leave gaps, never an error."""
    events = read(run.events)
    metrics = read(run.metrics, latest_per_step=True)
    last = metrics[-1] if metrics else {}
    plan = _dict(_json(run.plan).get("plan"))
    schedule = _dict(plan.get("schedule"))
    record = _json(run.record)
    done = _last(events, "done") or {}
    launch = _launch(run, events)
    state = _state(run, events, launch)
    evaluations = [line for line in events if line.get("event") == "evaluation"]
    times = [time for line in (*events[:1], *events[-1:], *metrics[-1:]) if (time := _time(line)) is not None]
    return RunSummary(
        name=run.name,
        path=run.path,
        state=state,
        started=times[0] if times else None,
        ended=max(times) if times and state != "running" else None,
        attempts=sum(line.get("event") == "started" for line in events),
        step=max(_int(last.get("step")), _int(done.get("steps"))),
        steps=_int(schedule.get("steps")),
        tokens=max(_int(last.get("tokens")), _int(done.get("tokens"))),
        tokens_planned=_int(schedule.get("tokens")),
        strategy=_strategy(_dict(plan.get("strategy"))),
        last=last,
        evaluation=evaluations[-1] if evaluations else None,
        best_evaluation=_best(evaluations),
        checkpoints=list_checkpoints(run),
        events=tuple(events),
        export=_last(events, "export"),
        failure=_failure(events, launch) if state in ("failed", "crashed") else "",
        exit_code=_exit_code(run, state, events, launch),
        logs=tuple(sorted(run.log_folder.glob("rank-*.log"), key=_rank_of)),
        forecast=_dict(record.get("forecast")),
        actual=_dict(record.get("actual")),
    )


def summarise_all(root: Path) -> list[RunSummary]:
    """Every run under `root`, oldest first."""
    return [summarise(run) for run in list_runs(root)]


def is_running(run: RunDir) -> bool:
    """Whether a job has the run now. Reads two small files: for those who ask often."""
    launch = _json(run.path / "launch.json")
    return live_holder(run) is not None or (launch.get("state") == "running" and _supervised(launch))


def evaluation_at(run: RunDir, step: int) -> dict[str, float]:
    """The held-out figures of exactly this step; {} where there are none."""
    for event in reversed(read(run.events)):
        if event.get("event") == "evaluation" and event.get("step") == step:
            return {k: v for k, v in event.items() if isinstance(v, float) and k not in ("time", "seconds")}
    return {}


def list_checkpoints(run: RunDir) -> tuple[CheckpointSummary, ...]:
    """The checkpoints of a run in the order in which they were saved; content is not read, only sizes."""
    found: list[tuple[int, CheckpointSummary]] = []
    # A folder without a file is what a kill just after its making leaves; no checkpoint was begun.
    for folder in {path.parent for path in run.checkpoints.glob("step-*/*")}:
        manifest = _dict(_json(folder / CHECKPOINT_MANIFEST).get("manifest"))
        try:
            files = {str(entry["name"]): int(entry["size_bytes"]) for entry in manifest["files"]}
            sound = all(_size(folder / name) == size for name, size in files.items())
            step, time = int(manifest["step"]), float(manifest["time"])
            found.append(
                (int(manifest["serial"]), CheckpointSummary(folder.name, step, sum(files.values()), time, sound))
            )
        except (KeyError, TypeError, ValueError):
            step = _int(folder.name.split("-")[1])
            try:
                time = folder.stat().st_mtime
            except FileNotFoundError:  # a run that goes on has removed it since
                continue
            found.append((-1, CheckpointSummary(folder.name, step, 0, time, complete=False)))
    return tuple(summary for _, summary in sorted(found, key=lambda item: (item[0], item[1].name)))


def _launch(run: RunDir, events: list[dict[str, Any]]) -> dict[str, Any]:
    """The launcher's own record, unless the job was started again without the launcher (torchrun) since."""
    path = run.path / "launch.json"
    started = _last(events, "started") or {}
    try:
        current = path.stat().st_mtime >= (_time(started) or 0.0)
    except OSError:
        return {}
    return _json(path) if current else {}


def _state(run: RunDir, events: list[dict[str, Any]], launch: dict[str, Any]) -> State:
    if live_holder(run) is not None:
        return "running"
    said = launch.get("state")
    if said == "running":
        return "running" if _supervised(launch) else "crashed"
    if said in ("done", "stopped", "failed"):
        return said
    return _state_from_events(events)


def _supervised(launch: dict[str, Any]) -> bool:
    try:
        return is_alive(Holder(**launch["supervisor"])) is not False
    except (KeyError, TypeError):
        return False


def _state_from_events(events: list[dict[str, Any]]) -> State:
    state: State = "new"
    for line in events:
        match line.get("event"):
            case "done":
                state = "done"
            case "failed":
                state = "failed"
            # A rank that fails while the others stop has failed.
            case "stopping" if state != "failed":
                state = "stopped"
            case "started":
                state = "crashed"
            case _:
                # Only a new start undoes an end that was written: an export follows `done`.
                state = "crashed" if state == "new" else state
    return state


def _failure(events: list[dict[str, Any]], launch: dict[str, Any]) -> str:
    failed = _last(events, "failed") or {}
    return str(_dict(launch.get("failure")).get("error") or failed.get("error") or "")


def _exit_code(run: RunDir, state: State, events: list[dict[str, Any]], launch: dict[str, Any]) -> int | None:
    said = launch.get("exit_code")
    if state in ("new", "running", "crashed") or isinstance(said, int):
        return said if isinstance(said, int) and state != "running" else None
    if state in ("done", "stopped"):
        return EXIT_OK if state == "done" else Stopped.exit_code
    failed = _last(events, "failed") or {}
    rank = failed.get("rank")
    written = _json(run.rank_error(rank)) if isinstance(rank, int) else {}
    code = failed.get("exit_code", written.get("exit_code"))
    return code if isinstance(code, int) else (HeadwayError if rank is None else WorkerFailed).exit_code


def _best(evaluations: list[dict[str, Any]]) -> dict[str, Any] | None:
    # A NaN is the lowest of nothing, and min() would keep it if it came first.
    comparable = [line for line in evaluations if isinstance(line.get("loss"), float) and line["loss"] == line["loss"]]
    return min(comparable, key=lambda line: line["loss"], default=None)


def _time(line: dict[str, Any]) -> float | None:
    """Unix seconds; None where a line has none."""
    time = line.get("time")
    return float(time) if isinstance(time, int | float) else None


def _last(events: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((line for line in reversed(events) if line.get("event") == name), None)


def _strategy(strategy: dict[str, Any]) -> str:
    if strategy.get("kind") != "deepspeed":
        return str(strategy.get("kind", ""))
    offloads = [name for name in ("optimizer", "parameters") if strategy.get(f"offload_{name}")]
    return f"zero-{strategy.get('stage')}" + (f" +offload({', '.join(offloads)})" if offloads else "")


def _rank_of(log: Path) -> int:
    return _int(log.stem.removeprefix("rank-"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _int(value: object) -> int:
    try:
        return int(cast("str", value))
    except (TypeError, ValueError):
        return 0


def _dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        return _dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
