"""Time of one training step, part by part: matrix products, attention, memory traffic, launches, links, bubble, update.

Products: Kaplan et al. 2020, section 2.1, counted product by product; each takes its arithmetic at a share of the best
measured rate, plus the time of its operands through memory, so that small products are slow by themselves. Links: ring
collectives (Thakur et al. 2005). Pipelines: Narayanan et al. 2021, section 2.2, bubble (p - 1) / (m v). ZeRO's volumes:
Rajbhandari et al. 2020, section 7. What communication hides behind computation is bounded by the computation beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.errors import PlanError
from headway.plan.constants import TIME, TimeConstants
from headway.plan.footprint import gathered_bytes, numbers_of, parts_of, weight_bytes
from headway.plan.layers import GELU_BACKWARD, gelu_bytes, kind_of
from headway.plan.setting import EstimateRequest, TimeItem

BUCKET_BYTES = 256e6  # of gradients and parameters that are exchanged at once
TILE = 128  # rows and columns of a product's tile
SMALL_TILE = 64  # of one outside of the matrix units (cuBLAS's sgemm_64x64), which needs no large one to be fast


@dataclass(frozen=True)
class Rates:
    """What a device reaches: FLOP/s of products and attention, bytes/s."""

    matmul: float
    attention: float
    memory: float
    tail_seconds: float  # of a product's last wave of tiles, for each number of its inner dimension
    misaligned: float  # share of the rate where a dimension does not fill the matrix units


@dataclass(frozen=True)
class Pass:
    """Seconds of one layer (or the head) in one direction, for one micro batch on one device."""

    products: float
    attention: float
    traffic: float
    dequantising: float
    launches: float
    gelu: float = 0.0  # where it is written out, beside the other traffic

    @property
    def busy(self) -> float:
        """Of the device."""
        return self.products + self.attention + self.traffic + self.gelu + self.dequantising

    @property
    def seconds(self) -> float:
        """The host starts operations ahead of the device: the slower of the two decides."""
        return max(self.busy, self.launches)


def _best_product(request: EstimateRequest) -> float:
    """FLOP/s of the best matrix product. Raises PlanError where a cluster file has no rate that stands for it."""
    device, precision = request.machine.device, request.precision
    nearest = (*(("tf32",) if request.tf32 else ()), "fp32") if precision == "fp32" else (precision, "fp16", "fp32")
    rates = [device.matmul_flops[name] for name in nearest if device.matmul_flops.get(name)]
    if not rates:
        rule = f"no rate of {precision} products is known of {device.name}, from {device.source}"
        known = " or ".join(name for name in ("bf16", "fp16") if device.matmul_flops.get(name))
        raise PlanError(rule, fix=f"train.precision={known}, or rates that were measured in {precision}")
    return rates[0]


def rates_of(request: EstimateRequest, constants: TimeConstants) -> Rates:
    device, precision = request.machine.device, request.precision
    best = _best_product(request)
    half = best if precision != "fp8" else device.matmul_flops.get("bf16", best)
    second = constants.flash_on_hopper if device.peak.capability >= (9, 0) else constants.flash
    share = {"flash1": constants.flash1, "flash": second, "sdpa": second, "flash3": constants.flash3}
    plain = precision == "fp32" and best == device.matmul_flops.get("fp32")
    tile = SMALL_TILE if plain else TILE
    matmul = best * (constants.matmul_fp8 if precision == "fp8" else constants.matmul)
    return Rates(
        matmul=matmul,
        attention=half
        * share.get(request.software.attention, constants.matmul)
        * (request.sequence / (request.sequence + constants.attention_half_tokens)),
        memory=device.bandwidth_bytes_per_second * constants.bandwidth,
        tail_seconds=constants.tail_waves * 2 * tile**2 * device.units / matmul,
        misaligned=constants.misaligned if device.units else 1.0,
    )


def model_flops_per_token(request: EstimateRequest) -> float:
    """Of one trained token, forward and backward: 6 a parameter that it passes through, 12 a pair of attention.

    Input embeddings are a look-up. Attention is counted whole, not halved for the causal mask, and recomputation not at
    all: the usual 'model FLOPs' (PaLM, appendix B).
    """
    shape = request.shape
    inputs = 0 if shape.tied else shape.vocab * shape.hidden
    idle = shape.experts.idle_parameters if shape.experts else 0
    base = shape.parameters - inputs - idle
    return 6.0 * base + 12.0 * shape.layers * shape.heads * shape.head_dim * request.sequence


def _product(request: EstimateRequest, sizes: tuple[float, float, float], rates: Rates) -> float:
    """Seconds of [m, k] x [k, n]: arithmetic, the last wave of tiles, and the operands' way through memory."""
    m, k, n = sizes
    moved = (m * k + k * n + m * n) * request.element_bytes
    share = 1.0 if k % 64 == 0 and n % 64 == 0 else rates.misaligned
    return 2 * m * k * n / (rates.matmul * share) + k * rates.tail_seconds + moved / rates.memory


