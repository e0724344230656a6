"""What trackers are sent: no secret, no figure that a resume overtook; and what a server that is away costs."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path

import pytest

from headway.errors import MissingExtra, UserError
from headway.registry import require_extra
from headway.run.journal import Journal
from headway.run.paths import RunDir
from headway.track.record import identity, parameters, standing, texts
from headway.train import environment

SECRET = "s3cr3t-value-of-a-variable"


def test_secrets_of_the_environment_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    run = RunDir(tmp_path)
    run.config.write_text(f"runs: /data/{SECRET}/runs\n# hf_{'a1' * 20}\n")
    sent = parameters({"model": {"path": f"/models/{SECRET}", "options": {"api_key": "another-one"}}, "steps": 3})
    assert sent["steps"] == "3"
    words = " ".join([*sent.values(), *texts(run).values()])
    assert "runs: /data/[removed]/runs" in words
    assert SECRET not in words
    assert "another-one" not in words
    assert "hf_a1" not in words


def test_lines_come_in_order_without_what_a_resume_overtook(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with Journal(run.metrics) as metrics, Journal(run.events) as events:
        for step, loss in ((1, 0.5), (2, 0.5), (3, 0.5), (2, 0.25)):
            metrics.append({"step": step, "time": float(step), "loss": loss})
        for step, loss in ((2, 0.5), (3, 0.5), (2, 0.25)):
            events.event("evaluation", step=step, loss=loss, seconds=1.0)
        events.event("done", steps=2)
    lines = [(line.step, line.mark, line.values[line.mark]) for line in standing(run)]
    assert lines == [(1, "loss", 0.5), (2, "loss", 0.25), (2, "eval.loss", 0.25)]
    assert all("time" in line.values and "seconds" not in line.values for line in standing(run))


def test_a_run_keeps_its_identity(tmp_path: Path) -> None:
    first = identity(tmp_path, "mlflow")
    assert identity(tmp_path, "mlflow") == first
    assert identity(tmp_path, "wandb") != first


def test_a_server_that_is_away_is_named_at_once(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the extra 'mlflow' is not installed")
    from headway.track.mlflow import MlflowTracker

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(UserError, match=rf"no MLflow server answers at {uri}(.|\n)*fix: start it"):
        MlflowTracker(uri=uri).start(tmp_path, "a", {}, resumed=False)


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_names_its_extra_before_anything_starts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=rf"needs the package '{kind}'(.|\n)*pip install 'headway\[{kind}\]'"):
        require_extra("track", kind)


def test_a_store_without_its_packages_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra 'mlflow' is not installed")
    from headway.track.mlflow import MlflowTracker

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "alembic" else found(name))
    (tmp_path / "run").mkdir()
    with pytest.raises(MissingExtra, match=r"'alembic'(.|\n)*pip install 'headway\[mlflow\]'"):
        MlflowTracker().start(tmp_path / "run", "a", {}, resumed=False)


def test_a_service_of_another_process_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B hands its service on in the environment: there a killed rank's run would be in use for the resumed one."""
    for token, kept in ((f"3-{os.getpid()}-unix-/tmp/own", True), (f"3-{os.getppid()}-unix-/tmp/far", False)):
        monkeypatch.setenv("WANDB_SERVICE", token)
        environment.prepare("cpu")
        assert ("WANDB_SERVICE" in os.environ) is kept
