"""Memory of one process, item by item: model states, gathered parameters, activations, logits, buckets, runtime.

Sources. Model states: Rajbhandari et al. 2020, 'ZeRO', table 1, with the copies that DeepSpeed 0.19's
`stage_1_and_2.py` and `stage3.py` really make. Activations: Korthikanti et al. 2022, 'Reducing activation
recomputation in large transformer models', section 4.1, recounted for gated MLPs, RMS norms and attention kernels that
keep no score matrix; `tests/unit/test_plan_activations.py` holds the counts to what autograd saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.facts.hardware import Machine, cpu_device
from headway.facts.schema import ClusterFacts, ModelShape
from headway.plan.compressing import compression_bytes
from headway.plan.footprint import footprint
from headway.plan.layers import Numbers, attention_bytes, kind_of, norm_bytes
from headway.plan.quantizing import gathered_numbers, held_bytes, scale_bytes
from headway.plan.schema import MemoryItem, MemoryPlan, OptimizerPlan, StrategyPlan
from headway.plan.setting import (
    SUB_GROUP_ELEMENTS,
    USABLE_SHARE,
    AttentionKind,
    Degrees,
    EstimateRequest,
    LossKind,
    OptimizerFacts,
    Software,
)

Precision = Literal["fp32", "bf16", "fp16"]

GIB = 1024**3
# What a CPU worker holds beside the other items: 340 MiB measured in a forked rank that has joined its gloo group and
# built nothing yet (torch 2.13+cpu, deepspeed 0.19.8, transformers 5.24); 30 more when the tokenizer, the store and
# the loader's thread stand; the rest is matrix scratch and code that the first step touches. A rank that torchrun or
# deepspeed starts imports inductor too, 100 MiB.
CPU_RUNTIME_BYTES = 400 * 1024**2
# What DeepSpeed's engine brings: its communication layer, hooks and small buffers.
CPU_DEEPSPEED_BYTES = 30 * 1024**2
# What a tracker takes in the process of rank 0, measured when fifty figures had been sent (tensorboard 2.21, mlflow
# 3.17, wandb 0.31 with its service, a process of its own); a user's own are not known.
CPU_TRACKER_BYTES = {"tensorboard": 10 * 1024**2, "mlflow": 61 * 1024**2, "wandb": 48 * 1024**2}
# What glibc keeps of what a step frees, in pieces that do not fit what is asked for next; above 64 MiB it gives the end
# of its heap back. Frozen weights have no gradients and moments that would fill the gaps of their loading, and under
# ZeRO-3 they come and go between activations that stay. From 29 peaks on one machine (bench/results).
CPU_KEPT_SHARE = 0.6
CPU_KEPT_BYTES = 115 * 1024**2
CPU_KEPT_OF_FROZEN, CPU_KEPT_OF_GATHERED_FROZEN = 0.55, 1.7
# glibc maps what is larger anew each time and gives it back: every page of it is faulted in. Copying into a fresh
# buffer took 1.9 to 2.3 ns a number above this and 0.4 below, into one that is held 0.3 to 0.7 (bench/results).
MAPPED_ABOVE_BYTES = 32 * 1024**2
# The process of a GPU on its host: the libraries, larger in CUDA builds.
CUDA_HOST_BYTES = int(2.0 * GIB)
# Left to the operating system on a CPU-only machine, once a host.
SYSTEM_BYTES = 1 * GIB
LIVE_NUMBERS = 10**9  # that ZeRO-3 may leave gathered between forward and backward (stage3_max_live_parameters)
LOSS_CHUNK_BYTES = 1 * GIB  # fp32 logits above this are computed in pieces
_CHUNK_MULTIPLE = 256


@dataclass(frozen=True)
class MemoryRequest:
    """One setting to be judged. `loss_chunk_tokens`: 0 means all of the micro batch at once.

    global_sequences: of a step, over all ranks; 0: no gradients are accumulated.
    """

    shape: ModelShape
    cluster: ClusterFacts
    strategy: StrategyPlan
    optimizer: OptimizerPlan
    precision: Precision
    processes: int
    micro_batch: int
    sequence: int
    activation_checkpointing: bool
    loss_chunk_tokens: int
    attention: str
    adapter_dropout: bool = False
    base_bits: float | None = None  # of a frozen linear weight with its scales (QLoRA); None: as the others
    global_sequences: int = 0
    rows: int = 1  # of a sequence each, in one item of the batch: a preference has two answers
    language: bool = True  # its head gives a number for each entry of the vocabulary, not for each label
    compiled: bool = False  # by torch.compile
    trackers: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.rows * self.sequence

    @property
    def accumulates(self) -> bool:
        """Whether a step adds up the gradients of several micro batches."""
        return self.global_sequences > self.micro_batch * self.processes

    @property
    def sharded_weights(self) -> bool:
        """16-bit weights with an fp32 master copy (DeepSpeed), against fp32 weights under autocast."""
        return self.strategy.kind == "deepspeed" and self.precision != "fp32"

    @property
    def element_bytes(self) -> int:
        """Bytes of a number in the forward pass."""
        return 4 if self.precision == "fp32" else 2


def moments_of(optimizer: OptimizerPlan) -> int:
    """fp32 numbers that the optimizer keeps of each parameter."""
    if optimizer.kind == "sgd":
        return 1 if optimizer.momentum > 0 else 0
    return {"adamw": 2, "adam": 2}.get(optimizer.kind, 1)


def device_limit_bytes(cluster: ClusterFacts, processes: int) -> int:
    """What one process may use: its GPU less a tenth, or its part of the host less a tenth and the system's own."""
    if cluster.device == "cuda":
        return int(USABLE_SHARE * cluster.device_memory_bytes)
    return int((USABLE_SHARE * cluster.host_memory_bytes - SYSTEM_BYTES) / processes)


