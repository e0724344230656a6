"""Library mode: a run inside of a user's own script, which rank 0 plans and every rank joins.

The script is started by whatever sets the rank variables (torchrun, deepspeed, `headway launch`), or by python alone.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.api import preparing, resuming, running
from headway.api.differing import differences
from headway.api.preparing import Brought, Planned
from headway.config.load import LoadedRun, from_mapping, load_run
from headway.data.seam import Silent
from headway.errors import CheckpointError, HeadwayError, ModelError, Problem, UserError
from headway.facts.schema import DataFacts
from headway.plan.files import read_plan, write_plan
from headway.plan.schema import CodePlan, Plan
from headway.registry import GIVEN_DATA, GIVEN_MODEL, GIVEN_TASK, GIVEN_TRANSFORMERS
from headway.run.lock import JobLock, clear_stop
from headway.run.paths import RunDir, find, list_runs
from headway.run.summary import summarise
from headway.run.usercode import code_behind

if TYPE_CHECKING:
    from torch import nn

    from headway.task.seam import Task
    from headway.train.build import Given
    from headway.train.context import RankContext
    from headway.train.given import Loss
    from headway.train.script import ScriptPlace, ScriptRun

_OF_DEEPSPEED = re.compile(r"--local[-_]rank=\d+")
_MORE = ("task", "examples", "force")
_ENDLESS = 2**62  # examples of a script's own batches, where it does not say how many there are


@dataclass(frozen=True)
class Asked:
    """What `headway.prepare` was called with. in_transformers: the model is one of that library, unchanged."""

    model: nn.Module | None
    loss: Loss | Callable[..., Any] | None
    task: Task | None
    examples: int | None
    resume: bool | str | Path
    force: tuple[str, ...]
    in_transformers: bool = False


def wanted(model: Any, loss: Any, resume: bool | str | Path, more: Mapping[str, Any]) -> Asked:
    """The arguments of `headway.prepare`. Raises UserError for what it does not take."""
    problems = [
        Problem(name, "is no argument of headway.prepare", fix=f"it takes model, loss, resume, {', '.join(_MORE)}")
        for name in more
        if name not in _MORE
    ]
    if model is not None and not hasattr(model, "named_parameters"):
        fix = "give the module itself, or name a function that makes it in the run file: model: {factory: net:make}"
        problems.append(Problem("model", f"must be a torch.nn.Module, not {type(model).__name__}", fix=fix))
    if loss is not None and not callable(getattr(loss, "function", loss)):
        fix = "give a function of the model and a batch"
        problems.append(Problem("loss", f"must be a function or a headway.Loss, not {type(loss).__name__}", fix=fix))
    if problems:
        raise UserError(problems=problems)
    force = more.get("force", ())
    return Asked(model, loss, more.get("task"), more.get("examples"), resume, tuple(force))


def prepare(config: str | Path | Mapping[str, Any], overrides: Sequence[str], asked: Asked) -> ScriptRun:
    """See `headway.api.prepare`."""
    from headway.train import environment
    from headway.train.context import RankContext, check_world, join, join_early

    context = RankContext.from_environment()
    asked = _looked_at(asked, config)
    loaded = _load(config, users_own(overrides), asked, context.world)
    preparing.require_checks(asked.force)
    device = preparing.probe_cluster(loaded.config.launch.device).device
    environment.prepare(device)
    joined = join_early(context, device, loaded.config.launch.timeout)
    with ExitStack() as held:
        run, resume = _on_rank_0(lambda: _place_of(loaded, asked, held), context)
        plan = read_plan(run.plan)
        if plan.strategy.kind == "deepspeed":
            import deepspeed  # noqa: F401

            environment.after_import()
        check_world(context, plan)
        there = join(context, plan)
        place = _place(run, context, there, joined=joined)
        place.held.push(held.pop_all())
    from headway.train.script import ScriptRun

    return ScriptRun(plan, _resuming(place, resume), _given(plan, asked))


def _looked_at(asked: Asked, config: str | Path | Mapping[str, Any]) -> Asked:
    task = _sections(config if isinstance(config, Mapping) else Path(config)).get("task", {}).get("kind", "causal_lm")
    return replace(asked, in_transformers=_is_transformers(asked.model, str(task)))


def users_own(overrides: Sequence[str]) -> list[str]:
    """Overrides without what the deepspeed launcher puts before a script's own arguments: LOCAL_RANK says it too."""
    return [text for text in overrides if not _OF_DEEPSPEED.fullmatch(text)]


