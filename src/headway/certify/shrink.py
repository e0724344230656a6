"""The user's plan, small: width, depth, data and, in proportion, the engine's thresholds. Everything else stays.

At their defaults a small model would fill one bucket and keep its weights ungathered, and prove nothing about either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.errors import ModelError, Problem
from headway.facts.adapters import with_adapter
from headway.facts.architectures import ARCHITECTURES, KEYS
from headway.facts.schema import ModelShape
from headway.facts.shape import OwnModel, probe_own, shape_of
from headway.plan.schema import AdapterPlan, IntervalPlan, LaunchPlan, ModelPlan, Plan, SchedulePlan, StrategyPlan
from headway.registry import load_object
from headway.run.usercode import has_name, use_code

STEPS = 6
EVERY_STEP = tuple(range(1, STEPS + 1))
SAVED_AT = 3  # the checkpoint that resume and reshape start from
KILLED_AFTER = 4
SEQUENCE = 48
VOCAB = 256
HEADS, HEAD_DIM = 4, 16
HIDDEN = HEADS * HEAD_DIM
DROPOUT = 0.1
_RANK = 8  # an adapter's, at most
_CERTIFY = "certify"  # what a user's module calls its small model
OWN_SIZE_PARAMETERS = 20_000_000  # a model that cannot be made small is certified as it is up to here
_CLIP = 0.1  # far below the gradient norm of fresh weights, so that clipping acts in every step
_FLUSHES = 4  # at least so many bucket flushes a backward pass


@dataclass(frozen=True)
class Small:
    """A plan that runs in seconds, and what it has in place of the user's."""

    plan: Plan
    substitutions: tuple[str, ...]


def shrink(plan: Plan, processes: int) -> Small:
    """The small plan on `processes` ranks (1 or 2), dropout off.

    Raises:
        ModelError: the model has no width and depth that could be set, and is too large to be certified as it is.
    """
    said: list[str] = []
    model, shape = _small_model(plan, said)
    adapter = plan.adapter and _small_adapter(plan.adapter)
    if adapter is not None:
        said.append(f"an adapter of rank {adapter.rank}, without dropout, but in the runs of claim 4")
        if plan.adapter and plan.adapter.quantization:
            said.append("LoRA in place of QLoRA, beside a base in the training precision: the 4-bit base is unproven")
        shape = with_adapter(shape, model.config, adapter.rank, adapter.targets)
    if processes < plan.launch.processes:
        ranks = "one process" if processes == 1 else f"{processes} processes"
        said.append(f"{ranks} in place of {plan.launch.processes}")
    device, precision, attention, tf32 = _device(plan, said)
    micro, accumulation = min(plan.batch.micro_batch, 2), min(plan.batch.accumulation, 4)
    total = micro * accumulation * processes
    uneven = total - 1 if total > 1 and plan.batch.global_sequences < plan.batch.slots else total
    clip = min(plan.optimizer.clip, _CLIP) if plan.optimizer.clip > 0 else 0.0
    if clip != plan.optimizer.clip:
        said.append(f"clip {clip:g} in place of {plan.optimizer.clip:g}, so that it acts in every step")
    parts = {
        "model": model.model_copy(update={"attention": attention}),
        "adapter": adapter,
        "data": plan.data.model_copy(update={"sequence": SEQUENCE}),
        "batch": plan.batch.model_copy(
            update={
                "global_sequences": uneven,
                "micro_batch": micro,
                "accumulation": accumulation,
                "data_parallel_size": processes,
            }
        ),
        "schedule": _schedule(plan, uneven),
        "optimizer": plan.optimizer.model_copy(update={"clip": clip}),
        "strategy": _strategy(plan, shape, processes),
        "numerics": plan.numerics.model_copy(
            update={
                "precision": precision,
                "tf32": tf32,
                "loss_chunk_tokens": SEQUENCE // 2 if plan.numerics.loss_chunk_tokens else 0,
            }
        ),
        "evaluate": IntervalPlan(),
        "log_every": 1,
        "stop_after_seconds": None,
        "checkpoint": plan.checkpoint.model_copy(
            update={"every": IntervalPlan(steps=SAVED_AT), "keep": STEPS, "at_end": True}
        ),
        "launch": _launch(plan, device, processes),
        "track": (),
        "export": plan.export.model_copy(update={"at_end": True, "sample": "the"}),
        "shape": shape,
    }
    return Small(plan.model_copy(update=parts), tuple(said))


def _small_adapter(adapter: AdapterPlan) -> AdapterPlan:
    """Beside weights that follow from the seed, none of them in 4 bits: plain PyTorch has no such product."""
    unquantised = {"kind": "lora", "quantization": None, "double_quantization": False}
    return adapter.model_copy(update={"rank": min(adapter.rank, _RANK), "dropout": 0.0, "base": "", **unquantised})


