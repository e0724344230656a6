"""The composition root: what the command line, scripts and notebooks call. Nothing heavy is imported before its use.

A script or notebook finds these functions in the package itself:

import headway
run_dir = headway.train("run.yaml", ["train.length=500 steps"])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headway.errors import Problem, UserError

if TYPE_CHECKING:
    from headway.api.in_force import Effective
    from headway.api.outlooks import Inquiry
    from headway.api.preparing import Planned, Source
    from headway.certify.schema import Certificate
    from headway.check.hosts import HostsRequest
    from headway.check.report import Report
    from headway.cli.seam import Comparison, ExportResult, Screen
    from headway.data.seam import ProgressReporter
    from headway.diagnose.judge import Diagnosis
    from headway.facts.clusterfile import ClusterFile, Learned
    from headway.plan.outlook import Outlook
    from headway.plan.schema import Plan
    from headway.run.evaluations import Evaluation
    from headway.run.summary import RunSummary
    from headway.train.script import ScriptRun


def plan(path: Source, overrides: Sequence[str] = ()) -> Planned:
    """The plan of a run file and what the checks say of it; builds and starts nothing.

    Raises ConfigError, DataError, ModelError or PlanError with every problem.
    """
    from headway.api import preparing

    return preparing.planned(path, overrides, build=False)


def look_ahead(inquiry: Inquiry) -> tuple[Planned, Outlook | None]:
    """As `plan`, for this machine or another, with memory, time, cost and alternatives; needs no GPU."""
    from headway.api import outlooks

    return outlooks.look_ahead(inquiry)


def calibrate(
    out: Path | None = None, *, device: Literal["auto", "cpu", "cuda"] = "auto", name: str = ""
) -> tuple[ClusterFile, Path]:
    """Measure this machine and write a cluster file; without `out` where `look_ahead` finds it again.

    Raises PlanError where the device is absent, WorkerFailed where a rank could not measure.
    """
    from headway.api import calibrating

    return calibrating.write_calibrated(out, device, name)


def learn(runs: Sequence[str], cluster: Path | None = None) -> tuple[Path, Learned]:
    """Correct a cluster file (the one that `calibrate` wrote here) by what runs measured. Raises UserError."""
    from headway.api import learning

    return learning.learn([find_run(run) for run in runs], cluster)


def effective(path: Path, overrides: Sequence[str] = ()) -> Effective:
    """Each value in force with the file and line, override, default or reason that it comes from. As `plan` raises."""
    from headway.api import in_force

    return in_force.effective(path, overrides)


def effective_of(planned: Planned) -> Effective:
    """The same of a plan that is made, for this machine or another."""
    from headway.api import in_force

    return in_force.effective_of(planned.loaded, planned.plan)


def data_build(path: Source, overrides: Sequence[str] = (), report: ProgressReporter | None = None) -> Path:
    """Train the tokenizer where asked and build the token store; returns its folder. `report` is told what is in it."""
    from headway.api import preparing
    from headway.data.facts import describe_store
    from headway.data.seam import Silent

    loaded = preparing.load(path, overrides)
    return Path(preparing.prepare_data(loaded, report or Silent(), describe_store).store)


def doctor() -> Report:
    """What is wrong on this machine, without a run file: versions, compilers, limits, network, GPUs, imports."""
    from headway.check.doctor import examine

    return examine()


def build_ops(names: Sequence[str], progress: Callable[[str], None]) -> Report:
    """Compile DeepSpeed's ops ahead of a run; none named: those that a run on this machine may load. Takes minutes."""
    from headway.check.building import build_ops
    from headway.check.host import Machine

    return build_ops(names, progress, Machine().environment)


def doctor_hosts(request: HostsRequest) -> Report:
    """Whether hosts can be reached, are alike, answer on their ports both ways, and how fast they are together."""
    from headway.check.hosts import examine_hosts

    return examine_hosts(request)


def doctor_scripts(paths: Sequence[Path]) -> Report:
    """What is wrong in training scripts, launch scripts and Dockerfiles, read as syntax. Raises UserError."""
    from headway.check.scripts.read import read_scripts

    return read_scripts(list(paths))


def diagnose_logs(paths: Sequence[Path]) -> Diagnosis | None:
    """The first failure in log files of any launcher; None where no line names an error. Raises UserError."""
    from headway.diagnose.judge import diagnose_logs

    return diagnose_logs(list(paths))


