"""Plan against actual: what runs promise and took, what `show` prints of it, and what `--learn` makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.plans import A100_8, LAPTOP, SMALL, plan_of
from headway.api.learning import learn, promise
from headway.cli.account import account_rows
from headway.cli.main import main
from headway.errors import UserError
from headway.facts.clusterfile import ClusterFile, Rates, read_cluster, write_cluster
from headway.plan.files import write_plan
from headway.plan.schema import Plan
from headway.run.paths import RunDir
from headway.run.summary import RunSummary, summarise

PLAN = plan_of(SMALL, LAPTOP)
RATES = Rates(precision="fp32", matmul_flops=5e10, layer_flops=4e10, copy_bytes_per_second=1e10)
HERE = ClusterFile(
    name="a CPU", device="cpu", device_name="a CPU", devices_per_host=2, device_memory=24 * 2**30,
    host_memory=24 * 2**30, rates=RATES, measured="today",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def calibrated(**changes: Any) -> Path:
    path = Path(".headway/cluster.yaml")
    path.parent.mkdir(exist_ok=True)
    write_cluster(path, HERE.model_copy(update=changes))
    return path


def ran(name: str, slower: float = 1.2, larger: float = 1.1, plan: Plan = PLAN) -> RunDir:
    """A run that took so many times what it promised."""
    run = RunDir(Path("runs") / name)
    run.path.mkdir(parents=True)
    write_plan(plan, run.plan)
    promised = promise(plan)
    actual = {
        "steps": 10,
        "step_seconds": slower * promised["step_seconds"],
        "tokens_per_second": promised["tokens_per_second"] / slower,
        "wall_seconds": 3600.0,
        "processes": 2,
        "memory_kind": "resident set",
        "memory_peak_bytes": larger * promised["device_bytes"],
        "memory_items": {"parameters": {"device": 4 * plan.shape.parameters, "host": 0}},
    }
    run.record.write_text(json.dumps({"forecast": promised, "actual": actual}))
    return run


def test_a_plan_on_a_machine_that_was_measured_promises_by_its_rates() -> None:
    guessed = promise(PLAN)
    calibrated()
    promised = promise(PLAN)
    assert promised["measured"] == "today"
    assert guessed["measured"] == ""
    assert promised["step_seconds"] != guessed["step_seconds"]
    assert promised["device_bytes"] == sum(sum(sizes.values()) for sizes in promised["memory_items"].values())
    calibrated(device_name="another CPU")
    assert promise(PLAN) == guessed


def test_a_gpu_in_no_table_promises_nothing_and_hinders_nothing() -> None:
    assert promise(plan_of(SMALL, A100_8.model_copy(update={"device_name": "Abacus 9000"}), "launch.processes=2")) == {}


def test_runs_correct_the_cluster_file_once() -> None:
    path = calibrated()
    runs = [ran("a", 1.1), ran("b", 1.2), ran("c", 1.6)]
    target, learned = learn([run.path for run in runs], None)
    assert (target, learned.runs) == (path, ("a", "b", "c"))
    assert learned.step_time == pytest.approx(1.2)
    assert learned.memory == pytest.approx(1.1)
    before = json.loads(runs[0].record.read_text())["forecast"]
    after = promise(PLAN)
    assert after["step_seconds"] == pytest.approx(1.2 * before["step_seconds"])
    assert after["device_bytes"] == pytest.approx(1.1 * before["device_bytes"], rel=1e-6)
    again = ran("d", slower=1.0, larger=1.0)  # took just what the corrected plan promised
    assert learn([again.path], None)[1].step_time == pytest.approx(1.2)
    assert read_cluster(path).rates == RATES


def test_what_cannot_be_learnt_from() -> None:
    with pytest.raises(UserError, match="8xH100: is no cluster file to write"):
        learn([ran("any").path], Path("8xH100"))
    bare = RunDir(Path("runs/bare"))
    bare.path.mkdir(parents=True)
    write_plan(PLAN, bare.plan)
    with pytest.raises(UserError, match="bare: the record holds no plan against actual"):
        learn([bare.path], None)
    other = ran("other", plan=plan_of(SMALL, LAPTOP.model_copy(update={"device_name": "another"})))
    with pytest.raises(UserError, match="different machines"):
        learn([ran("mine").path, other.path], None)
    calibrated()
    with pytest.raises(UserError, match="is of a CPU, the runs of another"):
        learn([other.path], None)


def test_learning_without_a_cluster_file_makes_one(capsys: pytest.CaptureFixture[str]) -> None:
    ran("mine", slower=2.0)
    assert main(["plan", "--learn", "mine", "--on", "mine.yaml"]) == 0
    assert "mine.yaml: from 1 run, steps take 2.00 x" in capsys.readouterr().out
    learned = read_cluster(Path("mine.yaml")).learned
    assert learned is not None
    assert (learned.runs, learned.step_time) == (("mine",), 2.0)


def test_show_prints_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    run = ran("mine", slower=1.2)
    rows = {row[0].strip(): row for row in account_rows(summarise(run))}
    assert rows["step time"][3] == "+20.0%"
    assert rows["memory, peak"][3] == "+10.0%, resident set"
    assert rows["parameters"][3] == "+0.0%"
    assert rows["runtime"][2] == ""  # nobody can measure it by itself
    assert "cost" not in rows  # no one bills this CPU
    assert main(["show", "mine"]) == 0
    assert "step time" in capsys.readouterr().out


def test_cost_where_a_device_has_a_price() -> None:
    priced = {"price_device_hour": 3.0, "cost": 5.0, "currency": "USD"}
    run = RunSummary("x", Path("x"), "done", forecast=priced, actual={"wall_seconds": 7200.0, "processes": 2})
    assert account_rows(run) == [("cost", "5.00 USD", "12.00 USD", "+140.0%")]
