"""The run directory: the one place that knows where things lie, and how a run is named and found.

runs/<name>-<YYYYMMDD-HHMMSS>/
    run.yaml  deepspeed.json  plan.json  record.json  record.diff  metrics.jsonl  events.jsonl  job.lock  stop.json
    logs/rank-N.log  logs/rank-N.error.json  checkpoints/step-00000100/  export/  tensorboard/  code/
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path

from headway.errors import Problem, UserError

# A checkpoint is complete when this file stands in its folder; it is written last.
CHECKPOINT_MANIFEST = "manifest.json"

_STAMPED = re.compile(r".*?-(\d{8}-\d{6})(?:-(\d+))?")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class RunDir:
    """Paths of one run; none needs to exist."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        """The run file as it was read."""
        return self.path / "run.yaml"

    @property
    def deepspeed_json(self) -> Path:
        """The DeepSpeed JSON as it was read, where the run file names one."""
        return self.path / "deepspeed.json"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def record(self) -> Path:
        """Where this run comes from: code, data, command, versions, hardware."""
        return self.path / "record.json"

    @property
    def record_diff(self) -> Path:
        """Uncommitted changes of the code at the start."""
        return self.path / "record.diff"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def lock(self) -> Path:
        """Which process runs the job here."""
        return self.path / "job.lock"

    @property
    def stop_request(self) -> Path:
        return self.path / "stop.json"

    @property
    def log_folder(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def code(self) -> Path:
        """The user's own modules as the run imports them."""
        return self.path / "code"

    @property
    def installed_code(self) -> Path:
        """Copies of own modules that are imported from an installed package: a record, no import."""
        return self.path / "code-installed"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def logs(self, rank: int) -> Path:
        """Everything that a rank printed."""
        return self.log_folder / f"rank-{rank}.log"

    def rank_error(self, rank: int) -> Path:
        """What a failing rank wrote before it ended: rank, time, type, message, exit_code."""
        return self.log_folder / f"rank-{rank}.error.json"

    def exists(self) -> bool:
        """A folder counts as a run when a plan or a run file stands in it."""
        return self.plan.is_file() or self.config.is_file()


def create(root: Path, name: str, now: datetime | None = None) -> RunDir:
    """Make `<root>/<name>-<YYYYMMDD-HHMMSS>`, with `-2`, `-3`, ... where two runs start in the same second.

    Characters that do not belong in a file name become '-'.

    Raises:
        UserError: the folder cannot be made (no permission, a file in the way, disk full).
    """
    stem = _UNSAFE.sub("-", name).strip("-.") or "run"
    stem = f"{stem}-{(now or datetime.now()):%Y%m%d-%H%M%S}"
    attempt = 1
    while True:
        path = root / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            root.mkdir(parents=True, exist_ok=True)
            path.mkdir()  # atomic: of two processes, one gets FileExistsError and takes the next name
        except FileExistsError as error:
            if not root.is_dir():
                raise _cannot_create(root, error) from error
            attempt += 1
            continue
        except OSError as error:
            raise _cannot_create(root, error) from error
        run = RunDir(path)
        run.log_folder.mkdir()
        return run


def _cannot_create(root: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    rule = f"no run folder can be made there: {reason}"
    return UserError(problems=[Problem("runs", rule, str(root), "runs=FOLDER, one that can be written to")])


def list_runs(root: Path) -> list[RunDir]:
    """The runs under `root`, oldest first; an absent root holds none."""
    if not root.is_dir():
        return []
    runs = [RunDir(path) for path in root.iterdir() if path.is_dir()]
    return sorted((run for run in runs if run.exists()), key=_age)


def newest(root: Path) -> RunDir | None:
    """The run that was created last; None where there is none."""
    runs = list_runs(root)
    return runs[-1] if runs else None


def find(reference: str, root: Path) -> RunDir:
    """A run by path, by name under `root`, by a prefix that fits one run only, or the newest for 'latest'.

    Raises:
        UserError: nothing fits, or a prefix fits several; names what is near.
    """
    by_path = RunDir(Path(reference))
    try:
        if reference and by_path.exists():
            return by_path
    except OSError:  # longer than a file's name can be, or not to be looked into
        pass
    runs = list_runs(root)
    if not runs:
        raise _not_found(reference, f"there is no run in {root}", "start one with `headway train run.yaml`")
    if reference == "latest":
        return runs[-1]
    for run in runs:
        if run.name == reference:
            return run
    matches = [run.name for run in runs if reference and run.name.startswith(reference)]
    if len(matches) == 1:
        return RunDir(root / matches[0])
    if matches:
        raise _not_found(reference, f"fits {len(matches)} runs", f"write more of it: {', '.join(matches[-5:])}")
    names = [run.name for run in runs]
    near = get_close_matches(reference, names, n=3) or names[-3:]
    raise _not_found(reference, f"is no run in {root}", f"runs there: {', '.join(near)}, or 'latest'")


def _not_found(reference: str, rule: str, fix: str) -> UserError:
    return UserError(problems=[Problem("run", rule, reference, fix)])


def _age(run: RunDir) -> tuple[str, int, str]:
    match = _STAMPED.fullmatch(run.name)
    if match:
        return match[1], int(match[2] or 1), run.name
    made = (run.config if run.config.is_file() else run.plan).stat().st_mtime
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(made)), 1, run.name
