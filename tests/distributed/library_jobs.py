"""What a rank of a user's own script does, in library mode. Each rank runs one of these, forked."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import headway
from headway.train.feeding import Lane

ROWS, CLASSES, WIDTH, STEPS, LEFT_AFTER = 26, 3, 8, 10, 6


class Net(nn.Module):
    """Dropout, a tied pair, a frozen weight and a buffer: what a user's module may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.again = nn.Linear(WIDTH, WIDTH, bias=False)
        self.again.weight = self.blocks[0].weight  # pyright: ignore[reportArgumentType]
        self.frozen = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.register_buffer("shift", torch.randn(WIDTH))
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.frozen + self.shift
        for block in self.blocks:
            x = self.drop(torch.relu(block(x)))
        return self.out(torch.relu(self.again(x)))


def run_file(strategy: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "train": {"length": f"{STEPS} steps", "global_batch": "6 sequences", "micro_batch": 2},
        "optimizer": {"lr": 0.02, "clip": 0.3},
        "strategy": strategy,
        "checkpoint": {"every": "4 steps"},
        "launch": {"device": "cpu", "threads": 1},
        **more,
    }


def rows() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    xs = torch.randn(ROWS, WIDTH, generator=generator)
    return [{"x": x, "y": torch.tensor(number % CLASSES)} for number, x in enumerate(xs)]


def named_terms(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Sums: the cross entropy of all rows, and the size of the logits of the rows of class 0."""
    logits = model(batch["x"])
    entropy = F.cross_entropy(logits, batch["y"], reduction="sum")
    return {"entropy": entropy, "size": (logits.square().mean(1) * (batch["y"] == 0)).sum()}


def counted(batch: dict[str, torch.Tensor]) -> dict[str, float]:
    return {"entropy": float(len(batch["y"])), "size": float((batch["y"] == 0).sum())}


LOSS = headway.Loss(named_terms, counted, {"entropy": 1.0, "size": 0.1})


def told(run: headway.api.ScriptRun, last: int = STEPS) -> dict[str, Any]:
    """Drive the loop up to step `last`; every step's figures and, at the end, the weights."""
    steps: dict[int, tuple[float, float]] = {}
    for batches in run.batches(rows()):
        step = run.engine.train_step(batches)
        steps[step.step] = (step.loss, step.grad_norm)
        if step.step == last:
            break
    weights = {name: weight.clone() for name, weight in run._parts.engine.full_weights()}
    return {"steps": steps, "weights": weights, "path": run.path, "resumed": run.resumed_from}


def fresh_net(rank: int = 0) -> Net:
    torch.manual_seed(5 + rank)  # ranks differ: rank 0's weights must win
    return Net()


def straight_and_left(strategy: dict[str, Any], folder: Path, rank_of: bool = True) -> tuple[Any, Any, list[str]]:
    """A whole run, its model delivered; and one that is left in the middle as a kill leaves it."""
    with contextlib.chdir(folder):
        dist.init_process_group("gloo")
        rank = dist.get_rank() if rank_of else 0
        config = run_file(strategy, name="straight")
        run = headway.prepare(config, model=fresh_net(rank), loss=LOSS)
        whole = told(run)
        figures = run.evaluate([{"x": row["x"][None], "y": row["y"][None]} for row in rows()[rank::2]])
        whole |= {"outcome": run.finish(), "figures": figures}
        left = told(headway.prepare(config | {"name": "left"}, model=fresh_net(rank), loss=LOSS), LEFT_AFTER)
    return whole, left, []


def resumed(strategy: dict[str, Any], folder: Path) -> Any:
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        dist.init_process_group("gloo")
        with headway.prepare(run_file(strategy, name="left"), model=fresh_net(9), loss=LOSS, resume=True) as run:
            return told(run)


def plain() -> dict[int, tuple[float, float]]:
    """The same steps of the same module in plain PyTorch on one rank, dropout off."""
    net = fresh_net()
    net.drop.p = 0.0
    decayed = [p for p in net.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in net.parameters() if p.requires_grad and p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.95))
    from headway.data.order import window_at

    found: dict[int, tuple[float, float]] = {}
    for step in range(1, STEPS + 1):
        picked = [rows()[window_at(0, position, ROWS)] for position in range((step - 1) * 6, step * 6)]
        batch = {key: torch.stack([row[key] for row in picked]) for key in ("x", "y")}
        sums, counts = named_terms(net, batch), counted(batch)
        loss = sums["entropy"] / counts["entropy"] + 0.1 * sums["size"] / max(counts["size"], 1.0)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
        found[step] = (float(loss.detach()), float(norm))
    return found


