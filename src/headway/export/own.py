"""What makes an exported module of the user's own loadable without Headway: its source, its arguments, a loader."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

from headway.errors import ExportError
from headway.model.own import factory_seed, is_source
from headway.plan.schema import Plan
from headway.registry import load_object

CODE, MODEL, LOADER = "code", "model.json", "load.py"

_ADAPTER_LOADER = '''"""Load this adapter in its base: `from load import load; model = load()`. Needs torch and peft."""

import importlib
import json
import random
import sys
from pathlib import Path

import numpy
import torch
from peft import PeftModel

HERE = Path(__file__).resolve().parent


def load():
    """The module as its factory makes it, the adapter's layers in it, on the host, in evaluation mode."""
    if str(HERE / "code") not in sys.path:
        sys.path.insert(0, str(HERE / "code"))
    made = json.loads((HERE / "model.json").read_text(encoding="utf-8"))
    module, _, name = made["factory"].partition(":")
    random.seed(made["seed"])  # as in training, for what the factory draws
    numpy.random.seed(made["seed"] % 2**32)
    torch.manual_seed(made["seed"])
    base = getattr(importlib.import_module(module), name)(**made["options"])
    return PeftModel.from_pretrained(base, str(HERE)).base_model.model.eval()
'''

_LOADER = '''"""Load this model: `from load import load; model = load()`. Needs torch and safetensors."""

import importlib
import json
import sys
from pathlib import Path

from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent


def load():
    """The trained module, on the host, in evaluation mode."""
    if str(HERE / "code") not in sys.path:
        sys.path.insert(0, str(HERE / "code"))
    made = json.loads((HERE / "model.json").read_text(encoding="utf-8"))
    module, _, name = made["factory"].partition(":")
    model = getattr(importlib.import_module(module), name)(**made["options"])
    tensors = {}
    for file in sorted(HERE.glob("*.safetensors")):
        tensors.update(load_file(file))
    found = model.load_state_dict(tensors, strict=False)
    state = model.state_dict()
    whole = {state[name].data_ptr() for name in tensors if name in state}
    lost = [name for name in found.missing_keys if state[name].data_ptr() not in whole]  # tied ones are stored once
    if lost or found.unexpected_keys:
        raise ValueError(f"not this module's weights: missing {lost}, unexpected {found.unexpected_keys}")
    return model.eval()
'''


def write_own(folder: Path, plan: Plan, code: Path | None, *, adapter: bool = False) -> None:
    """Source, arguments and loader beside the weights, or `adapter`: beside an adapter's.

    code: the run's copies; None takes them from where they lay.

    Raises ExportError where the source is not there any more.
    """
    for part in plan.code:
        root = code if code is not None and not part.installed else Path(part.root)
        for name in part.files:
            target = folder / CODE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(root / name, target)
            except OSError as error:
                raise ExportError(f"the module's source {root / name} cannot be read: {error}") from error
    factory = load_object(plan.model.kind, "model.factory")
    if is_source(factory):
        return  # its own `save` has written what its own `load` needs
    content = {"factory": plan.model.kind, "options": arguments(factory, plan)}
    content |= {"seed": factory_seed(plan)} if adapter else {}
    (folder / MODEL).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / LOADER).write_text(_ADAPTER_LOADER if adapter else _LOADER, encoding="utf-8")


def arguments(factory: Any, plan: Plan) -> dict[str, Any]:
    """What the factory was called with, the plan's own numbers written out."""
    options = dict(plan.model.options)
    known = inspect.signature(factory).parameters
    given = (("vocab", plan.shape.vocab), ("sequence", plan.data.sequence))
    return options | {name: value for name, value in given if name in known and name not in options}