def _layer_products(request: EstimateRequest) -> list[tuple[float, float, float]]:
    """[m, k] x [k, n] of one layer's forward pass on one device."""
    shape, degrees, tokens = request.shape, request.degrees, float(request.tokens)
    tensor, hidden = degrees.tensor, float(shape.hidden)
    query, key = shape.heads * shape.head_dim / tensor, shape.kv_heads * shape.head_dim / tensor
    products = [(tokens, hidden, query + 2 * key), (tokens, query, hidden)]
    ups = 2 if shape.gated else 1
    moe = shape.experts
    dense = float(shape.ffn) if moe is None else float(moe.shared_ffn)
    if moe is not None:
        # each device computes its own experts for the tokens that all devices of the group send
        local = max(1.0, moe.count / degrees.expert)
        rows, wide = tokens * moe.per_token / local, moe.ffn / tensor
        products += [(rows, hidden, ups * wide)] * int(local) + [(rows, wide, hidden)] * int(local)
    if dense:
        products += [(tokens, hidden, ups * dense / tensor), (tokens, dense / tensor, hidden)]
    return products


def _attention_seconds(request: EstimateRequest, rates: Rates) -> float:
    """Forward: two products over half of all pairs in a causal kernel; written out, over all, and the scores."""
    shape, degrees = request.shape, request.degrees
    pairs = request.micro_batch * float(request.sequence) ** 2 / degrees.context
    flops = 4 * pairs * shape.heads * shape.head_dim / degrees.tensor
    if request.software.attention != "eager":
        return flops / 2 / rates.attention
    touched = pairs * shape.heads / degrees.tensor * _score_bytes(request)
    return flops / rates.matmul + touched / rates.memory


def _score_bytes(request: EstimateRequest) -> int:
    """Bytes through memory of one score, forward: product, scale, mask, softmax, dropout, product.

    The softmax is computed in fp32, and its result cast: models ask for it, or autocast does.
    """
    if request.engine == "megatron":  # one fused kernel for scale, mask and softmax
        return 4 * request.element_bytes
    if request.precision == "fp32":
        return 32 + (9 if request.dropout else 0)
    return 24 + (5 if request.dropout else 0)


def _traffic_bytes(request: EstimateRequest, constants: TimeConstants) -> float:
    """Bytes through memory of one layer's norms, positions, activation and residual sums, forward."""
    shape, degrees = request.shape, request.degrees
    split = degrees.tensor if degrees.sequence_parallel else 1
    moe = shape.experts
    width = shape.ffn if moe is None else moe.per_token * (moe.ffn + 2 * shape.hidden) + moe.shared_ffn
    heads = (shape.heads + shape.kv_heads) * shape.head_dim
    kernels = request.software.kernels
    written_out = kernels == "eager" and not shape.layer_norm  # layer norms are one operation everywhere
    norm, add = (14 if written_out else 2), (1.5 if kernels == "compiled" else 3)
    stream = 2 * (norm + add + (2.5 if request.dropout else 0)) * shape.hidden / split
    rotary = {"eager": 10, "fused": 2, "compiled": 3}[kernels] * heads if shape.gated else 0
    activation = (5 if kernels == "eager" else 3) if shape.gated else (4 if kernels == "eager" else 2)
    if kernels == "eager" and kind_of(shape).cubed:
        activation = 0  # `_gelu_bytes`
    numbers = stream + (rotary + activation * width) / degrees.tensor
    passes = {
        "eager": constants.eager_passes,
        "fused": constants.fused_passes,
        "compiled": constants.compiled_passes,
    }[request.software.kernels]
    return passes * numbers * request.tokens * request.element_bytes


