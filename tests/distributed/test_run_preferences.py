"""Whole runs of preferences: two ranks, the reference computed once and found again, resumed, adapted, exported."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.chats import MARKED, chat_tokenizer, turn, write_jsonl
from fakes.corpora import prose
from fakes.runs import EVERY, STEPS, Run, Workplace, run_file

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

PAIRS = 60
ROOT = Path(__file__).parents[2]


def preference(number: int) -> dict[str, Any]:
    """The chosen answer speaks of the sea, the rejected one of a stone; texts, and messages."""
    draw = random.Random(number)
    prompt = prose(number, 3 + number % 6)
    chosen, rejected = (f"{word} " * draw.randrange(2, 9) for word in ("sea", "stone"))
    if number % 2:
        return {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    asked = [turn("system", "walk"), turn("user", prompt)]
    return {"chosen": [*asked, turn("assistant", chosen)], "rejected": [*asked, turn("assistant", rejected)]}


def file_of(strategy: str, **sections: Any) -> dict[str, Any]:
    content = run_file(strategy, data={"train": "pairs.jsonl"}, task={"kind": "preference", "beta": 0.5}, **sections)
    content["train"] |= {"sequence": 120}
    if "from" not in content["model"]:
        content["model"]["tokenizer"] = {"from": "tokenizer"}
    return content


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("preferences"))
    chat_tokenizer(place.folder, MARKED)
    write_jsonl(place.folder / "pairs.jsonl", [preference(number) for number in range(PAIRS)])
    return place


@pytest.fixture(scope="module")
def full(workplace: Workplace) -> Run:
    return workplace.train("full", file_of("zero-2", export={"at_end": True}))


def computed(run: Run) -> list[str]:
    texts = [event["text"] for event in run.events("notice")]
    return [text for text in texts if text.startswith("reference log-probabilities of")]


def test_pairs_are_learnt_and_judged(full: Run, workplace: Workplace) -> None:
    evaluations = full.evaluations()
    first, last = evaluations[2], evaluations[STEPS]
    assert {"loss", "accuracy", "margin", "reward_chosen", "reward_rejected"} <= last.keys()
    assert last["loss"] < first["loss"]
    assert last["accuracy"] > 0.9
    assert last["margin"] == pytest.approx(last["reward_chosen"] - last["reward_rejected"], abs=1e-5)
    assert full.events("export")[-1]["verified"] is True
    judged = workplace.headway("evaluate", full.path, "--json").expect(0).out
    assert json.loads(judged)["held_out"]["accuracy"] == last["accuracy"]
    assert json.loads(judged)["held_out"]["loss"] == pytest.approx(last["loss"], abs=1e-6)
    assert full.events("done")[-1]["differences"] == []
    # Before the first update the model is its reference, but for dropout.
    assert full.metrics()[0]["loss"] == pytest.approx(math.log(2), abs=0.1)
    assert {"term.accuracy", "term.margin"} <= full.metrics()[0].keys()


def test_the_reference_is_computed_once_and_counted_by_the_plan(full: Run, workplace: Workplace) -> None:
    plan = full.plan()
    count = plan.facts.train_windows + plan.facts.eval_windows
    assert count == PAIRS
    assert [text.split(" in ")[0] for text in computed(full)] == [
        f"reference log-probabilities of {count} pairs computed"
    ]
    assert f"{count} pairs, " in plan.reasons["task.options.reference"]
    tables = sorted(Path(plan.data.store).glob("reference-*.npy"))
    assert [len(np.load(table)) for table in tables] == [plan.facts.eval_windows, plan.facts.train_windows]
    again = workplace.train("again", file_of("ddp", train={"length": "3 steps"}))
    assert computed(again) == []
    assert again.metrics()[0]["loss"] == pytest.approx(full.metrics()[0]["loss"], abs=1e-6)


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_that_goes_on_ends_equal(full: Run, workplace: Workplace, kept: bool) -> None:
    """Also where the tables were lost: the engine is the reference until its state is restored."""
    copy = full.copy(f"going-on-{kept}")
    for folder in copy.dir.checkpoints.glob("step-*"):
        if not folder.name.startswith(f"step-{2 * EVERY:08d}"):
            shutil.rmtree(folder)
    tables = list(Path(full.plan().data.store).glob("reference-*.npy"))
    if not kept:
        for table in tables:
            table.unlink()
    workplace.headway("resume", copy.path, "checkpoint.keep=3").expect(0)
    assert copy.events("resumed")[-1]["step"] == 2 * EVERY
    assert bool(computed(copy)[1:]) is not kept
    assert copy.losses() == full.losses()
    assert copy.state() == full.state()
    assert copy.evaluations()[STEPS] == full.evaluations()[STEPS]


def test_every_stage_gives_the_losses_of_one_process(workplace: Workplace) -> None:
    """Without dropout, whose draws are each rank's own. Bound: fp32 sums in another order, through three steps."""

    def figures(strategy: str, processes: int) -> list[list[float]]:
        content = file_of(strategy, train={"length": "3 steps"}, launch={"processes": processes})
        content["model"]["config"]["dropout"] = 0.0
        run = workplace.train(f"stage-{strategy}", content)
        return [[line[name] for name in ("loss", "term.margin", "grad_norm")] for line in run.metrics()]

    alone = figures("single", 1)
    assert alone[0][0] == pytest.approx(math.log(2), abs=1e-6)
    for strategy in ("zero-1", "zero-2"):
        for step, expected in zip(figures(strategy, 2), alone, strict=True):
            assert step == pytest.approx(expected, rel=1e-4, abs=1e-5), strategy


