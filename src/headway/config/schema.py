"""What the user may say: the run file's sections, frozen, unknown keys refused, no silent conversions.

Nothing here is derived. "auto" and None mean "let the plan decide"; the plan writes the value and its reason.
Descriptions and examples are read by the reference (docs/reference.md) and by error messages.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headway.config.fields import (
    Above,
    AtLeast,
    Auto,
    BatchSize,
    Betas,
    Bytes,
    Count,
    Decay,
    Duration,
    Interval,
    Layers,
    Length,
    Place,
    Port,
    Positive,
    Ratio,
    Seed,
    Share,
    Stage,
    Texts,
    Warmup,
)
from headway.units import Amount


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused, "3" is no number and 1 is not true."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelArch(Section):
    """A transformers architecture from scratch, in Headway's short words; `extra` passes any config key through."""

    arch: str = Field(description="Architecture by its transformers name (`model_type`).", examples=["llama"])
    hidden: Positive = Field(description="Width of the residual stream.", examples=[768])
    layers: Layers = Field(description="Number of transformer blocks.", examples=[12])
    heads: Positive = Field(description="Attention heads; must divide `hidden`.", examples=[12])
    kv_heads: Positive | None = Field(
        default=None, description="Key and value heads; must divide `heads` (default: `heads`)."
    )
    ffn: Positive | None = Field(
        default=None, description="Width of the feed-forward layer. Default: as the architecture has it."
    )
    vocab: Count | Auto = Field(default="auto", description="Vocabulary size; auto: the tokenizer's.", examples=["32k"])
    max_sequence: Count | Auto = Field(
        default="auto", description="Longest sequence the model can read; auto: `train.sequence`."
    )
    tie_embeddings: bool = Field(default=False, description="Share the input embedding with the output head.")
    dropout: Decay = Field(default=0.0, description="Dropout, where the architecture has it.")
    extra: dict[str, Any] = Field(
        default={}, description="Any further key of the transformers config, passed through as it is."
    )


class TokenizerConfig(Section):
    """Exactly one of: a folder or Hub id to take, or a vocabulary size to train on the data."""

    from_: str | None = Field(
        default=None, alias="from", description="Folder or Hub id of a tokenizer.", examples=["./tokenizer"]
    )
    train: Count | None = Field(
        default=None, description="Train a byte-level BPE of this many entries on the training data.", examples=["32k"]
    )


class ModelConfig(Section):
    """Exactly one of `from` (folder or Hub id), `config` (from scratch) and `factory` (your own module).

    `model: ./folder` is short for `from`, `model: package.module:name` for `factory`.
    """

    from_: str | None = Field(
        default=None, alias="from", description="Pretrained folder or Hub id.", examples=["./SmolLM2-135M"]
    )
    revision: str | None = Field(default=None, description="Hub revision: a commit hash, so that it cannot move.")
    config: ModelArch | None = Field(default=None, description="A new model from scratch.")
    factory: str | None = Field(
        default=None,
        description="A function or class that makes an nn.Module, or a ModelSource class; found beside the run file.",
        examples=["net:make"],
    )
    options: dict[str, Any] = Field(default={}, description="Arguments of `factory`.")
    tokenizer: TokenizerConfig | None = Field(default=None, description="Default: the one in the pretrained folder.")
    attention: Literal["auto", "sdpa", "eager", "flash", "flex"] = Field(
        default="auto", description="Attention kernel."
    )


class SourceConfig(Section):
    """Where documents come from. A glob or a list of globs is short for `paths`."""

    kind: str = Field(
        default="auto",
        description="text, jsonl, csv, parquet, arrow, tar, tfrecord or synthetic; auto: by the files' ending.",
    )
    paths: Texts = Field(
        default=(), description="Files, folders and globs, relative to the run file.", examples=["corpus/**/*.txt"]
    )
    shape: Literal["auto", "text", "messages", "prompt-response", "text-label", "text-labels", "preference"] = Field(
        default="auto", description="What a record holds; auto: read off the first records, and shown."
    )
    text_key: str = Field(default="text", description="Field or column of the text in jsonl, csv and parquet files.")
    weight: Above | None = Field(
        default=None,
        description="With `data.more`: this source's share of the windows, beside the others' weights.",
        examples=[0.7],
    )
    label_key: str = Field(default="label", description="Field or column of the label, for `task: classification`.")
    options: dict[str, Any] = Field(default={}, description="Options of the source's kind.")


