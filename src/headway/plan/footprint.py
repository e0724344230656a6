"""Memory of one GPU at its peak, item by item, for any engine, stack of kernels and degrees.

States: Rajbhandari et al. 2020, 'ZeRO', table 1; FSDP keeps fp32 shards and gathers 16-bit copies. Activations:
Korthikanti et al. 2022, section 4.1, recounted for what each generation of kernels keeps. A step has three moments at
which memory peaks: after the forward pass (activations and logits), in the backward pass (one recomputed layer, the
gradients) and in the update; gradients exist from the first micro batch on, and the allocator keeps their blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.plan.constants import MEMORY, MemoryConstants
from headway.plan.layers import LayerKind, Numbers, attention_bytes, kind_of, mlp_bytes, norm_bytes
from headway.plan.quantizing import gathered_numbers, held_bytes, scale_bytes
from headway.plan.schema import MemoryItem
from headway.plan.setting import SUB_GROUP_ELEMENTS, EstimateRequest

GIB = 1024**3
COPIES = "16-bit copies of the weights"


@dataclass(frozen=True)
class Parts:
    """Parameters that one device holds, before ZeRO and FSDP: blocks, embeddings and head, routed experts."""

    body: float
    ends: float
    experts: float
    trained_share: float

    @property
    def total(self) -> float:
        return self.body + self.ends + self.experts


@dataclass(frozen=True)
class Footprint:
    """Bytes of one device, by moment. items add up to device_bytes."""

    items: tuple[MemoryItem, ...]
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    host_bytes: int  # of one process


def parts_of(request: EstimateRequest) -> Parts:
    """What one device of the first pipeline stage holds; the first and last have the embeddings."""
    shape, degrees = request.shape, request.degrees
    routed = shape.experts.parameters if shape.experts else 0
    body = shape.parameters - shape.embedding_parameters - routed
    ends = shape.embedding_parameters
    if degrees.pipeline > 1 and not shape.tied:
        ends //= 2
    split = degrees.tensor * degrees.pipeline
    return Parts(
        body=body / split,
        ends=ends / degrees.tensor,
        experts=routed / (degrees.pipeline * degrees.expert),
        trained_share=shape.trainable_parameters / shape.parameters,
    )


def footprint(request: EstimateRequest, constants: MemoryConstants = MEMORY) -> Footprint:
    """Memory of the fullest device."""
    states = _states(request)
    states["communication buckets"] = _standing_buckets(request)
    kept, transient = activations(request), layer_transient(request)
    logits = logits_bytes(request, constants)
    gathered, buckets, last = _gathered(request), _buckets(request), _last_buckets(request)
    gradients, copies = states.pop("gradients"), states.pop(COPIES, 0.0)
    base = sum(states.values()) + gathered
    forward = kept + logits + copies
    # autocast ends, and frees its copies, before the backward pass; without checkpointing autograd keeps them
    copied = copies if request.checkpointing == "none" else 0.0
    backward = transient + buckets + copied
    backward += kept if request.checkpointing == "none" else kept * (1 - 1 / max(request.shape.layers, 1))
    update = _update_workspace(request, gradients)
    early = gradients if request.accumulation > 1 or request.engine == "ddp" else 0.0  # DDP's are buckets, and stay
    moments = [base + early + forward, base + early + backward, base + gradients + last, base + gradients + update]
    allocated = max(moments)
    working = max(forward, backward, update, last)
    apart = max(working, kept + _side_by_side(request, logits, update + last))
    fragments = constants.fragmentation * max(forward - copies, backward - copied, update, last)
    # freed blocks of the last step's gradients serve no larger tensor, unless segments can grow
    reserved = (allocated if request.software.expandable_segments else base + gradients + apart) + fragments
    held = min(gradients, reserved - fragments - base)
    working = reserved - fragments - base - held
    copies = min(copied if backward > forward else copies, working)
    working -= copies
    rest = working - min(kept, working) - min(logits, max(working - kept, 0))
    items = [_item(name, size) for name, size in states.items()]
    items += [
        _item("gradients", held),
        _item(COPIES, copies),
        _item("gathered parameters", gathered),
        _item("activations", min(kept, working)),
        _item("logits and loss", min(logits, max(working - kept, 0))),
        _item("recomputed layer, buckets and workspace", rest),
        _item("fragmentation", fragments),
        _item("CUDA context", constants.context_bytes),
    ]
    host = _host(request)
    items += [MemoryItem(name=f"offloaded {name}", device_bytes=0, host_bytes=int(n)) for name, n in host.items()]
    return Footprint(
        items=tuple(item for item in items if item.device_bytes or item.host_bytes),
        allocated_bytes=int(allocated),
        reserved_bytes=int(reserved),
        device_bytes=int(reserved + constants.context_bytes),
        host_bytes=int(sum(host.values())),
    )


def _item(name: str, size: float) -> MemoryItem:
    return MemoryItem(name=name, device_bytes=int(size))


def _side_by_side(request: EstimateRequest, logits: float, flat: float) -> float:
    """What the loss and DeepSpeed's flat buffers take of the allocator.

    A flat buffer needs one free block of its size. Whole logits leave such a block behind; a loss that works by pieces
    leaves only small ones, so the buffer's block stands beside them.
    """
    by_pieces = request.software.loss in ("linear", "pieces") and request.engine == "deepspeed"
    return logits + flat if by_pieces else max(logits, flat)


def _shards(request: EstimateRequest, stage: int, *, experts: bool = False) -> int:
    """Over how many devices something is spread that this stage of ZeRO spreads."""
    if request.stage < stage or request.engine == "single":
        return 1
    degrees = request.degrees
    return max(1, request.shards // degrees.expert) if experts else request.shards


def weight_bytes(request: EstimateRequest) -> float:
    """Bytes of a stored weight."""
    if request.precision == "fp32":
        return 4
    return 4 if request.master and request.engine in ("single", "ddp", "fsdp") else 2


def _spread(request: EstimateRequest, parts: Parts, stage: int) -> float:
    """Parameters of one device after sharding from this stage on."""
    dense = (parts.body + parts.ends) / _shards(request, stage)
    return dense + parts.experts / _shards(request, stage, experts=True)


def _states(request: EstimateRequest) -> dict[str, float]:
    """Parameters, gradients, master weights and optimizer states on the device."""
    parts = parts_of(request)
    weight, trained = weight_bytes(request), parts.trained_share
    # FSDP's stage 2 keeps gathered 16-bit copies beside its shards: `_gathered`
    sharded = 3 if request.engine != "fsdp" else 2
    shards = _shards(request, sharded)
    held, held_in, whole = held_bytes(request.shape, request.linear_bits, shards)
    weights = (_spread(request, parts, sharded) - held / shards) * weight + held_in
    if request.base_bits is not None:
        ends = parts.ends / shards
        weights = (_spread(request, parts, sharded) - ends) * (request.base_bits + 0.25) / 8
        weights += (4 if request.software.wide_base else 2) * ends
    mixed = request.precision != "fp32" and request.master
    gradient = 4 if request.engine == "megatron" and mixed else weight
    states = _spread(request, parts, 1) * trained * (_master_bytes(request) + request.optimizer.bytes_per_parameter)
    if request.shape.adapter is None:
        states += parts.ends / _shards(request, 1) * request.optimizer.more_of_embeddings
    gradients = 0.0 if request.optimizer.in_backward else _spread(request, parts, 2) * trained * gradient
    if request.engine == "fsdp":
        gradients = 0.0 if request.optimizer.in_backward else _spread(request, parts, 2) * trained * weight
        if request.software.whole_accumulation and request.accumulation > 1:
            gradients += parts.total * trained * request.element_bytes
    if request.shape.adapter is not None and request.fp32_adapter and weight == 2:
        own = request.shape.trainable_parameters
        weights, gradients, states = weights + 2 * own, 4 * own, 8 * own
    items = {"parameters": weights, "gradients": gradients, "optimizer states": states}
    if request.offload_optimizer or request.optimizer.paged:
        items["optimizer states"] = 0.0
    if request.offload_optimizer:
        items["gradients"] = parts.total * trained * weight if _adds_whole_gradients(request) else 0.0
    if request.offload_parameters:
        items["parameters"] = scale_bytes(request.shape, request.linear_bits)
    else:
        items["second copy of the parameters"] = _second_copy(request)
    if request.offload_optimizer and request.engine == "deepspeed" and request.stage < 3:
        items["offload staging"] = _staging(request)
    if weight == 4 and request.precision != "fp32" and request.engine in ("single", "ddp"):
        items[COPIES] = 2 * (parts.total - held)  # autocast casts each once a micro batch
    if whole:
        items["dequantised matrix"] = whole * request.element_bytes
    return items


def _master_bytes(request: EstimateRequest) -> int:
    """Of a parameter's fp32 copy: beside 16-bit weights, and in DeepSpeed's stages 1 to 3 beside fp32 ones too."""
    if request.precision == "fp32":
        return 4 if request.engine == "deepspeed" and request.stage > 0 else 0
    return 4 if request.master and weight_bytes(request) == 2 else 0


def _adds_whole_gradients(request: EstimateRequest) -> bool:
    """Stage 1 adds up whole gradients where they are made, also where the optimizer is on the host."""
    return request.engine == "deepspeed" and request.stage == 1 and request.accumulation > 1


def _second_copy(request: EstimateRequest) -> float:
    """ZeRO++'s second partition of the parameters, within a group of its own; whole parameters are gathered from it."""
    if request.stage < 3 or request.secondary_group == 1:
        return 0.0
    return gathered_bytes(request) / min(request.secondary_group, request.shards)


