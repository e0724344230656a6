"""Whole runs for tests: a corpus, a run file of a tiny model, and the commands, in this process or in their own.

In this process the ranks of all runs are forked from one server, so that a run costs seconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import torch

from fakes.corpora import prose
from fakes.jobs import wait_for
from headway.checkpoint.load import checkpoint_at, newest_complete, open_reader
from headway.checkpoint.reader import StoredState, state_hash
from headway.checkpoint.store import LocalStore
from headway.cli.main import main
from headway.launch import files
from headway.plan.files import read_plan
from headway.plan.schema import Plan
from headway.run import journal
from headway.run.paths import RunDir, list_runs

TESTS = Path(__file__).parents[1]
STEPS = 8
EVERY = 3  # steps between checkpoints
BROKEN = 5  # the step in which runs are broken: after the first checkpoint, and not just after it
GLOBAL_BATCH, MICRO_BATCH, ACCUMULATION = 8, 2, 2  # on two ranks
IN_BROKEN_STEP = (BROKEN - 1) * ACCUMULATION + 1  # the second micro batch of that step
SECONDS = 240  # how long a test waits at most: long, for machines under load

# Scaled down with the model: at DeepSpeed's sizes it would stay in the first bucket, ungathered.
_BUCKETS: dict[str, dict[str, int]] = {"zero-2": {"reduce_bucket": 3000, "allgather_bucket": 3000}}
_BUCKETS["zero-1"] = _BUCKETS["zero-2"]
_BUCKETS["zero-3"] = _BUCKETS["zero-2"] | {"prefetch_bucket": 1000, "persistence_threshold": 1}
_OFFLOADS = {"": {}, "optimizer": {"optimizer": "cpu"}, "both": {"optimizer": "cpu", "parameters": "cpu"}}


def strategy_of(name: str) -> dict[str, Any]:
    """The section of `ddp`, `zero-2+optimizer`, `zero-3+both`."""
    kind, _, offload = name.partition("+")
    return {"kind": kind, **_BUCKETS.get(kind, {}), **({"offload": _OFFLOADS[offload]} if offload else {})}


def run_file(strategy: str, **sections: Any) -> dict[str, Any]:
    """A model of 50,000 parameters with dropout, two ranks, 8 steps. `sections` are laid over it."""
    file: dict[str, Any] = {
        "model": {
            "config": {"arch": "llama", "hidden": 32, "layers": 3, "heads": 4, "ffn": 64, "dropout": 0.1},
            "tokenizer": {"train": 300},
        },
        "data": {"train": "corpus/*.txt", "eval": "20%"},
        "train": {
            "length": f"{STEPS} steps",
            "sequence": 32,
            "global_batch": f"{GLOBAL_BATCH} sequences",
            "micro_batch": MICRO_BATCH,
            "eval_every": "2 steps",
        },
        "optimizer": {"lr": 0.01, "warmup": "2 steps"},
        "strategy": strategy_of(strategy),
        "checkpoint": {"every": f"{EVERY} steps", "keep": 2},
        "launch": {"processes": 2, "device": "cpu", "threads": 1, "timeout": "120 s"},
        "export": {"at_end": False},
    }
    for section, values in sections.items():
        file[section] = file.get(section, {}) | values
    return file


@dataclass(frozen=True)
class Ended:
    """A command that has ended. Output of a process of its own is all in `out`."""

    code: int
    out: str
    err: str = ""

    def expect(self, code: int) -> Ended:
        assert self.code == code, f"exit code {self.code}, expected {code}\n{self.out}\n{self.err}"
        return self


@dataclass(frozen=True)
class Run:
    """A run directory, read."""

    dir: RunDir

    @property
    def path(self) -> Path:
        return self.dir.path

    def plan(self) -> Plan:
        return read_plan(self.dir.plan)

    def metrics(self) -> list[dict[str, Any]]:
        """One line a step; what a resume overtook is left out."""
        return journal.read(self.dir.metrics, latest_per_step=True)

    def losses(self) -> dict[int, float]:
        """Step -> loss, the JSON number as it stands in the file."""
        return {line["step"]: line["loss"] for line in self.metrics()}

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in journal.read(self.dir.events) if line["event"] == name]

    def evaluations(self) -> dict[int, dict[str, Any]]:
        """Step -> held-out figures."""
        timing = {"time", "event", "seconds"}
        return {e["step"]: {k: v for k, v in e.items() if k not in timing} for e in self.events("evaluation")}

    def checkpoints(self) -> list[str]:
        """The complete ones, by name."""
        return sorted(path.parent.name for path in self.dir.checkpoints.glob("*/manifest.json"))

    @contextlib.contextmanager
    def newest(self) -> Iterator[StoredState]:
        store = LocalStore(self.dir.checkpoints)
        with open_reader(store, newest_complete(store)) as reader:
            yield reader

    def state_at(self, step: int) -> dict[str, str]:
        """Parameter -> hash of its weights and moments in the checkpoint of this step."""
        store = LocalStore(self.dir.checkpoints)
        with open_reader(store, checkpoint_at(store, step)) as reader:
            return state_hash(reader)

    def state(self) -> dict[str, str]:
        """Parameter -> hash of its weights and moments in the newest checkpoint."""
        with self.newest() as reader:
            return state_hash(reader)

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameter -> flat weights in the newest checkpoint."""
        with self.newest() as reader:
            sizes = {name: torch.Size(reader.shape(name)).numel() for name in reader.names()}
            return {name: reader.read(name, "weight", 0, size).clone() for name, size in sizes.items()}

    def ranks_alive(self) -> list[int]:
        """Processes of the last start that still run."""
        record = files.read_record(self.path)
        return [pid for pid in record.processes.values() if _runs(pid)] if record else []

    def copy(self, name: str) -> Run:
        """The same run in a directory beside it."""
        return Run(RunDir(shutil.copytree(self.path, self.path.with_name(f"{name}-20300101-000000"))))


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


