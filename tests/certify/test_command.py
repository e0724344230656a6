"""`headway certify`, and what a run makes of a certificate: the whole way, on two CPU processes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.runs import Ended, Run, Workplace, run_file
from headway import api
from headway.api import certifying
from headway.certify import shelf
from headway.certify.numerics import numerics_hash, versions
from headway.certify.report import render
from headway.certify.schema import CLAIMS, Certificate, Claim, Measure
from headway.checkpoint.load import newest_complete
from headway.checkpoint.store import LocalStore
from headway.plan.schema import Plan
from tests.certify.faults import plan_for

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("certified"))


@pytest.fixture(scope="module")
def certified(workplace: Workplace) -> Ended:
    workplace.write("offload", run_file("zero-2+optimizer"))
    return workplace.headway("certify", "offload.json", "--plain")


def made_up(plan: Plan, *, broken: bool = False, claims: tuple[int, ...] = CLAIMS) -> Certificate:
    measure = Measure(what="gradients of 6 steps", value=0.9 if broken else 0.0, bound=1e-5)
    made = [
        Claim(number=number, name="gradients", level="", outcome="failed" if broken else "proven", measures=(measure,))
        for number in claims
    ]
    return Certificate(
        id="0123456789abcdef",
        numerics=numerics_hash(plan),
        versions=versions(),
        machine="",
        time=0.0,
        seconds=1.0,
        strategy=plan.strategy.label,
        claims=tuple(made),
        shrunk={},
        substitutions=(),
    )


def test_a_usual_plan_is_certified(certified: Ended) -> None:
    certified.expect(0)
    for number in CLAIMS:
        assert f"\n{number}. " in certified.out
    assert certified.out.count("PROVEN") == len(CLAIMS), certified.out
    assert "does not prove: NCCL" in certified.out
    assert "In place of the plan's own:" in certified.out


def test_a_certificate_that_holds_answers_without_a_run(certified: Ended, workplace: Workplace) -> None:
    before = {path: path.stat().st_mtime_ns for path in workplace.folder.rglob("outcome.safetensors")}
    again = workplace.headway("certify", "offload.json", "--plain").expect(0)
    assert certified.out.endswith(again.out)
    assert again.out.startswith("Certificate ")
    assert {path: path.stat().st_mtime_ns for path in workplace.folder.rglob("outcome.safetensors")} == before


def test_some_claims_alone_make_no_certificate_that_a_run_relies_on(certified: Ended, workplace: Workplace) -> None:
    part = workplace.headway("certify", "offload.json", "--claims", "3", "--json").expect(0)
    content = json.loads(part.out)
    assert [claim["number"] for claim in content["claims"]] == [3]
    whole = workplace.headway("certify", "offload.json", "--json").expect(0)
    assert json.loads(whole.out)["id"] in certified.out, "the whole certificate was replaced"
    assert "there is no claim 9" in workplace.headway("certify", "offload.json", "--claims", "9").expect(2).err


def certificates_of(run: Run) -> dict[str, Any]:
    store = LocalStore(run.dir.checkpoints)
    state = store.read(f"{newest_complete(store).name}/state.json")
    return {
        "record": json.loads(run.dir.record.read_text())["certificate"]["id"],
        "checkpoint": json.loads(state.read_text())["certificate"],
        "export": json.loads((run.dir.export / "headway.json").read_text())["record"]["certificate"]["id"],
    }


def test_a_run_carries_the_id_of_its_certificate(certified: Ended, workplace: Workplace) -> None:
    made = workplace.train("offload", run_file("zero-2+optimizer", export={"at_end": True}))
    content = json.loads(workplace.headway("certify", "offload.json", "--json").expect(0).out)
    assert certificates_of(made) == dict.fromkeys(("record", "checkpoint", "export"), content["id"])
    compared = made.events("first_step_compared")[0]
    assert compared["holds"]
    assert json.loads(made.dir.record.read_text())["first_step"]["holds"]
    print(compared)


def test_a_run_without_a_certificate_says_so_and_compares_nothing(workplace: Workplace) -> None:
    ended = workplace.headway(
        "train", workplace.write("bare", run_file("ddp", optimizer={"lr": 2e-3})), "--name", "bare"
    )
    assert "no certificate for this plan" in ended.expect(0).out
    assert workplace.run("bare").events("first_step_compared") == []


def with_certificate(workplace: Workplace, name: str, content: dict[str, Any], *, broken: bool = False) -> Path:
    """A run file whose plan has a made-up certificate on the shelf."""
    path = workplace.write(name, content)
    plan = api.plan(path).plan
    certificate = made_up(plan, broken=broken)
    shelf.keep(certificate, plan, render(certificate))
    return path


@pytest.mark.parametrize("strategy", ["ddp", "zero-1", "zero-3"])
def test_the_first_step_is_compared_on_the_real_model(
    strategy: str, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace.folder)
    path = with_certificate(workplace, f"first-{strategy}", run_file(strategy))
    ended = workplace.headway("train", path, "--name", f"first-{strategy}").expect(0)
    compared = workplace.run(f"first-{strategy}").events("first_step_compared")[0]
    print(compared)
    if strategy == "zero-3":
        assert "partitions its weights" in compared["skipped"]
    else:
        assert compared["holds"]
        assert compared["loss"] == pytest.approx(compared["plain_loss"], rel=1e-6)
        assert "the first step is the one that plain PyTorch computes" in ended.out


def test_comparing_the_first_step_changes_nothing(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run without a certificate: equal losses and state, to the bit, dropout on."""
    monkeypatch.chdir(workplace.folder)
    compared = workplace.run("first-zero-1")
    content = run_file("zero-1", checkpoint={"every": "4 steps"})
    shelf_folder = workplace.folder / ".headway" / "certificates"
    shelf_folder.rename(shelf_folder.with_name("put-away"))
    try:
        bare = workplace.train("bare-zero-1", content)
    finally:
        shelf_folder.with_name("put-away").rename(shelf_folder)
    assert bare.events("first_step_compared") == []
    assert bare.losses() == compared.losses()
    assert bare.state() == compared.state()


