"""A checkpoint to a folder on one process, and text from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from fakes.exports import Export, make_export
from headway.errors import ExportError
from headway.export.from_checkpoint import export_checkpoint
from headway.export.sample import generate


class MemoryReader:
    """A SliceReader over a model's parameters."""

    scalars: dict[str, float] = {}

    def __init__(self, model: torch.nn.Module):
        self.tensors = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def read(self, name: str, kind: str, offset: int, length: int) -> torch.Tensor:
        if kind != "weight":
            raise KeyError(kind)
        return self.tensors[name].flatten()[offset : offset + length]

    def kinds(self, name: str) -> set[str]:
        return {"weight"} if name in self.tensors else set()

    def names(self) -> list[str]:
        return list(self.tensors)


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return make_export(tmp_path, "llama")


def test_a_checkpoint_becomes_the_model(export: Export) -> None:
    exported = export_checkpoint(MemoryReader(export.model), export.folder, export.provenance)
    assert exported.check.verified, exported.check.sentence()
    loaded: Any = AutoModelForCausalLM.from_pretrained(exported.folder.path)
    mine = export.model.state_dict()
    assert [name for name, value in loaded.state_dict().items() if not torch.equal(value, mine[name])] == []


def test_the_pretrained_folder_is_no_longer_needed(tmp_path: Path, export: Export) -> None:
    """A fine-tuned model is exported where only the run directory is."""
    model = {"kind": "pretrained", "path": str(tmp_path / "gone")}
    plan = export.plan.model_copy(update={"model": export.plan.model.model_copy(update=model)})
    provenance = type(export.provenance)(plan, {}, 1, 1)
    assert export_checkpoint(MemoryReader(export.model), export.folder, provenance).check.verified


def test_a_checkpoint_of_another_model_is_named(export: Export) -> None:
    reader = MemoryReader(export.model)
    del reader.tensors["model.norm.weight"]
    reader.tensors["model.stray.weight"] = torch.ones(1)
    with pytest.raises(ExportError, match=r"model\.norm\.weight.*model\.stray\.weight"):
        export_checkpoint(reader, export.folder, export.provenance)
    assert not export.folder.exists()


def test_text_follows_from_prompt_and_seed(export: Export, capfd: pytest.CaptureFixture[str]) -> None:
    export.write()
    capfd.readouterr()
    one = generate(export.folder, "w5 w9 w7", max_tokens=8, seed=1)
    assert one == generate(export.folder, "w5 w9 w7", max_tokens=8, seed=1)
    assert one != generate(export.folder, "w5 w9 w7", max_tokens=8, seed=2)
    assert 0 < len(one.split()) <= 8
    assert capfd.readouterr() == ("", ""), "the answer is all that is printed"


def test_temperature_zero_takes_the_likeliest(export: Export) -> None:
    export.write()
    text = generate(export.folder, "w5 w9 w7", max_tokens=1, temperature=0)
    with torch.no_grad():
        best = int(export.model(input_ids=torch.tensor([[5, 9, 7]])).logits[0, -1].argmax())
    assert text == f"w{best}"


def test_the_random_state_is_left_alone(export: Export) -> None:
    export.write()
    torch.manual_seed(4)
    before = torch.get_rng_state()
    generate(export.folder, "w5", max_tokens=2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("prompt", ["", "w5 " * 100])
def test_empty_and_long_prompts(export: Export, prompt: str) -> None:
    export.write()
    assert len(generate(export.folder, prompt, max_tokens=4, seed=3).split()) <= 4


def test_a_folder_without_a_model_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot be loaded"):
        generate(tmp_path, "w5")


def test_a_chat_model_of_others_is_asked_by_its_own_template(export: Export) -> None:
    """A folder without Headway's record, as a hub's: transformers' own answer to the rendered question."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from headway.export.asked import task_of

    export.write()
    (export.folder / "headway.json").unlink()
    assert task_of(export.folder) == "causal_lm"
    (export.folder / "chat_template.jinja").write_text("{% for m in messages %}w7 w7 {{ m.content }} w9{% endfor %}")
    assert task_of(export.folder) == "instruction"
    tokenizer = AutoTokenizer.from_pretrained(export.folder)
    model = AutoModelForCausalLM.from_pretrained(export.folder)
    ids = torch.tensor([tokenizer("w7 w7 w5 w9", add_special_tokens=False)["input_ids"]])
    wanted = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
    said = generate(export.folder, "w5", max_tokens=6, temperature=0)
    assert said == tokenizer.decode(wanted[0, ids.shape[1] :], skip_special_tokens=True)
    assert said != generate(export.folder, "w5", max_tokens=6, temperature=0, rendered=True)
    config = json.loads((export.folder / "config.json").read_text())
    (export.folder / "config.json").write_text(json.dumps(config | {"architectures": ["XForSequenceClassification"]}))
    assert task_of(export.folder) == "classification"
