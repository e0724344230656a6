"""Who does the tokenising: threads of this process for a small corpus, processes for a large one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from headway.data.accelerated import IdsDiffer
from headway.data.seam import ProgressReporter
from headway.data.work import Task, TaskResult, Workshop, WorkSpec
from headway.errors import DataError, HeadwayError

# Below this, a process takes longer to start than its share of the work.
SMALL_BYTES = 32 * 2**20
# One thread encodes (on all cores: the library has threads of its own) while the other turns ids into arrays.
_THREADS = 2


@contextmanager
def run_tasks(
    spec: WorkSpec, tasks: Sequence[Task], workers: int | None, report: ProgressReporter
) -> Iterator[Iterator[TaskResult]]:
    """Results in the order of the tasks. `workers` None: a process for each core, or threads where that is faster.

    A context: threads that a generator left to the garbage collector waits for can be waited for inside of
    `threading`'s own lock, and then forever.
    """
    total = sum(task.size_bytes for task in tasks)
    cores = workers or available_cores()
    if workers is None and (total < SMALL_BYTES or len(tasks) < 2 * cores):
        workshop = Workshop(spec)
        with ThreadPoolExecutor(_THREADS) as threads:
            futures = [threads.submit(workshop.run, task, report) for task in tasks]
            with closing(_in_order(futures)) as results:
                yield results
        return
    with _Processes(spec, min(cores, len(tasks))) as processes, closing(processes.run(tasks, report)) as results:
        yield results


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_order(futures: list[Future[TaskResult]]) -> Generator[TaskResult]:
    waiting = deque(futures)
    try:
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


class _Processes:
    """Worker processes, each with a thread here that hands it one task after the other."""

    def __init__(self, spec: WorkSpec, count: int):
        path = Path(spec.out) / "work.json"
        path.write_text(json.dumps({"spec": asdict(spec), "path": sys.path}), encoding="utf-8")
        self._threads = ThreadPoolExecutor(count)
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self._log = Path(spec.out) / "workers.log"
        self._all = [self._start(path) for _ in range(count)]
        for process in self._all:
            self._idle.put(process)

    def _start(self, spec: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "headway.data.worker", str(spec)]
        with self._log.open("a") as errors:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)

    def run(self, tasks: Sequence[Task], report: ProgressReporter) -> Generator[TaskResult]:
        return _in_order([self._threads.submit(self._one, task, report) for task in tasks])

    def _one(self, task: Task, report: ProgressReporter) -> TaskResult:
        process = self._idle.get()
        try:
            answer = _ask(process, asdict(task))
        finally:
            self._idle.put(process)
        if "code" in answer:
            raise _ended(answer["code"], self._log.read_text(encoding="utf-8", errors="replace"))
        if "result" not in answer:
            raise _failure(answer)
        report.advance(task.size_bytes)
        return TaskResult.from_json(answer["result"])

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    _close(pipe)


def _close(pipe: Any) -> None:
    with suppress(BrokenPipeError):  # the process was ended with a task unread
        pipe.close()


def _ask(process: subprocess.Popen[str], task: dict[str, Any]) -> dict[str, Any]:
    if process.stdin is None or process.stdout is None:
        raise HeadwayError("a tokenising process has no pipes")
    try:
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    return json.loads(line) if line else {"code": process.wait()}


def _ended(code: int, log: str) -> Exception:
    """The error for a process that ended with work in hand; a negative code is a signal."""
    if code == -signal.SIGKILL:
        message = "a tokenising process was killed: the machine may have run out of memory"
        return DataError(message, fix="set data.workers to a smaller number")
    return HeadwayError(f"a tokenising process ended with code {code}:\n{log[-2000:]}")


def _failure(answer: dict[str, Any]) -> Exception:
    if "errno" in answer:
        return OSError(answer["errno"], answer["error"])
    if answer.get("differs"):
        return IdsDiffer(answer["error"])
    if answer.get("user"):
        return DataError(answer["error"])
    return HeadwayError(f"a tokenising process failed:\n{answer['error']}")
