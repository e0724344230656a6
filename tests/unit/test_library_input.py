"""Library mode: what a script does wrong is said before anything starts, all at once, with its fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import headway
from fakes.models import config_of, plan_for
from headway.api.library import _is_transformers, users_own
from headway.config.load import from_mapping
from headway.errors import ConfigError, DataError, UserError
from headway.launch.script import script_command
from headway.train.feeding import feed
from headway.train.given import GivenBatch, GivenTask, Loss, models_own_loss, moved, rows_of

FILE: dict[str, Any] = {
    "train": {"length": "3 steps", "global_batch": "4 sequences", "micro_batch": 2},
    "optimizer": {"lr": 0.1},
    "launch": {"device": "cpu"},
}


def refusal(config: dict[str, Any], **asked: Any) -> set[str]:
    """The keys that are refused."""
    with pytest.raises(UserError) as found:
        headway.prepare(config, **asked)
    assert all(problem.fix for problem in found.value.problems)
    return {problem.key for problem in found.value.problems}


def test_what_is_no_argument_is_refused_with_the_others() -> None:
    assert refusal(FILE, model=3, loss=4, lr=5) == {"model", "loss", "lr"}


def test_script_and_run_file_may_not_both_say_it() -> None:
    both = FILE | {"model": {"from": "./m"}, "task": "causal_lm"}
    assert refusal(both, model=nn.Linear(1, 1), loss=print, task=object()) == {"model", "loss", "task"}


def test_an_adapter_needs_a_base_that_can_be_read_again() -> None:
    config = FILE | {"adapter": "lora", "data": {"train": "*.txt"}}
    with pytest.raises(UserError, match=r"read again at a resume(.|\n)*model: \{from: FOLDER\}"):
        headway.prepare(config, model=nn.Linear(1, 1), loss=print)


def test_what_the_deepspeed_launcher_adds_is_no_override() -> None:
    assert users_own(["--local_rank=1", "train.length=3 steps", "--local-rank=0"]) == ["train.length=3 steps"]
    assert users_own(["--local_rank=x"]) == ["--local_rank=x"]


def test_a_run_file_without_a_model_needs_one() -> None:
    assert "model" in refusal(FILE, loss=lambda model, batch: batch)


def test_epochs_of_nobody_knows_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = FILE | {"train": FILE["train"] | {"length": "2 epochs"}}
    assert refusal(config, model=nn.Linear(1, 1)) == {"train.length"}
    assert not list(tmp_path.glob("runs/*"))


def test_a_class_in_a_mapping_stands_for_its_import_path() -> None:
    config = FILE | {"model": {"factory": Loss, "tokenizer": {"train": "1k"}}, "data": {"train": "*.txt"}}
    train = FILE["train"] | {"sequence": 8}
    loaded = from_mapping(config | {"train": train, "task": {"kind": GivenTask}}, base=Path())
    assert loaded.config.model.factory == "headway.train.given:Loss"
    assert loaded.config.task.kind == "headway.train.given:GivenTask"


def test_a_module_typed_into_a_notebook_says_how_to_make_it_importable(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the sea\n" * 200)
    typed = type("Typed", (nn.Module,), {"__module__": "__main__"})
    model = {"factory": typed, "tokenizer": {"train": "1k"}}
    train = FILE["train"] | {"sequence": 8}
    with pytest.raises(ConfigError, match=r"%%writefile net\.py"):
        headway.plan(
            FILE | {"model": model, "data": {"train": str(tmp_path / "a.txt"), "packing": False}, "train": train}
        )


def test_the_package_has_the_verbs_also_where_rooms_of_their_names_are_imported() -> None:
    import headway.certify.run
    import headway.export.folder
    import headway.plan.make
    import headway.train.loop

    for verb in ("plan", "train", "certify", "export", "resume", "show", "prepare", "generate"):
        assert callable(getattr(headway, verb)), verb
    assert headway.plan.make.make_plan is not None  # pyright: ignore
    with pytest.raises(ConfigError, match=r"there is no file absent\.yaml"):
        headway.plan("absent.yaml")
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = headway.trian  # pyright: ignore
    assert {"prepare", "Loss"} <= set(dir(headway))


def test_the_launcher_says_what_it_starts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    words = script_command(script, ["--mine", "3"], 2)
    assert words[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    assert words[5:] == [str(script), "--mine", "3"]
    with pytest.raises(UserError, match=r"is a run file, not a script(.|\n)*headway train .*run\.yaml"):
        script_command(tmp_path / "run.yaml", [], 0)


def plan() -> Any:
    made = plan_for("llama")
    batch = made.batch.model_copy(update={"global_sequences": 4, "micro_batch": 2, "accumulation": 2})
    return made.model_copy(update={"batch": batch, "schedule": made.schedule.model_copy(update={"steps": 3})})


def task(loss: Any, **options: Any) -> GivenTask:
    return GivenTask(plan(), Loss(loss, **options))


def rows(count: int) -> list[torch.Tensor]:
    return [torch.full((1,), float(number)) for number in range(count)]


def test_a_loader_that_is_no_loader_and_one_that_is_empty() -> None:
    make = task(print).batch
    with pytest.raises(UserError, match="neither a dataset"):
        feed(3, None, plan(), 0, make)
    with pytest.raises(UserError, match="is for a dataset"):
        feed(iter([1]), list, plan(), 0, make)
    with pytest.raises(DataError, match="the dataset is empty"):
        next(iter(feed([], None, plan(), 0, make)))
    with pytest.raises(DataError, match=r"the loader gave no batch(.|\n)*give the loader itself"):
        next(iter(feed(DataLoader([], batch_size=2), None, plan(), 0, make)))  # pyright: ignore[reportArgumentType]


def test_a_loader_of_other_sizes_is_named_with_the_plans() -> None:
    loader = DataLoader(rows(30), batch_size=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"6 rows a step, and the plan's global batch is 4(.|\n)*batch_size=2"):
        next(iter(feed(loader, None, plan(), 0, task(print).batch)))


def test_an_iterator_can_be_read_once_only() -> None:
    batches = [torch.zeros(2, 1) for _ in range(5)]
    steps = iter(feed(iter(batches), None, plan(), 0, task(print).batch))
    assert len(next(steps)) == 2
    next(steps)
    with pytest.raises(DataError, match="a second time: an iterator can be read once only"):
        next(steps)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda model, batch: batch, r"loss\.loss: must be a tensor of one number, not one of shape \[2, 1\]"),
        (lambda model, batch: 3.0, "not float"),
        (lambda model, batch: {"a": batch.sum(), "b": batch.sum()}, "gave the terms a, b; those of the loss are loss"),
    ],
)
def test_what_is_no_loss_is_refused(loss: Any, said: str) -> None:
    given = task(loss)
    with pytest.raises(UserError, match=said):
        given.loss(nn.Linear(1, 1), given.batch(torch.zeros(2, 1)))


def test_means_and_sums_are_told_apart_and_stand_ins_count_as_nothing() -> None:
    batch = torch.tensor([[1.0], [3.0]])
    mean, total = task(lambda model, b: b.mean()), task(lambda model, b: b.sum(), count=len)
    for given in (mean, total):
        made = given.batch(batch)
        assert made.counts == {"loss": 2.0}
        assert float(given.loss(nn.Linear(1, 1), made)["loss"]) == 4.0
        stand_in = given.batch(batch, stand_in=True)
        assert stand_in.counts == {"loss": 0.0}
        assert float(given.loss(nn.Linear(1, 1), stand_in)["loss"]) == 0.0
    with pytest.raises(UserError, match="has no rows"):
        mean.batch({"name": "text"})


def test_headways_own_data_needs_sums() -> None:
    with pytest.raises(UserError, match=r"headway\.Loss\(function, count="):
        task(print).collate([], 8)


def test_batches_of_any_form_move_whole() -> None:
    content = {"a": [torch.zeros(3, 1), "text"], "b": (torch.ones(3), 2)}
    there = moved(content, torch.device("meta"))
    assert (there["a"][0].device.type, there["b"][0].device.type) == ("meta", "meta")
    assert (there["a"][1], there["b"][1]) == ("text", 2)
    assert rows_of(content) == 3
    assert GivenBatch({}, {}, 0, content).to(torch.device("meta")).content["b"][0].device.type == "meta"


def test_a_module_that_returns_no_loss_says_so() -> None:
    given = GivenTask(plan(), models_own_loss(nn.Linear(1, 2)))
    with pytest.raises(UserError, match=r"returned one of shape \[3, 2\], which is no loss"):
        given.loss(nn.Linear(1, 2), given.batch(torch.zeros(3, 1)))


def test_a_changed_transformers_model_is_a_module_of_the_scripts_own() -> None:
    """Its export is then its own too: in the library's form it would lack what the config does not say."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    def made(kind: Any) -> Any:
        return kind.from_config(AutoConfig.for_model(**config_of("llama")))

    plain = made(AutoModelForCausalLM)
    assert _is_transformers(plain, "causal_lm")
    assert not _is_transformers(nn.Linear(1, 1), "causal_lm")
    classifier = made(AutoModelForSequenceClassification)
    assert not _is_transformers(classifier, "causal_lm")
    assert _is_transformers(classifier, "classification")
    plain.extra = nn.Linear(2, 2)
    assert not _is_transformers(plain, "causal_lm")


def test_the_loss_of_a_model_that_peft_has_wrapped_counts_what_it_predicts() -> None:
    peft = pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of("llama")))
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert not _is_transformers(wrapped, "causal_lm")
    count = models_own_loss(wrapped).count
    assert count is not None
    assert count({"labels": torch.zeros(3, 5, dtype=torch.long)}) == 12
