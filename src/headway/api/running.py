"""Starting a prepared run, watching it, and telling the screen."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headway.api import certifying
from headway.api.diagnosing import diagnose
from headway.api.learning import promise
from headway.api.preparing import Planned, runs_root
from headway.certify import shelf
from headway.certify.schema import Certificate
from headway.cli.seam import Outcome, Screen
from headway.config.load import LoadedRun
from headway.data.samples import decode_sample, excerpt
from headway.data.store import open_split
from headway.errors import HeadwayError, Stopped, WorkerFailed, exit_codes
from headway.launch.local import run_job
from headway.launch.seam import JobSpec, JobStatus
from headway.plan.files import write_plan
from headway.plan.schema import Plan
from headway.registry import resolve
from headway.run.journal import Follower, Journal, follow
from headway.run.lock import JobLock, clear_stop
from headway.run.paths import RunDir, create
from headway.run.record import describe_plan, gather_record, write_record
from headway.run.summary import summarise
from headway.run.usercode import copy_code
from headway.run.whole import write_whole

_SAMPLE_CHARACTERS = 600


def look_for_certificate(planned: Planned, screen: Screen) -> Certificate | None:
    """The plan's certificate, made first where the run file requires one; says so on the screen.

    Raises NotCertified: it is required and a claim failed.
    """
    if planned.loaded.config.certify == "required":

        def note(text: str) -> None:
            screen.event({"event": "notice", "text": f"certify: {text}"})

        told = certifying.Told(lambda name: note(f"the {name} run"), note)
        certificate = certifying.require(planned.plan, told)
    else:
        certificate = shelf.find(planned.plan)
    if certificate is None and not planned.loaded.path.is_file():
        text = "no certificate for this plan; `headway.certify(config)` proves it in a minute"
    elif certificate is None:
        command = shlex.join(["headway", "certify", str(planned.loaded.path), *planned.loaded.overrides])
        text = f"no certificate for this plan; `{command}` proves it in a minute"
    elif certificate.valid:
        text = f"certificate {certificate.id} holds for this plan"
    else:
        text = f"certificate {certificate.id} REFUSES this plan: `headway certify` shows why"
    screen.event({"event": "notice" if certificate is None or certificate.valid else "warning", "text": text})
    return certificate


def make_run(planned: Planned, certificate: Certificate | None) -> RunDir:
    """The run directory, whole before a worker starts: run file, plan, record."""
    plan, loaded = planned.plan, planned.loaded
    run = create(runs_root(loaded), plan.name)
    try:
        keep_words(run, loaded)
        write_plan(plan, run.plan)
        copy_code(plan.code, run)
        write_record(run, gather_record(plan, sys.argv, code=loaded.base) | origin_of(planned, certificate))
    except BaseException:  # a full disk; half a run directory would be the newest run
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return run


def keep_words(run: RunDir, loaded: LoadedRun) -> None:
    """Copies of what the user wrote, so that a resume reads the same."""
    write_whole(run.config, loaded.text)
    if loaded.deepspeed is not None:
        write_whole(run.deepspeed_json, loaded.deepspeed.text)


def origin_of(planned: Planned, certificate: Certificate | None) -> dict[str, Any]:
    """What the record says of where the plan comes from: the run file, the overrides in force, the certificate."""
    proof = None if certificate is None else {"id": certificate.id, "valid": certificate.valid}
    loaded = planned.loaded
    file = {"path": str(loaded.path.resolve()), "overrides": list(loaded.overrides)}
    promised = promise(planned.plan)
    return {"plan": describe_plan(planned.plan), "run_file": file, "certificate": proof, "forecast": promised}


def run_here(run: RunDir, plan: Plan, screen: Screen, *, resume: bool) -> Path:
    """Start the local ranks and stay until they end, feeding the screen.

    Raises:
        WorkerFailed (or the failing rank's own kind): names the first rank that failed, its error and its log.
        Stopped: saved on request.
    """
    started = time.monotonic()
    with JobLock(run):
        clear_stop(run)
        feed = Feed(run, screen)
        with Journal(run.events) as events:
            events.event("started", resume=resume, strategy=plan.strategy.label)
            if not resume:
                events.event("sample_data", text=sample_text(plan))
        job = JobSpec(run.path, plan.launch, resume=resume)
        status = run_job(job, feed.poll)
        if status.failure is not None:
            # A full disk must not hide the failure itself.
            with suppress(OSError), Journal(run.events) as events:
                events.event("failed", rank=status.failure.rank, error=status.failure.error)
        feed.poll()
    feed.finish(_outcome(run, status, time.monotonic() - started))
    _raise_failure(run, status)
    return run.path


class Feed:
    """Hands new lines of the run's journals to the screen.

    A terminal or a pipe that is closed costs the screen, not the run: `| tee` ends with the same Ctrl-C that asks the
    ranks to save.
    """

    def __init__(self, run: RunDir, screen: Screen, *, from_start: bool = False):
        self._events: Follower = follow(run.events)
        self._metrics: Follower = follow(run.metrics)
        self._screen = screen
        self.lost = False  # the screen has gone
        if not from_start:
            self._events.poll()  # an earlier attempt's lines were shown then
            self._metrics.poll()

    def poll(self) -> None:
        lines = [(line.get("time", 0.0), True, line) for line in self._events.poll()]
        lines += [(line.get("time", 0.0), False, line) for line in self._metrics.poll()]
        if self.lost:
            return
        with self._reached():
            for _, is_event, line in sorted(lines, key=lambda item: item[0]):
                (self._screen.event if is_event else self._screen.metrics)(line)

    def finish(self, outcome: Outcome) -> None:
        """The closing summary."""
        if not self.lost:
            with self._reached():
                self._screen.finish(outcome)

    @contextmanager
    def _reached(self) -> Generator[None]:
        try:
            yield
        except OSError:
            self.lost = True


def sample_text(plan: Plan) -> str:
    """The first training sample, decoded, its start only; with its label, or with what is learnt between marks."""
    samples = open_split(Path(plan.data.store), "train", plan.data.sequence, plan.data.packing, plan.data.weights)
    sample = samples[0]
    text = excerpt(decode_sample(sample, Path(plan.data.tokenizer)), _SAMPLE_CHARACTERS)
    if not plan.facts.labels:
        return text
    held = [sample.label] if sample.held is None else sample.held
    return f"{text}\nlabel: {', '.join(plan.facts.labels[number] for number in held) or '(none)'}"


def render(plan: Plan, run: RunDir) -> str:
    """What would be started, as text."""
    launcher = resolve("launch", plan.launch.kind)()
    return launcher.render(JobSpec(run.path, plan.launch))


def _outcome(run: RunDir, status: JobStatus, seconds: float) -> Outcome:
    summary = summarise(run)
    done = next((line for line in reversed(summary.events) if line.get("event") == "done"), {})
    export = run.export if run.export.is_dir() else None
    differences = tuple(done.get("differences", ()))
    return Outcome(run.path, status.state, summary.step, summary.tokens, seconds, export, differences)


def _raise_failure(run: RunDir, status: JobStatus) -> None:
    if status.state == "done":
        return
    failure = status.failure
    if failure is None:
        raise Stopped("stopped and saved: `headway resume` goes on from there")
    if status.state == "stopped":
        raise WorkerFailed(
            f"{failure.error}\n    log: {failure.log}", fix="`headway resume` goes on from the last checkpoint"
        )
    message = f"rank {failure.rank} failed first: {failure.error}\n    log: {failure.log}"
    kind, fix = _kind_of(status.exit_code), ""
    # Headway's own errors name their cause and fix; what their logs hold besides is of no use.
    if kind is WorkerFailed and not failure.error.startswith("HeadwayError: "):
        found = diagnose(run.path)
        if found is not None and found.name != "other":
            message, fix = f"{message}\n    cause: {found.cause}", found.fix
    raise kind(message, fix=fix)


def _kind_of(exit_code: int | None) -> type[HeadwayError]:
    """The error whose exit code the launcher chose, so that a rank's own code is the command's."""
    by_code = {code: name for name, code in reversed(exit_codes().items())}
    import headway.errors as errors

    return getattr(errors, by_code.get(exit_code or WorkerFailed.exit_code, "WorkerFailed"))
