"""Tensor, pipeline, sequence and expert degrees: which are legal, and what they would give.

Headway's engine spreads a run over data-parallel ranks alone, so all of this is advice and is marked as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headway.errors import PlanError, Problem
from headway.facts.hardware import Machine
from headway.facts.model_config import divisors
from headway.facts.schema import ModelShape
from headway.plan.estimate import estimate
from headway.plan.forecast import Forecast, of_estimate, request_for
from headway.plan.schema import Plan
from headway.plan.setting import Degrees, EstimateRequest

_SHOWN = 12


@dataclass(frozen=True)
class Asked:
    """Degrees that `--tensor`, `--pipeline`, `--context` and `--expert` name; None: whichever is best."""

    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None

    @property
    def anything(self) -> bool:
        return any(value is not None for value in (self.tensor, self.pipeline, self.context, self.expert))


NOTHING_ASKED = Asked()


@dataclass(frozen=True)
class Advice:
    """A setting that the engine does not have, with its forecast."""

    degrees: Degrees
    micro_batch: int
    checkpointing: bool
    forecast: Forecast

    @property
    def label(self) -> str:
        named = [("tensor", self.degrees.tensor), ("pipeline", self.degrees.pipeline)]
        named += [("context", self.degrees.context), ("expert", self.degrees.expert), ("data", self.degrees.data)]
        words = [f"{name} {count}" for name, count in named if count > 1]
        words += ["activation checkpointing"] if self.checkpointing else []
        return ", ".join([*words, f"micro batch {self.micro_batch}"])


def legal(shape: ModelShape, machine: Machine, sequence: int) -> dict[str, list[int]]:
    """The degrees that this model on this machine allows, by name, in order."""
    devices, host = machine.devices, machine.devices_per_host
    experts = shape.experts.count if shape.experts else 1
    return {
        "tensor": [n for n in divisors(shape.kv_heads) if host % n == 0],
        "pipeline": [n for n in divisors(shape.layers) if devices % n == 0],
        "context": [n for n in divisors(shape.heads) if (devices % n == 0 and sequence % (2 * n) == 0) or n == 1],
        "expert": [n for n in divisors(experts) if devices % n == 0],
    }


def check(asked: Asked, shape: ModelShape, machine: Machine, sequence: int) -> None:
    """Raises PlanError with every degree that cannot be and the legal ones."""
    heads = f"{shape.kv_heads} key and value heads (of {shape.heads} heads)"
    # Each rule with what the model alone allows: on other machines more of it is legal.
    rules = {
        "tensor": (f"must divide the {heads} and the {machine.devices_per_host} devices of a host", shape.kv_heads),
        "pipeline": (f"must divide the {shape.layers} layers and the {machine.devices} devices", shape.layers),
        "context": (
            f"must divide the {shape.heads} heads, half the sequence of {sequence} and the devices",
            shape.heads,
        ),
        "expert": (
            f"must divide the model's {shape.experts.count} experts and the devices"
            if shape.experts
            else "the model has no experts",
            shape.experts.count if shape.experts else 1,
        ),
    }
    allowed = legal(shape, machine, sequence)
    problems: list[Problem] = []
    for name, (rule, of_model) in rules.items():
        value, alone = getattr(asked, name), divisors(of_model)
        if value is not None and value not in allowed[name]:
            fix = f"one of {_listed(allowed[name])}"
            fix += f"; the model alone allows {_listed(alone)}" if alone != allowed[name] else ""
            problems.append(Problem(f"--{name}", rule, value, fix))
    product = (asked.tensor or 1) * (asked.pipeline or 1) * (asked.context or 1)
    if not problems and machine.devices % product:
        rule = f"tensor x pipeline x context = {product} must divide the {machine.devices} devices"
        problems.append(
            Problem("--tensor, --pipeline, --context", rule, fix=f"a product of {divisors(machine.devices)}")
        )
    if problems:
        raise PlanError(problems=problems)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:_SHOWN]))


def remarks(asked: Asked, shape: ModelShape) -> tuple[str, ...]:
    """What engines of such degrees do to a model that does not divide, and how to do it knowingly."""
    split = asked.tensor or 1
    if shape.vocab % split == 0:
        return ()
    padded = -(-shape.vocab // split) * split
    return (
        f"--tensor {split} does not divide the vocabulary of {shape.vocab}: engines pad it to {padded}, as "
        f"model.config.vocab={padded} does",
    )


def advise(plan: Plan, machine: Machine, asked: Asked) -> Advice | None:
    """The fastest setting with other degrees that fits; None where none does."""
    found = [advice for advice in _settings(plan, machine, asked) if advice.forecast.fits]
    return max(found, key=lambda advice: advice.forecast.tokens_per_second, default=None)


def _settings(plan: Plan, machine: Machine, asked: Asked) -> Iterator[Advice]:
    allowed = legal(plan.shape, machine, plan.data.sequence)
    powers = {name: [n for n in values if n & (n - 1) == 0] or [1] for name, values in allowed.items()}
    base = request_for(plan, machine)
    contexts = [asked.context] if asked.context else [1]
    for tensor in [asked.tensor] if asked.tensor else powers["tensor"]:
        for pipeline in [asked.pipeline] if asked.pipeline else powers["pipeline"]:
            for context in contexts:
                data, rest = divmod(machine.devices, tensor * pipeline * context)
                if rest or data == 0 or data > plan.batch.global_sequences:
                    continue
                degrees = Degrees(data, tensor, pipeline, context, asked.expert or 1, sequence_parallel=tensor > 1)
                yield from _batches(plan, base, degrees)


def _batches(plan: Plan, base: EstimateRequest, degrees: Degrees) -> Iterator[Advice]:
    for micro in (1, 2, 4):
        accumulation = plan.batch.global_sequences // (degrees.data * micro)
        if accumulation < 1:
            return
        for on in (False, True):
            request = replace(
                base,
                degrees=degrees,
                engine="megatron",
                stage=1,
                micro_batch=micro,
                accumulation=accumulation,
                checkpointing="full" if on else "none",
                offload_optimizer=False,
                offload_parameters=False,
            )
            yield Advice(degrees, micro, on, of_estimate(estimate(request)))