def _staging(request: EstimateRequest) -> float:
    """One gradient on its way to the host, on either side: the largest."""
    return weight_bytes(request) * request.shape.largest_tensor_parameters / request.degrees.tensor


def _host(request: EstimateRequest) -> dict[str, float]:
    """What one process keeps in the host's memory."""
    parts = parts_of(request)
    host: dict[str, float] = {}
    weight, trained = weight_bytes(request), parts.trained_share
    if request.offload_optimizer:
        own = _spread(request, parts, 1) * trained
        master = 4 if weight == 2 else _master_bytes(request)
        host["optimizer states"] = own * (master + request.optimizer.bytes_per_parameter)
        host["gradients"] = own * (4 if _adds_whole_gradients(request) else 4 + weight)
        if request.engine == "deepspeed" and request.stage < 3:  # the updated partition on its way back
            host["offload staging"] = _staging(request) + own * weight
    elif request.optimizer.paged:
        host["optimizer states"] = _spread(request, parts, 1) * trained * request.optimizer.bytes_per_parameter
    if request.offload_parameters:
        shards = _shards(request, 3)
        held, held_in, _ = held_bytes(request.shape, request.linear_bits, shards)
        scales = scale_bytes(request.shape, request.linear_bits)
        host["parameters"] = (_spread(request, parts, 3) - held / shards) * weight + held_in - scales
        host["second copy of the parameters"] = _second_copy(request)
    if request.offload_activations:
        host["activations"] = _kept(request)
    return host


