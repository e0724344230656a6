"""Library mode: a user's own module, loss and loop, on forked ranks, held to plain PyTorch and to themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fakes.runs import Workplace, end_of, run_file, strategy_of
from headway.plan.files import read_plan
from headway.run import journal
from headway.run.paths import RunDir
from headway.run.summary import summarise
from tests.distributed import library_jobs as jobs
from tests.distributed.ranks import run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


def small(name: str) -> dict[str, Any]:
    """Buckets so small that even this model fills several."""
    strategy = strategy_of(name)
    return strategy | {key: 64 for key in ("reduce_bucket", "allgather_bucket") if key in strategy}


@pytest.mark.parametrize("strategy", ["ddp", "zero-2+optimizer", "zero-3"])
def test_a_run_left_in_the_middle_ends_equal_to_one_that_was_not(strategy: str, tmp_path: Path) -> None:
    """Ranks that began with other weights, uneven batches, dropout, two terms with counts of their own."""
    (whole, left, _), (other, _, _) = run_ranks(jobs.straight_and_left, 2, tmp_path, small(strategy), tmp_path)
    again, _ = run_ranks(jobs.resumed, 2, tmp_path, small(strategy), tmp_path)
    assert whole["steps"] == other["steps"]
    assert whole["figures"] == other["figures"]
    assert whole["outcome"] == "done"
    assert left["steps"] == {step: whole["steps"][step] for step in range(1, jobs.LEFT_AFTER + 1)}
    assert again["resumed"] == "step-00000004"
    assert again["path"] == left["path"]
    assert again["steps"] == {step: whole["steps"][step] for step in range(5, jobs.STEPS + 1)}
    assert whole["weights"].keys() == again["weights"].keys()
    assert all(torch.equal(value, again["weights"][name]) for name, value in whole["weights"].items())
    run = RunDir(whole["path"])
    check_what_is_left_behind(run, whole)


def check_what_is_left_behind(run: RunDir, whole: dict[str, Any]) -> None:
    """Metrics, events, plan and export, as of any run."""
    lines = journal.read(run.metrics)
    assert {line["step"]: line["loss"] for line in lines} == {s: loss for s, (loss, _) in whole["steps"].items()}
    assert {"term.entropy", "term.size"} <= lines[-1].keys()
    assert summarise(run).state == "done"
    plan = read_plan(run.plan)
    assert [name for part in plan.code for name in part.files][:1] == ["tests/__init__.py"]
    assert (run.code / "tests/distributed/library_jobs.py").is_file()
    record = json.loads((run.export / "headway.json").read_text())
    assert record["verified"] is True
    stored = load_file(run.export / "model.safetensors")
    assert {name for name in stored if torch.equal(stored[name], whole["weights"][name])} == stored.keys()
    assert {"frozen", "shift", "out.weight"} <= stored.keys()


def test_the_steps_are_those_of_plain_pytorch(tmp_path: Path) -> None:
    """Bound: fp32 sums of a few hundred products in another order, carried through ten steps."""
    [found] = run_ranks(jobs.without_dropout, 1, tmp_path, {"kind": "single"}, tmp_path)
    expected = jobs.plain()
    assert found.keys() == expected.keys()
    for step, (loss, norm) in expected.items():
        assert found[step] == pytest.approx((loss, norm), rel=1e-5), step


def test_a_loader_goes_on_where_it_stood(tmp_path: Path) -> None:
    """Shuffled anew each epoch, with random numbers of its own, beside dropout's."""
    [(whole, part, rest)] = run_ranks(jobs.with_a_loader, 1, tmp_path, tmp_path)
    assert part == whole[: jobs.LEFT_AFTER]
    assert rest == whole[4:]  # the newest checkpoint is of step 4
    assert run_ranks(jobs.lane_is_apart, 1, tmp_path) == [(True, True)]


def test_a_transformers_model_is_trained_on_its_own_loss_and_exported_whole(tmp_path: Path) -> None:
    [found] = run_ranks(jobs.transformers_model, 1, tmp_path, tmp_path)
    assert found["losses"][0] == pytest.approx(found["expected"], rel=1e-6)
    assert found["same"] is True
    assert journal.read(RunDir(found["path"]).events)[-1]["event"] == "done"


SCRIPT = """
import sys
import headway

run = headway.prepare("library.json", sys.argv[1:])
for batches in run.batches():
    run.engine.train_step(batches)
run.finish()
"""


def test_a_script_under_headways_launcher_is_the_run_that_headway_train_makes(tmp_path: Path) -> None:
    """The run file's model, data and evaluation; the loop alone is the script's."""
    place = Workplace(tmp_path / "place")
    train = {"length": "4 steps"}
    expected = place.train("expected", run_file("ddp", train=train))
    place.write("library", run_file("ddp", train=train))
    (place.folder / "own.py").write_text(SCRIPT)
    said = end_of(place.start(place.command("launch", "--processes", "2", "own.py", "name=own"))).expect(0)
    own = place.run("own")
    assert own.losses() == expected.losses()
    assert own.evaluations() == expected.evaluations()
    assert own.state() == expected.state()
    assert own.events("done")[-1]["differences"] == []
    assert "step 4/4" in said.out
