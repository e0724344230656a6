"""What is: the machine, the model's shape, the data. Gathered by probes, kept as JSON, read by the plan.

Every field carries its unit. No torch here: probes that need it run in a subprocess.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClusterFacts(Facts):
    """The devices of the machine that the run would use; hosts are alike."""

    device: Literal["cpu", "cuda"]
    device_name: str
    devices_per_host: int  # GPUs, or CPU cores
    device_memory_bytes: int  # per GPU; on a CPU the host's memory, shared by all processes
    host_memory_bytes: int
    hosts: int = 1
    bf16: bool = False  # the device computes bf16 at speed
    matmul_flops: float | None = None  # measured or known peak per device (per core on a CPU)


class ModelShape(Facts):
    """What the planner must know of a model; counts are exact."""

    arch: str
    parameters: int  # every parameter once, tied weights counted once
    trainable_parameters: int
    embedding_parameters: int  # input embedding plus output head, tied counted once
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_sequence: int
    tied: bool
    largest_layer_parameters: int  # what ZeRO-3 gathers at once
    estimated: bool = False  # counted by formula, not on the built model


class DataFacts(Facts):
    """A token store seen at one sequence length; `estimated` where it was not built yet."""

    store: str  # path
    store_hash: str
    tokenizer: str  # path of its folder
    vocab: int
    sequence: int
    documents: int
    tokens: int
    train_windows: int
    train_targets: int  # tokens that carry loss, one epoch
    eval_documents: int
    eval_windows: int
    eval_targets: int
    eval_bytes: int  # of the text that the targets stand for; 0 where that is cut off and nobody counted
    eval_gzip_bytes: int
    estimated: bool = False
