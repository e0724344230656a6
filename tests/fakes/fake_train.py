"""A command in the foreground that runs a fake job, as `headway train` does: for tests that signal or kill it.

No guard around the last line, on purpose: a forked rank must not run the caller's script again.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from fakes.jobs import launch_plan
from headway.launch.local import LocalOptions, run_job, warm_up
from headway.launch.seam import JobSpec

run_dir, module, method, *preload = sys.argv[1:]
if method == "fork":
    warm_up("cpu", preload)
spec = JobSpec(run_dir=Path(run_dir), launch=launch_plan(processes=2, threads=2))
status = run_job(spec, lambda: None, LocalOptions(worker_module=module, method="fork" if method == "fork" else "exec"))
(Path(run_dir) / "status.json").write_text(json.dumps(asdict(status), default=str))
sys.exit(status.exit_code)
