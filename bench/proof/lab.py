"""Runs real `headway` commands for the proof, within its time, and reads what they left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from proof.scale import Scale

HEADWAY = Path(sys.executable).with_name("headway")


class RunFailed(Exception):
    """A command that should have ended well did not; says how it ended."""


class OutOfTime(Exception):
    """The proof's time is over before this could be shown."""


@dataclass(frozen=True)
class Run:
    """A run directory, read."""

    path: Path

    def lines(self, name: str) -> list[dict[str, Any]]:
        file = self.path / f"{name}.jsonl"
        whole = file.read_text().rpartition("\n")[0] if file.is_file() else ""
        return [json.loads(line) for line in whole.splitlines()]

    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """By step; of a step that was done again after a resume, the later line."""
        return {line["step"]: line for line in self.lines("metrics")}

    @property
    def losses(self) -> dict[int, float]:
        return {step: line["loss"] for step, line in self.metrics.items()}

    @cached_property
    def plan(self) -> Any:
        from headway.plan.files import read_plan

        return read_plan(self.path / "plan.json")

    def event(self, name: str) -> dict[str, Any]:
        """The last event of that name; {} for none."""
        return next((line for line in reversed(self.lines("events")) if line["event"] == name), {})


def run_file(scale: Scale, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The scale's sections with the changes; a mapping adds to a mapping, anything else replaces."""
    sections = json.loads(json.dumps(scale.large if name == "large" else scale.sections))
    for section, value in changes.items():
        both = isinstance(value, dict) and isinstance(sections.get(section), dict)
        sections[section] = sections[section] | value if both else value
    return sections


class Lab:
    """Every distinct run is made once, in the order in which rows ask for them."""

    def __init__(self, scale: Scale, work: Path, seconds: float):
        self.scale, self.work = scale, work
        self.deadline = time.monotonic() + seconds
        self._done: dict[str, Run | Exception] = {}

    def run(self, name: str, **changes: Any) -> Run:
        """`headway train` with the changes to the run file's sections. Raises RunFailed or OutOfTime, each time."""
        if name not in self._done:
            try:
                self._done[name] = self._finished(name, changes)
            except (RunFailed, OutOfTime) as error:
                self._done[name] = error
        found = self._done[name]
        if isinstance(found, Exception):
            raise found
        return found

    def start(self, name: str, **changes: Any) -> tuple[subprocess.Popen[bytes], Path]:
        """The command, running, and the folder in which its run directory appears."""
        folder = self.work / name
        folder.mkdir()
        sections = run_file(self.scale, name, changes)
        sections |= {"name": name, "runs": str(folder / "runs")}
        sections["data"]["cache"] = str(self.work / "cache")
        file = folder / "run.json"
        file.write_text(json.dumps(sections, indent=1))
        return self.command(folder, "train", str(file), "--plain"), folder / "runs"

    def command(self, folder: Path, *words: str) -> subprocess.Popen[bytes]:
        if self.left() <= 0:
            raise OutOfTime("the time was over")
        with (folder / "output.txt").open("ab") as output:
            return subprocess.Popen([str(HEADWAY), *words], stdout=output, stderr=output, cwd=folder)

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def wait(self, process: subprocess.Popen[bytes], folder: Path, expected: int = 0) -> None:
        """Until the command ends. Raises RunFailed for another exit code, OutOfTime where it takes too long."""
        try:
            code = process.wait(timeout=max(1.0, self.left()))
        except subprocess.TimeoutExpired as error:
            end(process)
            raise OutOfTime("it was still running when the time was over") from error
        if code != expected:
            last = [line for line in (folder / "output.txt").read_text(errors="replace").splitlines() if line.strip()]
            raise RunFailed(f"exit code {code}: {' / '.join(last[-3:])[:300]}")

    def _finished(self, name: str, changes: dict[str, Any]) -> Run:
        began = time.monotonic()
        process, runs = self.start(name, **changes)
        self.wait(process, runs.parent)
        print(f"  {name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return run_in(runs)


def run_in(runs: Path) -> Run:
    (path,) = (entry for entry in runs.iterdir() if entry.is_dir())
    return Run(path)


def end(process: subprocess.Popen[bytes]) -> None:
    """Twice SIGINT ends the ranks at once; SIGKILL takes them along too."""
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()


def kill_rank(run: Run) -> int:
    """kill -9 to the last rank; its number."""
    ranks = json.loads((run.path / "launch.json").read_text())["processes"]
    rank = max(ranks, key=int)
    os.kill(ranks[rank], signal.SIGKILL)
    return int(rank)
