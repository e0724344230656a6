"""Runs in Weights & Biases, online or in its own offline files under `wandb/` in the run directory.

Figures are drawn over `step`, Headway's own count; W&B's counts lines. Nothing is sent but what Headway hands over:
no code, no console, no machine statistics. The key is W&B's own (WANDB_API_KEY or `wandb login`).
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wandb
from wandb.errors import Error as WandbError
from wandb.proto import wandb_internal_pb2

from headway.errors import UserError
from headway.run.paths import RunDir
from headway.track.record import export_facts, identity, parameters

_UPLOAD_SECONDS = 3600.0
_WRITTEN_SECONDS = 30.0
_FILE_HEADER_BYTES, _BLOCK_BYTES, _HEADER_BYTES = 7, 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4


class WandbTracker:
    """Needs the extra `wandb`. Options: see WandbConfig in headway.config.schema."""

    rewrites = False

    def __init__(self, project: str = "headway", entity: str | None = None, mode: str = "online"):
        self._project, self._entity, self._mode = project, entity, mode
        self._run: Any = None
        self._folder = Path()

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
        """Raises UserError where W&B does not let us in."""
        run = RunDir(run_dir.absolute())
        self._folder = run.path
        settings = wandb.Settings(
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            silent=True,
        )
        try:
            self._run = wandb.init(
                project=self._project,
                entity=self._entity,
                id=identity(run.path, "wandb"),
                name=run.name,
                dir=str(run.path),
                mode="offline" if self._mode == "offline" else "online",
                resume="allow",
                config=parameters(plan),
                settings=settings,
            )
        except WandbError as error:
            fix = "set WANDB_API_KEY in the environment, or write track: {wandb: {mode: offline}}"
            raise UserError(f"W&B refuses: {error}", fix=fix) from error
        self._run.define_metric("*", step_metric="step")

    def held(self, name: str) -> set[int]:
        if self._mode == "offline":
            return offline_steps(self._folder, name)
        rows = wandb.Api().run(self._run.path).scan_history(keys=["step", name])
        return {int(row["step"]) for row in rows}

    def log(self, step: int, values: dict[str, float]) -> None:
        figures = {key: value for key, value in values.items() if key != "time" and value is not None}
        self._run.log({"step": step, **figures})

    def artifact(self, name: str, path: Path) -> None:
        """The export's record and where it lies; its weights stay there."""
        if name == "export":
            self._run.summary.update({f"export.{key}": value for key, value in export_facts(path).items()})
            self._run.summary["export.path"] = str(path)

    def finish(self, outcome: str) -> None:
        if self._run is not None:
            self._run.summary["outcome"] = outcome
            file = Path(self._run.settings.sync_file)
            self._run.finish(exit_code=1 if outcome == "failed" else 0)
            self._run = None
            if self._mode == "offline":
                _wait_for_end(file)


def _wait_for_end(file: Path) -> None:
    """W&B's process writes on after `finish` has returned; a container that ends then would lose the last lines."""
    deadline = time.monotonic() + _WRITTEN_SECONDS
    while not any(record.WhichOneof("record_type") == "exit" for record in _read(file)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} is not written to its end after {_WRITTEN_SECONDS:g} s")
        time.sleep(0.02)


def offline_folders(run_dir: Path) -> list[Path]:
    """One folder for each attempt that wrote offline, the oldest first."""
    return sorted((run_dir / "wandb").glob("offline-run-*"))


def offline_steps(run_dir: Path, name: str) -> set[int]:
    """Steps at which W&B's offline files hold a figure `name`; a record that a kill cut short counts as absent."""
    steps: set[int] = set()
    for folder in offline_folders(run_dir):
        for file in folder.glob("run-*.wandb"):
            for row in offline_history(file):
                if name in row and "step" in row:
                    steps.add(int(row["step"]))
    return steps


def offline_history(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of figures in one offline file."""
    for record in _read(file):
        if record.WhichOneof("record_type") == "history":
            yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


def _read(file: Path) -> Iterator[Any]:
    for raw in _chunks(file.read_bytes()):
        record: Any = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
        record.ParseFromString(raw)
        yield record


def _chunks(data: bytes) -> Iterator[bytes]:
    """The file is a LevelDB log: blocks of 32 KiB, chunks of (checksum, length, type), behind a header of 7 bytes."""
    position, record = _FILE_HEADER_BYTES, b""
    while position + _HEADER_BYTES <= len(data):
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        chunk = data[position + _HEADER_BYTES : position + _HEADER_BYTES + length]
        if len(chunk) < length or kind == 0:
            return
        position += _HEADER_BYTES + length
        record = chunk if kind in (_FULL, _FIRST) else record + chunk
        if kind in (_FULL, _LAST):
            yield record


def upload(run_dir: Path) -> str:
    """Send the offline files with `wandb sync`, which marks what it sent; what came of it, in words."""
    folders = [str(folder) for folder in offline_folders(run_dir)]
    if not folders:
        return "no offline files"
    command = [sys.executable, "-m", "wandb", "sync", *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_UPLOAD_SECONDS, check=False)
    words = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode:
        reason = words[-1] if words else f"exit code {done.returncode}"
        return f"not uploaded, `wandb sync` says: {reason} (its key is taken from WANDB_API_KEY)"
    return "uploaded by `wandb sync`"
