"""What the user may say: the run file's sections, frozen, unknown keys refused.

Nothing here is derived. "auto" and None mean "let the plan decide"; the plan writes the value and its reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headway.config.fields import BatchSize, Bytes, Count, Duration, Interval, Length, Share, Warmup
from headway.units import Amount


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused, defaults validated."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


Auto = Literal["auto"]


class ModelArch(Section):
    """A transformers architecture from scratch, in Headway's short words; `extra` passes any config key through."""

    arch: str
    hidden: Annotated[int, Field(gt=0)]
    layers: Annotated[int, Field(gt=0)]
    heads: Annotated[int, Field(gt=0)]
    kv_heads: Annotated[int, Field(gt=0)] | None = None
    ffn: Annotated[int, Field(gt=0)] | None = None
    vocab: Count | Auto = "auto"
    max_sequence: Count | Auto = "auto"
    tie_embeddings: bool = False
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    extra: dict[str, Any] = {}


class TokenizerConfig(Section):
    """Exactly one of: a folder or Hub id to take, or a vocabulary size to train on the data."""

    from_: Annotated[str | None, Field(alias="from")] = None
    train: Count | None = None


class ModelConfig(Section):
    """Exactly one of `from` (folder or Hub id) and `config` (from scratch)."""

    from_: Annotated[str | None, Field(alias="from")] = None
    revision: str | None = None
    config: ModelArch | None = None
    tokenizer: TokenizerConfig | None = None
    attention: Literal["auto", "sdpa", "eager", "flash", "flex"] = "auto"


class SourceConfig(Section):
    """Where documents come from; `paths` are globs relative to the run file's folder."""

    kind: str = "auto"  # text | jsonl | csv | parquet | synthetic | auto: by file ending
    paths: tuple[str, ...] = ()
    text_key: str = "text"
    options: dict[str, Any] = {}


class DataConfig(Section):
    train: SourceConfig
    eval: Share | SourceConfig | None = None  # a share of the documents, by hash; or files of their own
    packing: bool = True
    cache: str = ".headway/data"
    workers: Annotated[int, Field(gt=0)] | Auto = "auto"


class TaskConfig(Section):
    kind: str = "causal_lm"
    options: dict[str, Any] = {}


class TrainConfig(Section):
    length: Length
    sequence: Count
    global_batch: BatchSize  # tokens or sequences
    micro_batch: Annotated[int, Field(gt=0)] | Auto = "auto"
    accumulation: Annotated[int, Field(gt=0)] | Auto = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    tf32: bool | Auto = "auto"
    activation_checkpointing: bool | Auto = "auto"
    compile: bool = False
    loss_chunk: Count | Auto = "auto"  # tokens whose logits exist at once
    seed: int = 0
    eval_every: Interval | Auto | None = "auto"
    log_every: Annotated[int, Field(gt=0)] = 1
    stop_after: Duration | None = None  # wall time: a stop limit, never the length


class OptimizerConfig(Section):
    kind: Literal["adamw", "adam", "sgd", "adagrad"] = "adamw"
    lr: Annotated[float, Field(gt=0)]
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # sgd only
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    clip: Annotated[float, Field(ge=0)] = 1.0  # 0 turns clipping off
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Warmup = Amount(0.01, "share")
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1


class OffloadConfig(Section):
    optimizer: Literal["none", "cpu"] = "none"
    parameters: Literal["none", "cpu"] = "none"  # stage 3 only


class StrategyConfig(Section):
    """`auto`, `single`, `ddp`, or `deepspeed` with a ZeRO stage; the short form `zero-2` means the latter."""

    kind: str = "auto"
    stage: Literal[0, 1, 2, 3] | None = None
    offload: OffloadConfig = OffloadConfig()
    reduce_bucket: Count | None = None  # elements
    allgather_bucket: Count | None = None  # elements
    prefetch_bucket: Count | None = None  # elements, stage 3
    persistence_threshold: Count | None = None  # elements, stage 3
    overlap_comm: bool | Auto = "auto"


class CheckpointConfig(Section):
    every: Interval | Auto | None = "auto"
    keep: Annotated[int, Field(gt=0)] = 3
    at_end: bool = True


class LaunchConfig(Section):
    """`gpus` or `processes` on this machine; neither: every GPU, or as many CPU processes as the plan finds best."""

    kind: str = "local"
    gpus: Annotated[int, Field(gt=0)] | None = None
    processes: Annotated[int, Field(gt=0)] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(gt=0)] | Auto = "auto"  # per process, CPU only
    timeout: Duration = 600.0  # of a collective
    port: Annotated[int, Field(gt=0, lt=65536)] | None = None


class ExportConfig(Section):
    at_end: bool = True
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    sample: str | None = None  # the prompt of the sample continuation; None: the start of a held-out document
    max_shard: Bytes = 5 * 10**9


class RunConfig(Section):
    """One run file, as the user wrote it."""

    name: str | None = None
    runs: str = "runs"
    model: ModelConfig
    data: DataConfig
    task: TaskConfig = TaskConfig()
    train: TrainConfig
    optimizer: OptimizerConfig
    strategy: StrategyConfig = StrategyConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    launch: LaunchConfig = LaunchConfig()
    track: tuple[str, ...] = ()
    export: ExportConfig = ExportConfig()