class Watch:
    """The folder through which a test sees and breaks the ranks of `fakes.watched_task`."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True)

    @property
    def task(self) -> dict[str, Any]:
        return {"kind": "fakes.watched_task:Watched", "options": {"folder": str(self.folder)}}

    def plant(self, fault: str, rank: int = 1, **where: int) -> None:
        """A fault in the middle of the step BROKEN, or in another place."""
        where = where or {"micro_batch": IN_BROKEN_STEP}
        (self.folder / "fault.json").write_text(json.dumps({"fault": fault, "rank": rank, **where}))

    def heal(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def windows(self, ranks: int = 2) -> list[list[int]]:
        """The windows of each finished step, in the order of the global batch; fillers are left out."""
        logs = [(self.folder / f"windows-{ranks}-{rank}.jsonl").read_text().splitlines() for rank in range(ranks)]
        turns = [[json.loads(line) for line in turn] for turn in zip(*logs, strict=True)]
        accumulation = -(-GLOBAL_BATCH // (ranks * MICRO_BATCH))
        flat = [[window for rows in turn for window in rows if window >= 0] for turn in turns]
        return [list(chain(*flat[first : first + accumulation])) for first in range(0, len(flat), accumulation)]

    @contextlib.contextmanager
    def when_held(self, action: Callable[[], None]) -> Iterator[None]:
        """While the block runs a command whose rank is to be held: do `action` once it is."""
        over = threading.Event()
        failures: list[BaseException] = []

        def wait_and_act() -> None:
            try:
                wait_for(lambda: self.held() or over.is_set(), "a rank to be held", SECONDS)
                if self.held():
                    action()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=wait_and_act)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        assert not failures, failures

    def held(self) -> bool:
        return (self.folder / "holding").exists()

    def let_go(self) -> None:
        (self.folder / "go").touch()


class Workplace:
    """A folder where a user works: a corpus, run files, runs."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "corpus").mkdir(parents=True)
        for number in range(20):  # fewer windows than a run reads, so that a second epoch begins
            (folder / "corpus" / f"{number:02d}.txt").write_text(prose(number, 60))

    def watch(self, name: str) -> Watch:
        return Watch(self.folder / "watched" / name)

    def write(self, name: str, content: dict[str, Any]) -> Path:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(content))
        return path

    def headway(self, *words: str | Path) -> Ended:
        """`headway WORDS`, in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(word) for word in words])
        return Ended(code, out.getvalue(), err.getvalue())

    def train(self, name: str, content: dict[str, Any], *words: str, code: int = 0) -> Run:
        """`headway train`, which must end with `code`."""
        self.headway("train", self.write(name, content), "--name", name, *words).expect(code)
        return self.run(name)

    def run(self, name: str) -> Run:
        """The newest run of this name."""
        stamped = re.compile(rf"{re.escape(name)}-\d{{8}}-\d{{6}}(-\d+)?")
        return Run([run for run in list_runs(self.folder / "runs") if stamped.fullmatch(run.name)][-1])

    def start(self, words: Sequence[str | Path], **variables: str) -> subprocess.Popen[str]:
        """A command in a process (and process group) of its own."""
        python_path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            [str(word) for word in words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": python_path, **variables},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def command(self, *words: str | Path) -> list[str | Path]:
        """The words of `headway WORDS` as a process."""
        return [sys.executable, "-m", "headway.cli.main", *words]


def end_of(process: subprocess.Popen[str]) -> Ended:
    """Wait for it, and read what it said."""
    try:
        out, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return Ended(process.returncode, out)


class Straight:
    """Runs that nothing disturbed, by strategy (and precision), made when first asked for."""

    def __init__(self, workplace: Workplace):
        self.workplace = workplace
        self._runs: dict[str, Run] = {}

    def __getitem__(self, strategy: str) -> Run:
        return self.of(strategy, "fp32")

    def of(self, strategy: str, precision: str) -> Run:
        name = f"{strategy}-{precision}-straight".replace("+", "-")
        if name not in self._runs:
            self._runs[name] = self.workplace.train(name, run_file(strategy, train={"precision": precision}))
        return self._runs[name]
