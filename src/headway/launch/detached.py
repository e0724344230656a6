"""The supervisor of a job in the background: `python -m headway.launch.detached`, its request on standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headway.launch.attempt import LocalOptions
from headway.launch.seam import JobSpec
from headway.launch.supervise import run_job
from headway.plan.schema import LaunchPlan
from headway.run.lock import JobLock
from headway.run.paths import RunDir


def main() -> int:
    """Run the requested job to its end. Its status is in launch.json; the exit code is the job's."""
    request = json.load(sys.stdin)
    job = JobSpec(
        run_dir=Path(request["run_dir"]),
        launch=LaunchPlan.model_validate(request["launch"]),
        environment=request["environment"],
        resume=request["resume"],
    )
    with JobLock(RunDir(job.run_dir)):
        status = run_job(job, lambda: None, LocalOptions(**request["options"]))
    return status.exit_code or 0


if __name__ == "__main__":
    sys.exit(main())
