"""What a run leaves behind: a model that plain transformers loads, the record of where it comes from, the plan kept."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fakes.runs import EVERY, STEPS, Run, Workplace, run_file
from headway.data.seam import IGNORE, Sample, SampleSource
from headway.data.store import open_split
from headway.errors import CheckpointError
from headway.plan.schedule import table

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

SECRET = "hf_" + "Qw7eRt5yUi3o" * 2
EXPORTED = {"untied": "ddp", "tied": "zero-3"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A user's repository, with one commit and one change since."""
    place = Workplace(tmp_path_factory.mktemp("delivery"))
    (place.folder / ".gitignore").write_text("corpus\nruns\n.headway\n*.json\n")
    (place.folder / "notes.txt").write_text("first\n")
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", *words], cwd=place.folder, check=True, timeout=60)
    (place.folder / "notes.txt").write_text(f"first\nnot yet committed, by {SECRET}\n")
    return place


@pytest.fixture(scope="module")
def exported(workplace: Workplace) -> dict[str, Run]:
    """One run with tied and one with untied embeddings, each exported by its ranks at the end."""
    runs: dict[str, Run] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", SECRET)
        for name, strategy in EXPORTED.items():
            model = run_file(strategy)["model"]
            model["config"]["tie_embeddings"] = name == "tied"
            content = run_file(strategy, model=model, export={"at_end": True, "sample": "the sea"})
            runs[name] = workplace.train(name, content)
    return runs


def all_of(source: SampleSource) -> Iterator[Sample]:
    return (source[index] for index in range(len(source)))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


@pytest.mark.parametrize("name", list(EXPORTED))
def test_the_export_is_the_trained_model(name: str, exported: dict[str, Run]) -> None:
    run = exported[name]
    event = run.events("export")[-1]
    assert event["verified"] is True
    assert event["max_difference"] <= event["bound"]
    tensors, trained = tensors_of(run.dir.export), run.weights()
    assert ("lm_head.weight" in tensors) == (name == "untied")
    assert equal({key: tensor.flatten() for key, tensor in tensors.items()}, trained)


@pytest.mark.parametrize("name", list(EXPORTED))
def test_the_record_holds_plan_against_actual(name: str, exported: dict[str, Run], workplace: Workplace) -> None:
    """Parameters and optimizer states as counted on the live engine; ZeRO-3's in two parts."""
    run = exported[name]
    record = json.loads(run.dir.record.read_text())
    promised, actual = record["forecast"], record["actual"]
    assert promised["step_seconds"] > 0
    assert actual["steps"] == STEPS - 2
    assert actual["processes"] == 2
    assert actual["memory_peak_bytes"] == max(line["memory_peak_bytes"] for line in run.metrics()) or (
        actual["memory_peak_bytes"] > run.metrics()[-1]["memory_peak_bytes"]  # the other rank's is the larger
    )
    for item in ("parameters", "optimizer states"):
        planned, live = (sum(side["memory_items"][item].values()) for side in (promised, actual))
        assert live == pytest.approx(planned, rel=0.02), item  # paddings, counters, norms that ZeRO-3 keeps whole
    shown = workplace.headway("show", run.path).expect(0).out
    assert "step time" in shown
    assert "parameters" in shown


def plain(folder: Path) -> tuple[Any, Any]:
    """(model, tokenizer) as any user of transformers loads them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", list(EXPORTED))
def test_plain_transformers_loads_and_continues(name: str, exported: dict[str, Run], workplace: Workplace) -> None:
    run = exported[name]
    model, tokenizer = plain(run.dir.export)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (name == "tied")
    words = model.generate(**tokenizer("the sea", return_tensors="pt"), max_new_tokens=8, do_sample=False)
    expected = tokenizer.decode(words[0], skip_special_tokens=True)
    asked = ["--prompt", "the sea", "--max-tokens", "8", "--temperature", "0"]
    assert workplace.headway("generate", run.path, *asked).expect(0).out == f"{expected}\n"
    assert run.events("sample")[-1]["prompt"] == "the sea"


@pytest.mark.parametrize("name", list(EXPORTED))
def test_the_held_out_loss_is_what_plain_transformers_finds(name: str, exported: dict[str, Run]) -> None:
    """Each document's part of each window alone, so without packing, masks or several ranks."""
    run = exported[name]
    data = run.plan().data
    model, _ = plain(run.dir.export)
    total, count = 0.0, 0
    for sample in all_of(open_split(Path(data.store), "eval", data.sequence, data.packing)):
        for document in np.unique(sample.documents):
            tokens, labels = (
                torch.from_numpy(part[sample.documents == document]) for part in (sample.tokens, sample.labels)
            )
            with torch.no_grad():
                logits = model(tokens[None].long()).logits[0]
            total += float(
                torch.nn.functional.cross_entropy(logits, labels.long(), ignore_index=IGNORE, reduction="sum")
            )
            count += int((labels != IGNORE).sum())
    assert count == run.plan().facts.eval_targets
    assert run.evaluations()[STEPS]["loss"] == pytest.approx(total / count, abs=1e-5)