def _load(config: str | Path | Mapping[str, Any], overrides: Sequence[str], asked: Asked, world: int) -> LoadedRun:
    """The run file, or mapping, with what the script hands over in the places of the sections that it lacks."""
    source = config if isinstance(config, Mapping) else Path(config)
    written = _sections(source)
    beneath: dict[str, dict[str, Any]] = {}
    problems: list[Problem] = []
    if asked.model is not None:
        named = [key for key in ("from", "config", "factory") if key in written.get("model", {})]
        if named:
            rule = f"is given by the script, and by model.{named[0]} of the run file"
            problems.append(Problem("model", rule, fix="keep one of the two"))
        beneath["model"] = {"factory": GIVEN_TRANSFORMERS if asked.in_transformers else GIVEN_MODEL}
        if "adapter" in written:
            problems.append(_adapter_beside_a_module())
    if asked.task is not None and asked.loss is not None:
        problems.append(Problem("loss", "and task both say what is learnt", fix="give prepare one of the two"))
    if (asked.task is not None or asked.loss is not None) and "task" in written:
        problems.append(Problem("task", "is given by the script and by the run file", fix="keep one of the two"))
    if "data" not in written:
        beneath["data"] = {"train": {"kind": GIVEN_DATA}, "packing": False}
        if not asked.in_transformers:
            beneath["train"] = {"sequence": 1}
    if asked.task is not None or asked.loss is not None or "data" not in written:
        beneath["task"] = {"kind": GIVEN_TASK if asked.task is None else _path_of(type(asked.task))}
    if not {"gpus", "processes"} & written.get("launch", {}).keys():
        beneath["launch"] = {"processes": world}
    if problems:
        raise UserError(problems=problems)
    if isinstance(source, Mapping):
        return from_mapping(source, base=Path.cwd(), overrides=overrides, beneath=beneath)
    return load_run(source, overrides, beneath=beneath)


def _adapter_beside_a_module() -> Problem:
    rule = "goes into a base that is read again at a resume and at the merge, and this model exists in the script only"
    fix = (
        "write model: {from: FOLDER} (save_pretrained writes one) and call prepare without model=; or drop adapter "
        "and give prepare what peft.get_peft_model made: its own parameters are trained, the rest stays frozen"
    )
    return Problem("adapter", rule, fix=fix)


def _sections(source: Mapping[str, Any] | Path) -> dict[str, dict[str, Any]]:
    """The sections as they are written, short forms written out; of what cannot be read, none: loading says why."""
    from headway.config.reader import parse, read_text
    from headway.config.shorthands import written_out

    data: Any = dict(source) if isinstance(source, Mapping) else parse(read_text(source), source.name).data
    if not isinstance(data, dict):
        return {}
    return {key: value if isinstance(value, dict) else {"": value} for key, value in written_out(data).items()}


