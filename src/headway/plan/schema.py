"""The plan: everything concrete, frozen, with a reason for each value that was derived. The worker's only input."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from headway.facts.schema import ClusterFacts, DataFacts, ModelShape

PLAN_VERSION = 1


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelPlan(Part):
    """Where the model comes from. kind config: `config` is a complete transformers config as JSON."""

    kind: str  # a row of the registry's room "model", or package.module:Class
    path: str | None = None  # folder of a pretrained model
    revision: str | None = None
    config: dict[str, Any] = {}
    options: dict[str, Any] = {}  # of the user's own factory
    attention: Literal["sdpa", "eager", "flash", "flex"] = "sdpa"
    fresh_head: bool = False  # a pretrained body under a head that its folder does not hold


class CodePlan(Part):
    """Source files of the user's own modules: name beneath `root` -> sha256. installed: in a place of packages."""

    root: str
    files: dict[str, str]
    installed: bool = False


class TaskPlan(Part):
    kind: str
    options: dict[str, Any] = {}


class AdapterPlan(Part):
    """What is trained beside the frozen weights; a plan without it trains them all.

    `targets`: the ends of the names of the layers that get a pair of matrices. `base`: sha256 over the safetensors of
    the folder that the adapter belongs to; '' where the base weights follow from the config and the seed.
    `quantization`: of qlora, how its frozen linear layers are held; `double_quantization`: their scales in 8 bits.
    """

    kind: Literal["lora", "qlora"]
    rank: int
    alpha: float
    dropout: float
    targets: Literal["all-linear"] | tuple[str, ...]
    base: str
    quantization: Literal["nf4", "fp4"] | None = None
    double_quantization: bool = False

    @property
    def scale(self) -> float:
        """What the product of a pair is multiplied by."""
        return self.alpha / self.rank


class DataPlan(Part):
    store: str
    store_hash: str
    tokenizer: str
    sequence: int
    packing: bool
    sources: tuple[str, ...] = ()  # of several training sources, their names in the order of the store's numbers
    weights: tuple[float, ...] = ()  # of their windows; (): every document is read once an epoch


class BatchPlan(Part):
    """global_sequences is the contract: accumulation x micro_batch x data_parallel_size covers it.

    What does not divide is filled with samples of zero count, so that all ranks run the same micro batches.
    """

    global_sequences: int
    micro_batch: int
    accumulation: int
    data_parallel_size: int

    @property
    def slots(self) -> int:
        """Sequences per step with the fill."""
        return self.micro_batch * self.accumulation * self.data_parallel_size


class SchedulePlan(Part):
    """The learning rate of each step follows from these alone: `headway.plan.schedule.learning_rate(plan, step)`."""

    kind: Literal["cosine", "linear", "constant"]
    steps: int
    tokens: int  # positions read: steps x global_sequences x sequence
    peak_lr: float
    min_lr: float
    warmup_steps: int


class OptimizerPlan(Part):
    kind: Literal["adamw", "adam", "sgd", "rmsprop"]
    betas: tuple[float, float]
    eps: float
    momentum: float
    weight_decay: float
    clip: float  # 0: off


class CompressionPlan(Part):
    """How DDP's gradients are sent. rank, start_step, error_feedback: of powersgd."""

    kind: Literal["fp16", "bf16", "powersgd"]
    rank: int
    start_step: int
    error_feedback: bool


class StrategyPlan(Part):
    """`engine`: what a DeepSpeed JSON gives to the engine beyond the plan's own values; laid over them."""

    kind: str  # single | ddp | deepspeed | package.module:Class
    stage: int = 0
    offload_optimizer: bool = False
    offload_parameters: bool = False
    reduce_bucket_elements: int = 0
    allgather_bucket_elements: int = 0
    prefetch_bucket_elements: int = 0
    persistence_threshold_elements: int = 0
    overlap_comm: bool = False
    quantized_weights: bool = False  # ZeRO++
    quantized_gradients: bool = False
    secondary_partition: int = 1
    compression: CompressionPlan | None = None
    engine: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """`ddp`, `ddp +powersgd`, `zero-2`, `zero-3 +offload(optimizer, parameters)`."""
        if self.kind != "deepspeed":
            return self.kind + (f" +{self.compression.kind}" if self.compression else "")
        parts = [n for n, on in (("optimizer", self.offload_optimizer), ("parameters", self.offload_parameters)) if on]
        return f"zero-{self.stage}" + (f" +offload({', '.join(parts)})" if parts else "")


class NumericsPlan(Part):
    precision: Literal["fp32", "bf16", "fp16"]
    tf32: bool
    activation_checkpointing: bool
    compile: bool
    loss_chunk_tokens: int  # tokens whose logits exist at once; 0: all of the micro batch
    seed: int


class IntervalPlan(Part):
    """Whichever is set: every N steps, or every N seconds of wall time. None and None: never."""

    steps: int | None = None
    seconds: float | None = None


class CheckpointPlan(Part):
    every: IntervalPlan
    keep: int
    at_end: bool


class LaunchPlan(Part):
    kind: str
    device: Literal["cpu", "cuda"]
    processes: int
    threads: int  # per process
    backend: Literal["gloo", "nccl"]
    timeout_seconds: float
    grace_seconds: float = 600.0  # of ranks that are asked to save and end
    port: int | None = None
    debug: bool = False


class ExportPlan(Part):
    at_end: bool
    dtype: Literal["fp32", "bf16", "fp16"]
    sample: str | None
    adapter: Literal["both", "adapter", "merged"] = "both"
    max_shard_bytes: int


class TrackPlan(Part):
    """A tracker: a row of the registry's room "track", or package.module:Class. options: its keyword arguments."""

    kind: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _of_a_name(cls, value: object) -> object:
        """Older plans hold the name alone."""
        return {"kind": value} if isinstance(value, str) else value


class MemoryItem(Part):
    name: str
    device_bytes: int
    host_bytes: int = 0


class MemoryPlan(Part):
    """Per process. On a CPU the device is the host."""

    items: tuple[MemoryItem, ...]
    device_limit_bytes: int

    @property
    def device_bytes(self) -> int:
        return sum(item.device_bytes for item in self.items)

    @property
    def host_bytes(self) -> int:
        return sum(item.host_bytes for item in self.items)


class Plan(Part):
    version: int = PLAN_VERSION
    name: str
    headway: str  # its version
    model: ModelPlan
    task: TaskPlan
    adapter: AdapterPlan | None = None
    data: DataPlan
    batch: BatchPlan
    schedule: SchedulePlan
    optimizer: OptimizerPlan
    strategy: StrategyPlan
    numerics: NumericsPlan
    evaluate: IntervalPlan
    log_every: int
    stop_after_seconds: float | None
    checkpoint: CheckpointPlan
    launch: LaunchPlan
    track: tuple[TrackPlan, ...]
    export: ExportPlan
    memory: MemoryPlan
    cluster: ClusterFacts
    shape: ModelShape
    facts: DataFacts
    reasons: dict[str, str]  # "batch.micro_batch" -> why it is so
    forced: tuple[str, ...] = ()
    code: tuple[CodePlan, ...] = ()

    @property
    def fills_windows(self) -> bool:
        """Whether every position of a window is a token; whole chats and texts leave room, which is padded."""
        return self.facts.layout == "packed" and self.data.packing

    def digest(self) -> str:
        """sha256 of the plan's canonical JSON: plan.json carries it, so that an edit by hand is noticed."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