def host_limit_bytes(cluster: ClusterFacts) -> int:
    """What all processes of a host may use of its memory together."""
    return max(0, int(USABLE_SHARE * cluster.host_memory_bytes - SYSTEM_BYTES))


def estimate_memory(request: MemoryRequest) -> MemoryPlan:
    """Memory of one process at its peak, item by item; of a GPU by `headway.plan.footprint`."""
    if request.cluster.device == "cuda":
        return _on_gpu(request)
    items = [*model_states(request), *_gathered(request), *_step_items(request), *_buckets(request)]
    items += _compression(request)
    own = CPU_DEEPSPEED_BYTES if request.strategy.kind == "deepspeed" else 0
    items += [_allocator(request, items), MemoryItem(name="runtime", device_bytes=CPU_RUNTIME_BYTES + own)]
    items.append(_item("trackers", sum(CPU_TRACKER_BYTES.get(kind, 0) for kind in request.trackers)))
    limit = device_limit_bytes(request.cluster, request.processes)
    kept = tuple(item for item in items if item.device_bytes or item.host_bytes)
    return MemoryPlan(items=kept, device_limit_bytes=limit)


def _on_gpu(request: MemoryRequest) -> MemoryPlan:
    found = footprint(setting_of(request))
    process = MemoryItem(name="process, libraries and loader", device_bytes=0, host_bytes=CUDA_HOST_BYTES)
    limit = device_limit_bytes(request.cluster, request.processes)
    return MemoryPlan(items=(*found.items, *_compression(request), process), device_limit_bytes=limit)


def _compression(request: MemoryRequest) -> list[MemoryItem]:
    asked = request.strategy.compression
    if asked is None or request.strategy.kind != "ddp":
        return []
    return [_item("gradient compression", compression_bytes(asked, request.shape))]


