"""LoRA in a module of the user's own, by the commands: plan, train, kill and resume, export; another base."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes.runs import BROKEN, EVERY, Run, Workplace, run_file

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]
pytest.importorskip("peft", reason="the extra 'lora' is not installed")

RANK = 4
# Beside layers that can be adapted: torch's attention, whose layers are not called, a head that is the embedding too,
# and a buffer that training changes.
NET = """
import torch
from pathlib import Path
from safetensors.torch import load_file
from torch import nn


class Block(nn.Module):
    def __init__(self, width, reads):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width, bias=False)
        self.read = nn.Linear(width, width) if reads else None

    def forward(self, hidden):
        hidden = hidden if self.read is None else hidden + hidden @ self.read.weight
        there = hidden.shape[1]
        mask = torch.ones(there, there, dtype=torch.bool, device=hidden.device).triu(1)
        seen, _ = self.attention(hidden, hidden, hidden, attn_mask=mask, need_weights=False)
        return self.norm(hidden + seen + self.down(torch.relu(self.up(hidden))))


class Net(nn.Module):
    def __init__(self, vocab, width, depth, reads=False):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, reads) for _ in range(depth))
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input_ids, position_ids):
        if self.training:
            self.calls += 1
        hidden = self.tokens(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def certify(vocab):
    return Net(vocab, 16, 2)


def make(vocab, width=32, depth=2, weights=None, reads=False):
    net = Net(vocab, width, depth, reads)
    if weights:
        net.load_state_dict(load_file(weights), strict=False)
    return net
"""


def module_of(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("own-adapter"))
    (place.folder / "net_of_ones_own.py").write_text(NET)
    torch.manual_seed(7)
    base = module_of(place.folder / "net_of_ones_own.py", "net_of_the_test").make(300)
    save_file({name: p.detach() for name, p in base.named_parameters()}, place.folder / "base.safetensors")
    return place


def own_file(place: Workplace, strategy: str, **sections: Any) -> dict[str, Any]:
    content = run_file(strategy, export={"at_end": True}, data={"packing": False}, **sections)
    factory = {"factory": "net_of_ones_own:make", "options": {"weights": str(place.folder / "base.safetensors")}}
    return content | {"model": factory | {"tokenizer": {"train": 300}}, "adapter": {"kind": "lora", "rank": RANK}}


@pytest.fixture(scope="module")
def straight(workplace: Workplace) -> dict[str, Run]:
    return {name: workplace.train(name, own_file(workplace, name)) for name in ("ddp", "zero-3")}


def test_every_strategy_trains_the_same_adapter(straight: dict[str, Run]) -> None:
    ddp = straight["ddp"]
    held_out = [figures["loss"] for _, figures in sorted(ddp.evaluations().items())]
    assert held_out == sorted(held_out, reverse=True)
    assert list(straight["zero-3"].losses().values()) == pytest.approx(list(ddp.losses().values()), abs=2e-5)


@pytest.mark.parametrize("strategy", ["ddp", "zero-3"])
def test_only_called_layers_are_adapted_and_the_plan_counts_them(straight: dict[str, Run], strategy: str) -> None:
    run = straight[strategy]
    with run.newest() as reader:
        census = reader.document("census.json")
        stored = set(reader.names())
    assert census is not None
    layers = {f"blocks.{number}.{name}" for number in range(2) for name in ("up", "down")}
    pairs = {f"{layer}.{part}.weight" for layer in layers for part in ("lora_A", "lora_B")}
    assert set(census["trained"]) == pairs
    assert stored == pairs | {"calls"}
    counted = sum(torch.Size(shape).numel() for shape in census["trained"].values())
    frozen = sum(torch.Size(shape).numel() for shape in census["frozen"].values())
    assert (run.plan().shape.trainable_parameters, run.plan().shape.parameters) == (counted, counted + frozen)


@pytest.mark.parametrize("strategy", ["ddp", "zero-3"])
def test_both_forms_of_the_export_are_the_trained_module(
    workplace: Workplace, straight: dict[str, Run], strategy: str
) -> None:
    run = straight[strategy]
    event = run.events("export")[-1]
    assert event["verified"] is True
    assert event["max_difference"] <= event["bound"]
    merged, before = load_file(run.dir.export / "model.safetensors"), load_file(workplace.folder / "base.safetensors")
    changed = {name for name in before if not torch.equal(merged[name], before[name])}
    assert changed == {f"blocks.{number}.{name}.weight" for number in range(2) for name in ("up", "down")}
    assert merged["calls"] > 0
    whole = module_of(run.dir.export / "load.py", "whole").load()
    beside = module_of(run.dir.export / "adapter" / "load.py", "beside").load()
    ids = torch.arange(40).view(2, 20)
    with torch.no_grad():
        first, second = (model(input_ids=ids, position_ids=ids) for model in (whole, beside))
    assert torch.allclose(first, second, atol=1e-5)
    for folder in (run.dir.export, run.dir.export / "adapter"):
        record = json.loads((folder / "headway.json").read_text())
        assert (record["verified"], record["check"]["compared"]) == (True, "losses")
        assert "`net_of_ones_own:make` makes" in (folder / "README.md").read_text()


def test_a_killed_run_goes_on_to_the_bit(workplace: Workplace, straight: dict[str, Run]) -> None:
    watch = workplace.watch("killed")
    watch.plant("kill")
    content = own_file(workplace, "zero-3", task=watch.task)
    workplace.headway("train", workplace.write("killed", content), "--name", "killed").expect(5)
    run = workplace.run("killed")
    assert list(run.losses()) == list(range(1, BROKEN))
    watch.heal()
    workplace.headway("resume", run.path).expect(0)
    assert run.events("resumed")[-1]["step"] == EVERY
    assert run.losses() == straight["zero-3"].losses()
    assert run.state() == straight["zero-3"].state()
    assert run.evaluations() == straight["zero-3"].evaluations()


def test_it_is_certified_under_zero_2(workplace: Workplace) -> None:
    """Gradients are plain PyTorch's, every pair has its effect, and both exports are the module."""
    file = workplace.write("proof", own_file(workplace, "zero-2"))
    said = workplace.headway("certify", file, "--claims", "1,3,6").expect(0).out
    assert said.count(": PROVEN") == 3
    assert "the small model that net_of_ones_own:certify makes" in said


def test_a_base_of_other_weights_is_refused(workplace: Workplace, straight: dict[str, Run]) -> None:
    copied = straight["ddp"].copy("other")
    file = workplace.folder / "base.safetensors"
    kept = file.read_bytes()
    try:
        tensors = load_file(file)
        save_file(tensors | {"blocks.0.norm.bias": tensors["blocks.0.norm.bias"] + 1}, file)
        ended = workplace.headway("resume", copied.path, "train.length=10 steps")
    finally:
        file.write_bytes(kept)
    assert ended.code != 0
    assert "holds an adapter for another base model: its weights had the hash" in ended.out + ended.err


def test_a_layer_that_is_read_and_not_called_is_told(workplace: Workplace, straight: dict[str, Run]) -> None:
    assert all(run.events("warning") == [] for run in straight.values())
    content = own_file(
        workplace, "single", train={"length": "2 steps"}, optimizer={"warmup": 0}, launch={"processes": 1}
    )
    content["model"]["options"]["reads"] = True
    (warning,) = workplace.train("reads", content | {"export": {"at_end": False}}).events("warning")
    assert "has not called 2 layers" in warning["text"]
    assert "blocks.0.read, blocks.1.read; see adapter.targets" in warning["text"]


def test_a_target_that_means_no_layer_is_named(workplace: Workplace) -> None:
    content = own_file(workplace, "ddp") | {"adapter": {"kind": "lora", "targets": ["upp"]}}
    ended = workplace.headway("plan", workplace.write("refused", content)).expect(3)
    assert "did you mean up" in " ".join((ended.out + ended.err).split())
