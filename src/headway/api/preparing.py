"""From a run file to a plan: the order in which facts are gathered. No torch here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.check.checks import require_checks, run_checks
from headway.check.report import Report, Verdict
from headway.config.load import LoadedRun, from_mapping, load_run, load_text
from headway.config.reader import read_text
from headway.config.schema import RunConfig, SourceConfig, TokenizerConfig
from headway.data import look, peek
from headway.data.build import StoreRequest, build_store, find_store
from headway.data.facts import data_facts, estimate_facts, store_remarks
from headway.data.reading import Reading
from headway.data.remote import local_copies
from headway.data.seam import ProgressReporter, Silent
from headway.data.tokenizer import TokenizerRequest, find_tokenizer, prepare_tokenizer
from headway.data.vocabulary import read_vocabulary
from headway.errors import ConfigError
from headway.facts.adapters import with_adapter
from headway.facts.cluster import probe_cluster
from headway.facts.labels import has_labels, with_labels
from headway.facts.model_config import ModelOrigin, resolve_model
from headway.facts.schema import ClusterFacts, DataFacts, ModelShape
from headway.facts.shape import OwnModel, probe_own, shape_of
from headway.model.identity import weights_identity
from headway.plan.ledger import Ledger
from headway.plan.live import LIVE_FINDINGS
from headway.plan.make import AllFacts, make_plan
from headway.plan.numerics import plan_precision
from headway.plan.schema import CodePlan, Plan
from headway.plan.sources import source_weights, training_sources
from headway.plan.tasks import SOME_LABELS
from headway.plan.tracking import plan_trackers
from headway.registry import GIVEN, require_extra
from headway.run.paths import RunDir
from headway.run.usercode import Named, find_code

Source = str | Path | Mapping[str, Any]  # a run file, or its content

# Assumed until the tokenizer is known; only ever in a plan that is marked as estimated.
_USUAL_VOCAB = 32_000


@dataclass(frozen=True)
class Brought:
    """What a user's script hands over (headway.prepare), as far as a plan must know it.

    shape, model_config: of its module; config {} where that is no model of transformers. code: where its classes lie.
    """

    shape: ModelShape | None = None
    model_config: dict[str, Any] = field(default_factory=dict[str, Any])
    code: tuple[CodePlan, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A plan with the findings on it and the run file that it follows from."""

    plan: Plan
    report: Report
    loaded: LoadedRun


def load(source: Source, overrides: Sequence[str]) -> LoadedRun:
    """A run file, or a mapping with its keys, whose relative paths start where the user stands."""
    if isinstance(source, Mapping):
        return from_mapping(source, base=Path.cwd(), overrides=overrides)
    return load_run(Path(source), overrides)


def reload(run: RunDir, origin: Path, overrides: Sequence[str], added: Sequence[str] = ()) -> LoadedRun:
    """The run directory's copy of the run file, with paths relative to where it once stood.

    added: overrides of a resume. The copy of the DeepSpeed JSON holds unless they name another.
    """
    named_anew = any(text.partition("=")[0].strip() in ("strategy", "strategy.config") for text in added)
    kept = run.deepspeed_json.is_file() and not named_anew
    json = read_text(run.deepspeed_json) if kept else None
    if not run.config.is_file():
        fix = f"if nothing in it has changed since: {shlex.join(['cp', str(origin), str(run.config)])}"
        raise ConfigError(f"{run.config}, the run file as it was at the start, is not there any more", fix=fix)
    return load_text(read_text(run.config), origin, [*overrides, *added], json)


def prepare_data(
    loaded: LoadedRun,
    report: ProgressReporter,
    describe: Callable[[Path, int, bool], list[str]] = store_remarks,
) -> DataFacts:
    """Train or find the tokenizer, build or find the token store; exact facts. `describe`: what is said of it."""
    tokenizer = prepare_tokenizer(_tokenizer_request(loaded, report), report)
    store = build_store(_store_request(loaded, tokenizer, report), report)
    sequence, packing = loaded.config.train.sequence, loaded.config.data.packing
    for line in describe(store, sequence, packing):
        report.note(line)
    return data_facts(store, sequence, packing, source_weights(loaded.config.data))