def _is_transformers(model: Any, task: str) -> bool:
    """Whether it is the model that its config and the task say: its export then loads in plain transformers.

    One that the script has changed, by PEFT's layers or a head of its own, is a module of the script's own.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return False
    from headway.model.skeleton import build_skeleton, model_class

    try:
        if type(model) is not model_class(model.config, task):
            return False
        plain = build_skeleton(type(model), copy.deepcopy(model.config))
    except ModelError:
        return False
    theirs, ours = ({name: p.shape for name, p in each.named_parameters()} for each in (model, plain))
    return theirs == ours


def _path_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _on_rank_0(work: Callable[[], tuple[RunDir, bool]], context: RankContext) -> tuple[RunDir, bool]:
    """What rank 0 finds; its error is raised on every rank."""
    from headway.parallel.collectives import exchange

    found: tuple[str, bool] | None = None
    failure: HeadwayError | None = None
    if context.rank == 0:
        try:
            run, resume = work()
            found = (str(run.path.resolve()), resume)
        except HeadwayError as error:
            failure = error
    said = exchange((found, type(failure).__name__, str(failure)))[0]
    if failure is not None:
        raise failure
    if said[0] is None:
        import headway.errors as errors

        kind = getattr(errors, said[1], HeadwayError)
        raise (UserError if kind is errors.MissingExtra else kind)(f"rank 0: {said[2]}")
    return RunDir(Path(said[0][0])), said[0][1]


def _place_of(loaded: LoadedRun, asked: Asked, held: ExitStack) -> tuple[RunDir, bool]:
    """(the run directory, whether it goes on); its lock is held from here. On rank 0."""
    old = _to_resume(loaded, asked)
    planned = _planned(loaded, asked, None if old is None else read_plan(old.plan))
    if old is None:
        planned.report.raise_if_red()
        run = running.make_run(planned, None)
        held.enter_context(JobLock(run))
    else:
        run = old
        held.enter_context(JobLock(run))
        _replan(run, planned)
    clear_stop(run)
    for verdict in planned.report.verdicts:
        if verdict.level == "yellow":
            print(f"headway: {verdict.name}: {verdict.finding}", flush=True)
    plan = planned.plan
    print(f"headway: {plan.strategy.label} on {plan.launch.processes} x {plan.cluster.device_name}: {run.path}")
    return run, old is not None


def _planned(loaded: LoadedRun, asked: Asked, old: Plan | None) -> Planned:
    own = loaded.config.data.train.kind == GIVEN_DATA
    if own:
        data = _own_facts(loaded, asked)
    else:
        data = old.facts if old is not None else preparing.prepare_data(loaded, Silent())
    plan = preparing.plan_run(loaded, data, old.name if old is not None else None, _brought(asked, loaded))
    if asked.in_transformers:  # built anew from its config by whoever has the run, but not the script
        plan = plan.model_copy(update={"model": plan.model.model_copy(update={"kind": "config"})})
    if old is not None:
        plan = plan.model_copy(update={"code": old.code})
    return preparing.judged(plan, loaded, preparing.runs_root(loaded), asked.force)


def _own_facts(loaded: LoadedRun, asked: Asked) -> DataFacts:
    """Of batches that the script makes. Raises UserError for epochs of nobody knows how many examples."""
    if loaded.config.train.length.unit == "epochs" and asked.examples is None:
        rule = "is in epochs, and the data is the script's: nobody knows how long one is"
        fix = "give prepare(..., examples=len(dataset)), or a length in steps"
        raise UserError(problems=[Problem("train.length", rule, str(loaded.config.train.length), fix)])
    count = asked.examples or _ENDLESS
    return DataFacts(
        store="",
        store_hash="",
        tokenizer="",
        vocab=0,
        sequence=loaded.config.train.sequence,
        documents=asked.examples or 0,
        tokens=0,
        train_windows=count,
        train_targets=count,
        eval_documents=0,
        eval_windows=0,
        eval_targets=0,
        eval_bytes=0,
        eval_gzip_bytes=0,
        layout="given",
    )


def _brought(asked: Asked, loaded: LoadedRun) -> Brought:
    """The module's shape, counted on itself, and the source of its class and of the loss."""
    code = _code_of([asked.model and type(asked.model), asked.task and type(asked.task), _function(asked.loss)])
    if asked.model is None:
        return Brought(code=code)
    if asked.in_transformers:
        from headway.model.probe import shape_of_model

        model: Any = asked.model
        shape = shape_of_model(model).model_copy(update={"head": "whole"})  # the loss is made of all its logits
        return Brought(shape, model.config.to_dict(), code)
    from headway.model.own import own_shape

    shape = own_shape(asked.model, _path_of(type(asked.model)), 0, loaded.config.train.sequence)
    return Brought(shape, {}, code)


def _function(loss: Any) -> Any:
    return getattr(loss, "function", loss)