def _schedule(plan: Plan, sequences: int) -> SchedulePlan:
    tokens, warmup = STEPS * sequences * SEQUENCE, min(2, plan.schedule.warmup_steps)
    return plan.schedule.model_copy(update={"steps": STEPS, "tokens": tokens, "warmup_steps": warmup})


def _launch(plan: Plan, device: str, processes: int) -> LaunchPlan:
    changed = {"kind": "local", "device": device, "processes": processes, "threads": 1, "port": None}
    changed |= {"backend": "nccl" if device == "cuda" else "gloo", "timeout_seconds": 60.0}
    return plan.launch.model_copy(update=changed)


def with_dropout(plan: Plan) -> Plan:
    """The plan with dropout on, as its architecture names it: a resume must restore the random state too."""
    config = dict(plan.model.config)
    arch = ARCHITECTURES.get(config.get("model_type", ""))
    for key in arch.dropout if arch else ("attention_dropout",):
        config[key] = max(float(config.get(key) or 0.0), DROPOUT)
    adapter = plan.adapter and plan.adapter.model_copy(update={"dropout": DROPOUT})
    return plan.model_copy(update={"model": plan.model.model_copy(update={"config": config}), "adapter": adapter})


def on_one_rank(plan: Plan) -> Plan:
    """The same step on one rank and split otherwise: micro batches of one sequence."""
    batch = plan.batch.model_copy(
        update={"micro_batch": 1, "accumulation": plan.batch.global_sequences, "data_parallel_size": 1}
    )
    strategy = plan.strategy
    if strategy.kind == "ddp":
        strategy = StrategyPlan(kind="single")
    launch = plan.launch.model_copy(update={"processes": 1})
    return plan.model_copy(update={"batch": batch, "strategy": strategy, "launch": launch})


def _small_model(plan: Plan, said: list[str]) -> tuple[ModelPlan, ModelShape]:
    """The model made small: by its config, by its own `certify` factory, or as it is where it is small already."""
    kind, config = plan.model.kind, plan.model.config
    if ":" in kind:
        made = _users_small_model(plan, said)
        if made is not None:
            return made
    lacking = [":"] if ":" in kind else _lacking(config)
    if not lacking:
        small = small_config(config)
        said.append(f"width {HIDDEN}, {_layers(small)} layers, {VOCAB} tokens of vocabulary, windows of {SEQUENCE}")
        if kind == "pretrained":
            said.append("fresh weights in place of the pretrained ones: their loading is checked when the run starts")
        dropping = sorted(key for key, value in small.items() if _is_dropout(key, value))
        if dropping:
            said.append(f"no dropout ({', '.join(dropping)}), but in the runs of claim 4")
        arch = ARCHITECTURES.get(small.get("model_type", ""))
        # Also what the config leaves to its class, which may mean a tenth.
        small |= dict.fromkeys([*dropping, *(arch.dropout if arch else ())], 0.0)
        made = plan.model.model_copy(update={"kind": "config", "path": None, "config": small})
        return made, shape_of(small, plan.task.kind)
    if plan.shape.parameters <= OWN_SIZE_PARAMETERS:
        said.append(f"the model at its own size, windows of {SEQUENCE}")
        if ":" in kind and plan.adapter is not None:
            return plan.model, _own_shape(plan, kind, plan.model.options, plan.shape.vocab)
        return plan.model, plan.shape
    why = "it is your own" if ":" in kind else f"its config has no {', '.join(lacking)}"
    rule = f"cannot be made small ({why}), and its {plan.shape.parameters / 1e6:.0f} M parameters are too many as it is"
    fix = "certify a smaller config of it, or write a function certify(vocab) beside your factory that returns a small"
    fix += " module with the same kinds of layers (docs/certify.md shows one)"
    raise ModelError(problems=[Problem("model", rule, kind, fix)])


def _users_small_model(plan: Plan, said: list[str]) -> tuple[ModelPlan, ModelShape] | None:
    """From a function `certify` beside the factory, or a static method of a ModelSource class; None without either."""
    module = plan.model.kind.partition(":")[0]
    if has_name(plan.code, module, _CERTIFY):
        small = f"{module}:{_CERTIFY}"
        said.append(f"the small model that {small} makes")
        shape = _own_shape(plan, small, {}, min(VOCAB, plan.shape.vocab))
        return plan.model.model_copy(update={"kind": small, "options": {}}), shape
    use_code(plan.code, None)
    factory = getattr(load_object(plan.model.kind, "model.factory"), _CERTIFY, None)
    if factory is None:
        return None
    said.append(f"the small model that {plan.model.kind}.{_CERTIFY} gives")
    return factory(plan)


def _own_shape(plan: Plan, kind: str, options: dict[str, Any], vocab: int) -> ModelShape:
    """The shape of a factory's module; it names the small adapter, where there is one."""
    roots = tuple(part.root for part in plan.code)
    own = OwnModel(kind, options, vocab, SEQUENCE, roots)
    return probe_own(own.with_adapter(min(plan.adapter.rank, _RANK), plan.adapter.targets) if plan.adapter else own)


