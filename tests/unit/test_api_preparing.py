"""From a run file to a plan, with real text and a tokenizer trained on it; no torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway import api
from headway.api import preparing
from headway.data.seam import Silent
from headway.data.vocabulary import read_vocabulary
from headway.errors import ModelError

RUN = """\
model:  {config: {arch: llama, hidden: 32, layers: 2, heads: 2}, tokenizer: {train: 300}}
data:   {train: ["corpus/*.txt"], eval: 20%}
train:  {length: 4 steps, sequence: 32, global_batch: 4 sequences}
optimizer: {lr: 1e-3}
launch: {processes: 2}
"""


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "corpus").mkdir()
    for number in range(12):
        (tmp_path / "corpus" / f"{number}.txt").write_text(f"chapter {number}: " + "the wind rose and fell. " * 30)
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.yaml"


def test_the_token_that_ends_documents_is_trained(run_file: Path) -> None:
    """transformers gives a pad token's embedding no gradient, and from scratch the pad token is the end token."""
    loaded = preparing.load(run_file, [])
    plan = preparing.plan_run(loaded, preparing.prepare_data(loaded, Silent()))
    end = read_vocabulary(Path(plan.data.tokenizer)).end
    assert plan.model.config["eos_token_id"] == end
    assert plan.model.config["pad_token_id"] is None


def test_a_plan_before_the_data_is_built_is_marked_as_estimated(run_file: Path) -> None:
    planned = preparing.planned(run_file, [], build=False)
    assert planned.plan.facts.estimated
    built = preparing.planned(run_file, [], build=True)
    assert not built.plan.facts.estimated
    again = preparing.planned(run_file, [], build=False)
    assert again.plan == built.plan


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_data_build_reports_what_it_read_and_a_run_what_it_leaves_out(run_file: Path) -> None:
    (run_file.parent / "corpus" / "nothing.txt").write_text("\n")
    built, again, started = Notes(), Notes(), Notes()
    store = api.data_build(run_file, report=built)
    assert api.data_build(run_file, report=again) == store
    assert [line.partition(":")[0] for line in again.lines[:-1]] == ["train", "eval", "left out"]
    assert "left out: 1 empty (corpus/nothing.txt)" in again.lines
    assert str(store) in again.lines[-1]
    assert built.lines[-4:] == again.lines
    preparing.prepare_data(preparing.load(run_file, []), started)
    assert started.lines == ["left out: 1 empty (corpus/nothing.txt)"]


def test_an_absent_model_is_named_by_the_key_that_names_it(run_file: Path) -> None:
    with pytest.raises(ModelError, match=r"^model\.from = './nowhere': there is no folder"):
        preparing.planned(run_file, ["model={from: ./nowhere}"], build=True)
    with pytest.raises(ModelError, match=r"^model\.tokenizer\.from = './nowhere': there is no folder"):
        preparing.planned(run_file, ["model.tokenizer={from: ./nowhere}"], build=True)
