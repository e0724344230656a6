"""A worker without torch: each rank does what RUN_DIR/behaviour.json says, in order, and leaves traces for the test.

{"0": ["wait"], "1": ["fail CUDA is not here"]}
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

TRACED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
TRACED += (
    "DS_ACCELERATOR",
    "TOKENIZERS_PARALLELISM",
    "PYTHONUNBUFFERED",
    "HEADWAY_RESUME",
    "HEADWAY_LAUNCHED",
    "EXTRA",
)


class FakeRank:
    """One rank; a step's first word is a method, the rest its argument."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.rank = int(os.environ["RANK"])
        self.signals: list[str] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.hear)

    def hear(self, number: int, _frame: FrameType | None) -> None:
        self.signals.append(signal.Signals(number).name)
        self.trace("signals", self.signals)

    def trace(self, name: str, value: object) -> None:
        path = self.run_dir / f"rank-{self.rank}.{name}"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(value))
        partial.replace(path)

    def run(self) -> int:
        self.trace("environment", {name: os.environ[name] for name in TRACED if name in os.environ})
        self.trace("argv", sys.argv[1:])
        self.trace("pid", os.getpid())
        behaviour = json.loads((self.run_dir / "behaviour.json").read_text())
        for step in behaviour.get(str(self.rank), []):
            word, _, argument = step.partition(" ")
            code = getattr(self, f"do_{word}")(argument)
            if code is not None:
                return code
        return 0

    def do_print(self, text: str) -> None:
        """To standard output through Python, and to both descriptors as native code does."""
        print(f"python: {text}")
        os.write(1, f"stdout: {text}\n".encode())
        os.write(2, f"stderr: {text}\n".encode())

    def do_group(self, _: str) -> None:
        """The ranks have met."""
        with (self.run_dir / "events.jsonl").open("a") as file:
            file.write('{"time":1.0,"event":"process_group"}\n')

    def do_wait(self, _: str) -> int:
        """Until SIGTERM, then 'save' and exit as a stopped worker does."""
        while not self.signals:
            time.sleep(0.01)
        time.sleep(0.2)  # saving
        self.trace("saved", True)
        return 75

    def do_hang(self, _: str) -> None:
        """Deaf to everything but SIGKILL."""
        while True:
            time.sleep(0.05)

    def do_child(self, _: str) -> None:
        """A process of the rank's own, which must not outlive it."""
        child = subprocess.Popen(["sleep", "300"])
        self.trace("child", child.pid)

    def do_fail(self, message: str) -> int:
        self.write_error("RuntimeError", message)
        print(f"Traceback (most recent call last):\nRuntimeError: {message}", file=sys.stderr)
        return 1

    def do_code(self, text: str) -> int:
        """End as a worker whose error has a row in the table of exit codes."""
        self.write_error("HeadwayError", "a documented end", int(text))
        return int(text)

    def do_raise(self, message: str) -> None:
        """An exception that no worker code caught: no error file."""
        raise ValueError(message)

    def do_echo(self, text: str) -> int:
        """Fail as gloo does, as soon as the rank named by `text` has gone."""
        path = self.run_dir / f"rank-{text}.pid"
        while not path.exists():
            time.sleep(0.01)
        peer = int(path.read_text())
        while running(peer):
            time.sleep(0.002)
        return self.do_fail("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:31337")

    def do_signal(self, name: str) -> None:
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(60)

    def do_leave(self, code: str) -> None:
        os._exit(int(code))

    def do_sleep(self, seconds: str) -> None:
        time.sleep(float(seconds))

    def do_port(self, times: str) -> int | None:
        """Find the port taken in the first `times` starts."""
        starts = self.run_dir / "starts"
        count = int(starts.read_text()) + 1 if starts.exists() else 1
        starts.write_text(str(count))
        if count > int(times):
            return None
        port = os.environ["MASTER_PORT"]
        return self.do_fail(f"The server socket has failed to listen: port: {port}, code: -98, name: EADDRINUSE")

    def write_error(self, kind: str, message: str, code: int = 1) -> None:
        error = {"rank": self.rank, "time": time.time(), "type": kind, "message": message, "exit_code": code}
        (self.run_dir / "logs" / f"rank-{self.rank}.error.json").write_text(json.dumps(error))


def running(pid: int) -> bool:
    """Whether a process runs; one that ended but was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def main(run_dir: str) -> int:
    return FakeRank(Path(run_dir)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
