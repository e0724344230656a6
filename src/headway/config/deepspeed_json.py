"""From a judged DeepSpeed JSON to the run file's keys: what each value means here, and what is said about it.

Every key ends in one of four ways: it becomes a key of the run file (`firm`), it goes to the engine as it is
(`passed`), it has no effect here and a notice says so, or it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from headway.config import deepspeed_meaning as meaning
from headway.config import deepspeed_table as table
from headway.config.deepspeed_check import Judged, judge_json
from headway.config.deepspeed_models import Release
from headway.config.deepspeed_table import Path
from headway.config.offload import NO_NVME, NO_NVME_FIX
from headway.config.reader import dotted
from headway.errors import Problem


@dataclass(frozen=True)
class Said:
    """A value that the JSON gives to a key of the run file: by which of its keys, and where."""

    value: Any
    by: str  # "zero_optimization.stage"
    where: str  # "ds.json:12"


@dataclass(frozen=True)
class DeepSpeedJson:
    """A read DeepSpeed JSON.

    firm: run-file key -> what the JSON says; the run file may not say otherwise.
    soft: run-file key -> what DeepSpeed does where the JSON is silent; the run file goes before it.
    autos: JSON key -> (run-file key or plan path that resolves it, where).
    passed: goes to the engine as it stands, over what Headway writes out.
    """

    name: str
    text: str
    version: str
    firm: dict[str, Said]
    soft: dict[str, Said]
    autos: dict[str, tuple[str, str]]
    passed: dict[str, Any]
    passed_from: dict[str, str]  # "zero_optimization.sub_group_size" -> "ds.json:20"
    notices: tuple[str, ...]
    problems: tuple[Problem, ...]
    total_steps: Said | None = None  # of the scheduler: the plan's steps must be the same


def read_deepspeed_json(text: str, name: str, release: Release | None = None) -> DeepSpeedJson:
    """Judge the text and translate it. Raises ConfigError where it has no structure; all else is in `problems`."""
    return _Translation(judge_json(text, name, release)).result()


@dataclass
class _Translation:
    judged: Judged
    firm: dict[str, Said] = field(default_factory=dict[str, Said])
    soft: dict[str, Said] = field(default_factory=dict[str, Said])
    autos: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    passed: dict[str, Any] = field(default_factory=dict[str, Any])
    passed_from: dict[str, str] = field(default_factory=dict[str, str])
    total_steps: Said | None = None

    def result(self) -> DeepSpeedJson:
        self._batch()
        self._optimizer()
        self._scheduler()
        self._precision()
        self._offload()
        self._activation_checkpointing()
        self._monitors()
        self._checkpoint()
        self._rest()
        judged = self.judged
        return DeepSpeedJson(
            name=judged.source.name,
            text=judged.source.text,
            version=judged.version,
            firm=self.firm,
            soft=self.soft,
            autos=self.autos,
            passed=self.passed,
            passed_from=self.passed_from,
            notices=tuple(judged.notices),
            problems=tuple(judged.problems),
            total_steps=self.total_steps,
        )

    # --- tools -------------------------------------------------------------------------------------------------------

    def _get(self, *path: str) -> Any:
        return self.judged.values.get(path)

    def _is(self, *path: str) -> bool:
        return path in self.judged.values

    def _say(self, path: Path, key: str, value: Any) -> None:
        self.firm[key] = Said(value, dotted(path), self.judged.where(path))

    def _default(self, path: Path, key: str, value: Any) -> None:
        """DeepSpeed's own default where the JSON is silent."""
        self.soft.setdefault(key, Said(value, f"DeepSpeed's default of {dotted(path)}", self.judged.where(path[:-1])))

    def _auto(self, path: Path, key: str) -> None:
        self.autos[dotted(path)] = (key, self.judged.where(path))

    def _take(self, path: Path, key: str, convert: Callable[[Any], Any] = lambda value: value) -> bool:
        """Move a JSON value to a run-file key; True where it is given, "auto" included."""
        if path not in self.judged.values:
            return False
        value = self.judged.values.pop(path)
        if value == "auto":
            self._auto(path, key)
        elif value is not None:
            self._say(path, key, convert(value))
        return True

    def _drop(self, section: Path) -> dict[Path, Any]:
        """Take all values of a section out; they are returned."""
        inside = {key: value for key, value in self.judged.values.items() if key[: len(section)] == section}
        for key in inside:
            self.judged.values.pop(key)
        return inside

    # --- sections ----------------------------------------------------------------------------------------------------

    def _batch(self) -> None:
        """train_batch_size counts sequences over all processes; what is "auto" follows from the other two."""
        micro, steps = self._get("train_micro_batch_size_per_gpu"), self._get("gradient_accumulation_steps")
        total = self._get("train_batch_size")
        if (
            self._take(("train_batch_size",), "train.global_batch", lambda count: f"{count} sequences")
            and total == "auto"
        ):
            self.judged.notice(
                ("train_batch_size",), "is auto, which DeepSpeed itself cannot read: Headway resolves it"
            )
        if not isinstance(total, int) and isinstance(micro, int):
            where = ("train_batch_size",) if total == "auto" else ("train_micro_batch_size_per_gpu",)
            if steps is None:
                self._default(("gradient_accumulation_steps",), "train.accumulation", 1)
            self.soft["train.global_batch"] = Said("auto", dotted(where), self.judged.where(where))

    def _optimizer(self) -> None:
        path = ("optimizer", "type")
        if ("optimizer",) not in self.judged.sections:
            return
        if not self._is(*path):
            if path not in self.judged.written:
                self.judged.refuse(("optimizer",), "names no type", None, 'write "type": "AdamW"')
            self._drop(("optimizer", "params"))
            return
        named = str(self.judged.values.pop(path))
        known = next((name for name in table.OPTIMIZERS if name.lower() == named.lower()), None)
        if known is None or (known not in ("Adam", "AdamW") and known != named):
            self._drop(("optimizer", "params"))
            if named.strip().lower() in {name.lower() for name in table.NOT_ADMITTED}:
                rule = f"is not admitted: only {', '.join(table.OPTIMIZERS)} are held to the same curve at every stage"
                self.judged.refuse(path, rule, named, "write AdamW")
            return
        optimizer = table.OPTIMIZERS[known]
        kind = optimizer.kind
        adam_w_mode = self.judged.values.pop(("optimizer", "params", "adam_w_mode"), True)
        if adam_w_mode is False:
            kind = "adam"
        elif known == "Adam":
            text = "= Adam decays as AdamW does in DeepSpeed, unless adam_w_mode is false: taken as adamw"
            self.judged.notice(path, text)
        self._say(path, "optimizer.kind", kind)
        for name in ("lr", "eps", "weight_decay", "momentum"):
            if known == "RMSprop" and name == "momentum":
                continue
            path, key = ("optimizer", "params", name), f"optimizer.{name}"
            if not self._take(path, key) and key in optimizer.defaults:
                self._default(path, key, optimizer.defaults[key])
        self._betas(known, optimizer)
        if (said := self.firm.get("optimizer.weight_decay")) and said.value > 0:
            text = "decays matrices only here: norms and biases, which DeepSpeed would decay too, are left alone"
            self.judged.notice(("optimizer", "params", "weight_decay"), text)

    def _betas(self, known: str, optimizer: table.Optimizer) -> None:
        path = ("optimizer", "params", "betas")
        if known == "RMSprop":
            alpha = self.judged.values.pop(("optimizer", "params", "alpha"), 0.99)
            self._say(("optimizer", "params", "alpha"), "optimizer.betas", [0.9, alpha])
            if self.judged.values.pop(("optimizer", "params", "momentum"), 0.0):
                rule = "is not offered: Headway's rmsprop has no momentum"
                self.judged.refuse(("optimizer", "params", "momentum"), rule, None, "write 0")
        elif not self._take(path, "optimizer.betas") and "optimizer.betas" in optimizer.defaults:
            self._default(path, "optimizer.betas", optimizer.defaults["optimizer.betas"])

    def _scheduler(self) -> None:
        path = ("scheduler", "type")
        if ("scheduler",) not in self.judged.sections:
            return
        named = self.judged.values.pop(path, None)
        if named is None:
            if path not in self.judged.written:
                self.judged.refuse(("scheduler",), "names no type", None, 'write "type": "WarmupDecayLR"')
            self._drop(("scheduler", "params"))
            return
        if named not in table.SCHEDULERS:
            self._drop(("scheduler", "params"))
            if named in table.OTHER_SCHEDULERS:
                rule = f"is not offered: Headway's schedules are those of {', '.join(table.SCHEDULERS)}"
                self.judged.refuse(path, rule, named, "remove scheduler, and write optimizer: {schedule: cosine}")
            return
        schedule = table.SCHEDULERS[named][0]
        self._say(path, "optimizer.schedule", schedule)
        inside = ("scheduler", "params")
        if not self._take((*inside, "warmup_num_steps"), "optimizer.warmup", lambda steps: f"{steps} steps"):
            self._default((*inside, "warmup_num_steps"), "optimizer.warmup", "1000 steps")
        if self.judged.values.pop((*inside, "warmup_type"), "log") == "log":
            text = "warms up along a logarithm in DeepSpeed; Headway's warm-up is a straight line"
            self.judged.notice((*inside, "warmup_type"), text)
        self._least_rate(schedule)
        self._steps_and_peak()

    def _steps_and_peak(self) -> None:
        inside = ("scheduler", "params")
        total = self.judged.values.pop((*inside, "total_num_steps"), None)
        if total == "auto":
            self._auto((*inside, "total_num_steps"), "schedule.steps")
        elif total is not None:
            where = self.judged.where((*inside, "total_num_steps"))
            self.total_steps = Said(total, "scheduler.params.total_num_steps", where)
        peak = self.judged.values.pop((*inside, "warmup_max_lr"), None)
        if peak == "auto":
            self._auto((*inside, "warmup_max_lr"), "optimizer.lr")
        elif peak is not None:
            # The scheduler sets the rate of every step, so the optimizer's own is never used.
            own = self.firm.get("optimizer.lr")
            if own and own.value != peak:
                self.judged.notice((*inside, "warmup_max_lr"), f"= {peak:g} is the peak, not {own.by} = {own.value:g}")
            self._say((*inside, "warmup_max_lr"), "optimizer.lr", peak)
            self.autos.pop("optimizer.params.lr", None)

    def _least_rate(self, schedule: str) -> None:
        inside = ("scheduler", "params")
        for name in ("warmup_min_lr", "warmup_min_ratio"):
            start = self.judged.values.pop((*inside, name), 0)
            if start == "auto":
                self._auto((*inside, name), "schedule.first_lr")
            elif start:
                self.judged.refuse((*inside, name), "is not offered: the warm-up begins at 0", start, "write 0")
        if schedule == "linear":
            self._default(("scheduler", "params", "type"), "optimizer.min_lr_ratio", 0.0)
        elif schedule == "cosine" and not self._take((*inside, "cos_min_ratio"), "optimizer.min_lr_ratio"):
            self._default((*inside, "cos_min_ratio"), "optimizer.min_lr_ratio", 0.0001)

    def _precision(self) -> None:
        """At most one of fp16 and bf16; neither means fp32, as in DeepSpeed."""
        asked = {name: self.judged.values.pop((name, "enabled"), None) for name in ("fp16", "bf16")}
        if asked["fp16"] is True and asked["bf16"] is True:
            other = self.judged.where(("bf16", "enabled"))
            rule = f"and bf16.enabled ({other}) are both true: one precision trains"
            self.judged.refuse(("fp16", "enabled"), rule, True, "keep one: bf16 where the GPU has it")
            return
        for name, value in asked.items():
            if value is True:
                self._say((name, "enabled"), "train.precision", name)
            elif value == "auto":
                self._auto((name, "enabled"), "train.precision")
        if "auto" in asked.values() or True in asked.values():
            return
        key = ("fp16", "enabled") if asked["fp16"] is False else ("bf16", "enabled")
        where = self.judged.where(key) if False in asked.values() else f"{self.judged.source.name}:1"
        self.soft["train.precision"] = Said("fp32", "neither fp16 nor bf16", where)
        if self.judged.values.pop(("bf16", "check_grad_overflow"), True) is False:
            self._kept_overflow_check()

    def _kept_overflow_check(self) -> None:
        text = "= false is not taken: a gradient that is not finite would be applied"
        self.judged.notice(("bf16", "check_grad_overflow"), text)

    def _offload(self) -> None:
        if not self._is("zero_optimization", "stage") and ("zero_optimization", "stage") not in self.judged.written:
            where = self.judged.where(("zero_optimization",))
            self.soft["strategy.stage"] = Said(0, "DeepSpeed's default of zero_optimization.stage", where)
        for part, key in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
            path = ("zero_optimization", part, "device")
            old = "cpu_offload" if part == "offload_optimizer" else "cpu_offload_param"
            if self.judged.values.pop(("zero_optimization", old), None):
                text = f'is an old name: write "{part}": {{"device": "cpu"}}'
                self.judged.notice(("zero_optimization", old), text)
                self._say(("zero_optimization", old), f"strategy.offload.{key}", "cpu")
            if self._get(*path) == "nvme":
                self.judged.values.pop(path)
                self.judged.refuse(path, NO_NVME, "nvme", f'write "cpu"; {NO_NVME_FIX}')
            elif (
                not self._take(path, f"strategy.offload.{key}")
                and path[:-1] in self.judged.sections
                and path not in self.judged.written  # a device that was refused has been named already
            ):
                self.judged.notice(path[:-1], "names no device, so nothing is offloaded: DeepSpeed's default is none")
        for path in (("zero_optimization", "offload_optimizer"), ("zero_optimization", "offload_param")):
            self.judged.values.pop(path, None)  # null: no offload

    def _activation_checkpointing(self) -> None:
        """The block configures DeepSpeed's own function, which no model of transformers calls."""
        path: Path = ("activation_checkpointing",)
        if path not in self.judged.sections:
            return
        on = [key[-1] for key, value in self._drop(path).items() if value not in (False, None)]
        text = (
            "alone saves no memory: it only sets up deepspeed.checkpointing, which the model does not call; "
            "Headway recomputes activations in its place (train.activation_checkpointing)"
        )
        self.judged.notice(path, text)
        if on:
            self.judged.notice(path, f"has keys without effect: {', '.join(on)}")
        self.soft["train.activation_checkpointing"] = Said(True, "activation_checkpointing", self.judged.where(path))

    def _monitors(self) -> None:
        tracks: list[str] = []
        for name, tracker in meaning.MONITORS.items():
            on = self.judged.values.get((name, "enabled"))
            self._drop((name,))
            if on and tracker:
                tracks.append(tracker)
                self.judged.notice((name,), f"is taken as `track: {tracker}`, which records what metrics.jsonl does")
            elif on and name == "csv_monitor":
                self.judged.notice((name,), "is not used: metrics.jsonl in the run directory has every figure")
            elif on:
                self.judged.refuse((name,), "is no tracker of Headway", None, "write track: tensorboard")
        if tracks:
            self.soft["track"] = Said(tracks, "the monitors", self.judged.where((tracks[0],)))

    def _checkpoint(self) -> None:
        if self._drop(("checkpoint",)):
            self.judged.notice(
                ("checkpoint",), "has no effect: Headway saves by itself (`checkpoint:` of the run file)"
            )

    def _other_drivers(self) -> None:
        """Features that Headway does not drive: fine where they are off."""
        for name, what in meaning.OTHER_DRIVERS.items():
            value = self.judged.values.pop((name,), None)
            inside: dict[Path, Any] = self._drop((name,))
            if isinstance(value, dict):
                inside = {(name, key): item for key, item in cast("dict[str, Any]", value).items()}
            if (name,) not in self.judged.written:
                continue
            switch = inside.get((name, "enabled"), False if name in meaning.OFF_UNLESS_ENABLED else None)
            if switch is not None and not isinstance(switch, bool):
                rule = f"expected true or false, got {json.dumps(switch)}"
                self.judged.refuse((name, "enabled"), rule, None, "write true or false, without quotes")
                continue
            sizes = [inside.get((name, "autotp_size")), inside.get((name, "tp", "tp_size"))]
            idle = switch is False or (name == "tensor_parallel" and not any(size and size > 1 for size in sizes))
            if not idle and (inside or value not in ({}, False, None)):
                self.judged.refuse((name,), f"asks for {what}, which Headway does not drive", None, "remove it")
            elif set(inside) - {(name, "enabled"), (name, "autotp_size")}:
                self.judged.notice((name,), "is off, so nothing in it has an effect (and its inside is not judged)")

    def _without_effect(self) -> None:
        """Whole sections that tune what is off here."""
        for name, why in meaning.IDLE_SECTIONS.items():
            if self._drop((name,)):
                self.judged.notice((name,), why)

    def _rest(self) -> None:
        for path, key in meaning.SAME.items():
            value = self._get(*path)
            asked = value is True or (isinstance(value, int) and value > 1)
            if key in meaning.ZERO_PLUS and asked and self._stage() not in (None, 3):
                self.judged.values.pop(path)
                rule = f"is of ZeRO stage 3; the stage is {self._stage()}"
                self.judged.refuse(path, rule, value, 'write "stage": 3, or remove it')
                continue
            if path == ("zero_optimization", "overlap_comm") and value is None:
                self.judged.values.pop(path, None)
                continue
            if key in meaning.STAGE_3 and value != "auto" and (value == 0 or self._stage() not in (None, 3)):
                if self._stage() not in (None, 3) and self._is(*path):
                    self.judged.values.pop(path)
                    self.judged.notice(path, f"has no effect at stage {self._stage()}: it is of stage 3")
                elif self._is(*path):
                    self._pass(path, self.judged.values.pop(path))
                continue
            self._take(path, key)
        self._other_drivers()
        if self.judged.values.pop(("zero_optimization", "zenflow"), None) is not None or (
            ("zero_optimization", "zenflow") in self.judged.sections
        ):
            self._drop(("zero_optimization", "zenflow"))
            self.judged.refuse(("zero_optimization", "zenflow"), "is not driven by Headway", None, "remove it")
        for path, (accepted, why, fix) in meaning.ONLY.items():
            if self._is(*path) and (value := self.judged.values.pop(path)) not in (accepted, None):
                self.judged.refuse(
                    path, f"is not taken: it {why}" if why[:2] != "He" else f"is not taken: {why}", value, fix
                )
        self._without_effect()
        for path, why in meaning.IDLE.items():
            if self._is(*path):
                self.judged.values.pop(path)
                self.judged.notice(path, why)
        if self.judged.values.pop(("bf16", "check_grad_overflow"), True) is False:
            self._kept_overflow_check()
        for path, value in self.judged.values.items():
            if path in meaning.PASSED_KEYS or path[0] in meaning.PASSED_SECTIONS or path[:2] == meaning.LEAF:
                self._pass(path, value)
            else:  # of a release that knows more than this table
                self.judged.refuse(path, "is known to DeepSpeed, but Headway does not drive it", None, "remove it")

    def _stage(self) -> int | None:
        said = self.firm.get("strategy.stage") or self.soft.get("strategy.stage")
        return said.value if said else None

    def _pass(self, path: Path, value: Any) -> None:
        inner = self.passed
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
        self.passed_from[dotted(path)] = self.judged.where(path)
