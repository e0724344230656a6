"""How right the planner is on this machine: peak memory and step time of twelve real runs beside what was planned.

    python bench/planner_here.py [--rounds 3] [--first 0 --settings 12] [--only memory] [--out FILE]

Each round calibrates anew and then makes every run, so that load from elsewhere falls on both; of several rounds the
medians count. Every run is `headway train` with two processes in a scratch folder. Memory is the peak resident set of
the fullest rank as the kernel counted it (getrusage, ru_maxrss) up to the last step, before the export; the plan's
figure is what `headway plan` prints. Step time is the median over a run's steps but the first two, with data and
bookkeeping.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine

ROOT = Path(__file__).parents[1]
_STEPS = 9
_STEPS_FOR_MEMORY = 4  # the peak stands after the second
_FILE = """\
model:  {{config: {{arch: llama, hidden: {hidden}, layers: {layers}, heads: {heads}, vocab: {vocab}}},
         tokenizer: {{train: 2000}}}}
data:   {{train: corpus.txt}}
train:  {{length: {steps} steps, sequence: {sequence}, global_batch: {batch} sequences, micro_batch: {micro},
         eval_every: null, activation_checkpointing: {checkpointing}}}
optimizer: {{lr: 1e-3}}
strategy: {strategy}
checkpoint: {{every: null, at_end: false}}
launch: {{processes: 2, device: cpu, threads: 1}}
export: {{at_end: false}}
"""


@dataclass
class Setting:
    """One run. batch: sequences of a step, over two processes."""

    name: str
    hidden: int
    layers: int
    vocab: int
    sequence: int
    micro: int
    batch: int
    strategy: str
    checkpointing: bool = False
    planned: list[dict[str, Any]] = field(default_factory=list)
    actual: list[dict[str, Any]] = field(default_factory=list)

    def text(self, steps: int) -> str:
        heads = max(1, self.hidden // 64)
        values = {name: getattr(self, name) for name in ("hidden", "layers", "vocab", "sequence", "micro", "batch")}
        on = str(self.checkpointing).lower()
        return _FILE.format(**values, heads=heads, strategy=self.strategy, checkpointing=on, steps=steps)


OFFLOADED = "{kind: zero-2, offload: cpu}"
SETTINGS = [
    Setting("3 M, ddp", 192, 4, 4000, 256, 4, 8, "ddp"),
    Setting("3 M, ddp, checkpointing", 192, 4, 4000, 256, 4, 16, "ddp", checkpointing=True),
    Setting("3 M, zero-1", 192, 4, 4000, 256, 4, 8, "zero-1"),
    Setting("10 M, ddp", 320, 6, 8000, 256, 2, 8, "ddp"),
    Setting("10 M, zero-2", 320, 6, 8000, 256, 2, 8, "zero-2"),
    Setting("10 M, zero-3", 320, 6, 8000, 256, 2, 8, "zero-3"),
    Setting("10 M, zero-3, checkpointing", 320, 6, 8000, 256, 4, 8, "zero-3", checkpointing=True),
    Setting("28 M, ddp", 512, 6, 8000, 128, 4, 8, "ddp"),
    Setting("28 M, zero-2", 512, 6, 8000, 256, 2, 4, "zero-2"),
    Setting("28 M, zero-2, offload", 512, 6, 8000, 128, 4, 8, OFFLOADED),
    Setting("28 M, zero-3", 512, 6, 8000, 128, 4, 8, "zero-3"),
    Setting("9 M, ddp, long", 256, 6, 8000, 1024, 1, 4, "ddp"),
]


def main() -> int:
    options = _options()
    settings = SETTINGS[options.first : options.first + options.settings]
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="planner-here-") as name:
        folder = Path(name)
        _corpus(folder / "corpus.txt")
        for number in range(options.rounds):
            if options.only != "memory":
                _headway(folder, "calibrate")
            for setting in settings:
                _run(folder, setting, number, _STEPS_FOR_MEMORY if options.only == "memory" else _STEPS)
                loads.append(os.getloadavg()[0])
                print(_line(setting), flush=True)
    text = _report(settings, loads, options)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="so many of them")
    parser.add_argument("--first", type=int, default=0, help="from this one on, counted from 0")
    parser.add_argument("--only", choices=("memory", "both"), default="both")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _corpus(path: Path) -> None:
    """The standard library's source: text that every machine has."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    path.write_text("\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)[:3_000_000])


def _headway(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "headway.cli.main", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def _run(folder: Path, setting: Setting, number: int, steps: int) -> None:
    file = folder / "run.yaml"
    file.write_text(setting.text(steps))
    name = f"r{number}-{SETTINGS.index(setting)}"
    _headway(folder, "train", str(file), "--plain", "--name", name)
    run = max((folder / "runs").glob(f"{name}*"), key=lambda path: path.stat().st_mtime)
    record = json.loads((run / "record.json").read_text())
    setting.planned.append(record["forecast"])
    setting.actual.append(record["actual"])


def _median(rows: list[dict[str, Any]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def _apart(setting: Setting, planned: str, actual: str) -> float:
    """Planned over measured, less one: medians of the rounds."""
    return _median(setting.planned, planned) / _median(setting.actual, actual) - 1


def _line(setting: Setting) -> str:
    memory = _apart(setting, "device_bytes", "memory_peak_bytes")
    seconds = _apart(setting, "step_seconds", "step_seconds")
    mib = _median(setting.actual, "memory_peak_bytes") / 2**20
    return (
        f"| {setting.name} | {mib:.0f} MiB | {memory:+.1%} | {_median(setting.actual, 'step_seconds'):.3f} s "
        f"| {seconds:+.1%} |"
    )


def _report(settings: list[Setting], loads: list[float], options: argparse.Namespace) -> str:
    described, versions = machine.describe(), machine.versions()
    memory = sorted(abs(_apart(s, "device_bytes", "memory_peak_bytes")) for s in settings)
    seconds = sorted(abs(_apart(s, "step_seconds", "step_seconds")) for s in settings)
    parts = [
        "# The planner on this machine",
        f"{time.strftime('%Y-%m-%d')}, {described['cpu']}, {described['cores']} cores, {described['memory_gib']} GiB; "
        f"torch {versions['torch']}, DeepSpeed {versions['deepspeed']}, transformers {versions['transformers']}. "
        f"{options.rounds} round(s); load average {min(loads):.1f} to {max(loads):.1f}, median "
        f"{statistics.median(loads):.1f}. Made by `bench/planner_here.py`, which says how each figure is measured.",
        "| run | peak memory | plan | step | plan |\n|---|---|---|---|---|\n" + "\n".join(map(_line, settings)),
        f"Memory: median error {statistics.median(memory):.1%}, largest {memory[-1]:.1%}; "
        f"{sum(error <= 0.10 for error in memory)} of {len(memory)} within 10 %.",
    ]
    if options.only != "memory":
        within = sum(error <= 0.15 for error in seconds)
        parts.append(
            f"Step time: median error {statistics.median(seconds):.1%}, largest {seconds[-1]:.1%}; "
            f"{within} of {len(seconds)} within 15 %."
        )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