@pytest.mark.parametrize("name", list(EXPORTED))
def test_the_export_of_the_last_checkpoint_is_the_export_at_the_end(
    name: str, exported: dict[str, Run], workplace: Workplace
) -> None:
    run, again = exported[name], workplace.folder / f"again-{name}"
    said = workplace.headway("export", run.path, "--out", again).expect(0)
    assert "verified" in said.out
    assert equal(tensors_of(again), tensors_of(run.dir.export))
    earlier = workplace.folder / f"earlier-{name}"
    workplace.headway("export", run.path, "--step", str(2 * EVERY), "--out", earlier).expect(0)
    assert not equal(tensors_of(earlier), tensors_of(run.dir.export))


def test_a_damaged_checkpoint_is_named_and_not_exported(exported: dict[str, Run], workplace: Workplace) -> None:
    run = exported["untied"].copy("tampered")
    shutil.rmtree(run.dir.export)
    newest = f"step-{STEPS:08d}"
    damaged = run.dir.checkpoints / newest / "rank-00000-part-000.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    refused = workplace.headway("export", run.path, "--step", str(STEPS)).expect(CheckpointError.exit_code)
    assert f"{newest} is damaged" in refused.err
    assert not run.dir.export.exists()
    older = workplace.headway("export", run.path).expect(0)
    assert f"warning: {newest} is damaged" in older.out
    assert f"step {2 * EVERY} exported" in older.out


def test_only_the_newest_checkpoints_stay(exported: dict[str, Run]) -> None:
    for run in exported.values():
        assert [event["step"] for event in run.events("checkpoint")] == [EVERY, 2 * EVERY, STEPS]
        folders = {path.name for path in run.dir.checkpoints.iterdir() if not path.name.startswith(".")}
        assert folders == {f"step-{2 * EVERY:08d}", f"step-{STEPS:08d}"}


def test_the_record_stands_in_run_checkpoint_and_export(exported: dict[str, Run], workplace: Workplace) -> None:
    git = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(git, cwd=workplace.folder, capture_output=True, check=True, text=True, timeout=60)
    for run in exported.values():
        record = json.loads(run.dir.record.read_text())
        assert record["git"]["commit"] == commit.stdout.strip()
        assert record["git"]["dirty"] is True
        assert "+not yet committed" in run.dir.record_diff.read_text()
        assert run.plan().data.store_hash in json.dumps(record["plan"])
        assert {"headway", "torch", "deepspeed", "transformers", "python"} <= record["versions"].keys()
        assert record["command"]
        assert record["hardware"]["cores"]
        newest = run.dir.checkpoints / f"step-{STEPS:08d}"
        for name in ("record.diff", "plan.json"):
            assert (newest / name).read_bytes() == (run.path / name).read_bytes()
        actual = record.pop("actual")  # known once the last checkpoint is there
        assert actual["tokens_per_second"] > 0
        assert json.loads((newest / "record.json").read_text()) == record
        card = json.loads((run.dir.export / "headway.json").read_text())
        assert card["record"] | {"actual": actual} == record | {"actual": actual}
        assert card["plan_digest"] == run.plan().digest()
        assert commit.stdout.strip() in (run.dir.export / "README.md").read_text()


def test_no_file_of_a_run_holds_a_secret(exported: dict[str, Run]) -> None:
    for run in exported.values():
        files = [path for path in run.path.rglob("*") if path.is_file()]
        assert len(files) > 20
        assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
        assert json.loads(run.dir.record.read_text())["environment"]["HF_TOKEN"] == "[removed]"


def test_what_was_planned_was_done(exported: dict[str, Run]) -> None:
    for run in exported.values():
        plan, lines, done = run.plan(), run.metrics(), run.events("done")[-1]
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
        assert [line["lr"] for line in lines] == table(plan.schedule)
        assert [line["applied"] for line in lines] == [True] * STEPS
        assert (done["steps"], done["tokens"], done["differences"]) == (STEPS, lines[-1]["tokens"], [])
        # The last window of the data is short, and is read once an epoch.
        assert 0 <= plan.schedule.tokens - done["tokens"] < 2 * plan.data.sequence
        assert sorted(run.evaluations()) == [2, 4, 6, 8]


@pytest.mark.parametrize("strategy", ["ddp", "zero-2"])
def test_bf16_on_a_cpu(strategy: str, workplace: Workplace) -> None:
    content = run_file(strategy, train={"precision": "bf16"}, export={"at_end": True})
    run = workplace.train(f"bf16-{strategy}", content)
    losses = list(run.losses().values())
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0] - 1
    event = run.events("export")[-1]
    assert event["verified"] is True
    print(f"{strategy}: loss {losses[0]:.3f} to {losses[-1]:.3f}, logits within {event['max_difference']:.1e}")
    tensors = tensors_of(run.dir.export)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    trained = {name: weight.to(torch.bfloat16) for name, weight in run.weights().items()}
    assert equal({name: tensor.flatten() for name, tensor in tensors.items()}, trained)