def _layer_parameters(request: EstimateRequest) -> float:
    """Of one block, as one device computes it."""
    parts = parts_of(request)
    layers = max(1.0, request.shape.layers / request.degrees.pipeline)
    return (parts.body + parts.experts) / layers


def gathered_bytes(request: EstimateRequest) -> float:
    """Of all parameters of one device, as ranks exchange them."""
    every, _ = gathered_numbers(request.shape, request.linear_bits, request.element_bytes)
    return (parts_of(request).total - (request.shape.parameters - every)) * request.element_bytes


def _gathered(request: EstimateRequest) -> float:
    """Whole 16-bit parameters beside the shards."""
    parts, e = parts_of(request), request.element_bytes
    if request.engine == "fsdp" and request.shards > 1:
        if request.degrees.pipeline > 1:  # gathered, and gradients summed whole, until the last micro batch
            return parts.total * (e + parts.trained_share * weight_bytes(request))
        if request.stage < 3:
            return parts.total * e
        # the root group (embedding, last norm, head) stays gathered; the next block arrives while one computes
        block = e if request.base_bits is None else (request.base_bits + 0.25) / 8
        blocks = 2 * _layer_parameters(request) * block
        return max(parts.ends / 2 * e, blocks) if request.software.ends_apart else parts.ends * e + blocks
    if request.engine == "deepspeed" and request.stage == 3:
        shape, total = request.shape, gathered_bytes(request) / e
        # prefetching stops when it has passed its bounds, by one matrix at most; what comes together is copied out
        matrix = shape.hidden * max(shape.vocab, shape.ffn)
        live, together = request.live_parameters + matrix, request.prefetch_bucket_elements + matrix
        return (min(total, live) + min(total, together)) * e
    return 0.0


