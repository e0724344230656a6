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


class AdapterShape(Facts):
    """What an adapter adds to a model; its parameters are counted in the ModelShape around it."""

    parameters: int
    layers: int  # linear layers that got a pair of matrices
    rank: int
    inputs: int  # input widths of these layers together
    linear_parameters: int = 0  # weights of every linear layer but the output head: what QLoRA holds in 4 bits

    @property
    def token_numbers(self) -> int:
        """Numbers of one token between the two matrices of all pairs."""
        return self.layers * self.rank


class ExpertShape(Facts):
    """A mixture of experts: some layers route each token to `per_token` of `count` MLPs of width `ffn`.

    shared_ffn: width of the MLP beside them that every token takes; 0 where there is none.
    """

    count: int
    per_token: int
    ffn: int
    layers: int
    shared_ffn: int = 0
    parameters: int = 0  # of all routed experts of all layers

    @property
    def idle_parameters(self) -> int:
        """Parameters that one token does not pass through."""
        return self.parameters - self.parameters * self.per_token // max(self.count, 1)


class ModelShape(Facts):
    """What the planner must know of a model; counts are exact.

    head: what its loss keeps. linear: a plain output layer, whose logits become gradients in place; pieces: one that
    does more (a scale), whose logits are kept a piece at a time; capped: so, with the tanh of a soft cap beside them;
    whole: those of all tokens at once, of a class that does not run its body as one call, or of the user's own module.
    """

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
    adapter: AdapterShape | None = None
    gated: bool = True  # the MLP has gate, up and down; else up and down
    layer_norm: bool = False  # norms with a mean and a bias; else RMS
    hidden_dropout: bool = False  # in training, of what attention and MLP give
    attention_dropout: bool = False  # in training, of attention's weights
    experts: ExpertShape | None = None
    head: Literal["linear", "pieces", "capped", "whole"] = "linear"

    @property
    def mlp_width(self) -> float:
        """Of the MLPs that one token passes through, averaged over the layers."""
        moe = self.experts
        if moe is None:
            return float(self.ffn)
        share = moe.layers / max(self.layers, 1)
        return share * (moe.per_token * moe.ffn + moe.shared_ffn) + (1 - share) * self.ffn

    @property
    def largest_tensor_parameters(self) -> int:
        """Of one weight: the embedding, a matrix of the MLP, or the ups of a layer's experts, which are stacked."""
        stacked = self.experts.count * (1 + self.gated) * self.experts.ffn if self.experts else 0
        return self.hidden * max(self.vocab, self.ffn, stacked)


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
    eval_bytes: int  # of text behind the held-out targets; 0 where bits per byte would say nothing
    eval_gzip_bytes: int
    estimated: bool = False
    short_windows: int = 1  # of an epoch: where a source's line of documents ends
    layout: Literal["packed", "single", "best_fit", "pair", "given"] = "packed"  # given: by the user's script
    labels: tuple[str, ...] = ()  # classification: the names, in the order of their numbers
    label_counts: tuple[int, ...] = ()  # training texts of each
    label_sets: bool = False  # a text has any number of them
    notes: tuple[str, ...] = ()  # what the records were read as
    lost: tuple[str, ...] = ()  # what is cut off or left out at this sequence length
