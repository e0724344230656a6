"""The card of an exported model: what it is, where it comes from, how it was trained, what was checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.model.adapter import base_name
from headway.plan.schema import AdapterPlan, Plan
from headway.units import format_count


@dataclass(frozen=True)
class Provenance:
    """Where an export comes from.

    record: the run's record.json. diff: its record.diff, the uncommitted changes of the code. evaluation: its last
    held-out figures. code: the run's copies of the user's own modules.
    """

    plan: Plan
    record: Mapping[str, Any]
    step: int
    tokens: int
    evaluation: Mapping[str, float] = field(default_factory=dict)
    diff: bytes = b""
    checkpoint: str | None = None
    code: Path | None = None


def render_card(provenance: Provenance, verdict: str, *, adapter: bool = False) -> str:
    """README.md with the front matter that model hubs read. `verdict` is a sentence on the export's check.

    adapter: the folder holds an adapter alone, for PEFT.
    """
    plan = provenance.plan
    base, _ = base_name(plan)
    own = ":" in plan.model.kind
    library = ["library_name: pytorch" if own else "library_name: transformers"]
    if adapter:
        library = ["library_name: peft", *([] if own else [f"base_model: {base}"])]
    labelled = plan.task.kind == "classification"
    use = _USE_OWN if own else _use(base, plan) if adapter else _use_whole(labelled=labelled)
    pipeline = [f"pipeline_tag: text-{'classification' if labelled else 'generation'}"]
    front = ["---", *library, *([] if own else pipeline), "tags:", "- headway", "---"]
    head = f"{_what(plan, adapter=adapter)} with Headway."
    parts = [
        "\n".join(front),
        f"# {plan.name}",
        head,
        verdict,
        f"## Use\n\n```python\n{use}```",
        "## Held-out figures\n\n" + _table({k: f"{v:.4f}" for k, v in provenance.evaluation.items()}, "none"),
        "## Training\n\n" + _table(_training(provenance), ""),
        "## Record\n\n" + _table(_origin(provenance), ""),
        "`headway.json` beside this file holds the whole record, and the size and hash of every file.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _use_whole(*, labelled: bool) -> str:
    kind = "AutoModelForSequenceClassification" if labelled else "AutoModelForCausalLM"
    return f"""from transformers import {kind}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = {kind}.from_pretrained("PATH")
"""


_USE_OWN = """import sys

sys.path.insert(0, "PATH")
from load import load  # its source lies in PATH/code

model = load()
"""


def _use(base: str | None, plan: Plan) -> str:
    if plan.adapter is not None and plan.adapter.quantization:
        return _use_quantised(base, plan.adapter, plan.numerics.precision)
    return f"""from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "PATH")
"""


def _use_quantised(base: str | None, adapter: AdapterPlan, precision: str) -> str:
    dtype = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[precision]
    return f"""import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

held = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="{adapter.quantization}",
    bnb_4bit_use_double_quant={adapter.double_quantization},
    bnb_4bit_compute_dtype={dtype},
)
tokenizer = AutoTokenizer.from_pretrained("PATH")
base = AutoModelForCausalLM.from_pretrained("{base}", quantization_config=held, dtype={dtype})
model = PeftModel.from_pretrained(base, "PATH")
"""


def _what(plan: Plan, *, adapter: bool) -> str:
    own = ":" in plan.model.kind
    origin = f"fine-tuned from `{plan.model.path}`" if plan.model.path else "trained from scratch"
    if own and plan.adapter is not None:
        origin = f"fine-tuned from what `{plan.model.kind}` makes"
    if plan.adapter is None or plan.shape.adapter is None:
        return f"A {plan.shape.arch} model of {format_count(plan.shape.parameters)} parameters, {origin}"
    pairs, rank = format_count(plan.shape.adapter.parameters), plan.adapter.rank
    what = f"A LoRA adapter of {pairs} parameters (rank {rank})"
    if plan.adapter.quantization:
        what = f"A QLoRA adapter of {pairs} parameters (rank {rank}, beside a base in {plan.adapter.quantization})"
    if adapter and own:
        return f"{what} for the module that `{plan.model.kind}` makes, trained"
    if adapter:
        base = f"`{plan.model.path}` (safetensors' hash {plan.adapter.base[:16]})"
        return f"{what} for the {plan.shape.arch} model {base}, trained"
    return f"A {plan.shape.arch} model, {origin}: {what[0].lower()}{what[1:]} is merged into its weights; trained"


def _training(provenance: Provenance) -> dict[str, Any]:
    plan = provenance.plan
    batch, numerics, optimizer = plan.batch, plan.numerics, plan.optimizer
    return {
        "steps": f"{provenance.step} of {plan.schedule.steps}",
        "tokens": format_count(provenance.tokens),
        "sequence": plan.data.sequence,
        "global batch": f"{batch.global_sequences} sequences",
        "optimizer": f"{optimizer.kind}, weight decay {optimizer.weight_decay:g}, clip {optimizer.clip:g}",
        "learning rate": f"{plan.schedule.peak_lr:g}, {plan.schedule.kind}, {plan.schedule.warmup_steps} warm-up steps",
        "precision": numerics.precision,
        "strategy": f"{plan.strategy.label} on {plan.launch.processes} x {plan.cluster.device_name}",
        **({"labels": ", ".join(plan.facts.labels)} if plan.facts.labels else {}),
        "seed": numerics.seed,
        "weights saved as": plan.export.dtype,
    }


def _origin(provenance: Provenance) -> dict[str, Any]:
    plan, record = provenance.plan, provenance.record
    git = record.get("git") or {}
    dirty = " with uncommitted changes" if git.get("dirty") else ""
    commit = f"{git['commit']}{dirty}" if git.get("commit") else f"unknown ({git.get('reason', 'not recorded')})"
    packages = {**(record.get("versions") or {}), "headway": plan.headway}
    shown = ("headway", "torch", "deepspeed", "transformers", "tokenizers", "safetensors", "python")
    command = record.get("command") or "unknown"
    return {
        "data hash": plan.data.store_hash,
        "model revision": plan.model.revision or "none",
        "plan digest": plan.digest(),
        "code commit": commit,
        "checkpoint": provenance.checkpoint or "the run's end",
        "command": command if isinstance(command, str) else " ".join(map(str, command)),
        "versions": ", ".join(f"{name} {packages[name]}" for name in shown if name in packages),
    }


def _table(rows: Mapping[str, Any], empty: str) -> str:
    if not rows:
        return empty
    cells = [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *cells])


def record_json(provenance: Provenance) -> dict[str, Any]:
    """The record as plain JSON, for headway.json."""
    plan = provenance.plan
    return {
        "name": plan.name,
        "step": provenance.step,
        "tokens": provenance.tokens,
        "evaluation": dict(provenance.evaluation),
        "checkpoint": provenance.checkpoint,
        "data_hash": plan.data.store_hash,
        "plan_digest": plan.digest(),
        "plan": plan.model_dump(mode="json"),
        "record": json.loads(json.dumps(dict(provenance.record), default=str)),
    }