def train(
    path: Source,
    overrides: Sequence[str] = (),
    *,
    screen: Screen | None = None,
    name: str | None = None,
    force: Sequence[str] = (),
    report: ProgressReporter | None = None,
) -> Path:
    """Plan, check, train, evaluate, export; returns the run directory.

    path: a run file, or a mapping with its keys. screen: None: lines of text. The ranks are processes of their own, on
    this machine: what a notebook defines must lie in a module for them to import.

    Raises the errors of `plan`, CheckFailed, and those of the ranks: see headway.errors for the exit codes.
    """
    from headway.launch.local import warm_up

    warm_up()  # the ranks' imports run on the other core while the data is read and the plan made
    from headway.api import preparing, running

    screen = screen or _plain_screen()
    planned = preparing.planned(path, overrides, build=True, name=name, report=report, force=force)
    screen.plan(planned)
    screen.checks(planned.report)
    planned.report.raise_if_red()
    certificate = running.look_for_certificate(planned, screen)
    run = running.make_run(planned, certificate)
    return running.run_here(run, planned.plan, screen, resume=False)


def _plain_screen() -> Screen:
    from headway.cli.plain import PlainScreen

    return PlainScreen()


def prepare(
    config: Source,
    overrides: Sequence[str] = (),
    *,
    model: Any = None,
    loss: Any = None,
    resume: bool | str | Path = False,
    **more: Any,
) -> ScriptRun:
    """A run inside of this script, planned, checked and built: the script has the loop. Called on every rank.

    config: a run file, or a mapping with its keys. What the script hands over may be absent from it: `model`, an
    nn.Module; `data`, where the script gives `run.batches(...)` or `train_step` its own; `task`, where `loss` is given.
    loss: a function of the model and a batch, its mean over the batch's rows, or a headway.Loss; None: the run file's
    task, or with batches of the script's own what the module returns.
    resume: True goes on with the newest unfinished run of this name, and starts anew where there is none; a run's name
    or path goes on with that one.
    more: task=, an object with the methods of headway.task.seam.Task, in place of a loss; examples=, how many the
    script's data has, for a length in epochs; force=, checks to pass, by name.

    Raises the errors of `plan`, CheckFailed, CheckpointError, and UserError where the script and the file contradict.
    """
    from headway.api.library import prepare, wanted

    return prepare(config, overrides, wanted(model, loss, resume, more))


def certify(
    path: Source,
    overrides: Sequence[str] = (),
    *,
    again: bool = False,
    claims: Sequence[int] = (),
    progress: Callable[[str], None] = lambda name: None,
    report: ProgressReporter | None = None,
) -> tuple[Certificate, Path]:
    """Prove the run file's plan, made small, on this machine; at once where a certificate of it still holds.

    claims: only these (from 1 to 8; none named: all). Such a partial certificate is always made anew, is kept beside
    the whole one, and no run relies on it.
    Returns the certificate, whose `valid` may be False, and the file that it is kept in. `progress` is told the name of
    each small run as it begins. Raises the errors of `plan`, ModelError where the model cannot be made small.
    """
    from headway.api import certifying, preparing
    from headway.data.seam import Silent

    certifying.require_claims(claims)
    report = report or Silent()
    if not again and not claims:
        known = certifying.on_the_shelf(preparing.planned(path, overrides, build=False).plan)
        if known is not None:
            return known
    from headway.launch.local import warm_up

    warm_up()
    plan = preparing.planned(path, overrides, build=True, report=report).plan
    told = certifying.Told(progress, report.note)
    if claims:
        return certifying.certified_in_part(plan, claims, told)
    return certifying.certified(plan, told, again=again)


def dry_run(
    path: Source,
    overrides: Sequence[str] = (),
    *,
    screen: Screen,
    name: str | None = None,
    force: Sequence[str] = (),
) -> tuple[Path, str]:
    """Everything but the start: (the run directory, the exact script that would run)."""
    from headway.api import preparing, running

    planned = preparing.planned(path, overrides, build=True, name=name, force=force)
    planned.report.raise_if_red()
    run = running.make_run(planned, running.look_for_certificate(planned, screen))
    return run.path, running.render(planned.plan, run)