def without_dropout(strategy: dict[str, Any], folder: Path) -> dict[int, tuple[float, float]]:
    with contextlib.chdir(folder):
        net = fresh_net()
        net.drop.p = 0.0
        file = run_file(strategy, name="still")
        file["optimizer"] |= {"schedule": "constant", "warmup": "0%"}
        return told(headway.prepare(file, model=net, loss=LOSS))["steps"]


class Noisy:
    """A dataset that draws random numbers for each item, as augmentation does."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = rows()[index]
        return row["x"] + 0.1 * torch.randn(WIDTH), row["y"]


def mean_loss(model: Any, batch: Any) -> torch.Tensor:
    """As most users write it."""
    return F.cross_entropy(model(batch[0]), batch[1])


def with_a_loader(folder: Path) -> tuple[list[float], list[float], list[float]]:
    """A shuffling, augmenting DataLoader on one rank: losses straight, left, and resumed."""

    def drive(name: str, last: int, resume: bool = False) -> list[float]:
        file = run_file({"kind": "single"}, name=name)
        run = headway.prepare(file, model=fresh_net(), loss=mean_loss, resume=resume)
        found: list[float] = []
        for batches in run.batches(DataLoader(Noisy(), batch_size=2, shuffle=True, drop_last=True)):
            found.append(run.engine.train_step(batches).loss)
            if len(found) == last:
                break
        if last == STEPS:
            run.finish()
        else:
            run._place.held.close()  # as a process that ends: its lock is nobody's
        return found

    with contextlib.chdir(folder):
        return drive("whole", STEPS), drive("part", LEFT_AFTER), drive("part", -1, resume=True)


def transformers_model(folder: Path) -> dict[str, Any]:
    """A transformers model of the script's, its own loss, own batches with labels masked; the export of it."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=40, max_position_embeddings=64, **sizes))
    ids = torch.randint(0, 40, (8, 12), generator=torch.Generator().manual_seed(0))
    labels = ids.masked_fill(torch.arange(12) < torch.arange(8)[:, None], -100)
    data = [{"input_ids": i, "labels": goal} for i, goal in zip(ids, labels, strict=True)]
    file = run_file({"kind": "single"}, name="llama")
    file["train"] |= {"global_batch": "8 sequences", "length": "3 steps", "sequence": 12}
    with contextlib.chdir(folder), torch.no_grad():
        output = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        expected = float(F.cross_entropy(output, labels[:, 1:].flatten()))
    with contextlib.chdir(folder), headway.prepare(file, model=model) as run:
        losses = [run.engine.train_step(batches).loss for batches in run.batches(data)]
    again = AutoModelForCausalLM.from_pretrained(run.path / "export")
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    return {"expected": expected, "losses": losses, "same": same, "path": run.path}


def lane_is_apart() -> tuple[bool, bool]:
    """Whether a lane leaves training's random numbers alone, and goes on with its own."""
    torch.manual_seed(0)
    first = torch.rand(2)
    torch.manual_seed(0)
    lane = Lane(1, 2)
    with lane.entered():
        one = torch.rand(2)
    apart = torch.equal(torch.rand(2), first)
    other = Lane(1, 2)
    with other.entered():
        both = torch.rand(4)
    with lane.entered():
        return apart, torch.equal(torch.cat([one, torch.rand(2)]), both)
