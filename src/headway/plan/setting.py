"""One setting of a training run, as the estimates of memory and time take it, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headway.facts.hardware import Machine
from headway.facts.schema import ModelShape
from headway.plan.schema import MemoryItem

Engine = Literal["single", "ddp", "fsdp", "deepspeed", "megatron"]
Checkpointing = Literal["none", "selective", "full"]
Kernels = Literal["eager", "fused", "compiled"]
AttentionKind = Literal["eager", "sdpa", "flash1", "flash", "flash3"]
LossKind = Literal["whole", "half", "fused", "compiled", "chunked", "pieces", "linear"]
# What of its memory a plan may fill. Of the runs that the estimate was made with, 6 % took more than a tenth above it,
# of those gathered later 21 to 26 %: where the band ends above the device, `headway plan` says so.
USABLE_SHARE = 0.90
# Of the parameters of one rank, what stage 3 updates at once: DeepSpeed's default, and what Headway writes.
SUB_GROUP_ELEMENTS = 10**9


@dataclass(frozen=True)
class Degrees:
    """Over how many devices each dimension is spread. Their product without `expert` is the number of devices.

    expert: into how many parts each layer's experts are split, over devices of the data-parallel group.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1  # parts of each sequence
    expert: int = 1
    sequence_parallel: bool = False  # norms and residual stream are split over the tensor-parallel group too

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def shards(self) -> int:
        """Devices over which ZeRO and FSDP spread the states."""
        return self.data * self.context


@dataclass(frozen=True)
class Software:
    """The generation of kernels that computes the step.

    kernels: `eager` writes out norms, activations and rotary positions operation by operation; `fused` are hand-written
    kernels (Liger, Apex, Transformer Engine); `compiled` is torch.compile.
    attention: `eager` keeps the score matrices; `flash1` is the first flash kernel, `flash` the second,
    `flash3` Hopper's; `sdpa` is flash under a mask, key and value repeated for every head.
    loss: `whole` makes fp32 logits of all tokens, their log-softmax and its gradient; `half` makes them in 16 bits, as
    a model without autocast does that does not cast its logits; `fused` is a kernel that turns fp32 logits into their
    gradient in place; `compiled` fuses these;
    `chunked` keeps 16-bit logits and works on pieces in fp32; `pieces` makes each piece's logits twice and keeps one as
    `whole` does; `linear` never holds more than one piece of logits, and turns it into gradients in place.
    expandable_segments: of the caching allocator, which then uses freed blocks for larger tensors.
    ends_apart: FSDP gathers embedding and head each for itself, not with the root.
    fused_optimizer: one kernel; else torch's loop over lists of tensors, which makes one list more.
    whole_accumulation: FSDP adds up whole gradients (`no_sync`), and exchanges those of the last micro batch alone.
    held_logit_bytes: of one logit, beside what a `whole` loss makes of it: the 16-bit one; none where the model lets go
    of it as it casts it, as transformers does; four where a loop holds the cast ones through the backward pass.
    wide_base: what is not quantised of a quantised base is cast to fp32, embeddings, norms and with them the residual
    stream, as PEFT's `prepare_model_for_kbit_training` does.
    autocast: beside FSDP's 16-bit copies too, as trainers have it: layer norms and powers are computed in fp32.
    quantized_inputs: every product with a quantised weight keeps its input, as bitsandbytes did before 0.43.2.
    """

    kernels: Kernels = "eager"
    attention: AttentionKind = "flash"
    loss: LossKind = "linear"
    loss_chunk_tokens: int = 0
    virtual_stages: int = 1  # interleaved pipeline: chunks of layers a device
    fused_optimizer: bool = True
    overlapped_tensor_parallel: bool = False
    expandable_segments: bool = False
    ends_apart: bool = False
    whole_accumulation: bool = False
    autocast: bool = False
    held_logit_bytes: int = 2
    wide_base: bool = False
    quantized_inputs: bool = False


@dataclass(frozen=True)
class OptimizerFacts:
    """bytes_per_parameter: of the states alone, without master weights. in_backward: gradients never stand all.

    more_of_embeddings: 8-bit optimizers keep those of embeddings in fp32. paged: states stand in the host's memory and
    come to the device page by page.
    """

    bytes_per_parameter: float = 8.0
    more_of_embeddings: float = 0.0
    in_backward: bool = False
    paged: bool = False


