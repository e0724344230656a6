"""One row of a table of published measurements -> the setting that was measured, and what was measured.

What a row does not say is filled in from what its software does by default (`SOFTWARE`), never from its measurement. A
row that leaves out something that cannot be filled in is skipped with the reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from adapters import adapted, drops_inputs
from doubt import Measured, NotJudged, Row, refuse_implausible, refuse_misstated, refuse_unmodelled
from software import Defaults, defaults_of, month_of, software_of
from words import number, said, stated, whole

from headway.facts.catalogue import find_model
from headway.facts.hardware import Device, Machine, find_device
from headway.facts.schema import ModelShape
from headway.facts.shape import shape_of
from headway.plan.setting import Degrees, EstimateRequest, OptimizerFacts

GIB = 1024**3
_LABELS = r"\bclassification\b|seq-?cls|squad|span head|question.answering|\bclassifier\b"
# A month of release before which FSDP kept frozen weights gathered until the end of the backward pass: torch 2.1 frees
# them by a hook of their own (`_register_post_backward_reshard_only_hook`).
_FROZEN_FREED = "2023-10"


def read_table(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:  # spreadsheets write a byte order mark
        return [{str(k).strip().lower(): _cell(v) for k, v in row.items() if k} for row in csv.DictReader(file)]


def _cell(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def judge(rows: Iterable[Row]) -> tuple[list[Measured], dict[str, int]]:
    """(the rows that can be judged, reason -> number of rows that cannot)."""
    kept: list[Measured] = []
    skipped: dict[str, int] = {}
    for row in rows:
        try:
            kept.append(measured(row))
        except NotJudged as reason:
            skipped[str(reason)] = skipped.get(str(reason), 0) + 1
        except (ValueError, ZeroDivisionError, KeyError, OverflowError) as error:
            what = f"unreadable: {type(error).__name__} {error}"[:80]
            skipped[what] = skipped.get(what, 0) + 1
    return kept, skipped


def devices_of(row: Row) -> int:
    """'8', or '4x8': hosts and devices of each. One, where a single device is meant and no number is given."""
    text = row.get("n_gpus", "").lower()
    if hosts := re.fullmatch(r"(\d+) ?[x*] ?(\d+)", text):
        return int(hosts[1]) * int(hosts[2])
    if re.search(r"node|host", text):
        raise NotJudged("its number of GPUs is stated in hosts")
    return whole(row, "n_gpus", 1 if re.search(r"\bsingle\b|^1 ?x", said(row, "strategy", "gpu")) else None)


def device_of(row: Row) -> Device:
    for key in ("gpu", "gpu_key"):
        text = re.sub(r"^\s*\d+ ?[xX*] ?", "", row.get(key, ""))  # '8xA100'
        if text and (device := find_device(text)):
            return device
    raise NotJudged(f"unknown device {row.get('gpu') or row.get('gpu_key') or '(none)'}")


def machine(row: Row, device: Device, count: int) -> Machine:
    """Hosts of eight, unless the row says otherwise; its network where the notes state one a host."""
    notes = said(row, "notes", "gpu")
    found = re.search(r"\((\d+)/node\)|(?<!\d)(\d+) gpus? per node", notes)
    slots = int(found[1] or found[2]) if found else 8
    per_host = min(slots, count)
    network = number(row, "network_gbs")
    if network is None and (m := re.search(r"(\d+) ?gbps (?:node|inter)", notes)):
        network = int(m[1]) / 8 / slots
    if network is None and (m := re.search(r"inter_node_bandwidth (\d+) ?gb/s", notes)):
        network = int(m[1]) / 8 / slots
    if re.search(r"\bno nvlink|p2p_disable=1", notes):
        device = replace(device, link_bytes_per_second=device.host_link_bytes_per_second / 2)  # in and out again
    return Machine(device, per_host, -(-count // per_host), 2000 * GIB, 300e9, network * 1e9 if network else None)


def shape_of_row(row: Row) -> ModelShape:
    """The shape that the row states; else that of a known model of this name."""
    known = find_model(row.get("model", ""))
    stated = number(row, "params")
    layers, hidden = number(row, "layers"), number(row, "hidden")
    if known is not None:
        shape = shape_of(known)
        same = (layers, hidden) in ((None, None), (shape.layers, shape.hidden))
        if same and (not stated or abs(stated / shape.parameters - 1) < 0.03):
            return shape
    if not hidden:
        raise NotJudged("no shape: neither layers and hidden nor a known model's name")
    hidden = int(hidden)
    heads = whole(row, "heads", max(1, hidden // 128))
    name = said(row, "model")
    gated = not re.search(
        r"gpt|mpt|opt|bloom|bert|nemotron|mt-nlg|falcon|pythia|neox|phi-?[12]|starcoder|codegen|galactica", name
    )
    kv, head_dim = whole(row, "kv_heads", heads), hidden // heads
    ffn = whole(row, "ffn", 4 * hidden if not gated else int(8 * hidden / 3) // 64 * 64)
    vocab = whole(row, "vocab", 32000 if gated else 50257)

    def block(is_gated: bool) -> int:
        return hidden * (2 * hidden + 2 * kv * head_dim) + (3 if is_gated else 2) * hidden * ffn + 4 * hidden

    if not layers:
        if not stated:
            raise NotJudged("no number of layers")
        layers = round((stated - vocab * hidden) / block(gated))
    layers = int(layers)
    options = [(g, t) for g in (gated, not gated) for t in (not gated, gated)]

    def total(is_gated: bool, tied: bool) -> int:
        return layers * block(is_gated) + vocab * hidden * (1 if tied else 2)

    best = options[0]
    if stated:
        best = min(options, key=lambda option: abs(total(*option) / stated - 1))
        if abs(total(*best) / stated - 1) > 0.25:
            raise NotJudged("the stated parameters do not follow from the stated shape")
    ends = vocab * hidden * (1 if best[1] else 2)
    count = int(stated) if stated else total(*best)
    return ModelShape(
        arch="stated",
        parameters=max(count, ends + layers * hidden * hidden),
        trainable_parameters=max(count, ends + layers * hidden * hidden),
        embedding_parameters=ends,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        max_sequence=0,
        tied=best[1],
        largest_layer_parameters=max(block(best[0]), vocab * hidden),
        gated=best[0],
        layer_norm=not gated,
    )


def precision_of(row: Row) -> tuple[str, bool, int | None]:
    """(precision, whether fp32 weights are kept, bits of a quantised base)."""
    text = said(row, "precision")
    master = not re.search(r"pure\)?|bf16-true|no fp32 master|nf4|int4|4-?bit", text) or "fp32 master)" in text
    master = master and "no fp32 master" not in text
    named = f"{text} {said(row, 'model', 'strategy')}"
    bits = 4 if re.search(r"nf4|int4|4-?bit|qlora", named) else 8 if re.search(r"int8|8-?bit base", text) else None
    lora = "lora" in named
    if bits and not lora:
        raise NotJudged("quantised weights, and no adapter is stated to be trained beside them")
    if lora and "mixed" not in text:
        # the frozen base is kept in 16 bits everywhere; DeepSpeed keeps an fp32 copy of what is trained
        master = "deepspeed" in said(row, "strategy")
    if re.search(r"fp8|e4m3|e5m2", text):
        return "fp8", master, bits
    if re.search(r"fp32|float32|\b32\b|tf32", text) and not re.search(r"bf16|bfloat16|fp16", text):
        return "fp32", True, bits
    return ("fp16" if re.search(r"fp16|(?<!b)float16|half", text) else "bf16"), master, bits


def engine_of(row: Row, known: Defaults, degrees: Degrees) -> tuple[str, int]:
    text = said(row, "strategy")
    stage = stage_of(row)
    if degrees.tensor * degrees.pipeline > 1 and known.engine != "fsdp":
        return "megatron", min(stage, 1)
    if re.search(r"fsdp|hsdp|hybrid.?shard|full_shard|shard_grad_op", text):
        old = "" < month_of(row) < _FROZEN_FREED
        if (old or known.frozen_gathered) and "lora" in said(row, "model", "strategy"):
            return "fsdp", 2
        return "fsdp", max(2, stage or 3)
    if "deepspeed" in text and "megatron" not in text:
        return "deepspeed", stage
    if known.engine == "megatron":  # its fp32 gradients and masters, also on one device
        return "megatron", min(stage, 1)
    if degrees.devices == 1 or "single" in text:
        return "single", 0
    if "zeroredundancy" in text:  # torch's: DDP whose optimizer states alone are spread
        return "ddp", 1
    if "ddp" in text:
        return "ddp", 0
    if stage:
        return ("fsdp" if known.engine == "fsdp" and stage > 1 else "deepspeed"), stage
    plain = re.search(r"\bdp\b|data.?parallel|lora", text)  # an adapter's gradients are small: DDP is what is usual
    if not known.engine and row.get("zero_or_fsdp_stage", "") == "" and not plain:
        raise NotJudged("over its GPUs the states are spread in no way that it states")
    return known.engine or "ddp", 3 if known.engine == "fsdp" else stage


def stage_of(row: Row) -> int:
    """From its own column ('3', 'ZeRO-3', 'stage 3'), else from the strategy's words; a strategy's own words win."""
    words = said(row, "strategy")
    if "megatron" not in words and (named := re.search(r"zero[-_ ]?(?:stage)?[-_ ]?([0-3])\b", words)):
        return int(named[1])
    if "shard_grad_op" in words:
        return 2
    if stated := re.search(r"[0-3]", row.get("zero_or_fsdp_stage", "")):
        return int(stated[0])
    return 3 if re.search(r"zero[-_ ]?infinity|zero\+\+", words) else 0


def shard_group_of(row: Row) -> int:
    """Devices over which the states are spread, where the row says so: 'over 8 ranks', 'HSDP 8', 'in node'."""
    text = said(row, "strategy")
    found = re.search(r"over (\d+) (?:ranks|gpus|devices)|hsdp[- _]?(\d+)|hybrid.*?(\d+) ?(?:ranks|gpus)", text)
    if found:
        return int(next(group for group in found.groups() if group))
    return 8 if re.search(r"hsdp|hybrid.?shard", text) else 0


def offloads(row: Row) -> tuple[bool, bool, bool]:
    """Whether (optimizer states, parameters, activations) stand in the host's memory."""
    text, strategy = said(row, "offload"), said(row, "strategy")
    if not text or re.match(r"(none|no|false)\b", text):
        text = strategy if "offload" in strategy else ""
    activations, on_cpu = "activation" in text, "cpu" in text or "offload" in text
    parameters = bool(re.search(r"param|weight", text)) or ("fsdp" in text + strategy and on_cpu and not activations)
    return parameters or "optim" in text or (on_cpu and not activations), parameters, activations