def setting_of(request: MemoryRequest) -> EstimateRequest:
    """The same setting for the estimates of GPUs. Its device has no rates: memory does not ask for them."""
    cluster, strategy = request.cluster, request.strategy
    attention: dict[str, AttentionKind] = {"sdpa": "sdpa", "eager": "eager"}
    return EstimateRequest(
        shape=request.shape,
        machine=Machine(cpu_device(cluster.device_memory_bytes), cluster.devices_per_host, cluster.hosts),
        degrees=Degrees(data=request.processes),
        engine="deepspeed" if strategy.kind == "deepspeed" else "single" if strategy.kind == "single" else "ddp",
        stage=strategy.stage,
        sequence=request.sequence,
        micro_batch=request.micro_batch * request.rows,
        accumulation=2 if request.accumulates else 1,  # how many more makes no difference
        precision=request.precision,
        checkpointing="full" if request.activation_checkpointing else "none",
        offload_optimizer=strategy.offload_optimizer,
        offload_parameters=strategy.offload_parameters,
        dropout=request.shape.hidden_dropout or request.shape.attention_dropout,
        adapter_dropout=request.adapter_dropout,
        linear_bits=request.base_bits,
        language=request.language,
        software=Software(
            kernels="compiled" if request.compiled else "eager",
            attention=attention.get(request.attention, "flash"),
            loss=_loss_kind(request),
            loss_chunk_tokens=request.loss_chunk_tokens,
        ),
        optimizer=OptimizerFacts(4.0 * moments_of(request.optimizer)),
        reduce_bucket_elements=strategy.reduce_bucket_elements,
        prefetch_bucket_elements=strategy.prefetch_bucket_elements,
        overlap_comm=strategy.overlap_comm,
        secondary_group=strategy.secondary_partition,
        gathered_share=1 / request.element_bytes if strategy.quantized_weights else 1.0,
        reduced_share=_reduced_share(request),
    )


def _reduced_share(request: MemoryRequest) -> float:
    """Of the gradients' bytes, those that are sent: ZeRO++ takes 4 bits of each, a cast two bytes of DDP's four.

    What PowerSGD sends depends on the shape of each matrix; it is taken to send all.
    """
    compression = request.strategy.compression
    if request.strategy.quantized_gradients:
        return 0.5 / request.element_bytes
    return 0.5 if compression is not None and compression.kind != "powersgd" else 1.0


def _loss_kind(request: MemoryRequest) -> LossKind:
    if request.shape.head == "whole" or (request.rows > 1 and not request.loss_chunk_tokens):
        return "whole"
    return "pieces" if request.shape.head != "linear" or request.rows > 1 else "linear"


def fits(memory: MemoryPlan, cluster: ClusterFacts, processes: int) -> bool:
    """Whether the device holds it, and the host what all its processes put there."""
    if cluster.device == "cpu":
        return memory.device_bytes + memory.host_bytes <= memory.device_limit_bytes
    per_host = min(processes, cluster.devices_per_host)
    return memory.device_bytes <= memory.device_limit_bytes and memory.host_bytes * per_host <= host_limit_bytes(
        cluster
    )


def used_bytes(memory: MemoryPlan, cluster: ClusterFacts) -> int:
    """Bytes that count against the device's limit: on a CPU, offloaded states stay in the same memory."""
    return memory.device_bytes + (memory.host_bytes if cluster.device == "cpu" else 0)