class DataConfig(Section):
    """What is read, and how it becomes sequences."""

    train: SourceConfig = Field(description="Training documents.", examples=["corpus/**/*.txt"])
    more: Annotated[tuple[SourceConfig, ...], Field(strict=False)] = Field(
        default=(),
        description="Further training sources: `train: [{path: a.jsonl, weight: 0.7}, {path: b.jsonl, weight: 0.3}]` "
        "is short for both. Without weights each document is read once an epoch.",
    )
    eval: Share | SourceConfig | None = Field(
        default=None,
        description="Held-out data: a share of the documents, chosen by hash, or files of their own.",
        examples=["0.5%"],
    )
    packing: bool = Field(
        default=True, description="Fill each sequence with whole documents; attention stays inside a document."
    )
    cache: str = Field(default=".headway/data", description="Folder of the token stores.")
    workers: Positive | Auto = Field(default="auto", description="Processes that tokenise; auto: one a core.")
    encoder: Literal["auto", "tokenizers", "tokie"] = Field(
        default="auto",
        description="Library that turns texts into ids. auto: tokie where it is installed (the extra `tokie`) and "
        "gives the ids of tokenizers on what is compared, else tokenizers. Chats are always encoded by tokenizers.",
    )


class TaskConfig(Section):
    """What is learnt. `task: causal_lm` is short for `kind`."""

    kind: str = Field(
        default="causal_lm",
        description="causal_lm, instruction, preference, classification, or your own as package.module:Class.",
    )
    loss_on: Literal["assistant", "all"] | None = Field(
        default=None, description="Of instruction: the assistant's words (what null means), or the whole chat."
    )
    beta: Above | None = Field(
        default=None, description="Of preference: how firmly the model is held to the reference (null: 0.1)."
    )
    label_smoothing: Ratio | None = Field(
        default=None,
        description="Of preference: the share of pairs taken for wrongly labelled; below 0.5 (null: 0).",
    )
    per_token: bool | None = Field(
        default=None,
        description="Of preference: true takes the mean over an answer's tokens; null or false their sum, as DPO does.",
    )
    class_weights: Literal["balanced"] | dict[str, Above] | None = Field(
        default=None,
        description="Of classification: balanced (rare labels count more), or the weight of each label that is not 1.",
        examples=["balanced", "{spam: 4}"],
    )
    options: dict[str, Any] = Field(default={}, description="Options of your own task.")


class AdapterConfig(Section):
    """A small trained part beside the frozen weights of a pretrained model. `adapter: lora` is short for `kind`."""

    kind: Literal["lora", "qlora"] = Field(
        default="lora",
        description="lora (through PEFT; extra `lora`), or qlora: beside a base in 4 bits, on GPUs (extra `qlora`).",
    )
    rank: Positive = Field(default=16, description="Inner width of each pair of matrices.")
    alpha: Above | Auto = Field(default="auto", description="The pair's product counts alpha / rank; auto: 2 x rank.")
    dropout: Decay = Field(default=0.0, description="Dropout before the pair.")
    targets: Literal["all-linear"] | Texts = Field(
        default="all-linear",
        description="Linear layers that get a pair, by the end of their names; all-linear: all but the output head.",
        examples=[["q_proj", "v_proj"]],
    )
    quantization: Literal["nf4", "fp4"] | None = Field(
        default=None, description="Of qlora: how 16 values stand for the base's weights; null: nf4."
    )
    double_quantization: bool | None = Field(
        default=None, description="Of qlora: the scales of each 64 weights in 8 bits; null or true; false: in fp32."
    )


class TrainConfig(Section):
    """How long, how much at a time, and how exactly."""

    length: Length = Field(
        description="Tokens, sequences, steps or epochs; never a time.",
        examples=["10B tokens", "500 steps", "2 epochs"],
    )
    sequence: Count = Field(description="Tokens in one sequence.", examples=[2048])
    global_batch: BatchSize = Field(
        description="Tokens or sequences of one optimizer step, over all devices: the plan keeps it. auto: "
        "`micro_batch` x `accumulation` x processes, both written out.",
        examples=["0.5M tokens", "64 sequences"],
    )
    micro_batch: Positive | Auto = Field(default="auto", description="Sequences that one device holds at a time.")
    accumulation: Positive | Auto = Field(default="auto", description="Micro batches of one device and step.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto", description="auto: bf16 on GPUs that have it, else fp32. fp16 needs a GPU."
    )
    tf32: bool | Auto = Field(default="auto", description="TF32 matrix products for fp32 on GPUs.")
    activation_checkpointing: bool | Auto = Field(
        default="auto", description="Recompute activations in the backward pass; auto: only when memory needs it."
    )
    compile: bool = Field(default=False, description="torch.compile.")
    loss_chunk: Count | Auto = Field(default="auto", description="Tokens whose logits exist at once.")
    seed: Seed = Field(default=0, description="Of weights, data order and dropout.")
    eval_every: Interval | Auto | None = Field(
        default="auto", description="Steps, tokens or a time between evaluations; null: never.", examples=["500 steps"]
    )
    log_every: Positive = Field(default=1, description="Steps between two lines of metrics.jsonl.")
    stop_after: Duration | None = Field(default=None, description="Save and stop after this time.", examples=["11.5 h"])


