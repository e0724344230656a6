"""Two recipes on real weights and real data, made short: pretrained folders from packages, WordNet from Debian."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.recipes import ROOT
from fakes.runs import Run, Workplace
from headway.data.store import TokenStore

EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

import pretrained  # noqa: E402
import wordnet  # noqa: E402
import wordnet_baseline  # noqa: E402

MODULES = ("gguf", "peft", "sklearn", *pretrained.PACKAGES.values())
ABSENT = [name for name in MODULES if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(ABSENT), reason=f"needs packages that are not here: {', '.join(ABSENT)}"),
    pytest.mark.skipif(not (wordnet.WORDNET / "data.noun").is_file(), reason="needs Debian's package wordnet-base"),
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def data(workplace: Workplace) -> Path:
    """One meaning in twenty of WordNet's, as the examples write it."""
    counts = wordnet.write(wordnet.WORDNET, workplace.folder / "data", every=20)
    assert counts["glosses.jsonl"] > 40 * counts["glosses-eval.jsonl"] > 1000
    return workplace.folder / "data"


def model(workplace: Workplace, name: str) -> Path:
    """A model's folder, by the command that a user would type."""
    command = [sys.executable, EXAMPLES / "pretrained.py", workplace.folder / "models", "--only", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().splitlines()[-1])


def trained(workplace: Workplace, recipe: str, *overrides: str) -> Run:
    path = ROOT / "recipes" / f"{recipe}.yaml"
    workplace.headway("train", path, *overrides, "launch.processes=2").expect(0)
    return workplace.run(recipe)


def mean_loss(folder: Path, run: Run) -> float:
    """Plain transformers' loss on the held-out chats, each alone, over what the assistant said."""
    from transformers import AutoModelForCausalLM

    store = TokenStore(Path(run.plan().data.store))
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total, count = 0.0, 0
    for number in store.documents("eval").tolist():
        ids = torch.from_numpy(store.document(number).astype("int64"))[None]
        labels = ids.masked_fill(torch.from_numpy(store.learnt(number).astype("int64"))[None] == 0, -100)
        targets = int((labels[0, 1:] != -100).sum())
        with torch.no_grad():
            total += float(plain(input_ids=ids, labels=labels).loss) * targets
        count += targets
    return total / count


def test_a_pretrained_model_learns_chats_by_lora(workplace: Workplace, data: Path) -> None:
    folder = model(workplace, pretrained.SMOLLM2)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    words = [f"model.from={folder}", f"data.train={data / 'chats.jsonl'}", f"data.eval={data / 'chats-eval.jsonl'}"]
    short = ["train.length=4 steps", "train.eval_every=4 steps", "train.sequence=128", "checkpoint.every=4 steps"]
    run = trained(workplace, "smollm2-sft-lora", *words, *short)
    figures = run.evaluations()
    assert sorted(figures) == [0, 4]
    # fp32 on both sides; packed with others here, alone there.
    assert figures[0]["loss"] == pytest.approx(mean_loss(folder, run), abs=1e-4)
    assert figures[4]["loss"] < figures[0]["loss"] - 0.05
    assert run.events("export")[-1]["verified"] is True
    assert sorted(path.name for path in run.dir.export.glob("*.safetensors")) == ["adapter_model.safetensors"]
    assert run.plan().strategy.label == "zero-2"
    assert len(run.events("sample")[-1]["text"]) > 10


def test_a_pretrained_encoder_learns_classes(workplace: Workplace, data: Path) -> None:
    folder = model(workplace, pretrained.MINILM)
    words = [f"model.from={folder}", f"data.train={data / 'glosses.jsonl'}", f"data.eval={data / 'glosses-eval.jsonl'}"]
    short = ["train.length=24 steps", "train.global_batch=32 sequences", "train.eval_every=24 steps"]
    run = trained(workplace, "minilm-classification", *words, *short)
    figures = run.evaluations()
    assert sorted(figures) == [24]  # a fresh head is not judged before it has learnt
    assert run.events("export")[-1]["verified"] is True
    config = json.loads((run.dir.export / "config.json").read_text())
    assert set(config["label2id"]) == set(wordnet.FILES)
    others = wordnet_baseline.measure(data)
    largest, linear = (others[name][0] for name in ("largest class", "TF-IDF + logistic regression"))
    assert 0 < largest < linear < 1
    assert figures[24]["accuracy"] > largest