def _buckets(request: EstimateRequest) -> float:
    """Gradients on their way in the backward pass."""
    parts, e = parts_of(request), request.element_bytes
    trained = parts.trained_share
    if request.engine == "fsdp" and request.shards > 1:
        # 16-bit gradients of a block and their fp32 copy for the reduction
        return _layer_parameters(request) * trained * (e + (4 if request.master else 2))
    if request.engine == "deepspeed" and request.stage > 0:
        size = request.reduce_bucket_elements * e  # made whole, however little is trained
        if request.stage == 3:  # its gradients sorted into partitions, and what arrives
            return (1 + 1 / request.shards) * min(size, parts.total * trained * e)
        return size * (2 if request.overlap_comm else 1)
    return 0.0


def _standing_buckets(request: EstimateRequest) -> float:
    """ZeRO-3's bucket, made with the engine; DDP's, where they are not the gradients themselves.

    A micro batch without exchange makes gradients of its own.
    """
    if request.engine == "deepspeed" and request.stage == 3:
        return request.reduce_bucket_elements * request.element_bytes
    if request.engine != "ddp" or request.degrees.devices == 1:
        return 0.0
    if request.bucket_view and request.accumulation == 1:
        return 0.0
    parts = parts_of(request)
    return parts.total * parts.trained_share * weight_bytes(request)


def _last_buckets(request: EstimateRequest) -> float:
    """As `_buckets`, at the end of the backward pass, with the whole gradients of the embeddings.

    FSDP's root group has embedding and head; DeepSpeed copies what is larger than a bucket.
    """
    parts = parts_of(request)
    if request.engine == "deepspeed" and request.stage > 0:
        return _buckets(request) + parts.ends * parts.trained_share * request.element_bytes
    if request.engine != "fsdp" or request.shards == 1:
        return _buckets(request)
    ends = parts.ends / (2 if request.software.ends_apart else 1)
    return ends * parts.trained_share * (request.element_bytes + (4 if request.master else 2))


def _update_workspace(request: EstimateRequest, gradients: float) -> float:
    """What the update makes beside the states: DeepSpeed an fp32 copy of its gradients; foreach loops a copy more.

    Stage 3 updates one sub-group after another, and copies only its gradients.
    """
    if request.engine == "deepspeed" and request.stage > 0 and not request.offload_optimizer:
        parts = parts_of(request)
        own = _spread(request, parts, 1) * parts.trained_share
        return 4 * (min(own, SUB_GROUP_ELEMENTS) if request.stage == 3 else own)
    return 0.0 if request.software.fused_optimizer else gradients


