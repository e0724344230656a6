"""The launcher's own files in a run directory: launch.json (who watches which processes) and launch.sh (what ran)."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from headway.launch.seam import JobStatus, RankFailure
from headway.run.lock import Holder, is_alive
from headway.run.paths import RunDir
from headway.run.whole import write_whole

STARTED_AGAIN = "======== started again "


def script_path(run_dir: Path) -> Path:
    """The rendered text whose commands were started."""
    return run_dir / "launch.sh"


def prepare_logs(run_dir: Path, ranks: int) -> None:
    """Make the log folder, drop errors of an earlier start, and mark in each log where this start begins."""
    run = RunDir(run_dir)
    run.log_folder.mkdir(parents=True, exist_ok=True)
    for old in run.log_folder.glob("rank-*.error.json"):
        old.unlink(missing_ok=True)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    for log in map(run.logs, range(ranks)):
        line = f"{STARTED_AGAIN}{stamp} ========\n" if log.exists() and log.stat().st_size else ""
        with log.open("a", encoding="utf-8") as file:
            file.write(line)


@dataclass(frozen=True)
class LaunchRecord:
    """What launch.json holds: who watches the job, its processes, and how it ended."""

    supervisor: Holder
    method: str
    port: int
    processes: dict[str, int] = field(default_factory=dict[str, int])  # rank -> pid
    state: Literal["running", "done", "failed", "stopped"] = "running"
    exit_code: int | None = None
    failure: RankFailure | None = None

    def running(self) -> bool:
        """Whether the job runs as far as can be known: on another host its supervisor cannot be asked."""
        return self.state == "running" and is_alive(self.supervisor) is not False

    def status(self) -> JobStatus:
        """The job's status; failed without a failure where its supervisor was killed."""
        if self.state == "running" and not self.running():
            return JobStatus("failed")
        return JobStatus(self.state, self.exit_code, self.failure)


def _record_path(run_dir: Path) -> Path:
    return run_dir / "launch.json"


def write_record(run_dir: Path, record: LaunchRecord) -> None:
    """Replace launch.json; a reader sees the old text or the new, never half."""
    write_whole(_record_path(run_dir), json.dumps(asdict(record), indent=2, default=str) + "\n")


def read_record(run_dir: Path) -> LaunchRecord | None:
    """launch.json, or None where no job was started here, or the file is damaged."""
    try:
        data: dict[str, Any] = json.loads(_record_path(run_dir).read_text(encoding="utf-8"))
        data["supervisor"] = Holder(**data["supervisor"])
        if data["failure"] is not None:
            data["failure"]["log"] = Path(data["failure"]["log"])
            data["failure"] = RankFailure(**data["failure"])
        return LaunchRecord(**data)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