def look_at_data(loaded: LoadedRun) -> DataFacts:
    """Exact facts where the token store stands already, else estimates from the files' sizes; builds nothing."""
    config = loaded.config
    tokenizer = find_tokenizer(_tokenizer_request(loaded))
    if tokenizer is not None:
        store = find_store(_store_request(loaded, tokenizer))
        if store is not None:
            return data_facts(store, config.train.sequence, config.data.packing, source_weights(config.data))
    request = _store_request(loaded, tokenizer or Path())
    asked = config.model.tokenizer.train if config.model.tokenizer else None
    vocab = read_vocabulary(tokenizer).size if tokenizer else asked or _USUAL_VOCAB
    return estimate_facts(request, vocab=vocab, sequence=config.train.sequence, packing=config.data.packing)


def plan_run(loaded: LoadedRun, data: DataFacts, name: str | None = None, brought: Brought | None = None) -> Plan:
    """Gather the machine's and the model's facts and make the plan."""
    return make_plan(loaded, gather_facts(loaded, data, probe_cluster(loaded.config.launch.device), name, brought))


def gather_facts(
    loaded: LoadedRun,
    data: DataFacts,
    cluster: ClusterFacts,
    name: str | None = None,
    brought: Brought | None = None,
    *,
    here: bool = True,
) -> AllFacts:
    """Everything that the plan follows from, for the machine `cluster`.

    here: that is this machine, so what the run imports must be installed.
    """
    brought = brought or Brought()
    config = loaded.config
    task = config.task.kind
    origin = resolve_model(config.model, vocab=data.vocab, sequence=config.train.sequence, base=loaded.base, task=task)
    model_config, fresh_head = brought.model_config or origin.config, False
    if config.model.config is not None and data.tokenizer and not data.estimated:
        model_config = _with_special_tokens(model_config, Path(data.tokenizer))
    if task == "classification":
        model_config, fresh_head = _with_labels(origin, model_config, data)
    if here:
        _require_extras(config, cluster)
    code = find_code(_own_names(config), loaded.base)
    shape, base = brought.shape or _shape(config, model_config, data, code), ""
    if config.adapter is not None:
        shape = with_adapter(shape, model_config, config.adapter.rank, config.adapter.targets)
    if (config.adapter is not None or task == "preference") and origin.path:
        base = weights_identity(origin.path, _cache(config))
    return AllFacts(
        cluster=cluster,
        shape=shape,
        data=data,
        model_config=model_config,
        name=name or config.name or loaded.path.stem,
        model_path=str(origin.path) if origin.path else None,
        model_revision=origin.revision,
        notes=origin.notes,
        base=base,
        fresh_head=fresh_head,
        code=(*code, *brought.code),
    )


def _require_extras(config: RunConfig, cluster: ClusterFacts) -> None:
    """Raises MissingExtra. On a CPU the plan refuses qlora itself, whatever is installed."""
    for tracker in plan_trackers(config.track):
        require_extra("track", tracker.kind)
    if config.adapter is not None and (config.adapter.kind == "lora" or cluster.device == "cuda"):
        require_extra("adapter", config.adapter.kind)


def _own_names(config: RunConfig) -> list[Named]:
    """The user's own modules that ranks will import."""
    named = [("model.factory", config.model.factory or ""), ("task.kind", config.task.kind)]
    named += [("strategy.kind", config.strategy.kind)]
    named += [(f"track.own[{index}]", kind) for index, kind in enumerate(config.track.own)]
    return [Named(key, path) for key, path in named if ":" in path and not path.startswith(GIVEN)]


def _shape(config: RunConfig, model_config: dict[str, Any], data: DataFacts, code: Sequence[CodePlan]) -> ModelShape:
    """Counted by formula or, of an own module, on what its factory makes."""
    model = config.model
    if model.factory is None:
        return shape_of(model_config, config.task.kind)
    roots = tuple(part.root for part in code)
    own = OwnModel(model.factory, model.options, data.vocab, config.train.sequence, roots)
    return probe_own(own.with_adapter(config.adapter.rank, config.adapter.targets) if config.adapter else own)


def _with_labels(origin: ModelOrigin, config: dict[str, Any], data: DataFacts) -> tuple[dict[str, Any], bool]:
    """(config for the data's labels, whether a pretrained folder's own head is for others)."""
    if data.estimated:
        return with_labels(config, SOME_LABELS, 0), origin.path is not None
    vocabulary = read_vocabulary(Path(data.tokenizer))
    pad = vocabulary.end if vocabulary.pad is None else vocabulary.pad
    changed = with_labels(config, data.labels, pad, sets=data.label_sets)
    return changed, origin.path is not None and not has_labels(config, data.labels)


