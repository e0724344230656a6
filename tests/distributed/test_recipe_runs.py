"""The recipes that need no pretrained weights, run for a few steps on two ranks; the others: test_real_models.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakes.recipes import ROOT
from fakes.runs import Run, Workplace

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("recipes"))


def shortened(workplace: Workplace, recipe: Path, name: str) -> Run:
    """Four steps on a small corpus and a small vocabulary; all else as the recipe says."""
    words = [f"data.train={workplace.folder}/corpus/*.txt", "data.eval=20%", "model.tokenizer.train=300"]
    words += ["train.length=4 steps", "train.eval_every=4 steps", "launch.processes=2"]
    workplace.headway("train", recipe, *words).expect(0)
    return workplace.run(name)


def test_the_quickstart(workplace: Workplace) -> None:
    run = shortened(workplace, ROOT / "recipes" / "quickstart.yaml", "quickstart")
    losses = run.losses()
    assert sorted(losses) == [1, 2, 3, 4]
    assert losses[4] < losses[1]
    assert run.plan().strategy.label == "zero-2"
    assert run.events("export")[-1]["verified"] is True


def test_a_module_and_a_loss_of_ones_own(workplace: Workplace) -> None:
    run = shortened(workplace, ROOT / "examples" / "own_module" / "run.yaml", "own-module")
    first, last = run.metrics()[0], run.metrics()[-1]
    for line in (first, last):
        assert line["loss"] == pytest.approx(line["term.next"] + 0.3 * line["term.after"], rel=1e-6)
    assert last["term.next"] < first["term.next"]
    assert run.events("export")[-1]["verified"] is True
    export = run.dir.export
    source = ROOT / "examples" / "own_module" / "net.py"
    assert (export / "code" / "net.py").read_text() == source.read_text()
    # It loads where Headway and DeepSpeed are not.
    code = "import sys; from load import load; print(type(load()).__name__, 'headway' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=export, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["Net", "False"], done.stderr
