"""A run that reports to a real MLflow server with accounts: killed and resumed, the server killed, then synced."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fakes.jobs import wait_for
from fakes.mlflow_server import MlflowServer
from fakes.runs import ACCUMULATION, BROKEN, EVERY, STEPS, Ended, Run, Watch, Workplace, run_file
from headway.errors import UserError
from headway.run.paths import RunDir
from headway.track.record import standing

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]
pytest.importorskip("mlflow", reason="the extra 'mlflow' is not installed")

LOST = 7  # the step, after the resume at step 3, in which the server goes away
NAME = "served"


@dataclass(frozen=True)
class Served:
    """The run, and what `headway` said: killed in step 5, resumed, left by the server in step 7, synced twice."""

    server: MlflowServer
    workplace: Workplace
    run: Run
    before: Ended
    resumed: Ended
    synced: tuple[Ended, Ended]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    folder = tmp_path_factory.mktemp("mlflow") / "server"
    server = MlflowServer(folder, tmp_path_factory.getbasetemp() / "empty-store")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in server.credentials.items():
            environment.setenv(name, value)
        # A server that is away is asked again for four minutes; here there is none of that.
        environment.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        environment.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
        yield server
    server.kill()


def break_in(watch: Watch, fault: str, step: int, start: int, rank: int) -> None:
    watch.plant(fault, rank, micro_batch=(step - start - 1) * ACCUMULATION + 1)


@pytest.fixture(scope="module")
def served(server: MlflowServer, tmp_path_factory: pytest.TempPathFactory) -> Served:
    workplace = Workplace(tmp_path_factory.mktemp("served"))
    watch = workplace.watch(NAME)
    content = run_file("ddp", task=watch.task, export={"at_end": True}) | {"track": {"mlflow": {"uri": server.uri}}}
    break_in(watch, "kill", BROKEN, 0, rank=1)
    before = workplace.headway("train", workplace.write(NAME, content), "--name", NAME).expect(5)
    run = workplace.run(NAME)
    watch.heal()
    break_in(watch, "hold", LOST, EVERY, rank=0)

    def lose_the_server() -> None:
        wait_for(lambda: LOST - 1 in steps_held(server, "eval.loss"), "the server to hold what came before", 60)
        server.kill()
        watch.let_go()

    with watch.when_held(lose_the_server):
        resumed = workplace.headway("resume", run.path).expect(0)
    server.start()
    synced = [workplace.headway("show", run.path, "--sync").expect(0) for _ in range(2)]
    return Served(server, workplace, run, before, resumed, (synced[0], synced[1]))


def client_of(server: MlflowServer) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=server.uri, registry_uri=server.uri)


def run_of(server: MlflowServer) -> Any:
    """The only run of the server: also after the kill, the resume and two calls of sync."""
    client = client_of(server)
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert len(runs) == 1, [run.info.run_name for run in runs]
    return runs[0]


def steps_held(server: MlflowServer, name: str) -> list[int]:
    return [metric.step for metric in client_of(server).get_metric_history(run_of(server).info.run_id, name)]


def test_a_server_that_goes_away_is_named_once_and_the_run_goes_on(served: Served) -> None:
    (warning,) = [event["text"] for event in served.run.events("warning")]
    assert warning.startswith("the tracker 'mlflow' could not ")
    assert f"`headway show {served.run.dir.name} --sync` sends what is missing" in warning
    assert served.resumed.out.count("the tracker 'mlflow' could not") <= 1
    assert list(served.run.losses()) == list(range(1, STEPS + 1))
    assert served.run.checkpoints()[-1] == f"step-{STEPS:08d}"


def test_every_figure_of_the_local_record_is_held_once_and_to_the_bit(served: Served) -> None:
    client, found = client_of(served.server), run_of(served.server)
    expected: dict[str, dict[int, float]] = {}
    for line in standing(RunDir(served.run.path)):
        for name, value in line.values.items():
            if name != "time" and value is not None:
                expected.setdefault(name, {})[line.step] = float(value)
    assert {"loss", "lr", "grad_norm", "tokens", "eval.loss"} <= expected.keys()
    assert set(found.data.metrics) == expected.keys()
    # What a kill left behind and a resume computed again differs in its timings: the first word stands.
    timed = {"tokens_per_second", "step_seconds", "data_wait_seconds", "overhead_seconds", "memory_bytes", "mfu"}
    timed |= {"memory_peak_bytes"}
    for name, figures in expected.items():
        held = [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, name)]
        assert sorted(step for step, _ in held) == sorted(figures), name
        if name not in timed:
            assert dict(held) == figures, name


def test_sync_sends_what_is_missing_and_nothing_twice(served: Served) -> None:
    sent, again = (ended.out for ended in served.synced)
    assert "mlflow  0 lines sent" in again
    assert "mlflow  3 lines sent" in sent  # of steps 7 and 8, and the held-out figures of step 8


def test_parameters_files_and_the_registered_model(served: Served) -> None:
    client, found = client_of(served.server), run_of(served.server)
    assert (found.info.status, found.data.tags["headway.outcome"]) == ("FINISHED", "done")
    assert found.data.params["schedule.steps"] == str(STEPS)
    assert found.data.params["data.store_hash"] == served.run.plan().data.store_hash
    export = served.run.path / "export"
    files = sorted(str(path.relative_to(export)) for path in export.rglob("*") if path.is_file())
    fetched = Path(client.download_artifacts(found.info.run_id, "", str(served.workplace.folder.parent)))
    assert {"run.yaml", "plan.json", "record.json"} <= {path.name for path in fetched.iterdir()}
    assert sorted(str(path.relative_to(fetched / "export")) for path in (fetched / "export").rglob("*.*")) == files
    for file in files:
        digests = {hashlib.sha256((folder / file).read_bytes()).hexdigest() for folder in (export, fetched / "export")}
        assert len(digests) == 1, file
    (version,) = client.search_model_versions(f"name = '{NAME}'")
    record = json.loads((export / "headway.json").read_text())
    assert version.run_id == found.info.run_id
    assert version.tags["headway.data_hash"] == record["data_hash"]
    assert version.tags["headway.record_sha256"] == hashlib.sha256((export / "headway.json").read_bytes()).hexdigest()
    assert client.get_model_version_download_uri(NAME, version.version).endswith("/export")


def test_credentials_are_nowhere_in_the_run_or_on_the_screen(served: Served) -> None:
    password = served.server.password
    words = (password, base64.b64encode(f"{served.server.user}:{password}".encode()).decode())
    for ended in (served.before, served.resumed, *served.synced):
        assert not any(word in ended.out + ended.err for word in words)
    for path in served.run.path.rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            assert not any(word.encode() in raw for word in words), path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"MLFLOW_TRACKING_PASSWORD": "wrong"}, r"does not let us in: 401(.|\n)*fix: set MLFLOW_TRACKING_USERNAME and"),
        ({"MLFLOW_TRACKING_USERNAME": "", "MLFLOW_TRACKING_PASSWORD": ""}, r"does not let us in: 401"),
    ],
)
def test_a_server_that_does_not_let_us_in(
    server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], said: str
) -> None:
    from headway.track.mlflow import MlflowTracker

    for name, value in changes.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with pytest.raises(UserError, match=said):
        MlflowTracker(uri=server.uri).start(tmp_path, NAME, {}, resumed=False)


class Other(BaseHTTPRequestHandler):
    """Answers as some other web server."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"<html>" + b"nothing here " * 200)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_what_is_no_mlflow_server_is_named_at_once(server: MlflowServer, tmp_path: Path) -> None:
    from headway.track.mlflow import MlflowTracker

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        for uri in (f"http://127.0.0.1:{other.server_port}", f"{server.uri}/not/here"):
            with pytest.raises(UserError, match=rf"what answers at {uri} is no MLflow server(.|\n)*fix: ") as caught:
                MlflowTracker(uri=uri).start(tmp_path, NAME, {}, resumed=False)
            assert len(str(caught.value)) < 400
        other.shutdown()