def _gelu_bytes(request: EstimateRequest) -> float:
    """Bytes through memory of one layer's written-out GELU, forward."""
    if request.software.kernels != "eager":
        return 0.0
    width = request.shape.ffn * request.tokens / request.degrees.tensor
    return gelu_bytes(kind_of(request.shape), numbers_of(request)) * width


def _cast_bytes(request: EstimateRequest, products: list[tuple[float, float, float]]) -> float:
    """Bytes of one pass over all operands that are cast to fp8: read in 16 bits, written twice, once transposed."""
    if request.precision != "fp8":
        return 0.0
    passes = {"eager": 4.0, "compiled": 1.0, "fused": 0.25}[request.software.kernels]
    return passes * 4 * sum(m * k + k * n for m, k, n in products)


def _dequantised_bytes(request: EstimateRequest, products: list[tuple[float, float, float]]) -> float:
    """Bytes through memory to make one layer's weights anew from few bits: read with their scales, written as numbers.

    So bitsandbytes 0.50 computes a product with the weight and one with its transpose (`backends/cuda/ops.py`; up to
    1,536 rows it may dequantise inside the product's kernel, which is not counted).
    """
    bits = request.linear_bits or request.base_bits
    return 0.0 if bits is None else sum(k * n for _, k, n in products) * (bits / 8 + request.element_bytes)


def _forward(request: EstimateRequest, rates: Rates, constants: TimeConstants) -> Pass:
    eager = request.software.kernels == "eager"
    operations = constants.eager_operations if eager else constants.fused_operations
    if request.shape.experts:
        operations *= 2
    if request.shape.adapter is not None:
        operations += constants.adapter_operations * request.shape.adapter.layers / max(request.shape.layers, 1)
    products = _layer_products(request)
    cast = _cast_bytes(request, products) * constants.cast_passes
    launches = operations * constants.launch_seconds
    if request.engine == "deepspeed" and request.stage == 3:
        launches += constants.hook_seconds
    return Pass(
        products=sum(_product(request, sizes, rates) for sizes in products),
        attention=_attention_seconds(request, rates),
        traffic=(_traffic_bytes(request, constants) + cast) / rates.memory,
        dequantising=_dequantised_bytes(request, products) / rates.memory,
        launches=launches if request.machine.device.kind == "cuda" else 0.0,
        gelu=_gelu_bytes(request) / rates.memory,
    )


def _backward(request: EstimateRequest, forward: Pass) -> Pass:
    """Twice the products, two and a half times the attention; frozen weights want no gradient of theirs."""
    frozen = request.shape.adapter is not None
    return Pass(
        products=forward.products * (1.02 if frozen else 2),
        attention=forward.attention * 2.5,
        traffic=forward.traffic * 2,
        dequantising=forward.dequantising,
        launches=forward.launches * 2,
        gelu=forward.gelu * GELU_BACKWARD,
    )


def _recomputed(request: EstimateRequest, forward: Pass) -> Pass:
    if request.checkpointing == "full":
        return forward
    if request.checkpointing == "none":
        return Pass(0, 0, 0, 0, 0)
    if request.engine == "megatron":  # the attention core alone
        return Pass(0, forward.attention, 0, 0, 0)
    return replace(
        forward,
        products=forward.products / 2,
        attention=0.0,
        dequantising=forward.dequantising / 2,
        launches=forward.launches / 2,
    )