def _with_special_tokens(model_config: dict[str, Any], tokenizer: Path) -> dict[str, Any]:
    """A model from scratch takes its special token ids from the tokenizer: generation ends where documents ended.

    No pad id: transformers makes it the embedding's padding_idx, and torch never trains that row. Where the pad token
    is the end token, the border of every document would stay as it was drawn.
    """
    vocabulary = read_vocabulary(tokenizer)
    return model_config | {"bos_token_id": vocabulary.begin, "eos_token_id": vocabulary.end, "pad_token_id": None}


def findings(plan: Plan, loaded: LoadedRun, folder: Path) -> Report:
    """Every check; where the build has not read every byte yet, a look at each file's beginning among them."""
    given: dict[str, Callable[[], Verdict]] = {}
    if plan.facts.estimated:
        given["text"] = lambda: peek.text("text", _with_copies(loaded))
        given["records"] = lambda: look.records(
            "records", _with_copies(loaded), find_tokenizer(_tokenizer_request(loaded))
        )
    return run_checks(plan, loaded, folder, given=given)


def judged(plan: Plan, loaded: LoadedRun, folder: Path, force: Sequence[str]) -> Planned:
    """The plan with what the checks find; red findings that `force` names are passed, and written into the plan."""
    report = findings(plan, loaded, folder)
    used = tuple(verdict.name for verdict in report.reds if verdict.name in force)
    used += tuple(name for name in dict.fromkeys(force) if name in LIVE_FINDINGS)  # the ranks look for these
    return Planned(plan.model_copy(update={"forced": used}), report.forced(force), loaded)


def runs_root(loaded: LoadedRun) -> Path:
    """Where run directories are made: relative to where the user stands, as every tool does."""
    return Path(os.path.expanduser(loaded.config.runs))


def _cache(config: RunConfig) -> Path:
    """With the runs: where the user stands."""
    return Path(os.path.expanduser(config.data.cache)).absolute()


def planned(
    path: Source,
    overrides: Sequence[str],
    *,
    build: bool,
    name: str | None = None,
    report: ProgressReporter | None = None,
    force: Sequence[str] = (),
) -> Planned:
    """The plan of a run file and what the checks say.

    build: make the token store, else use what stands. name: of the run, in place of the run file's.
    """
    require_checks(force)
    loaded = load(path, overrides)
    if build:
        _refuse_precision(loaded)
    data = prepare_data(loaded, report or Silent()) if build else look_at_data(loaded)
    return judged(plan_run(loaded, data, name), loaded, runs_root(loaded), force)


def _refuse_precision(loaded: LoadedRun) -> None:
    """What this machine cannot compute, before the minutes of a data build. Raises PlanError."""
    ledger = Ledger(loaded.origins)
    plan_precision(loaded.config, probe_cluster(loaded.config.launch.device), ledger)
    ledger.raise_problems()


def _tokenizer_request(loaded: LoadedRun, report: ProgressReporter | None = None) -> TokenizerRequest:
    config = loaded.config
    asked, key = config.model.tokenizer, "model.tokenizer"
    if asked is None:  # a model from scratch names one: a rule of the run file
        asked, key = TokenizerConfig.model_validate({"from": config.model.from_}), "model"
    sources, held_out = _sources(loaded, report)
    return TokenizerRequest(
        config=asked,
        key=key,
        base=loaded.base,
        cache=_cache(config),
        sources=sources,
        eval=held_out,
        revision=config.model.revision,
    )


def _sources(loaded: LoadedRun, report: ProgressReporter | None) -> tuple[tuple[SourceConfig, ...], Any]:
    """(to train on, `data.eval`), those in an object store as copies in the cache."""
    data = loaded.config.data
    return local_copies(training_sources(data), data.eval, _cache(loaded.config), report or Silent())


def _with_copies(loaded: LoadedRun) -> LoadedRun:
    """The run file with its sources in an object store as their copies in the cache."""
    (first, *more), held_out = _sources(loaded, None)
    data = loaded.config.data.model_copy(update={"train": first, "more": tuple(more), "eval": held_out})
    return replace(loaded, config=loaded.config.model_copy(update={"data": data}))


def _store_request(loaded: LoadedRun, tokenizer: Path, report: ProgressReporter | None = None) -> StoreRequest:
    data = loaded.config.data
    sources, held_out = _sources(loaded, report)
    task = loaded.config.task
    return StoreRequest(
        sources=sources,
        eval=held_out,
        tokenizer=tokenizer,
        cache=_cache(loaded.config),
        base=loaded.base,
        workers=None if data.workers == "auto" else data.workers,
        encoder=data.encoder,
        reading=Reading(task.kind, task.loss_on or "assistant"),
    )
