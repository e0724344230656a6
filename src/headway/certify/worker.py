"""A rank of a certify run: the real worker with an observer, or the reference in plain PyTorch."""

from __future__ import annotations

import sys

from headway.certify.outcome import OUTCOME, read_outcome, write_outcome
from headway.certify.reference import run_reference
from headway.certify.run import MAIN, REFERENCE
from headway.certify.watching import WatchedSession
from headway.certify.watching_job import Job
from headway.plan.files import read_plan
from headway.registry import load_object
from headway.run.paths import RunDir
from headway.run.usercode import use_code
from headway.train.worker import StopSignals, as_rank, train_run


def main(run_dir: str) -> int:
    return as_rank(run_dir, _work)


def _work(run: RunDir, signals: StopSignals) -> None:
    job = Job.read(run)
    if run.name == REFERENCE:
        import torch

        torch.set_num_threads(1)
        plan = read_plan(run.plan)
        use_code(plan.code, run)
        engine = read_outcome(run.path.parent / MAIN / OUTCOME)
        write_outcome(run.path / OUTCOME, run_reference(plan, engine))
        return
    if job.plant:
        load_object(job.plant, "plant")()
    train_run(run, signals, session_class=WatchedSession)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