def model_states(request: MemoryRequest) -> list[MemoryItem]:
    """Parameters, gradients, master copy and optimizer moments.

    P parameters on N ranks, Adam, 16-bit with an fp32 master copy: 16P without sharding, stage 1: 4P + 12P/N,
    stage 2: 2P + 14P/N, stage 3: 16P/N ('ZeRO', table 1). fp32 without a master copy is 4 + 4 + 8 = 16 bytes too, but
    DeepSpeed's stages 1 to 3 keep a master copy even of fp32 weights: 4P/N more. `tests/distributed` counts them live.
    """
    strategy, count, ranks = request.strategy, request.shape.parameters, request.processes
    trained = request.shape.trainable_parameters
    stage = strategy.stage if strategy.kind == "deepspeed" else 0
    weight = 2 if request.sharded_weights else 4
    master = 4 if request.sharded_weights or stage > 0 else 0

    def part(parameters: int, from_stage: int) -> int:
        return -(-parameters // ranks) if stage >= from_stage else parameters

    states = part(trained, 1) * (master + 4 * moments_of(request.optimizer))
    held, held_in, whole = held_bytes(request.shape, request.base_bits, ranks if stage == 3 else 1)
    weights, gradients = part(count - held, 3) * weight + held_in, part(trained, 2) * weight
    stay = scale_bytes(request.shape, request.base_bits) if strategy.offload_parameters else weights
    on_host = strategy.offload_optimizer
    made, moved = gradients, 0
    if on_host:  # the partition in fp32 beside the master copy, and once more in the weights' precision
        made, moved = 0, part(trained, 1) * (4 + weight)
    if on_host and stage == 1 and request.accumulates:  # stage 1 adds up whole gradients where they are made
        made, moved = trained * weight, part(trained, 1) * 4
    items = [
        MemoryItem(name="parameters", device_bytes=stay, host_bytes=weights - stay),
        MemoryItem(name="gradients", device_bytes=made, host_bytes=moved),
        _item("optimizer states", states, host=on_host),
    ]
    if on_host and stage < 3:
        items.append(_staging(request, part(trained, 1) * weight, weight))
    if stage == 3 and strategy.secondary_partition > 1:
        items.append(_second_copy(request))
    if strategy.kind != "deepspeed" and request.precision != "fp32":
        # autocast casts each weight once a micro batch; backward reads the copy
        items.append(_item("16-bit copies of the weights", 2 * (count - held)))
    return [*items, _item("dequantised matrix", whole * request.element_bytes)]


def _second_copy(request: MemoryRequest) -> MemoryItem:
    """ZeRO++'s second partition of the parameters, within a group of its own, beside the first."""
    every, _ = gathered_numbers(request.shape, request.base_bits, request.element_bytes)
    ranks = min(request.strategy.secondary_partition, request.processes)
    size = -(-every // ranks) * request.element_bytes
    return _item("second copy of the parameters", size, host=request.strategy.offload_parameters)


def _staging(request: MemoryRequest, partition_bytes: int, weight_bytes: int) -> MemoryItem:
    """What stages 1 and 2 move through to and from the host: the updated partition, and one gradient on either side."""
    largest = weight_bytes * request.shape.largest_tensor_parameters
    return MemoryItem(name="offload staging", device_bytes=largest, host_bytes=largest + partition_bytes)


def _item(name: str, count: int, *, host: bool = False) -> MemoryItem:
    return MemoryItem(name=name, device_bytes=0 if host else count, host_bytes=count if host else 0)


def _gathered(request: MemoryRequest) -> list[MemoryItem]:
    """Whole parameters that stage 3 keeps: all that it may leave gathered, or the largest layer and what is fetched
    ahead of it.

    What is fetched together arrives in one flat buffer and is copied out of it.
    """
    if request.strategy.stage < 3:
        return []
    ahead = request.strategy.prefetch_bucket_elements
    every, layer = gathered_numbers(request.shape, request.base_bits, request.element_bytes)
    elements = min(every, max(LIVE_NUMBERS, layer + ahead)) + min(every, ahead)
    return [_item("gathered parameters", elements * request.element_bytes)]


def _buckets(request: MemoryRequest) -> list[MemoryItem]:
    """Gradients on their way: one bucket, two where communication overlaps the backward pass (stages 1 and 2).

    DDP's buckets are the gradients themselves (gradient_as_bucket_view), but for those that accumulate: a micro batch
    without exchange makes gradients of its own, and the buckets stand beside them. Stage 3 sorts a full bucket into
    partitions, a second copy, and receives its own.
    """
    strategy = request.strategy
    if strategy.kind == "ddp" and request.accumulates and request.processes > 1:
        return [_item("communication buckets", 4 * request.shape.trainable_parameters)]
    if strategy.kind != "deepspeed" or strategy.stage == 0:
        return []
    size = strategy.reduce_bucket_elements * request.element_bytes
    if strategy.stage == 3:
        return [_item("communication buckets", 2 * size + size // request.processes)]
    return [_item("communication buckets", size * (2 if strategy.overlap_comm else 1))]


def _allocator(request: MemoryRequest, items: list[MemoryItem]) -> MemoryItem:
    """What the C library keeps of freed memory."""
    size = {item.name: item.device_bytes + item.host_bytes for item in items}
    gathered = size.get("gathered parameters", 0)
    freed = gathered + sum(size[name] for name in ("activations", "adapter activations", "logits and loss"))
    frozen = 1 - request.shape.trainable_parameters / request.shape.parameters
    gaps = CPU_KEPT_OF_GATHERED_FROZEN * gathered if gathered else CPU_KEPT_OF_FROZEN * size["parameters"]
    return _item("allocator", int(min(CPU_KEPT_SHARE * freed, CPU_KEPT_BYTES) + frozen * gaps))


def _step_items(request: MemoryRequest) -> list[MemoryItem]:
    """Activations and logits at the end of the forward pass; or the update's workspace, which comes after them."""
    activations, logits = activation_bytes(request), logits_bytes(request)
    workspace = max(0, update_workspace_bytes(request) - activations - logits)
    return [
        _item("activations", activations),
        _item("adapter activations", adapter_bytes(request)),
        _item("logits and loss", logits),
        _item("update workspace", workspace),
    ]


def update_workspace_bytes(request: MemoryRequest) -> int:
    """What the update holds beside the states: DeepSpeed flattens its partition of the gradients, in fp32, to step.

    Stage 3 does so with one sub-group after another.
    """
    if request.strategy.kind != "deepspeed" or request.strategy.stage == 0 or request.strategy.offload_optimizer:
        return 0
    own = -(-request.shape.trainable_parameters // request.processes)
    return 4 * (min(own, SUB_GROUP_ELEMENTS) if request.strategy.stage == 3 else own)


def activation_bytes(request: MemoryRequest) -> int:
    """What autograd keeps of one micro batch: every layer, or with checkpointing the layers' inputs and one layer."""
    layers, tokens = request.shape.layers, request.tokens
    per_layer = layer_token_bytes(request) * tokens + _score_bytes(request)
    stream = stream_bytes(request) * request.shape.hidden * tokens
    edges = 3 * stream  # the embedding's output, the last norm's input and output
    if request.shape.hidden_dropout:
        edges += stream
    if request.activation_checkpointing:
        return layers * stream + per_layer + edges
    return layers * per_layer + edges + _mask_bytes(request)


def adapter_bytes(request: MemoryRequest) -> int:
    """What the pairs of an adapter keep: the values between two matrices, and under dropout the layer's input anew."""
    added = request.shape.adapter
    if added is None:
        return 0
    layers = 1 if request.activation_checkpointing else request.shape.layers
    numbers = added.token_numbers + (2 * added.inputs if request.adapter_dropout else 0)  # the input and its mask
    return request.tokens * numbers * request.element_bytes * layers // max(request.shape.layers, 1)


def stream_bytes(request: MemoryRequest) -> int:
    """Bytes of a number of the residual stream: autocast keeps it in fp32."""
    return 2 if request.sharded_weights else 4


def layer_token_bytes(request: MemoryRequest) -> int:
    """Bytes that autograd keeps of one token in one layer, without a score matrix."""
    shape, kind = request.shape, kind_of(request.shape)
    autocast = request.precision != "fp32" and not request.sharded_weights
    numbers = Numbers(stream_bytes(request), request.element_bytes, autocast)
    repeated = request.attention in ("sdpa", "eager")  # under a mask they need a key and a value for every head
    attention = attention_bytes(shape, kind, numbers, repeated=repeated)
    if _written_out(request):  # copies of queries, keys and values in fp32 in place of all but the output
        copies = 3 * 4 - (kind.attention - 1) * request.element_bytes
        attention += copies * shape.heads * shape.head_dim
    # a CPU keeps what it multiplied by, a number for each that it may drop
    dropped = kind.dropouts * request.element_bytes if shape.hidden_dropout else 0
    kept = (norm_bytes(kind, numbers) + dropped) * shape.hidden
    return kept + attention + int(kind.mlp * shape.mlp_width * request.element_bytes)


def _score_bytes(request: MemoryRequest) -> int:
    """The score matrices of one layer, where the attention kernel keeps them: softmax in fp32, its copy, a soft cap.

    Dropout keeps its noise and what it left.
    """
    per_score = 0
    if request.attention == "eager":
        per_score = 4 + (request.element_bytes if request.precision != "fp32" else 0)
        per_score += request.element_bytes if request.shape.arch == "gemma2" else 0
        per_score += 2 * request.element_bytes if request.shape.attention_dropout else 0
    elif _written_out(request):
        per_score = 3 * 4
    return request.micro_batch * request.rows * request.shape.heads * request.sequence**2 * per_score


def _written_out(request: MemoryRequest) -> bool:
    """A CPU's fused SDPA has no dropout: with it torch computes SDPA step by step, in fp32."""
    return request.attention == "sdpa" and request.shape.attention_dropout


def _mask_bytes(request: MemoryRequest) -> int:
    """The document mask of SDPA and eager attention, [micro_batch, sequence, sequence]; other kernels take lengths."""
    if request.attention not in ("sdpa", "eager"):
        return 0
    return request.micro_batch * request.rows * request.sequence**2 * (1 + request.element_bytes)


def logits_bytes(request: MemoryRequest) -> int:
    """The loss: logits of as many tokens as exist at once, and the gradients that are made with them.

    A linear head (headway.model.heads) turns its logits into gradients in place and keeps those, [entries, hidden] in
    fp32 and [tokens, hidden], until backward scales them. A head that does more, or a loss that is no sum over tokens
    (a preference), keeps the logits, their log-softmax and its gradient; of all tokens where it cannot be cut.
    """
    shape, e = request.shape, request.element_bytes
    if not request.language:
        return 0
    tokens = _logits_tokens(request)
    converted = e if request.precision != "fp32" else 0
    if shape.head != "linear" or request.rows > 1:
        return tokens * shape.vocab * (12 + converted + (e if shape.head == "capped" else 0))
    of_head = 0 if shape.adapter else 4 * shape.vocab * shape.hidden  # the head is frozen beside an adapter
    gradients = of_head + e * request.tokens * shape.hidden
    return gradients + max(gradients, tokens * shape.vocab * (4 + converted))


def _logits_tokens(request: MemoryRequest) -> int:
    """Tokens whose logits exist at once."""
    whole = request.shape.head == "whole" or not request.loss_chunk_tokens
    return request.tokens if whole else min(request.tokens, request.loss_chunk_tokens)


def loss_chunk_for(tokens: int, vocab: int) -> tuple[int, str]:
    """(tokens whose logits exist at once, reason); 0: all. Chunks keep fp32 logits under 1 GiB."""
    whole = tokens * vocab * 4
    size = f"fp32 logits of {tokens} tokens x {vocab} entries are {whole / GIB:.2f} GiB"
    if whole <= LOSS_CHUNK_BYTES:
        return 0, size
    chunk = max(_CHUNK_MULTIPLE, LOSS_CHUNK_BYTES // (4 * vocab) // _CHUNK_MULTIPLE * _CHUNK_MULTIPLE)
    return chunk, f"{size}; {chunk} tokens at once keep them at {chunk * vocab * 4 / GIB:.2f} GiB"
