"""The schema that is read off DeepSpeed's source as syntax is the one that its classes have."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from headway.config.deepspeed_models import MODELS, installed, models_of

# Of every model: each legal name, its bounds, and whether null is legal, as pydantic has them.
ASK = """
import importlib, json, types, typing
found = {}
for module, name in json.loads(MODELS):
    model = getattr(importlib.import_module("deepspeed." + module), name)
    fields = {}
    for field, info in model.model_fields.items():
        bounds = {}
        for part in info.metadata:
            bounds |= {end: getattr(part, end) for end in ("ge", "gt", "le", "lt") if hasattr(part, end)}
        arguments = typing.get_args(info.annotation)
        fields[field] = [info.alias, bounds, type(None) in arguments]
    found[name] = fields
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def asked() -> dict[str, Any]:
    """What DeepSpeed's own classes say, imported in a process of its own."""
    wanted = sorted({(file.removesuffix(".py").replace("/", "."), name) for file, name in MODELS.values()})
    wanted += [("runtime.zero.offload_config", f"DeepSpeedZeroOffload{what}Config") for what in ("Param", "Optimizer")]
    code = ASK.replace("MODELS", repr(json.dumps(wanted)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.partition("FOUND")[2])


def test_syntax_and_classes_agree(asked: dict[str, Any]) -> None:
    models = models_of(*installed(), keep=None)
    assert len(asked) >= 13
    for model, fields in asked.items():
        read = models[model]
        assert set(read) == {*fields, *(alias for alias, _, _ in fields.values() if alias)}, model
        for name, (alias, bounds, null) in fields.items():
            key = read[name]
            assert key.canonical == (alias or name)
            assert key.null == null, f"{model}.{name}"
            assert (key.low, key.low_open) == (bounds.get("ge", bounds.get("gt")), "gt" in bounds), f"{model}.{name}"
            assert (key.high, key.high_open) == (bounds.get("le", bounds.get("lt")), "lt" in bounds), f"{model}.{name}"
