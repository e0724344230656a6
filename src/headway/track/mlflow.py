"""Runs in MLflow: by default in one embedded SQLite store beside the runs, else on a server or in a database by URL.

    mlflow ui --backend-store-uri sqlite:///runs/mlflow/mlflow.db

A run has a name of its own in the tag `headway.id`, so it is found again after a kill at any moment. Parameters,
figures, the run file, plan and record are sent; the finished export is registered as a model version whose tags are its
record. The embedded store points to the export where it lies; to others its files are sent.
Credentials are MLflow's own (MLFLOW_TRACKING_TOKEN, ...), taken from the environment by MLflow itself.
"""

from __future__ import annotations

import importlib.util
import logging
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunStatus
from mlflow.environment_variables import (
    MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR,
    MLFLOW_HTTP_REQUEST_MAX_RETRIES,
    MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT,
)
from mlflow.exceptions import MlflowException

from headway.errors import MissingExtra, UserError
from headway.run.paths import RunDir
from headway.track.record import export_facts, identity, parameters, texts

for _name in ("mlflow", "alembic"):
    logging.getLogger(_name).setLevel(logging.WARNING)
# Not in between the lines of a command's answer, unless the user wants them.
for _shown, _quiet in ((MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT, True), (MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR, False)):
    if not _shown.is_set():
        _shown.set(_quiet)

_ID = "headway.id"
_OUTCOMES = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_ANSWER_SECONDS = 10.0
_NOT_JSON = "not in a valid JSON format"  # MLflow's own words
_PARAMETERS_A_CALL = 100  # MLflow's own limit


class MlflowTracker:
    """Needs the extra `mlflow`. Options: see MlflowConfig in headway.config.schema."""

    rewrites = False

    def __init__(
        self,
        uri: str | None = None,
        experiment: str | None = None,
        model: str | None = None,
        register: bool = True,
        upload: bool | None = None,
    ):
        self._uri, self._experiment, self._model = uri, experiment, model
        self._register, self._upload = register, uri is not None if upload is None else upload
        self._run_id = ""
        self._run = RunDir(Path())
        self._name = ""

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
        """Find or make the run and send what does not change; raises UserError where no server answers."""
        self._run, self._name = RunDir(run_dir.absolute()), name
        uri = self._uri or _embedded(self._run.path)
        is_server = uri.startswith(("http://", "https://"))
        if is_server:
            _require_answer(uri)
        else:
            _require_database()
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        try:
            with _asked_once():
                experiment = self._experiment_id(self._experiment or name)
        except MlflowException as error:
            if is_server:
                _require_welcome(uri, error)
            raise
        self._run_id = self._find_or_make(experiment, identity(self._run.path, "mlflow"))
        self._client.update_run(self._run_id, status=RunStatus.to_string(RunStatus.RUNNING))
        known = self._client.get_run(self._run_id).data.params
        self._send_parameters((k, v) for k, v in parameters(plan).items() if k not in known)  # they never change
        for file, content in texts(self._run).items():
            self._client.log_text(self._run_id, content, file)

    def held(self, name: str) -> set[int]:
        return {metric.step for metric in self._client.get_metric_history(self._run_id, name)}

    def log(self, step: int, values: dict[str, float]) -> None:
        when = int(values["time"] * 1000)
        metrics = [Metric(k, float(v), when, step) for k, v in values.items() if k != "time" and v is not None]
        self._client.log_batch(self._run_id, metrics)  # in one transaction: a line is there whole or not at all

    def artifact(self, name: str, path: Path) -> None:
        if name != "export":
            return
        facts = export_facts(path)
        if self._upload:
            self._client.log_artifacts(self._run_id, str(path), "export")
        else:
            for file in ("headway.json", "README.md"):
                self._client.log_artifact(self._run_id, str(path / file), "export")
        if self._register:
            self._register_model(self._model or self._name, path, facts)

    def finish(self, outcome: str) -> None:
        if self._run_id:
            self._client.set_tag(self._run_id, "headway.outcome", outcome)
            self._client.set_terminated(self._run_id, _OUTCOMES.get(outcome, "FAILED"))
            self._run_id = ""

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        location = None if self._uri else (self._run.path.parent / "mlflow" / "artifacts").as_uri()
        try:
            return str(self._client.create_experiment(name, artifact_location=location))
        except MlflowException:  # another run made it just now
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def _find_or_make(self, experiment: str, own: str) -> str:
        found = self._client.search_runs([experiment], f"tags.`{_ID}` = '{own}'", max_results=1)
        run = found[0] if found else self._client.create_run(experiment, tags={_ID: own}, run_name=self._run.name)
        return str(run.info.run_id)

    def _send_parameters(self, items: Iterable[tuple[str, str]]) -> None:
        params = [Param(key, value) for key, value in items]
        for first in range(0, len(params), _PARAMETERS_A_CALL):
            self._client.log_batch(self._run_id, params=params[first : first + _PARAMETERS_A_CALL])

    def _register_model(self, name: str, folder: Path, facts: dict[str, str]) -> None:
        """A version of the model `name`, unless this very export is one already."""
        source = f"runs:/{self._run_id}/export" if self._upload else folder.absolute().as_uri()
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        record = facts["record_sha256"]
        of_this_run = self._client.search_model_versions(f"name = '{name}' and run_id = '{self._run_id}'")
        if all(version.tags.get("headway.record_sha256") != record for version in of_this_run):
            tags = {f"headway.{key}": value for key, value in facts.items()}
            if self._upload:
                location = self._client.get_run(self._run_id).info.artifact_uri
                source = f"{location}/export"
            self._client.create_model_version(name, source=source, run_id=self._run_id, tags=tags)


def _embedded(run_dir: Path) -> str:
    """The store beside the runs, which all of them share."""
    folder = run_dir.parent / "mlflow"
    folder.mkdir(exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def _require_database() -> None:
    """mlflow-skinny comes without what its stores in databases need. Raises MissingExtra."""
    for package in ("sqlalchemy", "alembic"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "mlflow", "an MLflow store without a server")


def _require_answer(uri: str) -> None:
    """MLflow itself asks a dead server for minutes. Any answer counts: whether it lets us in is asked later."""
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=_ANSWER_SECONDS):
            return
    except urllib.error.HTTPError:
        return
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"no MLflow server answers at {uri}: {reason}",
            fix="start it, or write track: {mlflow: {}} for a store beside the runs",
        ) from error


@contextmanager
def _asked_once() -> Iterator[None]:
    """A first launch that cannot succeed ends at once: a server that fails is not asked for four minutes."""
    retries = MLFLOW_HTTP_REQUEST_MAX_RETRIES
    if retries.is_set():
        yield
        return
    retries.set(1)
    try:
        yield
    finally:
        retries.unset()


def _require_welcome(uri: str, error: MlflowException) -> None:
    """Say in words what a server's first answer means. Raises UserError where it is known."""
    status = error.get_http_status_code()
    if status in (401, 403):
        fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment"
        raise UserError(f"the MLflow server at {uri} does not let us in: {status}", fix=fix) from error
    if status == 404 or _NOT_JSON in error.message:
        fix = "check the address; behind a proxy it ends in the path before /api/2.0/mlflow"
        raise UserError(f"what answers at {uri} is no MLflow server", fix=fix) from error