class OptimizerConfig(Section):
    """AdamW (0.9, 0.95) with decay 0.1 and clipping at 1.0 unless you say otherwise."""

    kind: Literal["adamw", "adam", "sgd", "rmsprop"] = Field(default="adamw", description="Optimizer.")
    lr: Above = Field(description="Peak learning rate.", examples=[6e-4])
    betas: Betas = Field(default=(0.9, 0.95), description="Adam's decay rates of the first and second moment.")
    eps: Above = Field(default=1e-8, description="Added to the denominator.")
    momentum: Decay = Field(default=0.9, description="Of sgd.")
    weight_decay: AtLeast = Field(default=0.1, description="Applied to matrices only, not to norms and biases.")
    clip: AtLeast = Field(default=1.0, description="Largest global gradient norm; 0: no clipping.")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="Learning rate after the warm-up."
    )
    warmup: Warmup = Field(
        default=Amount(0.01, "share"),
        description="Share of the steps, or steps or tokens.",
        examples=["1%", "200 steps"],
    )
    min_lr_ratio: Ratio = Field(default=0.1, description="Learning rate at the end, as a part of `lr`.")


class OffloadConfig(Section):
    """What waits in host memory. `offload: cpu` is short for the optimizer."""

    optimizer: Place = Field(default="none", description="Optimizer states; ZeRO 1 to 3.")
    parameters: Place = Field(default="none", description="Parameters; ZeRO 3.")


class CompressionConfig(Section):
    """Of DDP's gradients on their way. `gradient_compression: bf16` is short for `kind`."""

    kind: Literal["fp16", "bf16", "powersgd"] = Field(
        description="fp16, bf16: half the bytes, rounded. powersgd: two thin matrices in place of each one."
    )
    rank: Positive = Field(default=1, description="Of powersgd: width of the thin matrices.")
    start_step: Positive = Field(
        default=10,
        description="Of powersgd: the first step that is compressed; earlier ones are sent whole. At least 2.",
    )
    error_feedback: bool = Field(default=True, description="Of powersgd: add what was lost to the next gradient.")


class StrategyConfig(Section):
    """`auto`, `single`, `ddp`, or `deepspeed` with a ZeRO stage; the short form `zero-2` means the latter."""

    kind: str = Field(
        default="auto", description="auto (the simplest that fits), single, ddp, deepspeed, zero-0 to -3."
    )
    stage: Stage | None = Field(default=None, description="ZeRO stage of deepspeed; null: the lowest that fits.")
    config: str | None = Field(
        default=None,
        description="A DeepSpeed JSON for kind: deepspeed, beside the run file; read strictly (docs/deepspeed.md).",
        examples=["ds_config.json"],
    )
    offload: OffloadConfig = Field(default=OffloadConfig(), description="What waits in host memory.")
    gradient_compression: CompressionConfig | None = Field(
        default=None, description="Send smaller gradients; kind: ddp.", examples=["powersgd"]
    )
    quantized_weights: bool = Field(default=False, description="ZeRO++: gather parameters in 8 bits; stage 3, GPUs.")
    quantized_gradients: bool = Field(default=False, description="ZeRO++: reduce gradients in 4 bits; stage 3, GPUs.")
    secondary_partition: Positive = Field(
        default=1, description="ZeRO++: ranks that share a second copy of the parameters; stage 3; 1: none."
    )
    reduce_bucket: Count | None = Field(default=None, description="Elements reduced together.")
    allgather_bucket: Count | None = Field(default=None, description="Elements gathered together.")
    prefetch_bucket: Count | None = Field(default=None, description="Elements fetched ahead; stage 3.")
    persistence_threshold: Count | None = Field(default=None, description="Smaller ones stay whole; elements, stage 3.")
    overlap_comm: bool | Auto = Field(default="auto", description="Reduce gradients while the backward pass runs.")


class CheckpointConfig(Section):
    """When the state is saved, and how many are kept."""

    every: Interval | Auto | None = Field(
        default="auto",
        description="Steps, tokens or a time between checkpoints; null: at the end only.",
        examples=["30 min"],
    )
    keep: Positive = Field(default=3, description="Complete checkpoints to keep.")
    at_end: bool = Field(default=True, description="Save after the last step.")