def logits_bytes(request: EstimateRequest, constants: MemoryConstants = MEMORY) -> float:
    """Logits of one micro batch, what the loss makes of them, and the gradients made with them."""
    shape, software, e = request.shape, request.software, request.element_bytes
    tensor = request.degrees.tensor
    if not request.language:
        return 0.0
    logits = request.tokens * shape.vocab / tensor
    piece = min(request.tokens, software.loss_chunk_tokens or request.tokens) * shape.vocab / tensor
    half = e if request.precision != "fp32" else 0
    if software.loss == "pieces":
        return piece * (constants.whole_logit_bytes + half + (e if shape.head == "capped" else 0))
    head = shape.vocab * shape.hidden / tensor if shape.adapter is None else 0.0
    if software.loss == "linear":
        # gradients of the head (fp32) and of its input are made with the logits; the backward pass scales them anew
        gradients = 4 * head + e * request.tokens * shape.hidden
        return gradients + max(gradients, piece * (4 + half))
    if software.loss == "chunked":
        of_piece = constants.piece_logit_bytes * (1 if software.kernels == "compiled" else 4)
        return logits * (e + of_piece) + e * head
    if software.loss == "fused":  # fp32 logits and their shifted copy, which becomes the gradient
        return logits * 8 + e * head
    if software.loss == "compiled":
        return logits * (e + constants.compiled_logit_bytes) + e * head
    if software.loss == "whole" and half:
        half = software.held_logit_bytes
    made = constants.whole_logit_bytes / (2 if software.loss == "half" else 1)
    return logits * (half + made) + e * head


def activations(request: EstimateRequest) -> float:
    """What autograd keeps of one micro batch; of as many micro batches as a pipeline's first stage has in flight."""
    return 0.0 if request.offload_activations and request.checkpointing == "full" else _kept(request)


def _kept(request: EstimateRequest) -> float:
    shape, degrees = request.shape, request.degrees
    layers = shape.layers / degrees.pipeline
    in_flight = min(degrees.pipeline, request.accumulation)
    stream = _stream(request) * request.tokens
    edges = 2 * stream if degrees.pipeline == 1 else stream
    return layers * in_flight * _kept_of_layer(request) + edges + _adapter(request)


def _adapter(request: EstimateRequest) -> float:
    """What the pairs of an adapter keep: the values between two matrices, and under dropout the layer's input anew."""
    shape = request.shape
    if shape.adapter is None:
        return 0.0
    share = 1 / max(shape.layers, 1) if request.checkpointing == "full" else 1.0
    kept = shape.adapter.token_numbers * request.element_bytes
    if request.adapter_dropout:
        kept += shape.adapter.inputs * (request.element_bytes + 1)  # its mask is a byte each
    return request.tokens * kept * share


def _stream(request: EstimateRequest) -> float:
    """Bytes of one token of the residual stream. Autocast keeps it in fp32; sharded 16-bit weights do not."""
    split = request.degrees.tensor if request.degrees.sequence_parallel else 1
    wide = request.precision != "fp32" and request.engine in ("single", "ddp") and request.master
    wide = wide or request.software.wide_base
    return request.shape.hidden * (4 if wide else request.element_bytes) / split


def _kept_of_layer(request: EstimateRequest) -> float:
    if request.checkpointing == "full":
        return _stream(request) * request.tokens
    if request.checkpointing == "selective" and request.engine != "megatron":
        return (_selected(request) + _cast(request)) * request.tokens
    return full_layer_bytes(request)


def _cast(request: EstimateRequest) -> float:
    """Bytes a token: fp8 operation by operation keeps each product's input in 16 bits and in fp8, each for itself."""
    if request.precision != "fp8" or request.software.kernels != "eager":
        return 0.0
    return 3 * (6 * request.shape.hidden + request.shape.mlp_width) / request.degrees.tensor


def _selected(request: EstimateRequest) -> float:
    """Bytes a token: the layer's input, attention's output and every second matrix product (torchtitan's policy)."""
    shape, tensor = request.shape, request.degrees.tensor
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    kept = (2 * query + key + request.shape.mlp_width) / tensor
    if request.software.kernels == "eager":
        kept += shape.hidden  # the last product's, which nothing reads again; torch.compile drops it
    return _stream(request) + kept * request.element_bytes