def test_the_recipe_is_planned_and_runs_small(full: Run, workplace: Workplace) -> None:
    """On the tiny model in place of its own, and shorter."""
    smaller = [f"model.from={full.dir.export}", "train.length=2 steps", "train.sequence=400", "launch.device=cpu"]
    smaller += ["launch.processes=2", "launch.threads=1", "train.eval_every=2 steps"]
    recipe = ROOT / "recipes" / "dpo.yaml"
    workplace.headway("plan", recipe, *smaller).expect(0)
    workplace.headway("train", recipe, *smaller).expect(0)
    run = workplace.run("dpo")
    assert run.plan().adapter is not None
    assert run.plan().facts.train_windows + run.plan().facts.eval_windows == 40
    assert run.events("export")[-1]["verified"] is True


def wide_base(full: Run, folder: Path) -> Path:
    """A model folder with the run's tokenizer, and rows of whole blocks, which bitsandbytes needs on a CPU."""
    shutil.copytree(full.dir.export, folder)
    config = json.loads((folder / "config.json").read_text()) | {"hidden_size": 64, "intermediate_size": 128}
    config |= {"head_dim": 16}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).save_pretrained(folder)
    return folder


def test_an_adapter_beside_a_base_in_4_bits_under_zero_3(
    full: Run, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reference is the folder's model in 4 bits: the adapter begins as nothing. Asked, it answers as a chat.

    On bitsandbytes' CPU kernels; a run file is refused there.
    """
    pytest.importorskip("bitsandbytes", reason="the extra `qlora` is not installed")
    monkeypatch.setattr("headway.plan.make.refuse_unquantizable", lambda *_: None)
    content = file_of("zero-3", train={"length": "4 steps"}, export={"at_end": True}, checkpoint={"every": "2 steps"})
    content["model"] = {"from": str(wide_base(full, workplace.folder / "wide"))}
    content["adapter"] = {"kind": "qlora", "rank": 4}
    run = workplace.train("adapted", content)
    assert len(run.plan().task.options["reference"]) == 64
    assert len(computed(run)) == 1
    assert run.metrics()[0]["loss"] == pytest.approx(math.log(2), abs=0.1)
    assert run.events("export")[-1]["verified"] is True
    record = json.loads((run.dir.export / "headway.json").read_text())
    assert record["plan"]["task"]["kind"] == "preference"
    said = workplace.headway("generate", run.path, "--prompt", "the sea", "--max-tokens", "4", "--temperature", "0")
    assert said.expect(0).out
    copy = run.copy("adapted-on")
    shutil.rmtree(copy.dir.checkpoints / copy.checkpoints()[-1])
    workplace.headway("resume", copy.path, "checkpoint.keep=3").expect(0)
    assert copy.events("resumed")[-1]["step"] == 2
    assert (copy.losses(), copy.state()) == (run.losses(), run.state())