class LaunchConfig(Section):
    """`gpus` or `processes` on this machine; neither: every GPU, or as many CPU processes as the plan finds best."""

    kind: str = Field(default="local", description="Where it runs: local.")
    gpus: Positive | None = Field(default=None, description="GPUs, one process each.", examples=[8])
    processes: Positive | None = Field(default=None, description="Processes, on GPUs or on the CPU.", examples=[2])
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: cuda where there is one.")
    threads: Positive | Auto = Field(default="auto", description="Threads of each process on a CPU.")
    timeout: Duration = Field(default=600.0, description="Longest wait in a collective operation.", examples=["10 min"])
    grace: Duration = Field(
        default=600.0, description="A run that is asked to stop has so long to save.", examples=["2 min"]
    )
    port: Port | None = Field(default=None, description="Of the rendezvous; null: a free one.")
    debug: bool = Field(
        default=False,
        description="NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL in every rank: slower, says more.",
    )


class ExportConfig(Section):
    """The model folder that is written at the end."""

    at_end: bool = Field(default=True, description="Export after the last step.")
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = Field(default="auto", description="auto: the training precision.")
    sample: str | None = Field(
        default=None,
        description="Prompt of the sample continuation; null: the start of a held-out document.",
        examples=["def "],
    )
    adapter: Literal["both", "adapter", "merged"] = Field(
        default="both",
        description="With an adapter: the merged model, the adapter's own folder, or the second inside of the first.",
    )
    max_shard: Bytes = Field(default=5 * 10**9, description="Largest safetensors file.", examples=["5GB"])


class MlflowConfig(Section):
    """MLflow; its credentials come from the environment (MLFLOW_TRACKING_TOKEN, ...)."""

    uri: str | None = Field(
        default=None,
        description="Server or database; null: an SQLite store beside the runs, mlflow/mlflow.db.",
        examples=["http://mlflow:5000"],
    )
    experiment: str | None = Field(default=None, description="Default: the run's name.")
    model: str | None = Field(default=None, description="Registered model of the export; default: the run's name.")
    register_: bool = Field(default=True, alias="register", description="Register the finished, verified export.")
    upload: bool | Auto = Field(
        default="auto", description="Send the export's files; auto: to a server, not to the store beside the runs."
    )


class WandbConfig(Section):
    """Weights & Biases; its key comes from the environment (WANDB_API_KEY) or `wandb login`."""

    project: str = Field(default="headway", description="Project.")
    entity: str | None = Field(default=None, description="User or team; null: the key's own.")
    mode: Literal["online", "offline"] = Field(
        default="online", description="offline: into files under wandb/ in the run directory."
    )


class TrackConfig(Section):
    """Trackers besides metrics.jsonl, which is always written. `track: [tensorboard, mlflow]` is short for this."""

    tensorboard: bool = Field(default=False, description="Event files under tensorboard/ in the run directory.")
    mlflow: MlflowConfig | None = Field(default=None, description="MLflow.", examples=["{uri: http://mlflow:5000}"])
    wandb: WandbConfig | None = Field(
        default=None, description="Weights & Biases.", examples=["{project: my-models, mode: offline}"]
    )
    own: Texts = Field(default=(), description="Your own, as package.module:Class.", examples=[["tracking:Board"]])


class RunConfig(Section):
    """One run file, as the user wrote it."""

    name: str | None = Field(default=None, description="Name of the run; default: the run file's.")
    runs: str = Field(default="runs", description="Folder of the run directories.")
    model: ModelConfig = Field(description="The model and its tokenizer.", examples=["./SmolLM2-135M"])
    data: DataConfig = Field(description="The data.", examples=['{train: "corpus/**/*.txt", eval: 0.5%}'])
    task: TaskConfig = Field(default=TaskConfig(), description="What is learnt.")
    adapter: AdapterConfig | None = Field(
        default=None,
        description="Train an adapter in place of the model's own weights.",
        examples=["{kind: lora, rank: 16}"],
    )
    train: TrainConfig = Field(
        description="Length, sequence and batch.",
        examples=["{length: 500 steps, sequence: 1024, global_batch: 64 sequences}"],
    )
    optimizer: OptimizerConfig = Field(description="Optimizer and learning rate.", examples=["{lr: 6e-4}"])
    strategy: StrategyConfig = Field(default=StrategyConfig(), description="How the model is spread over devices.")
    checkpoint: CheckpointConfig = Field(default=CheckpointConfig(), description="When the state is saved.")
    launch: LaunchConfig = Field(default=LaunchConfig(), description="Where it runs.")
    certify: Literal["optional", "required"] = Field(
        default="optional",
        description="required: no run without a valid certificate of its plan; it is made first where there is none.",
    )
    track: TrackConfig = Field(
        default=TrackConfig(),
        description="Trackers besides metrics.jsonl, which is always written.",
        examples=["[tensorboard, mlflow, wandb]"],
    )
    export: ExportConfig = Field(default=ExportConfig(), description="The model folder at the end.")
