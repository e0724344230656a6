"""Trackers for tests: how each is made, and how what it keeps is read back with its own means."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from headway.registry import resolve
from headway.run.journal import read
from headway.run.paths import RunDir
from headway.track.null import NullTracker
from headway.track.seam import Tracker

Figures = list[tuple[int, float]]  # (step, value) that stand


def read_jsonl(run_dir: Path, name: str) -> Figures:
    return [(line["step"], line[name]) for line in read(RunDir(run_dir).metrics, latest_per_step=True)]


def read_tensorboard(run_dir: Path, name: str) -> Figures:
    """As TensorBoard itself shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(RunDir(run_dir).tensorboard))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def mlflow_client(run_dir: Path) -> Any:
    from mlflow import MlflowClient

    uri = f"sqlite:///{run_dir.parent / 'mlflow' / 'mlflow.db'}"
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def mlflow_run(run_dir: Path) -> Any:
    """The only run of the store."""
    client = mlflow_client(run_dir)
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert len(runs) == 1, [run.info.run_name for run in runs]
    return runs[0]


def read_mlflow(run_dir: Path, name: str) -> Figures:
    history = mlflow_client(run_dir).get_metric_history(mlflow_run(run_dir).info.run_id, name)
    return sorted((metric.step, metric.value) for metric in history)


def read_wandb(run_dir: Path, name: str) -> Figures:
    """Every line of all attempts' offline files, repeated ones too."""
    from headway.track.wandb import offline_folders, offline_history

    files = [file for folder in offline_folders(run_dir) for file in folder.glob("run-*.wandb")]
    rows = [row for file in files for row in offline_history(file)]
    return sorted((row["step"], row[name]) for row in rows if name in row)


@cache
def empty_store(folder: Path) -> Path:
    """An MLflow store without a run: making one takes seconds, copying it none."""
    from mlflow import MlflowClient

    folder.mkdir(exist_ok=True)
    MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}").search_experiments()
    return folder / "mlflow.db"


def place_store(run_dir: Path, shared: Path) -> None:
    """Lay an empty MLflow store where the tracker looks for it; `shared` is the same folder for all tests."""
    folder = run_dir.parent / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(empty_store(shared), folder / "mlflow.db")


@dataclass(frozen=True)
class Case:
    """package: what it needs. read: None where it keeps nothing. beside: what it makes beside the run directory."""

    make: Callable[[], Tracker]
    read: Callable[[Path, str], Figures] | None
    package: str = ""
    beside: tuple[str, ...] = ()
    rewrites: bool = True


def made(kind: str, **options: Any) -> Callable[[], Tracker]:
    return lambda: resolve("track", kind)(**options)


def _refuse(text: str) -> None:
    raise AssertionError(text)


CASES: dict[str, Case] = {
    "jsonl": Case(made("jsonl"), read_jsonl),
    "tensorboard": Case(made("tensorboard"), read_tensorboard, "tensorboard"),
    "mlflow": Case(made("mlflow"), read_mlflow, "mlflow", ("mlflow",), rewrites=False),
    "wandb": Case(made("wandb", mode="offline"), read_wandb, "wandb", rewrites=False),
    "null": Case(NullTracker, None),
}