@dataclass(frozen=True)
class EstimateRequest:
    """One setting to be judged.

    stage: of ZeRO; FSDP is 3, and 2 where it keeps the parameters gathered after the forward pass; DDP's is 1 where
    torch's ZeroRedundancyOptimizer spreads its states.
    shard_group: devices over which the states are spread, and replicated beyond (hybrid sharding); 0: all.
    secondary_group: of ZeRO++, devices that hold a second copy of the parameters together; 1: there is none.
    gathered_share, reduced_share: of the bytes of parameters and gradients, those that are sent (where quantised).
    master: 16-bit training keeps fp32 weights (or a master copy); else everything is 16-bit.
    base_bits: of frozen base weights that are quantised (QLoRA: 4); None: they are in 16 bits.
    linear_bits: as Headway quantises: of the frozen linear weights alone, scales included; all else as without.
    live_parameters: that ZeRO-3 leaves gathered (DeepSpeed's stage3_max_live_parameters).
    fp32_adapter: beside a base in 16 bits the adapter is kept in fp32 (PEFT under autocast).
    bucket_view: DDP's gradients are its buckets (gradient_as_bucket_view), not copies of them.
    """

    shape: ModelShape
    machine: Machine
    degrees: Degrees = field(default_factory=Degrees)
    engine: Engine = "ddp"
    stage: int = 0
    sequence: int = 2048
    micro_batch: int = 1
    accumulation: int = 1
    precision: Literal["fp32", "bf16", "fp16", "fp8"] = "bf16"
    tf32: bool = False
    master: bool = True
    base_bits: int | None = None
    linear_bits: float | None = None
    checkpointing: Checkpointing = "none"
    offload_optimizer: bool = False
    offload_parameters: bool = False
    offload_activations: bool = False
    dropout: bool = False
    adapter_dropout: bool = False
    language: bool = True  # its head gives a number for each entry of the vocabulary, not for each label
    software: Software = field(default_factory=Software)
    optimizer: OptimizerFacts = field(default_factory=OptimizerFacts)
    reduce_bucket_elements: int = 500_000_000
    prefetch_bucket_elements: int = 50_000_000
    live_parameters: int = 1_000_000_000
    overlap_comm: bool = True  # ZeRO-1 and 2: gradients are reduced while the backward pass goes on, in a second bucket
    shard_group: int = 0
    secondary_group: int = 1
    gathered_share: float = 1.0
    reduced_share: float = 1.0
    fp32_adapter: bool = False
    bucket_view: bool = True

    @property
    def shards(self) -> int:
        """Devices over which ZeRO and FSDP spread the states."""
        return min(self.degrees.shards, self.shard_group or self.degrees.shards)

    @property
    def tokens(self) -> int:
        """Of one micro batch on one device."""
        return self.micro_batch * self.sequence // self.degrees.context

    @property
    def step_tokens(self) -> int:
        """Of one step on all devices."""
        return self.micro_batch * self.sequence * self.accumulation * self.degrees.data

    @property
    def element_bytes(self) -> int:
        """Bytes of a number in the forward pass; fp8 products take 16-bit inputs and outputs."""
        return 4 if self.precision == "fp32" else 2


@dataclass(frozen=True)
class TimeItem:
    """Part of a step. hidden_seconds: of this part, what runs behind computation and costs nothing."""

    name: str
    seconds: float  # exposed
    hidden_seconds: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """Memory of the fullest device and time of a step.

    items add up to device_bytes. allocated: the caching allocator's peak of live tensors; reserved: what it took from
    the device for it; device: with the CUDA context, as nvidia-smi shows. The band holds nine of ten measured peaks.
    """

    items: tuple[MemoryItem, ...]
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    low_bytes: int
    high_bytes: int
    limit_bytes: int
    host_bytes: int  # of one host
    host_limit_bytes: int
    times: tuple[TimeItem, ...]
    step_seconds: float
    tokens_per_second: float
    model_flops_per_token: float
    mfu: float

    @property
    def fits(self) -> bool:
        """Whether the device holds it, and the host what its processes put there."""
        host = not self.host_limit_bytes or self.host_bytes <= self.host_limit_bytes
        return self.device_bytes <= self.limit_bytes and host
