"""A whole run with an adapter, by the commands: plan, train, a kill, resume, export; and a base that is another one."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes.runs import BROKEN, EVERY, STEPS, Run, Workplace, end_of, run_file
from headway.launch.ports import any_free_port

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

RANK = 4


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("adapter-runs"))


@pytest.fixture(scope="module")
def base(workplace: Workplace) -> Path:
    """A model folder with its tokenizer, as a run left it."""
    run = workplace.train("base", run_file("ddp", export={"at_end": True, "sample": "the sea"}))
    return Path(shutil.copytree(run.dir.export, workplace.folder / "base-model"))


def adapter_file(strategy: str, base: Path, **sections: Any) -> dict[str, Any]:
    adapter = {"kind": "lora", "rank": RANK, "dropout": 0.1}
    content = run_file(strategy, export={"at_end": True, "sample": "the sea"}, **sections)
    return content | {"model": {"from": str(base)}, "adapter": adapter}


@pytest.fixture(scope="module")
def straight(workplace: Workplace, base: Path) -> Run:
    return workplace.train("straight", adapter_file("zero-2", base))


def test_it_learns_and_is_exported_in_both_forms(straight: Run, base: Path) -> None:
    held_out = [figures["loss"] for _, figures in sorted(straight.evaluations().items())]
    assert held_out == sorted(held_out, reverse=True)
    export = straight.events("export")[-1]
    assert export["verified"] is True
    assert export["max_difference"] <= export["bound"]
    assert straight.events("sample")
    merged, before = load_file(straight.dir.export / "model.safetensors"), load_file(base / "model.safetensors")
    adapter = load_file(straight.dir.export / "adapter" / "adapter_model.safetensors")
    assert merged.keys() == before.keys()
    changed = {name for name in merged if not torch.equal(merged[name], before[name])}
    assert changed == {name for name in before if "proj" in name}
    assert len(adapter) == 2 * len(changed)


def test_the_plan_counts_the_adapter(straight: Run) -> None:
    plan = straight.plan()
    with straight.newest() as reader:
        census = reader.document("census.json")
        stored = set(reader.names())
    assert census is not None
    assert set(census["trained"]) == stored
    counted = sum(torch.Size(shape).numel() for shape in census["trained"].values())
    frozen = sum(torch.Size(shape).numel() for shape in census["frozen"].values())
    assert plan.shape.trainable_parameters == counted
    assert plan.shape.parameters == counted + frozen
    assert plan.adapter is not None
    assert census["base"] == plan.adapter.base
    assert (plan.adapter.rank, plan.adapter.alpha) == (RANK, 2 * RANK)


def test_a_checkpoint_holds_no_frozen_weight(straight: Run) -> None:
    newest = straight.dir.checkpoints / straight.checkpoints()[-1]
    size = sum(path.stat().st_size for path in newest.glob("*.safetensors"))
    assert size < 1.5 * 12 * straight.plan().shape.trainable_parameters  # 4 + 8 bytes a parameter, and the headers


def test_a_killed_run_goes_on_to_the_bit(workplace: Workplace, base: Path, straight: Run) -> None:
    watch = workplace.watch("killed")
    watch.plant("kill")
    content = adapter_file("zero-2", base, task=watch.task)
    assert workplace.headway("train", workplace.write("killed", content), "--name", "killed").code == 5
    run = workplace.run("killed")
    assert list(run.losses()) == list(range(1, BROKEN))
    watch.heal()
    workplace.headway("resume", run.path).expect(0)
    assert run.events("resumed")[-1]["step"] == EVERY
    assert run.losses() == straight.losses()
    assert run.state() == straight.state()
    assert run.evaluations() == straight.evaluations()


SCRIPT = """
import sys
import headway

run = headway.prepare("scripted.json", sys.argv[1:])
for batches in run.batches():
    run.engine.train_step(batches)
run.finish()
"""


def test_a_script_of_the_users_trains_the_same_adapter(workplace: Workplace, base: Path, straight: Run) -> None:
    """The base is the run file's folder; the loop is the script's; DeepSpeed's launcher adds an argument of its own."""
    workplace.write("scripted", adapter_file("zero-2", base))
    (workplace.folder / "own.py").write_text(SCRIPT)
    words = [sys.executable, Path(sys.executable).parent / "deepspeed", "--num_gpus", "2"]
    command = [*words, "--master_port", str(any_free_port()), "own.py", "name=scripted"]
    end_of(workplace.start(command)).expect(0)
    own = workplace.run("scripted")
    assert own.losses() == straight.losses()
    assert own.state() == straight.state()
    assert own.events("export")[-1]["verified"] is True


def test_another_base_model_is_refused(workplace: Workplace, base: Path, straight: Run) -> None:
    """The folder's weights changed after the run: neither a resume nor an export goes on beside them."""
    copied = straight.copy("other-base")
    file = base / "model.safetensors"
    kept = file.read_bytes()
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    try:
        save_file(tensors, file, metadata={"format": "pt"})
        export = workplace.headway("export", copied.path)
        assert export.code == 3
        assert "an adapter for another base model" in export.err
        longer = workplace.headway("resume", copied.path, f"train.length={STEPS + 2} steps")
        assert longer.code == 2
        assert "model.from" in longer.err
        assert "another base model" in longer.err
    finally:
        file.write_bytes(kept)


def test_the_folder_may_move(workplace: Workplace, base: Path, straight: Run) -> None:
    copied = straight.copy("moved")
    there = shutil.copytree(base, workplace.folder / "moved-model")
    record = json.loads(copied.dir.record.read_text())
    assert record["run_file"]["path"]
    words = (f"model.from={there}", f"train.length={STEPS + 2} steps")
    workplace.headway("resume", copied.path, *words).expect(0)
    assert copied.metrics()[-1]["step"] == STEPS + 2
    assert copied.plan().model.path == str(there)


def test_export_from_a_checkpoint_alone(workplace: Workplace, straight: Run) -> None:
    out = workplace.folder / "exported"
    workplace.headway("export", straight.path, "--step", EVERY * 2, "--out", out).expect(0)
    assert json.loads((out / "headway.json").read_text())["verified"] is True
    assert json.loads((out / "adapter" / "headway.json").read_text())["step"] == EVERY * 2