def test_a_first_step_that_differs_ends_the_run(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace.folder)
    content = run_file("ddp", task={"kind": "tests.certify.plants:HalvedUnderDDP"})
    path = with_certificate(workplace, "differs", content)
    ended = workplace.headway("train", path, "--name", "differs").expect(10)
    assert "not what plain PyTorch computes" in ended.err
    run = workplace.run("differs")
    assert run.checkpoints() == []
    assert run.events("first_step_compared")[0]["holds"] is False


def test_a_required_certificate_that_is_refused_stops_the_run(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace.folder)
    monkeypatch.setattr(certifying, "certify", lambda plan, *_, **__: made_up(plan, broken=True))
    path = workplace.write("required", {**run_file("ddp", optimizer={"lr": 3e-3}), "certify": "required"})
    ended = workplace.headway("train", path, "--name", "required").expect(10)
    assert "claim 1 (gradients) failed: gradients of 6 steps: 9.00e-01" in ended.err
    assert not [run for run in (workplace.folder / "runs").iterdir() if run.name.startswith("required")]


def test_a_certificate_is_bound_to_the_numerics_and_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for("strategy=zero-2")
    shelf.keep(made_up(plan), plan, "", tmp_path)
    elsewhere = plan.model_copy(
        update={
            "name": "another",
            "launch": plan.launch.model_copy(update={"processes": 8, "port": 1234}),
            "schedule": plan.schedule.model_copy(update={"steps": 10**6}),
        }
    )
    assert shelf.find(elsewhere, tmp_path) is not None, "names, lengths and more ranks change no computation"
    for words in ("strategy=zero-1", "train.micro_batch=1", "optimizer.clip=0.5", "train.precision=bf16"):
        assert shelf.find(plan_for("strategy=zero-2", words), tmp_path) is None, words
    monkeypatch.setattr(shelf, "versions", lambda: versions() | {"deepspeed": "0.18.9"})
    assert shelf.find(plan, tmp_path) is None


def test_a_partial_certificate_is_never_found(tmp_path: Path) -> None:
    plan = plan_for("strategy=zero-2")
    part = made_up(plan, claims=(1, 2))
    assert part.holds
    assert not part.valid
    assert "no run may rely on it" in render(part)
    assert shelf.keep(part, plan, "", tmp_path).name == "partial.json"
    assert shelf.find(plan, tmp_path) is None


def test_a_cached_answer_loads_no_torch(certified: Ended, workplace: Workplace) -> None:
    """What takes long is not done: the ranks' libraries stay unloaded, so that it answers at once."""
    started = time.monotonic()
    code = "import sys; from headway.cli.main import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    process = workplace.start([*workplace.command()[:1], "-c", code, "certify", "offload.json", "--plain"])
    out, _ = process.communicate(timeout=120)
    print(f"{time.monotonic() - started:.1f} s")
    assert out.splitlines()[-1] == "False", out