def optimizer_of(row: Row, master: bool) -> OptimizerFacts:
    text = row.get("optimizer", "").lower() + " " + said(row, "strategy", "model", "offload", "notes")
    size, more = 8.0 if master else 4.0, 0.0
    if re.search(r"8-?bit|adamw8bit|adam8bit", text):
        size, more = 2.0, 6.0
    elif re.search(r"\bsgd\b", text):
        size = 0.0
    elif re.search(r"\blion\b", text):
        size = size / 2
    elif "adafactor" in text:  # of a matrix a row and a column
        size = 0.0
    in_backward = bool(re.search(r"optimizer[_ ]in[_ ](bwd|backward)", text)) and "differs" not in text
    return OptimizerFacts(size, more, in_backward, "paged" in said(row, "offload", "strategy", "optimizer"))


def checkpointing_of(row: Row, known: Defaults, engine: str) -> str:
    text = row.get("act_ckpt", "").lower()
    if not text or text == "?":
        if known.pattern.startswith("litgpt") and engine == "fsdp":
            return "full"
        return known.checkpointing
    if text.startswith(("no", "false")):
        return "none"
    return "selective" if text.startswith("selective") else "full"


def degrees_of(row: Row, count: int) -> Degrees:
    tensor, pipeline = whole(row, "tp", 1), whole(row, "pp", 1)
    context = whole(row, "cp", 1)
    rest = tensor * pipeline * context
    if count % rest:
        raise NotJudged("tp x pp x cp does not divide the number of GPUs")
    text = said(row, "act_ckpt", "strategy", "notes")
    sequence = "sequence-parallel" in text or ("family" in row and row["family"] in ("torchtitan",))
    sequence = sequence or bool(re.search(r"nemo|megatron-?(bridge|lm)|torchtitan", said(row, "family", "source")))
    return Degrees(count // rest, tensor, pipeline, context, whole(row, "ep", 1), sequence and tensor > 1)


def batches(row: Row, degrees: Degrees) -> tuple[int, int]:
    """(micro batch, accumulation)."""
    micro, steps, total = number(row, "micro_batch"), number(row, "grad_accum"), number(row, "global_batch_seqs")
    if not micro and not total:
        raise NotJudged("no batch size")
    if not micro:
        steps = steps or degrees.pipeline
        micro = max(1, total / degrees.data / steps) if steps else 1
        if degrees.pipeline > 1:
            micro = 1
    micro = max(1, int(micro))
    if not steps and total:
        steps = max(1, round(total / (micro * degrees.data)))
    return micro, max(1, int(steps or 1))


def measured(row: Row) -> Measured:
    """The setting and the measurement of one row. Raises NotJudged."""
    count = devices_of(row)
    device = device_of(row)
    refuse_unmodelled(row)
    known = defaults_of(row)
    degrees = degrees_of(row, count)
    if re.search(r"padded, unpacked|variable length(?!.*longest)", said(row, "model", "notes")):
        raise NotJudged("its sequences are shorter than it states, by an unknown amount")
    if re.search(r"optimizer differs.*not stated", said(row, "notes")):
        raise NotJudged("its optimizer is not stated")
    precision, master, bits = precision_of(row)
    engine, stage = engine_of(row, known, degrees)
    micro, steps = batches(row, degrees)
    optimizer_away, parameters_away, activations_away = offloads(row)
    shape = adapted(shape_of_row(row), row, known)
    if known.plain_models and not shape.gated:
        shape = shape.model_copy(update={"arch": known.plain_models})
    request = EstimateRequest(
        shape=shape,
        machine=machine(row, device, count),
        degrees=degrees,
        engine=engine,  # pyright: ignore[reportArgumentType]
        stage=stage,
        shard_group=shard_group_of(row),
        sequence=whole(row, "seq_len"),
        micro_batch=micro,
        accumulation=steps,
        precision=precision,  # pyright: ignore[reportArgumentType]
        tf32="tf32" in said(row, "precision"),
        master=master,
        base_bits=bits,
        fp32_adapter=bool(re.search(r"peft|hf trainer|transformers trainer", stated(row))),
        adapter_dropout=drops_inputs(row, known),
        language=not re.search(_LABELS, stated(row)),
        bucket_view=False,
        checkpointing=checkpointing_of(row, known, engine),  # pyright: ignore[reportArgumentType]
        offload_optimizer=optimizer_away,
        offload_parameters=parameters_away,
        offload_activations=activations_away,
        dropout=drops(row, known),
        software=software_of(row, known),
        optimizer=optimizer_of(row, master),
        **_buckets(row, shape, known),
    )
    refuse_implausible(request)
    return finished(row, request)


def drops(row: Row, known: Defaults) -> bool:
    """Whether dropout is trained with: as the row says, else as its software or its model does by default."""
    if found := re.search(
        r"\b(no )?(?<!lora )(?<!adapter )\bdropout(?: of)?(?: (\d[\d.]*))?", said(row, "notes", "strategy")
    ):
        return not found[1] and float((found[2] or "1").rstrip(".")) > 0
    return known.dropout or bool(re.search(r"bert|gpt-?2\b", said(row, "model")))


def _buckets(row: Row, shape: ModelShape, known: Defaults) -> dict[str, int]:
    """DeepSpeed's: as a note states them, else as the Trainer fills in the "auto" of its examples: hidden x hidden."""
    found = {"reduce_bucket_elements": shape.hidden**2, "prefetch_bucket_elements": 9 * shape.hidden**2 // 10}
    found = found if known.trainer else {}
    if told := re.search(r"reduce_bucket_size (\d[\d.]*(?:e\d+)?)", said(row, "notes")):
        found["reduce_bucket_elements"] = int(float(told[1]))
    return found


def finished(row: Row, request: EstimateRequest) -> Measured:
    kind = row.get("mem_kind", "").lower()
    peak = number(row, "peak_mem_gib")
    what = "reserved"
    if re.search(r"alloc|active", kind):
        what = "allocated"
    elif re.search(r"device|smi", kind):
        what = "device"
    out = row.get("outcome", "").lower() == "oom"
    made = Measured(row, request, peak * GIB if peak else None, what, speed_of(row, request), out)
    if made.memory_bytes is None and made.tokens_per_second is None and not out:
        raise NotJudged("neither memory nor speed was measured")
    refuse_misstated(made)
    return made


def speed_of(row: Row, request: EstimateRequest) -> float | None:
    """Tokens a second of one device: as published, else from the step's time, else from its FLOP/s or utilisation."""
    from headway.plan.steptime import model_flops_per_token

    if re.search(
        r"variable length|within (?:a|each|one) (?:sample|document)|within (?:samples|documents)", said(row, "notes")
    ):
        return None  # a step's tokens, or the pairs of attention, are not known
    if (rate := number(row, "tokens_per_s_per_gpu")) is not None and rate > 0:
        return rate
    if (seconds := number(row, "step_time_s")) is not None and seconds > 0:
        total = number(row, "global_batch_seqs")
        tokens = total * request.sequence if total else request.step_tokens
        return tokens / seconds / request.degrees.devices
    rate = number(row, "tflops_per_gpu")
    kind = row.get("tflops_kind", "").lower()
    if rate is None and (mfu := number(row, "mfu_pct")) is not None and mfu > 0:
        mfu *= 100 if mfu <= 1 else 1  # a share
        rate, kind = mfu / 100 * request.machine.device.peak_flops("bf16") / 1e12, "model"
    if rate is None or rate <= 0:
        return None
    flops = model_flops_per_token(request)
    if "causal" in kind:
        shape = request.shape
        flops -= 6 * shape.layers * shape.heads * shape.head_dim * request.sequence
    if "hardware" in kind and request.checkpointing == "full":
        flops *= 4 / 3
    return rate * 1e12 / flops
