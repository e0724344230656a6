"""What every ModelSource must hold. A new source adds itself to SOURCES."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.models import config_of, plan_for
from headway.errors import ExportError
from headway.model.huggingface import HuggingFaceSource
from headway.model.seam import ModelSource


def pretrained(folder: Path, arch: str) -> ModelSource:
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of(arch))).save_pretrained(folder)
    return HuggingFaceSource(plan_for(arch, path=str(folder)))


SOURCES: dict[str, Callable[[Path], ModelSource]] = {
    "from scratch, tied": lambda _: HuggingFaceSource(plan_for("llama")),
    "from scratch, parents initialise": lambda _: HuggingFaceSource(plan_for("gpt2")),
    "from scratch, fused experts": lambda _: HuggingFaceSource(plan_for("mixtral")),
    "pretrained, tied": lambda folder: pretrained(folder, "llama"),
    "pretrained, fused experts": lambda folder: pretrained(folder, "mixtral"),
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> ModelSource:
    return SOURCES[request.param](tmp_path / "pretrained")


def fill(source: ModelSource, model: nn.Module, *, backwards: bool = False) -> dict[str, torch.Tensor]:
    parts = list(model.named_modules())
    for name, part in reversed(parts) if backwards else parts:
        source.fill(name, part)
    return {name: tensor.detach().clone() for name, tensor in weights(model)}


def weights(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def test_every_value_is_written_and_none_depends_on_the_order(source: ModelSource) -> None:
    found = []
    for backwards in (False, True):
        model = source.build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float("nan"))
        found.append(fill(source, model, backwards=backwards))
    assert [name for name, value in found[0].items() if not torch.isfinite(value.float()).all()] == []
    assert [name for name, value in found[0].items() if not torch.equal(value, found[1][name])] == []


def test_filling_again_is_filling_once(source: ModelSource) -> None:
    model = source.build()
    once = fill(source, model)
    again = fill(source, model)
    assert [name for name in once if not torch.equal(once[name], again[name])] == []


def test_filling_one_module_leaves_its_children_and_neighbours(source: ModelSource) -> None:
    model = source.build()
    before = fill(source, model)
    name, part = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    source.fill(name, part)
    own = {f"{name}.{local}" for local, _ in part.named_parameters(recurse=False)}
    for parameter_name, parameter in model.named_parameters():
        expected = before[parameter_name] if parameter_name in own else torch.zeros_like(parameter)
        assert torch.equal(parameter, expected), parameter_name


def test_a_saved_folder_is_the_model(source: ModelSource, tmp_path: Path) -> None:
    model: Any = source.build()
    fill(source, model)
    source.prepare_for_training(model)
    folder = tmp_path / "saved"
    folder.mkdir()
    files = source.save(folder, model.named_parameters(), model)
    assert sorted(files) == sorted(path.name for path in folder.iterdir())
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = loaded.state_dict()
    assert [name for name, value in model.state_dict().items() if not torch.equal(value, theirs[name])] == []
    ids = torch.arange(12).view(1, 12)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(input_ids=ids).logits, loaded(input_ids=ids).logits, rtol=0, atol=1e-5)


def test_a_lost_weight_is_no_folder(source: ModelSource, tmp_path: Path) -> None:
    model = source.build()
    fill(source, model)
    kept = list(model.named_parameters())[:-1]
    with pytest.raises(ExportError, match="1 missing"):
        source.save(tmp_path, kept, model)
