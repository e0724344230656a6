"""Whether torch, DeepSpeed and transformers can be imported, tried in a process of its own, which may crash."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from headway.check.report import Verdict, green, red, yellow

IMPORT_SECONDS = 16.0  # cold, DeepSpeed and transformers take six to twelve each
_MODULES = ("torch", "transformers", "deepspeed", "torchvision")

# Runs alone: a line before each import, so that a crash names the module that it happened in.
_PROGRAM = """
import importlib, importlib.util, json, os, sys
def say(**line):
    sys.__stdout__.write("@" + json.dumps(line) + "\\n"); sys.__stdout__.flush()
for name in sys.argv[1:]:
    if importlib.util.find_spec(name) is None:
        continue
    say(begins=name)
    try:
        module = importlib.import_module(name)
        if name == "transformers":
            module.LlamaForCausalLM  # imported when asked for: this is where a wrong torchvision breaks it
        say(name=name, version=str(getattr(module, "__version__", "")))
    except BaseException as error:
        chain = []  # a lazy import hides what it stumbled over
        while error is not None and len(chain) < 6:
            chain.append(type(error).__name__ + ": " + " ".join(str(error).split())[:300])
            error = error.__cause__ or error.__context__
        say(name=name, error=" <- ".join(dict.fromkeys(chain)))
if "torch" in sys.modules:
    torch = sys.modules["torch"]
    cuda = torch.cuda.is_available()
    dist = torch.distributed
    say(facts=dict(cuda=cuda, gpus=torch.cuda.device_count() if cuda else 0, gloo=dist.is_gloo_available(),
        nccl=".".join(map(str, torch.cuda.nccl.version())) if cuda and dist.is_nccl_available() else "",
        mpi=dist.is_mpi_available()))
"""

# What an import error says -> what to do. The first that fits.
_FIXES = (
    (
        ("CUDA_HOME", "MissingCUDAException", "nvcc"),
        "the CUDA toolkit is missing; on a machine without GPUs training on the CPU works",
        "export DS_ACCELERATOR=cpu (no GPU here), or install the toolkit and export CUDA_HOME=/usr/local/cuda",
    ),
    (("torchvision", "nms"), "torchvision was built for another torch", "pip uninstall -y torchvision"),
    (
        ("undefined symbol", ".so", "GLIBC"),
        "a compiled part does not fit the others",
        "pip install --force-reinstall {}",
    ),
    (("numpy",), "numpy does not fit it", "pip install 'numpy>=1.26'"),
)


def try_imports(environment: Mapping[str, str], seconds: float = IMPORT_SECONDS) -> list[Verdict]:
    """One verdict a module, and what torch says of its backends. Nothing is imported into this process."""
    command = [sys.executable, "-c", _PROGRAM, *_MODULES]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, env=dict(environment), text=True
        )
        try:
            out, late = process.communicate(timeout=seconds)[0], False
        except subprocess.TimeoutExpired:
            process.kill()
            out, late = process.communicate()[0], True
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    lines: list[dict[str, Any]] = [json.loads(line[1:]) for line in out.splitlines() if line.startswith("@")]
    return _verdicts(lines, process.returncode, late, said[-1] if said else "")


def _verdicts(lines: list[dict[str, Any]], code: int, late: bool, last_words: str) -> list[Verdict]:
    found: list[Verdict] = []
    done = {line["name"] for line in lines if "name" in line}
    for line in lines:
        if "error" in line:
            found.append(_failed(line["name"], line["error"]))
        elif "name" in line:
            found.append(green(f"import-{line['name']}", f"{line['name']} {line['version']} can be imported"))
    hung = next((line["begins"] for line in lines if "begins" in line and line["begins"] not in done), None)
    if hung is not None:
        name = f"import-{hung}"
        if late:
            what = f"importing {hung} took longer than the rest of the time: a slow disk, or a lock that is waited for"
            found.append(yellow(name, what, "headway doctor again, when the files are cached", evidence=last_words))
        else:
            what = f"importing {hung} ends the process (exit code {code})"
            found.append(red(name, what, f"pip install --force-reinstall {hung}", evidence=last_words))
    if not any(line.get("name") == "torch" or line.get("begins") == "torch" for line in lines):
        found.append(red("import-torch", "torch is not installed", "pip install headway", evidence=last_words))
    facts: dict[str, Any] = next((line["facts"] for line in lines if "facts" in line), {})
    if facts:
        backends = ", ".join(
            [b for b in ("gloo", "mpi") if facts[b]] + ([f"nccl {facts['nccl']}"] if facts["nccl"] else [])
        )
        no_mpi = "" if facts["mpi"] else "; torch was built without MPI, as its wheels are: use nccl or gloo"
        found.append(green("backends", f"{backends or 'none'}{no_mpi}", evidence=f"{facts['gpus']} GPUs"))
    return found


def _failed(module: str, error: str) -> Verdict:
    name = f"import-{module}"
    first = (error.strip().splitlines() or ["no words"])[0]
    for words, what, fix in _FIXES:
        if any(word in error for word in words):
            return red(name, f"{module} cannot be imported: {what}", fix.format(module), evidence=first[-400:])
    return red(name, f"{module} cannot be imported", f"pip install --force-reinstall {module}", evidence=first[-400:])
