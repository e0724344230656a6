"""plan.json: written whole, read back equal; a change by hand, another version or damage is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.plans import A100_8, EXAMPLE, LAPTOP, SMALL, plan_of
from headway.errors import PlanError
from headway.plan.explain import (
    explain,
    flatten,
    interval_text,
    note_texts,
    summary_rows,
)
from headway.plan.files import digest_of, read_plan, write_plan
from headway.plan.schema import IntervalPlan


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_plan(plan_of(SMALL, LAPTOP), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def edit(path: Path, change: object) -> None:
    content = json.loads(path.read_text())
    change(content)  # pyright: ignore[reportCallIssue]
    path.write_text(json.dumps(content))


def test_read_back_equal(written: Path) -> None:
    plan = plan_of(SMALL, LAPTOP)
    assert read_plan(written) == plan
    content = json.loads(written.read_text())
    assert content["digest"] == plan.digest() == digest_of(content["plan"])
    assert [path.name for path in written.parent.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["plan"]["batch"].update(micro_batch=4),
        lambda c: c["plan"]["optimizer"].update(clip=1.0000001),
        lambda c: c["plan"].update(added=1),
        lambda c: c["plan"].pop("track"),
        lambda c: c.update(digest="0" * 64),
    ],
)
def test_a_change_by_hand_is_refused(written: Path, change: object) -> None:
    edit(written, change)
    with pytest.raises(PlanError, match="was changed by hand") as caught:
        read_plan(written)
    assert "run file" in str(caught.value)
    assert "plan again" in str(caught.value)


def test_layout_alone_is_no_change(written: Path) -> None:
    edit(written, lambda c: None)
    read_plan(written)


def test_another_version_is_refused(written: Path) -> None:
    edit(written, lambda c: c["plan"].update(version=99, headway="9.9"))
    with pytest.raises(PlanError, match=r"version 99, made by Headway 9.9; this one reads version 1"):
        read_plan(written)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plan": {}}', '{"plan": 1, "digest": "x"}'])
def test_what_is_no_plan(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanError, match=r"plan\.json"):
        read_plan(tmp_path / "plan.json")


def test_an_absent_plan(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="there is no plan") as caught:
        read_plan(tmp_path / "plan.json")
    assert "headway train run.yaml --dry-run" in str(caught.value)


def test_a_plan_of_a_valid_digest_that_cannot_be_read(written: Path) -> None:
    content = json.loads(written.read_text())
    content["plan"]["batch"]["micro_batch"] = "four"
    content["digest"] = digest_of(content["plan"])
    written.write_text(json.dumps(content))
    with pytest.raises(PlanError, match="is not a plan that this version can read"):
        read_plan(written)


def test_the_summary_says_what_how_and_why() -> None:
    plan = plan_of(EXAMPLE, A100_8, vocab=32000)
    rows = {what: (value, why) for what, value, why in summary_rows(plan)}
    assert rows["model"][0] == "llama, 134M parameters, 12 layers of 768"
    assert rows["devices"][0] == "8 x NVIDIA A100-SXM4-80GB"
    assert rows["strategy"][0] == "ddp"
    assert rows["devices"][1] == "as launch.gpus says"
    assert rows["global batch"][0] == "244 sequences = 500k tokens"
    assert rows["steps"][0] == "20012 (10B tokens)"
    assert rows["learning rate"][0] == "0.0006 after 200 steps, then cosine to 6e-05"
    assert rows["checkpoint"][0] == "every 30 min, and at the end; keep 3"
    assert rows["memory"][0].endswith("of 72.00 GiB a process")
    assert all(value for value, _ in rows.values())


def test_a_small_plan_has_no_notes() -> None:
    assert note_texts(plan_of(SMALL, LAPTOP)) == []


def test_explain_one_value_a_section_and_the_run_files_word() -> None:
    plan = plan_of(SMALL, LAPTOP)
    [(name, value, why)] = explain(plan, "batch.micro_batch")
    assert (name, value) == ("batch.micro_batch", "8")
    assert "GiB" in why
    assert explain(plan, "train.micro_batch") == explain(plan, "batch.micro_batch")
    names = [row[0] for row in explain(plan, "batch")]
    assert set(names) == {
        f"batch.{n}" for n in ("global_sequences", "micro_batch", "accumulation", "data_parallel_size")
    }
    assert explain(plan, "optimizer.momentum")[0][2] == "as the run file or its default says"
    assert explain(plan, "launch.processes")[0][2] == "as launch.processes says"
    with pytest.raises(PlanError, match=r"batch\.micro_batch"):
        explain(plan, "batch.micro_bach")


def test_intervals_as_text() -> None:
    assert interval_text(IntervalPlan()) == "never"
    assert interval_text(IntervalPlan(steps=1)) == "every step"
    assert interval_text(IntervalPlan(steps=5)) == "every 5 steps"
    assert interval_text(IntervalPlan(seconds=90)) == "every 1 min 30 s"


@pytest.mark.parametrize(
    ("key", "path", "why"),
    [
        ("train.length", "schedule.steps", "as train.length says"),
        ("optimizer.lr", "schedule.peak_lr", "as the run file or its default says"),
        ("strategy.stage", "strategy.stage", "follows from strategy: the simplest, and it fits"),
        ("shape.hidden", "shape.hidden", "counted from the model's config"),
    ],
)
def test_a_run_files_key_and_a_value_without_a_reason_of_its_own(key: str, path: str, why: str) -> None:
    name, _, reason = explain(plan_of({**SMALL, "strategy": "auto"}, LAPTOP), key)[0]
    assert name == path
    assert reason.startswith(why)


def test_every_value_of_a_plan_can_be_explained() -> None:
    plan = plan_of(SMALL, LAPTOP)
    for key in [*plan.reasons, *dict(flatten(plan.model_dump(mode="json", exclude={"reasons"})))]:
        assert explain(plan, key)
    [(_, items, _)] = explain(plan, "memory.items")
    assert items.startswith("parameters ")
    assert "MiB" in items
