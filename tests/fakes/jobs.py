"""Jobs of fake workers, shared by the launcher's tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.launch.seam import JobSpec
from headway.plan.schema import LaunchPlan

FAKE = "fakes.fake_worker"
TESTS = Path(__file__).parents[1]


def launch_plan(**changes: Any) -> LaunchPlan:
    values = {"kind": "local", "device": "cpu", "processes": 2, "threads": 1, "backend": "gloo", "timeout_seconds": 60}
    return LaunchPlan.model_validate(values | changes)


def fake_job(run_dir: Path, behaviour: dict[int, list[str]], **changes: Any) -> JobSpec:
    """A job whose ranks do what `behaviour` says; `changes` go to the launch plan."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "behaviour.json").write_text(json.dumps(behaviour))
    environment = {"PYTHONPATH": str(TESTS)}  # where a rank started by exec finds the fake worker
    return JobSpec(run_dir=run_dir, launch=launch_plan(processes=len(behaviour), **changes), environment=environment)


def trace(run_dir: Path, rank: int, name: str) -> Any:
    """What a fake rank wrote about itself."""
    return json.loads((run_dir / f"rank-{rank}.{name}").read_text())


def notices(run_dir: Path) -> list[str]:
    events = run_dir / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    return [line["text"] for line in lines if line["event"] == "notice"]


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """The first true value of `condition`; the limit only keeps a broken test from hanging."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds:.0f} s for {what}")
