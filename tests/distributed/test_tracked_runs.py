"""A run with all trackers, killed and resumed: each holds every step once, and the finished model with its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.runs import BROKEN, EVERY, STEPS, Run, Workplace, run_file
from fakes.trackers import CASES, mlflow_client, mlflow_run, place_store

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]
KINDS = ("tensorboard", "mlflow", "wandb")
for _kind in KINDS:
    pytest.importorskip(_kind, reason=f"the extra {_kind!r} is not installed")

TRACK = ["tensorboard", "mlflow", {"wandb": {"mode": "offline"}}]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workplace, Run]:
    """Rank 1 dies in the middle of step 5; steps 4 to 8 are trained after the resume from step 3."""
    workplace = Workplace(tmp_path_factory.mktemp("tracked"))
    place_store(workplace.folder / "runs" / "any", tmp_path_factory.getbasetemp() / "empty-store")
    watch = workplace.watch("tracked")
    watch.plant("kill")
    content = run_file("ddp", task=watch.task, export={"at_end": True}) | {"track": TRACK}
    workplace.headway("train", workplace.write("tracked", content), "--name", "tracked").expect(5)
    run = workplace.run("tracked")
    assert list(run.losses()) == list(range(1, BROKEN))
    assert run.checkpoints() == [f"step-{EVERY:08d}"]
    watch.heal()
    workplace.headway("resume", run.path).expect(0)
    assert run.events("warning") == []
    return workplace, run


def held(run: Run, kind: str) -> dict[str, Any]:
    read = CASES[kind].read
    assert read is not None
    return {name: read(run.path, name) for name in ("loss", "lr", "eval.loss")}


def kept(figures: Any, kind: str) -> Any:
    """To the last bit; TensorBoard keeps single precision."""
    return pytest.approx(figures, rel=1e-6) if kind == "tensorboard" else figures


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_held_once(tracked: tuple[Workplace, Run], kind: str) -> None:
    _, run = tracked
    evaluations = {step: figures["loss"] for step, figures in run.evaluations().items()}
    figures = held(run, kind)
    assert [step for step, _ in figures["loss"]] == list(range(1, STEPS + 1))
    assert [value for _, value in figures["loss"]] == kept(list(run.losses().values()), kind)
    assert dict(figures["eval.loss"]) == kept(evaluations, kind)
    assert len(figures["eval.loss"]) == len(evaluations)


def test_mlflow_holds_parameters_files_and_the_registered_model(tracked: tuple[Workplace, Run]) -> None:
    _, run = tracked
    client, found = mlflow_client(run.path), mlflow_run(run.path)
    assert found.info.status == "FINISHED"
    assert found.data.tags["headway.outcome"] == "done"
    assert found.data.params["schedule.steps"] == str(STEPS)
    assert found.data.params["data.store_hash"] == run.plan().data.store_hash
    names = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert {"run.yaml", "plan.json", "record.json", "export"} <= names
    (version,) = client.search_model_versions("name = 'tracked'")
    record = json.loads((run.path / "export" / "headway.json").read_text())
    assert version.run_id == found.info.run_id
    assert version.tags["headway.data_hash"] == record["data_hash"]
    assert version.tags["headway.plan_digest"] == record["plan_digest"]
    assert Path(version.source.removeprefix("file://")) == run.path / "export"


def test_sync_sends_what_an_outage_kept_back_and_nothing_twice(
    tracked: tuple[Workplace, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store as it was before the run, put in the place of the one that has it all."""
    monkeypatch.setattr("headway.track.wandb.upload", lambda run_dir: f"{run_dir.name} is offline")
    workplace, run = tracked
    before = held(run, "mlflow")
    place_store(run.path, workplace.folder)
    for sent in ("12 lines sent", "0 lines sent"):
        out = workplace.headway("show", run.path, "--sync").expect(0).out
        assert f"mlflow       {sent}" in out
        assert "tensorboard  0 lines sent" in out
        assert f"wandb        0 lines sent to its offline files; {run.dir.name} is offline" in out
        assert held(run, "mlflow") == before
    (_version,) = mlflow_client(run.path).search_model_versions("name = 'tracked'")


def test_a_checkpoint_and_its_export_are_judged_as_the_run_judged_them(tracked: tuple[Workplace, Run]) -> None:
    """The run's own ranks and sums, so to the last bit; the export is the same weights in the same precision."""
    workplace, run = tracked
    said = run.evaluations()
    for target, step in ((run.path, STEPS), (run.path, 2 * EVERY), (run.path / "export", STEPS)):
        words = ["--step", str(step)] if target == run.path else []
        found = json.loads(workplace.headway("evaluate", target, *words, "--json").expect(0).out)
        assert found["held_out"] == {k: v for k, v in said[step].items() if k in found["held_out"]}
        assert found["step"] == step
        assert (run.path / "evaluations" / f"{found['sha256'][:16]}.json").is_file()
    shown = workplace.headway("show", run.path).expect(0).out
    assert "evaluated" in shown
    assert f"step-{2 * EVERY:08d}, " in shown
    missing = workplace.headway("evaluate", run.path, "--step", "5").expect(6)
    assert "there is no complete checkpoint of step 5" in missing.err
