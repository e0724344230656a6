"""Two published guides' own DeepSpeed files, trained as they stand but for the one word that a CPU needs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes.runs import Run, Workplace, run_file
from headway.parallel.deepspeed_config import deepspeed_config

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

FILES = Path(__file__).parents[1] / "cases"
ON_A_CPU = "train.precision=fp32"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("guides"))
    for number in (1, 2):
        shutil.copy(FILES / f"ds_config_guide{number}.json", place.folder)
    return place


def guide(number: int) -> dict[str, Any]:
    """A run file that says only what the guide's JSON leaves to a training script."""
    file = run_file("ddp")
    file["train"] = {"length": "4 steps", "sequence": 32}
    file["optimizer"] = {"lr": 1e-3} if number == 1 else {}
    file["strategy"] = {"kind": "deepspeed", "config": f"ds_config_guide{number}.json"}
    return file


def of_kind(run: Run, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in run.dir.events.read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


@pytest.fixture(scope="module")
def first(workplace: Workplace) -> Run:
    return workplace.train("guide-1", guide(1), ON_A_CPU)


def test_the_first_guides_file_trains(first: Run, workplace: Workplace) -> None:
    config = deepspeed_config(first.plan())
    assert (config["train_batch_size"], config["train_micro_batch_size_per_gpu"]) == (32, 16)  # "auto" on two ranks
    assert config["zero_optimization"]["stage"] == 2
    assert config["zero_optimization"]["reduce_bucket_size"] == 200_000_000
    assert first.plan().optimizer.betas == (0.9, 0.999)
    assert first.plan().schedule.peak_lr == 1e-3  # "auto" is the run file's
    assert first.plan().log_every == 10
    assert of_kind(first, "done")
    assert not of_kind(first, "warning")
    kept = (first.dir.path / "deepspeed.json").read_text(encoding="utf-8")
    assert kept == (workplace.folder / "ds_config_guide1.json").read_text(encoding="utf-8")


def test_a_resume_reads_the_copy_in_the_run_directory(first: Run, workplace: Workplace) -> None:
    """Whatever became of the file meanwhile."""
    (workplace.folder / "ds_config_guide1.json").write_text('{"zero_optimization": {"stage": 7}}')
    workplace.headway("resume", first.dir.name, "train.length=5 steps").expect(0)
    assert [event["step"] for event in of_kind(first, "resumed")] == [4]
    assert first.dir.exists()


def test_the_second_guides_file_trains_and_its_promise_is_kept(workplace: Workplace) -> None:
    planned = workplace.headway("plan", workplace.write("guide-2", guide(2)), ON_A_CPU).expect(0)
    assert "alone saves no memory" in planned.out
    run = workplace.train("guide-2", guide(2), ON_A_CPU)
    config = deepspeed_config(run.plan())
    assert config["train_batch_size"] == 32
    assert config["gradient_accumulation_steps"] == 4
    assert config["train_micro_batch_size_per_gpu"] == 4  # 32 / (4 x 2)
    zero = config["zero_optimization"]
    assert (zero["stage"], zero["offload_optimizer"]["device"], zero["offload_param"]["device"]) == (3, "cpu", "cpu")
    assert run.plan().numerics.activation_checkpointing, "the block alone would recompute nothing"
    said = " ".join(event["text"] for event in of_kind(run, "warning"))
    assert "strategy.offload (optimizer, parameters) has no effect on a CPU" in said
    assert "activation_checkpointing" not in said, "the built model does recompute"
    assert of_kind(run, "done")


def test_unchanged_they_are_refused_on_a_cpu_with_the_one_word_to_add(workplace: Workplace) -> None:
    shutil.copy(FILES / "ds_config_guide1.json", workplace.folder)
    for number, line in ((1, 15), (2, 12)):
        ended = workplace.headway("plan", workplace.write("unchanged", guide(number)))
        assert ended.code == 2
        assert f"ds_config_guide{number}.json:{line}: train.precision = 'fp16': cannot be trained on a CPU" in ended.err
        assert "fp32 (exact)" in ended.err


def test_the_command_line_takes_a_file_for_a_cluster_that_is_not_here(workplace: Workplace) -> None:
    shutil.copy(FILES / "cfg-11" / "ds_config.json", workplace.folder)
    path = workplace.write(
        "elsewhere", run_file("ddp") | {"train": {"length": "9 steps", "sequence": 32}, "optimizer": {}}
    )
    ended = workplace.headway("plan", path, "--deepspeed-config", "ds_config.json", "--world-size", "6")
    assert ended.code == 2
    assert "100 is no multiple of 4 (micro batch) x 6 (processes) = 24" in ended.err
    fits = workplace.headway(
        "plan", path, "--deepspeed-config", "ds_config.json", "--world-size", "5", "--effective", "--json"
    )
    fits.expect(0)
    found = json.loads(fits.out)
    engine = {row["key"]: row for row in found["deepspeed"]}
    assert engine["gradient_accumulation_steps"]["value"] == 5
    assert engine["train_micro_batch_size_per_gpu"]["origin"] == "train.micro_batch: ds_config.json:2"
    assert engine["gradient_clipping"]["origin"] == "optimizer.clip: default"