def _is_dropout(key: str, value: Any) -> bool:
    return "drop" in key and isinstance(value, float) and value > 0


def _keys(config: dict[str, Any]) -> dict[str, str]:
    arch = ARCHITECTURES.get(config.get("model_type", ""))
    return {word: (arch.key(word) if arch else KEYS[word]) for word in KEYS}


def _lacking(config: dict[str, Any]) -> list[str]:
    keys = _keys(config)
    return [keys[word] for word in ("hidden", "layers", "heads", "vocab") if keys[word] not in config]


def small_config(config: dict[str, Any]) -> dict[str, Any]:
    """A transformers config of the same kinds of modules, narrow and shallow.

    Heads keep their grouping, experts their routing, alternating layers their alternation.
    """
    keys = _keys(config)
    wide = config[keys["hidden"]]
    small = dict(config)
    small |= {keys["hidden"]: HIDDEN, keys["heads"]: HEADS, keys["vocab"]: min(VOCAB, config[keys["vocab"]])}
    if config.get(keys["ffn"]):
        small[keys["ffn"]] = max(8, round(config[keys["ffn"]] / wide * HIDDEN / 8) * 8)
    if config.get(keys["kv_heads"]):
        small[keys["kv_heads"]] = _grouped(config[keys["heads"]], config[keys["kv_heads"]])
    if config.get("head_dim"):
        small["head_dim"] = HEAD_DIM
    small |= _depth(config, keys["layers"])
    small |= {key: min(config[key], most) for key, most in _EXPERTS.items() if config.get(key)}
    if config.get("moe_intermediate_size"):
        small["moe_intermediate_size"] = HIDDEN
    if config.get("sliding_window"):
        small["sliding_window"] = SEQUENCE // 2
    small[keys["max_sequence"]] = max(SEQUENCE, min(config.get(keys["max_sequence"]) or SEQUENCE, 4096))
    for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if isinstance(config.get(token), int):
            small[token] = config[token] % small[keys["vocab"]]
    return small


_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}


def _grouped(heads: int, kv_heads: int) -> int:
    """Of HEADS heads, as many key and value heads as keep the grouping nearest."""
    return min((1, 2, 4), key=lambda count: abs(count / HEADS - kv_heads / heads))


def _depth(config: dict[str, Any], key: str) -> dict[str, Any]:
    """Two layers, or one of each kind where the config lists kinds."""
    kinds = config.get("layer_types")
    if not kinds:
        return {key: 2}
    distinct = list(dict.fromkeys(kinds))
    chosen = distinct if len(distinct) > 1 else [*distinct, *distinct]
    return {key: len(chosen), "layer_types": chosen}


def _layers(config: dict[str, Any]) -> int:
    arch = ARCHITECTURES.get(config.get("model_type", ""))
    return int(config[arch.key("layers") if arch else KEYS["layers"]])


def _device(plan: Plan, said: list[str]) -> tuple[str, str, str, bool]:
    """(device, precision, attention, tf32) that this machine can run, and what was put in place of what."""
    numerics, attention = plan.numerics, plan.model.attention
    if plan.launch.device == "cpu" or plan.cluster.device == "cuda":
        return plan.launch.device, numerics.precision, attention, numerics.tf32
    precision = numerics.precision
    said.append("a CPU and gloo in place of GPUs and NCCL")
    if precision == "fp16":
        said.append("fp32 in place of fp16, which no CPU computes: loss scaling is unproven")
        precision = "fp32"
    if attention in ("flash", "flex"):
        said.append(f"SDPA with a document mask in place of {attention} attention, which is unproven")
        attention = "sdpa"
    if numerics.tf32:
        said.append("full fp32 products in place of TF32")
    return "cpu", precision, attention, False


def _strategy(plan: Plan, small: ModelShape, processes: int) -> StrategyPlan:
    """Buckets and thresholds in proportion to the parameters, buckets at most a quarter of what one pass sends."""
    strategy = plan.strategy
    if strategy.kind == "ddp" and processes == 1:
        return StrategyPlan(kind="single")
    if strategy.kind != "deepspeed" or strategy.stage == 0:
        return strategy
    ratio = small.parameters / max(plan.shape.parameters, 1)
    most = small.trainable_parameters // _FLUSHES

    def scaled(elements: int, least: int) -> int:
        return max(min(least, most), min(most, round(elements * ratio))) // 2 * 2  # DeepSpeed refuses odd buckets

    return strategy.model_copy(
        update={
            "reduce_bucket_elements": scaled(strategy.reduce_bucket_elements, 1000),
            "allgather_bucket_elements": scaled(strategy.allgather_bucket_elements, 1000),
            "prefetch_bucket_elements": scaled(strategy.prefetch_bucket_elements, 0),
            "persistence_threshold_elements": round(strategy.persistence_threshold_elements * ratio),
        }
    )
