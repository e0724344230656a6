"""The entry of every rank: `python -m headway.train.worker RUN_DIR`, whoever starts it.

    torchrun --nproc_per_node=2 -m headway.train.worker RUN_DIR
    deepspeed --num_gpus=2 --module headway.train.worker RUN_DIR

Its only input is RUN_DIR/plan.json and the rank variables. Returns an exit code of headway.errors; a rank that fails
writes logs/rank-N.error.json with its own words before it ends.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from headway.errors import EXIT_OK, HeadwayError, Stopped
from headway.run.lock import JobLock, RunInUse, clear_stop
from headway.run.paths import RunDir

if TYPE_CHECKING:
    from headway.train.session import Session


_SAME_REQUEST_SECONDS = 1.0


class StopSignals:
    """SIGTERM and SIGINT ask for a save and an end; a later, second SIGINT ends at once.

    One Ctrl-C arrives twice where the launcher shares the terminal with its ranks and tells them too, as deepspeed's
    does with a SIGTERM. Who sends SIGTERM and cannot wait sends SIGKILL.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._received_at = 0.0
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}

    def asked(self) -> str | None:
        """The signal that asked, by name."""
        return self.received

    def restore(self) -> None:
        """Put the handlers back that stood before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = signal.Signals(number).name, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._received_at > _SAME_REQUEST_SECONDS:
            os._exit(128 + number)


def main(run_dir: str, local_rank: int | None = None) -> int:
    """Train the run in `run_dir` from where it stands; returns the exit code."""
    return as_rank(run_dir, lambda run, signals: train_run(run, signals, local_rank=local_rank))


def as_rank(run_dir: str, work: Callable[[RunDir, StopSignals], None]) -> int:
    """Do a rank's `work`; a failure is written down in its own words before the process ends with its exit code."""
    run = RunDir(Path(run_dir).resolve())
    signals = StopSignals()
    try:
        work(run, signals)
    except BaseException as error:
        code = _report_failure(run, int(os.environ.get("RANK", "0")), error)
        if isinstance(error, Stopped):
            return code
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # tidying up would wait for peers that wait for this rank
    return EXIT_OK


def train_run(
    run: RunDir, signals: StopSignals, *, local_rank: int | None = None, session_class: type[Session] | None = None
) -> None:
    """Read the plan, join the group, run the session. `session_class`: one that watches, for certify."""
    from headway.plan.files import read_plan
    from headway.run.usercode import use_code
    from headway.train import environment

    plan = read_plan(run.plan)
    use_code(plan.code, run)
    environment.prepare(plan.launch.device)
    if plan.strategy.kind == "deepspeed":
        import deepspeed  # noqa: F401

        environment.after_import()
    from headway.train.context import RankContext, check_world, join, leave
    from headway.train.session import Session

    context = RankContext.from_environment(local_rank)
    check_world(context, plan)
    with ExitStack() as stack:
        if context.rank == 0 and not context.launched:
            stack.enter_context(JobLock(run))
            clear_stop(run)
        device = join(context, plan)
        (session_class or Session)(plan, run, context, device).run(lambda: signals.received)
        leave()


def _report_failure(run: RunDir, rank: int, error: BaseException) -> int:
    """Own words to the error file, the traceback to the log, if the disk has room; returns the exit code.

    Nothing is written into a run that another job has: it would be taken for the words of that job's rank.
    """
    code = error.exit_code if isinstance(error, HeadwayError) else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
    if not isinstance(error, Stopped):
        with suppress(OSError):
            traceback.print_exception(error)
    if not isinstance(error, Stopped | RunInUse):
        message = str(error) or type(error).__name__
        words = {"rank": rank, "time": time.time(), "type": type(error).__name__, "message": message, "exit_code": code}
        path = run.rank_error(rank)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(words))
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headway.train.worker", description="One rank of a run.")
    parser.add_argument("run_dir", help="the run directory; it holds plan.json")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=None, help="set by the deepspeed launcher")
    return parser.parse_args()


def _end(code: int) -> NoReturn:
    """Leave without C++'s destructors: one that finds a thread of gloo's still running aborts a rank that is done."""
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _given = _arguments()
    _end(main(_given.run_dir, _given.local_rank))