def _head_seconds(request: EstimateRequest, rates: Rates) -> float:
    """Logits and loss, forward and backward, of one micro batch. A head with an output for each label is none."""
    shape, tensor = request.shape, request.degrees.tensor
    if not request.language:
        return 0.0
    product = _product(
        request, (float(request.tokens), float(shape.hidden), -(-shape.vocab // (64 * tensor)) * 64.0), rates
    )
    loss = request.software.loss
    touched = {"whole": 36, "half": 18, "fused": 24, "compiled": 14, "chunked": 20, "pieces": 36, "linear": 16}[loss]
    if request.machine.device.kind == "cpu":
        touched = 24
    logits = request.tokens * shape.vocab / tensor
    frozen = request.shape.adapter is not None
    again = loss == "pieces" and request.software.loss_chunk_tokens > 0  # in the backward pass, each piece's logits
    return product * ((2 if frozen else 3) + again) + logits * touched / rates.memory


@dataclass(frozen=True)
class Ring:
    """Devices that exchange with each other. inner: how far apart they stand; pieces: in how many parts they do."""

    ranks: int
    inner: int = 1
    pieces: float = 1.0


def ring_seconds(request: EstimateRequest, size: float, ring: Ring, constants: TimeConstants) -> float:
    """An all-gather or reduce-scatter of `size` bytes.

    A group within a host uses its links, and starts fast. One across hosts is held by the network cards of all its
    members on a host, and each piece goes from host to host: many hosts take long whatever the size.
    """
    if ring.ranks <= 1 or size <= 0:
        return 0.0
    machine = request.machine
    per_host = max(1, machine.devices_per_host // ring.inner)
    rate = machine.device.link_bytes_per_second * constants.link
    starts = max(1, (min(ring.ranks, per_host) - 1).bit_length()) * constants.collective_seconds
    if ring.ranks > per_host:
        # neighbours of other groups on the host use their own cards
        rate = min(rate, per_host * machine.across_bytes_per_second * constants.network)
        starts += (ring.ranks / per_host - 1) * constants.hop_seconds
    return size * (ring.ranks - 1) / ring.ranks / rate + ring.pieces * starts


def _tensor_parallel(request: EstimateRequest, constants: TimeConstants) -> float:
    """Exchanges of one layer in one direction: two all-reduces of the stream."""
    tensor = request.degrees.tensor
    size = request.tokens * request.shape.hidden * request.element_bytes
    once = 4 * ring_seconds(request, size, Ring(tensor), constants)
    return once * (0.5 if request.software.overlapped_tensor_parallel else 1)


def _expert_exchange(request: EstimateRequest, constants: TimeConstants) -> float:
    """Two all-to-alls of one layer in one direction."""
    moe, degrees = request.shape.experts, request.degrees
    if moe is None or degrees.expert == 1:
        return 0.0
    size = request.tokens * request.shape.hidden * request.element_bytes
    machine = request.machine
    per_host = max(1, machine.devices_per_host // degrees.tensor)
    hosts = max(1, degrees.expert // per_host)
    # a token goes once to each other host that has experts of its own, and is copied there
    away = (hosts - 1) * (1 - (1 - 1 / hosts) ** moe.per_token)
    near = moe.per_token * (1 - hosts / degrees.expert)
    across = away * size / (machine.across_bytes_per_second * constants.network)
    return 2 * (across + near * size / (machine.device.link_bytes_per_second * constants.link))


@dataclass(frozen=True)
class Step:
    """Seconds of a step, exposed and hidden, by name."""

    items: tuple[TimeItem, ...]

    @property
    def seconds(self) -> float:
        return sum(item.seconds for item in self.items)


def step_time(request: EstimateRequest, constants: TimeConstants = TIME) -> Step:
    """Where a step's time goes on the busiest device."""
    rates = rates_of(request, constants)
    forward = _forward(request, rates, constants)
    passes = (forward, _backward(request, forward), _recomputed(request, forward))
    layers = request.shape.layers / request.degrees.pipeline
    micro = request.accumulation
    busy = sum(one.seconds for one in passes)
    waits = sum(one.seconds - one.busy for one in passes)
    directions = 3 if request.checkpointing == "full" else 2
    tensor = _tensor_parallel(request, constants) * directions if request.degrees.tensor > 1 else 0.0
    experts = _expert_exchange(request, constants) * directions
    head = _head_seconds(request, rates) / request.degrees.pipeline
    if request.degrees.pipeline > 1:
        head *= 2  # the last stage has it alone, the others wait for a part of it
    of_micro = layers * (busy + tensor + experts) + head
    scale = micro * layers
    items = [
        TimeItem("matrix products", scale * sum(one.products for one in passes)),
        TimeItem("attention", scale * sum(one.attention for one in passes)),
        TimeItem("norms and activations", scale * sum(one.traffic + one.gelu for one in passes)),
        TimeItem("dequantising", scale * sum(one.dequantising for one in passes)),
        TimeItem("waiting for the host", scale * max(0.0, waits)),
        TimeItem("logits and loss", micro * head),
        TimeItem("casts of weights and gradients", micro * _weight_bytes_moved(request) / rates.memory),
        TimeItem("tensor parallel", scale * tensor),
        TimeItem("experts", scale * experts),
        *_pipeline(request, of_micro, constants),
        *_data_parallel(request, micro * layers * busy, constants),
        *_update(request, rates, constants),
    ]
    return Step(tuple(item for item in items if item.seconds > 0 or item.hidden_seconds > 0))


def _weight_bytes_moved(request: EstimateRequest) -> float:
    """Bytes through memory of one micro batch that autocast needs for fp32 weights, however few tokens there are.

    Each weight is read and written in 16 bits, each gradient is cast back, and added to that of the micro batches
    before.
    """
    if request.engine not in ("single", "ddp") or request.precision == "fp32" or weight_bytes(request) != 4:
        return 0.0
    parts = parts_of(request)
    adding = 12 * (1 - 1 / request.accumulation)
    return parts.total * (6 + parts.trained_share * (6 + adding))


def forward_seconds(request: EstimateRequest, constants: TimeConstants = TIME) -> float:
    """One micro batch's forward pass alone, without gradients: an evaluation, a reference."""
    rates = rates_of(request, constants)
    compute = request.shape.layers * _forward(request, rates, constants).seconds + _head_seconds(request, rates) / 3
    if request.stage < 3 or request.shards == 1:
        return compute
    size = _exchanged_bytes(request)
    gather = ring_seconds(request, size, Ring(request.shards, 1, _pieces(request, size)), constants)
    return compute + max(gather / max(request.shape.layers, 1), gather - constants.overlap * compute)


def _pipeline(request: EstimateRequest, of_micro: float, constants: TimeConstants) -> list[TimeItem]:
    pipeline = request.degrees.pipeline
    if pipeline == 1:
        return []
    size = request.tokens * request.shape.hidden * request.element_bytes / request.degrees.tensor
    machine = request.machine
    rate = machine.device.link_bytes_per_second * constants.link
    if machine.hosts > 1:
        rate = min(rate, machine.across_bytes_per_second * constants.network)
    hop = size / rate + constants.collective_seconds
    idle = (pipeline - 1) / request.software.virtual_stages
    return [
        TimeItem("pipeline bubble", idle * of_micro),
        TimeItem("pipeline exchange", 2 * hop * (request.accumulation + pipeline - 1)),
    ]


def _pieces(request: EstimateRequest, size: float) -> float:
    """Collectives for `size` bytes: a layer's at stage 3, else buckets."""
    if request.stage == 3:
        return request.shape.layers / request.degrees.pipeline
    return max(1.0, size / BUCKET_BYTES)


def _reduce_seconds(request: EstimateRequest, size: float, constants: TimeConstants) -> float:
    """Gradients to their owners: within the group that shares the states, then between the copies of that group."""
    tensor, group = request.degrees.tensor, request.shards
    within = ring_seconds(request, size, Ring(group, tensor, _pieces(request, size)), constants)
    copies = Ring(request.degrees.shards // group, tensor * group, _pieces(request, size / group))
    return within + 2 * ring_seconds(request, size / group, copies, constants)


def _exchanged_bytes(request: EstimateRequest) -> float:
    """What one gather brings together: at stage 3, and in FSDP, all parameters; else those that the update changed."""
    parts, e = parts_of(request), request.element_bytes
    if request.stage < 3 and request.engine != "fsdp":
        return parts.total * parts.trained_share * e
    if request.base_bits is not None:
        return (parts.body + parts.experts) * request.base_bits / 8 + parts.ends * e
    return gathered_bytes(request)


def _gather_seconds(request: EstimateRequest, ranks: int, constants: TimeConstants) -> float:
    """What one gather takes from so many ranks; of parameters in the host's memory, each brings its own part."""
    size = _exchanged_bytes(request) * request.gathered_share
    seconds = ring_seconds(request, size, Ring(ranks, request.degrees.tensor, _pieces(request, size)), constants)
    if request.offload_parameters:
        seconds += size / ranks / request.machine.device.host_link_bytes_per_second
    return seconds


def _data_parallel(request: EstimateRequest, compute: float, constants: TimeConstants) -> list[TimeItem]:
    """Gathering parameters and reducing gradients, hidden behind the computation as far as it lasts.

    ZeRO++ (Wang et al. 2023, table 1) halves the first, takes the second from within a group, and quarters the third.
    """
    parts = parts_of(request)
    if request.degrees.shards == 1 and not request.offload_parameters:
        return []
    gradient = 4 if request.engine in ("fsdp", "megatron") and request.master else weight_bytes(request)
    reduced = parts.total * parts.trained_share * gradient * request.reduced_share
    reduce = _reduce_seconds(request, reduced, constants)
    gather = _gather_seconds(request, request.shards, constants)
    micro = request.accumulation
    if request.engine in ("single", "ddp") or request.stage == 0:
        total, hideable = 2 * reduce + (gather if request.stage else 0.0), compute * 0.6 / micro
    elif request.stage == 3:
        again = gather
        if request.secondary_group > 1:  # the backward pass gathers from the second copy
            again = min(gather, _gather_seconds(request, min(request.secondary_group, request.shards), constants))
        reduces = 1 if request.software.whole_accumulation else micro
        total, hideable = micro * (gather + again) + reduces * reduce, compute
    elif request.engine == "fsdp":
        total, hideable = micro * (gather + reduce), compute
    elif request.stage == 2:  # each micro batch's gradients go to their owners at once
        total, hideable = micro * reduce + gather, compute * 0.6
    else:
        total, hideable = reduce + gather, compute * 0.6 / micro
    exposed = max(0.0, total - constants.overlap * hideable)
    first = total * min(1.0, 1.0 / max(request.shape.layers, 1))  # nothing runs beside the first and last of them
    exposed = max(exposed, first) + constants.contention * max(0.0, total - exposed)
    total = max(total, exposed)
    return [TimeItem("data parallel", exposed, total - exposed)]


def _update(request: EstimateRequest, rates: Rates, constants: TimeConstants) -> list[TimeItem]:
    """Clipping and the optimizer, on the device or on the host; and the step's fixed time."""
    parts, machine = parts_of(request), request.machine
    sharded = request.stage >= 1 and request.engine != "single"
    own = parts.total * parts.trained_share / (request.shards if sharded else 1)
    fixed = constants.step_seconds if machine.device.kind == "cuda" else 0.0
    items = [TimeItem("fixed", fixed)]
    if request.optimizer.paged:
        # pages of the states come and go while the device computes the update
        moved = 2 * own * request.optimizer.bytes_per_parameter / machine.device.host_link_bytes_per_second
        return [TimeItem("offload transfers", moved / 2, moved / 2), *items]
    if not request.offload_optimizer:
        passes = 1 if request.software.fused_optimizer else 2.5
        return [TimeItem("optimizer", own * constants.optimizer_bytes * passes / rates.memory), *items]
    per_host = min(machine.devices_per_host, request.degrees.devices)
    host = own * per_host * constants.optimizer_bytes
    moved = 2 * own * weight_bytes(request)
    return [
        TimeItem("optimizer on the host", host / (machine.host_bandwidth_bytes_per_second * constants.host_bandwidth)),
        TimeItem("offload transfers", moved / machine.device.host_link_bytes_per_second),
        *items,
    ]
