"""The contenders: how each is started, and what it wrote down.

Each is a fresh command, as a user would type it, and leaves its records in a folder: see contenders/recorder.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chats
from corpus import MODEL, SEQUENCE

SCRIPTS = Path(__file__).parent / "contenders"
PROCESSES = 2
MICRO_BATCH = 4
HEADWAY = Path(sys.executable).with_name("headway")
LONGEST_SECONDS = 900
LORA, LORA_STEPS = "LoRA on chats", 10


@dataclass(frozen=True)
class Contender:
    """One row of a scenario. script: in contenders/, empty for Headway. variant: a script's, or Headway's strategy."""

    name: str
    scenario: str
    title: str
    script: str = ""
    variant: str = ""
    needs: tuple[str, ...] = ()
    most_steps: int = 1000  # of a large model, so that a session ends

    def why_not(self) -> str:
        """What keeps it from running here; "" where nothing does."""
        missing = [package for package in self.needs if importlib.util.find_spec(package) is None]
        if missing:
            return f"not installed: {', '.join(missing)}"
        return chats.why_not() if self.scenario == LORA else ""


CONTENDERS = (
    Contender("plain-ddp", "same, DDP", "plain PyTorch DDP loop", "plain_ddp.py"),
    Contender("headway-ddp", "same, DDP", "Headway, ddp", variant="ddp"),
    Contender(
        "hf-zero2", "same, ZeRO-2", "HF Trainer + DeepSpeed", "hf_trainer.py", "windows", ("accelerate", "deepspeed")
    ),
    Contender(
        "accelerate-zero2",
        "same, ZeRO-2",
        "Accelerate + DeepSpeed",
        "accelerate_zero.py",
        needs=("accelerate", "deepspeed"),
    ),
    Contender("headway-zero2", "same, ZeRO-2", "Headway, zero-2", variant="zero-2"),
    Contender(
        "hf-padded",
        "ragged",
        "HF Trainer + DeepSpeed, padded",
        "hf_trainer.py",
        "padded",
        ("accelerate", "deepspeed", "datasets"),
    ),
    Contender("trl-bfd", "ragged", "TRL SFTTrainer, packing bfd", "trl_sft.py", "bfd", ("trl", "datasets")),
    Contender("trl-wrapped", "ragged", "TRL SFTTrainer, packing wrapped", "trl_sft.py", "wrapped", ("trl", "datasets")),
    Contender("headway-ragged", "ragged", "Headway, as it comes", variant="auto"),
    Contender(
        "trl-lora-padded", LORA, "TRL SFTTrainer, padded", "trl_lora.py", "padded", ("trl", *chats.NEEDS), LORA_STEPS
    ),
    Contender(
        "trl-lora-bfd", LORA, "TRL SFTTrainer, packing bfd", "trl_lora.py", "bfd", ("trl", *chats.NEEDS), LORA_STEPS
    ),
    Contender("headway-lora", LORA, "Headway, zero-2", variant="zero-2", needs=chats.NEEDS, most_steps=LORA_STEPS),
)


@dataclass
class Step:
    """One step over all ranks; time: rank 0's end, unix seconds."""

    time: float
    tokens: int
    targets: int
    loss: float


@dataclass
class Record:
    """One run. marks: seconds since the command was given. overhead: shares of a step, Headway's alone.

    note: a peer that recorded every step and then fell over while it ended.
    """

    contender: str
    steps: list[Step]
    marks: dict[str, float]
    overhead: dict[str, float] = field(default_factory=dict[str, float])
    flops_per_token: float | None = None
    note: str = ""

    def rate(self, skip: int, count: str) -> float:
        """`tokens` or `targets` a second, from the end of step `skip` to the last step's."""
        measured = self.steps[skip:]
        return sum(getattr(step, count) for step in measured) / (measured[-1].time - self.steps[skip - 1].time)