def resume(
    run: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    screen: Screen | None = None,
    force: Sequence[str] = (),
) -> Path:
    """Go on from the newest complete checkpoint; with overrides, on a new plan that says what it changed.

    Raises CheckpointError where nothing complete stands, never a silent start from step 0.
    """
    from headway.launch.local import warm_up

    warm_up()
    from headway.api import resuming

    return resuming.resume(find_run(run), overrides, screen=screen or _plain_screen(), force=force)


def find_run(reference: str | Path | None, root: Path | None = None) -> Path:
    """A run directory by path, name, unique prefix, or the newest. Raises UserError naming near ones."""
    from headway.run import paths

    return paths.find(str(reference or "latest"), root or Path("runs")).path


def runs(root: Path | None = None) -> list[RunSummary]:
    from headway.run.summary import summarise_all

    return summarise_all(root or Path("runs"))


def summary(run: str | Path | None = None) -> RunSummary:
    from headway.run.paths import RunDir
    from headway.run.summary import summarise

    return summarise(RunDir(find_run(run)))


def plan_of(run: str | Path | None) -> Plan:
    """The plan that a run follows. Raises PlanError where plan.json is absent, damaged or changed by hand."""
    from headway.plan.files import read_plan
    from headway.run.paths import RunDir

    return read_plan(RunDir(find_run(run)).plan)


def compare(a: str, b: str) -> Comparison:
    """Two runs: their summaries and the plan's values that differ."""
    from headway.api import looking

    return looking.compare(find_run(a), find_run(b))


def diagnose(run: str | Path | None) -> Diagnosis | None:
    """What went wrong in a failed or crashed run, its cause and fix; None where it did not fail."""
    from headway.api import diagnosing

    return diagnosing.diagnose(find_run(run))


def follow(run: str | None, screen: Screen) -> None:
    """Show a run from its first line, until it ends."""
    from headway.api import looking

    looking.follow(find_run(run), screen)


def stop(run: str | None) -> Path:
    """Ask a run to save and end at its next step. Raises UserError where it is not running."""
    from headway.run.lock import request_stop
    from headway.run.paths import RunDir
    from headway.run.summary import summarise

    found = RunDir(find_run(run))
    state = summarise(found).state
    if state != "running":
        raise UserError(f"{found.name} is not running (it is {state})", fix=f"see headway show {found.name}")
    request_stop(found, "asked by `headway stop`")
    return found.path


def sync(run: str | None) -> dict[str, str]:
    """Send a run's trackers what they do not hold; tracker -> what was done. Raises HeadwayError naming what failed."""
    found = find_run(run)
    from headway.api import syncing

    return syncing.sync(found)


def export(run: str | Path | None = None, step: int | None = None, out: Path | None = None) -> ExportResult:
    """A model folder from a checkpoint, reloaded in plain transformers and compared. Raises ExportError."""
    found = find_run(run)  # before torch is loaded: a wrong name is answered at once
    from headway.api import delivering

    return delivering.export(found, step, out)


def evaluate(
    target: str,
    *,
    step: int | None = None,
    held_out: bool = True,
    tasks: Sequence[str] = (),
    tasks_folder: Path | None = None,
    limit: int | None = None,
) -> tuple[Evaluation, Path]:
    """Judge a run's checkpoint, or a model folder, on its held-out data and on tasks of lm-evaluation-harness.

    Returns the figures and the file that holds them. Raises UserError, DataError, MissingExtra: see `evaluating`.
    """
    if limit is not None and limit < 1:
        raise UserError(problems=[Problem("limit", "must be at least 1", limit)])
    found = Path(target) if Path(target).is_dir() else find_run(target)
    from headway.export import evaluating
    from headway.export.harness import HarnessRequest

    asked = HarnessRequest(tuple(tasks), tasks_folder, limit) if tasks else None
    return evaluating.evaluate(found, evaluating.EvaluationRequest(step, held_out, asked))


def generate(target: str, prompt: str, *, max_tokens: int = 64, temperature: float = 0.8, seed: int = 0) -> str:
    """A continuation of `prompt` by an exported folder, or by a run's export."""
    found = Path(target) if Path(target).is_dir() else find_run(target)
    from headway.api import delivering

    return delivering.generate(found, prompt, max_tokens, temperature, seed)


def answers(target: str) -> bool:
    """Whether the model behind `target` answers a prompt (chats, labels), rather than continues it."""
    found = Path(target) if Path(target).is_dir() else find_run(target)
    from headway.api import delivering

    return delivering.answers(found)