def numbers_of(request: EstimateRequest) -> Numbers:
    """Bytes of a number, and whether autocast casts them."""
    split = request.degrees.tensor if request.degrees.sequence_parallel else 1
    wide = int(_stream(request) * split / request.shape.hidden)
    casts = request.software.autocast and request.shape.layer_norm
    return Numbers(wide, request.element_bytes, autocast=wide > request.element_bytes or casts)


def full_layer_bytes(request: EstimateRequest) -> float:
    """What autograd keeps of one layer and one micro batch without recomputation."""
    shape, degrees = request.shape, request.degrees
    split = degrees.tensor if degrees.sequence_parallel else 1
    written_out = request.software.kernels == "eager"
    repeated = request.software.attention in ("sdpa", "eager")
    kind, numbers = kind_of(shape), numbers_of(request)
    norms = norm_bytes(kind, numbers) if written_out else 2 * (numbers.stream_bytes + numbers.element_bytes)
    if request.engine == "megatron":  # fused layer norms of the 16-bit stream
        norms = 2 * (numbers.stream_bytes + numbers.element_bytes)
    attention = attention_bytes(shape, kind if written_out else LayerKind(), numbers, repeated=repeated)
    mlp = _mlp_bytes(request) * request.shape.mlp_width
    dropped = 2 * shape.hidden / split if request.dropout else 0
    total = norms * shape.hidden / split + (attention + mlp) / degrees.tensor + dropped
    return (total + _cast(request) - _unread(request)) * request.tokens + _scores(request)


def _mlp_bytes(request: EstimateRequest) -> int:
    """Bytes kept of one element of the MLP's width.

    Fused kernels and torch.compile compute a gated activation again, but not what a product reads: what must be written
    for the backward pass anyway is kept (torch's `ban_recompute_materialized_backward`).
    """
    kernels, gated, e = request.software.kernels, request.shape.gated, request.element_bytes
    if kernels == "eager" and request.engine != "megatron":
        return mlp_bytes(kind_of(request.shape), numbers_of(request))
    if gated:
        return (4 if kernels == "eager" else 3) * e
    return 2 * e


def _unread(request: EstimateRequest) -> float:
    """Inputs of an MLP without an adapter: no gradient of its frozen weights is wanted, so they are not kept."""
    shape, added = request.shape, request.shape.adapter
    of_attention = (3 * shape.hidden + shape.heads * shape.head_dim) * shape.layers
    if added is None or added.inputs > of_attention or request.software.quantized_inputs:
        return 0.0
    return (request.shape.mlp_width + shape.hidden) * request.element_bytes / request.degrees.tensor


def _scores(request: EstimateRequest) -> float:
    """Score matrices of one layer, where the kernel keeps them."""
    if request.software.attention != "eager" or request.checkpointing == "selective":
        return 0.0
    shape, e, dropped = request.shape, request.element_bytes, int(request.dropout)
    if request.engine == "megatron":  # one fused kernel for scale, mask and softmax, in 16 bits
        size = e * (1 + dropped)
    else:  # an fp32 softmax, and what the last product reads, where that is another tensor
        size = 4 + (e if dropped or request.precision != "fp32" else 0)
    size += dropped  # of a GPU's dropout, a byte of mask
    return request.micro_batch * shape.heads / request.degrees.tensor * request.sequence**2 * size


def layer_transient(request: EstimateRequest) -> float:
    """One layer in the backward pass: its recomputed activations, and the gradients of its widest tensors."""
    shape, e, tensor = request.shape, request.element_bytes, request.degrees.tensor
    # an activation and a product that are written out have a gradient each for what they read, at one time; the
    # product itself, where it was kept, has been freed
    wide = width = request.shape.mlp_width
    if request.software.kernels == "eager" and shape.gated:
        wide = 3 * width - (0 if _unread(request) else width)
    widest = (wide + 2 * shape.hidden) * e * request.tokens / tensor
    again = full_layer_bytes(request) if request.checkpointing != "none" else 0.0
    scores = _scores(request) / 2
    dequantised = shape.hidden * max(shape.ffn, shape.hidden) * e if request.base_bits is not None else 0.0
    return again + widest + scores + dequantised