class Failed(Exception):
    pass


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment() -> dict[str, str]:
    """The same for all: one thread a process, no GPU, no network, the package's own quietness."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }


def run(contender: Contender, data: Path, folder: Path, steps: int) -> Record:
    """Start the contender, wait for its end, read what it wrote. Raises Failed with the end of its output."""
    folder.mkdir(parents=True)
    began = time.time()
    if contender.script:
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={PROCESSES}"]
        command += [f"--master-port={free_port()}", str(SCRIPTS / contender.script), "--data", str(data)]
        command += ["--out", str(folder), "--steps", str(steps), "--variant", contender.variant]
    else:
        command = [str(HEADWAY), "train", str(_run_file(contender, data, folder, steps)), "--plain"]
    with (folder / "output.txt").open("wb") as output:
        try:
            code = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
                timeout=LONGEST_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    if code and not (contender.script and _is_whole(folder, steps)):
        last = (folder / "output.txt").read_text(errors="replace").splitlines()[-15:]
        raise Failed(f"{contender.name} ended with {code}:\n" + "\n".join(last))
    record = _read_peer(contender, folder, began) if contender.script else _read_headway(contender, folder, began)
    if code:
        record.note = f"{contender.name} ended with {code} after its last step"
    return record


def _is_whole(folder: Path, steps: int) -> bool:
    """Whether every rank of a peer recorded every step."""
    files = [folder / f"rank-{rank}.jsonl" for rank in range(PROCESSES)]
    return all(file.is_file() and sum("step" in line for line in _lines(file)) == steps for file in files)


def _run_file(contender: Contender, data: Path, folder: Path, steps: int) -> Path:
    """A user's run file; what is not written here is Headway's own default."""
    content = _lora_job(data) if contender.scenario == LORA else _from_scratch(contender, data)
    content |= {
        "name": contender.name,
        "runs": str(folder / "runs"),
        "strategy": contender.variant,
        "checkpoint": {"every": None, "at_end": False},
        "export": {"at_end": False},
        "launch": {"processes": PROCESSES, "threads": 1},
    }
    content["train"]["length"] = f"{steps} steps"
    path = folder / "run.json"
    path.write_text(json.dumps(content, indent=1))
    return path


def _lora_job(data: Path) -> dict[str, Any]:
    return {
        "model": str(chats.model_folder(data)),
        "data": {"train": str(data / "wordnet" / "chats.jsonl"), "cache": str(data / "cache")},
        "task": "instruction",
        "adapter": {"kind": "lora", "rank": chats.RANK, "alpha": chats.ALPHA},
        "train": {
            "sequence": chats.SEQUENCE,
            "global_batch": f"{PROCESSES * chats.WINDOWS} sequences",
            "micro_batch": chats.WINDOWS,
        },
        "optimizer": {"lr": chats.LR, "schedule": "constant"},
    }


def _from_scratch(contender: Contender, data: Path) -> dict[str, Any]:
    text = "functions" if contender.scenario == "ragged" else "stream"
    arch = {
        "arch": "llama",
        "hidden": MODEL["hidden_size"],
        "layers": MODEL["num_hidden_layers"],
        "heads": MODEL["num_attention_heads"],
        "ffn": MODEL["intermediate_size"],
        "tie_embeddings": True,
    }
    return {
        "model": {"config": arch, "tokenizer": {"from": str(data / "tokenizer")}},
        "data": {"train": str(data / f"{text}.jsonl"), "cache": str(data / "cache")},
        "task": "causal_lm",
        "train": {
            "sequence": SEQUENCE,
            "global_batch": f"{PROCESSES * MICRO_BATCH} sequences",
            "micro_batch": MICRO_BATCH,
        },
        "optimizer": {"lr": 1e-3, "schedule": "constant"},
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _read_peer(contender: Contender, folder: Path, began: float) -> Record:
    ranks = [_lines(folder / f"rank-{rank}.jsonl") for rank in range(PROCESSES)]
    marks = {line["mark"]: line["time"] - began for line in ranks[0] if "mark" in line}
    steps = [
        Step(
            rows[0]["time"],
            sum(row["tokens"] for row in rows),
            sum(row["targets"] for row in rows),
            sum(row["loss"] for row in rows) / len(rows),
        )
        for rows in zip(*([line for line in rank if "step" in line] for rank in ranks), strict=True)
    ]
    return Record(contender.name, steps, marks | {"first step": steps[0].time - began})


def _read_headway(contender: Contender, folder: Path, began: float) -> Record:
    from headway.plan.files import read_plan
    from headway.plan.work import useful_flops_per_token
    from headway.run.paths import RunDir

    (path,) = (folder / "runs").iterdir()
    run_dir = RunDir(path)
    plan = read_plan(run_dir.plan)
    metrics, events = _lines(run_dir.metrics), _lines(run_dir.events)
    names = {"started": "planned and checked", "process_group": "process group", "engine_ready": "engine"}
    marks = {names[line["event"]]: line["time"] - began for line in events if line["event"] in names}
    targets = _targets(plan)
    before = [0, *(line["tokens"] for line in metrics)]
    steps = [
        Step(line["time"], line["tokens"] - tokens, targets[line["step"]], line["loss"])
        for line, tokens in zip(metrics, before, strict=False)
    ]
    parts = ("step_seconds", "data_wait_seconds", "overhead_seconds")
    shares = {part: sorted(line[part] / sum(line[p] for p in parts) for line in metrics[2:]) for part in parts[1:]}
    first = next(line["time"] for line in events if line["event"] == "first_step")
    return Record(
        contender.name,
        steps,
        marks | {"first step": first - began},
        {part: values[len(values) // 2] for part, values in shares.items() if values},
        useful_flops_per_token(plan.shape, plan.data.sequence),
    )


def _targets(plan: Any) -> dict[int, int]:
    """Tokens that carried loss in each step, counted from the samples that it read."""
    from headway.data.order import windows_at
    from headway.data.seam import IGNORE
    from headway.data.store import open_split

    samples = open_split(Path(plan.data.store), "train", plan.data.sequence, plan.data.packing)
    batch = plan.batch.global_sequences
    counts: dict[int, int] = {}
    for step in range(1, plan.schedule.steps + 1):
        windows = windows_at(plan.numerics.seed, (step - 1) * batch, step * batch, len(samples))
        counts[step] = sum(int((samples[int(window)].labels != IGNORE).sum()) for window in windows)
    return counts