def _code_of(objects: Sequence[Any]) -> tuple[CodePlan, ...]:
    """The source files behind classes and functions, with what they import beneath the same folder."""
    found: dict[str, CodePlan] = {}
    for each in objects:
        module = getattr(each, "__module__", None)
        if each is None or module is None or module.partition(".")[0] in ("headway", "torch", "transformers"):
            continue
        try:
            file = Path(inspect.getsourcefile(each) or "").resolve()
        except (TypeError, OSError):
            continue  # typed into a notebook: there is no file
        if not file.is_file():
            continue
        name = file.stem if module == "__main__" else module
        root = file.parents[name.count(".") + (file.name == "__init__.py")]
        part = code_behind(name, root)
        if part is not None:
            known = found.get(part.root)
            found[part.root] = part if known is None else part.model_copy(update={"files": known.files | part.files})
    return tuple(found.values())


def _to_resume(loaded: LoadedRun, asked: Asked) -> RunDir | None:
    """The run that goes on. Raises CheckpointError or UserError where one was named and cannot."""
    root = preparing.runs_root(loaded)
    if asked.resume is False:
        return None
    if asked.resume is not True:
        run = find(str(asked.resume), root)
        if not _complete(run):
            fix = "start anew: prepare(..., resume=True) does so where there is nothing to go on from"
            raise CheckpointError(f"{run.name} has no complete checkpoint to resume from", fix=fix)
        return run
    name = loaded.config.name or loaded.path.stem
    stamped = re.compile(rf"{re.escape(name)}-\d{{8}}-\d{{6}}(-\d+)?")
    mine = [run for run in list_runs(root) if stamped.fullmatch(run.name) and run.plan.is_file()]
    return mine[-1] if mine and _complete(mine[-1]) and summarise(mine[-1]).state != "done" else None


def _complete(run: RunDir) -> bool:
    return any(checkpoint.complete for checkpoint in summarise(run).checkpoints)


def _replan(run: RunDir, planned: Planned) -> None:
    """The plan of a run that goes on, where the run file or the script changed. Raises PlanError where it may not."""
    old, reached = read_plan(run.plan), [c.step for c in summarise(run).checkpoints if c.complete][-1]
    changed = differences(old, planned.plan)
    resuming.require_resumable(changed, planned.plan, reached)
    planned.report.raise_if_red()
    if changed:
        resuming.keep_old_plan(run)
        write_plan(planned.plan, run.plan)
        for key, a, b in changed:
            print(f"headway: the plan changed at this resume: {key}: {a} -> {b}")


def _place(run: RunDir, context: RankContext, device: Any, *, joined: bool) -> ScriptPlace:
    from headway.train.script import ScriptPlace

    held = ExitStack()
    received: Callable[[], str | None] = _nothing
    interactive = hasattr(sys, "ps1") or "ipykernel" in sys.modules
    if threading.current_thread() is threading.main_thread() and not interactive:
        from headway.train.worker import StopSignals

        signals = StopSignals()
        held.callback(signals.restore)
        received = signals.asked
    return ScriptPlace(run, context, device, joined, received, held)


def _nothing() -> str | None:
    return None


def _resuming(place: ScriptPlace, resume: bool) -> ScriptPlace:
    return replace(place, context=replace(place.context, resume=resume, launched=False))


def _given(plan: Plan, asked: Asked) -> Given:
    """The script's module, loss and task in the places of the plan's."""
    from headway.train.build import Given
    from headway.train.given import GivenSource, GivenTask, GivenTransformersSource, Loss, models_own_loss
    from headway.train.script import given_comparison

    task: Task | None = asked.task
    if plan.task.kind == GIVEN_TASK:
        loss = asked.loss
        if loss is None:
            if asked.model is None:
                fix = "give prepare(..., loss=function), or data in the run file"
                raise UserError(problems=[Problem("loss", "is named by nobody", fix=fix)])
            loss = models_own_loss(asked.model)
        task = GivenTask(plan, loss if isinstance(loss, Loss) else Loss(loss))
    if asked.model is None:
        return Given(None, task)
    if asked.in_transformers:
        inside = task is None and plan.task.kind != "classification"
        model: Any = asked.model
        return Given(GivenTransformersSource(plan, model, loss_inside=inside), task)
    from headway.task.own import checked, task_of

    source = GivenSource(plan, asked.model)
    learnt: Task = task_of(plan) if task is None else checked(task)
    return Given(source, learnt, given_comparison(source, learnt, plan))
