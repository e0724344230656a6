"""Where a run comes from: code, data, command, environment, versions, hardware. Secrets are removed.

The only module besides the launchers, the worker and the command line that looks at the environment.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import psutil

from headway.errors import UserError
from headway.plan.files import newest_copy
from headway.plan.schema import Plan
from headway.run.paths import RunDir
from headway.run.secrets import REMOVED, clean, clean_arguments, clean_source, is_secret_variable, secret_values
from headway.run.whole import write_whole

# Variables that change what a run computes, how fast, or where; nothing else is recorded.
_PREFIXES = (
    *("HEADWAY_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "UCX_", "FI_", "RDMAV_", "CUBLAS_", "CUDNN_", "ROCR_", "HIP_"),
    *("TORCH_", "TORCHINDUCTOR_", "TORCHELASTIC_", "PYTORCH_", "TRITON_", "DS_", "DEEPSPEED_", "ACCELERATE_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "SAFETENSORS_"),
    *("SLURM_", "PMI_", "OMPI_", "MASTER_", "PYTHON", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
    *("LD_PRELOAD", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "TZ", "LANG"),
)
_PACKAGES = (
    *("headway", "torch", "deepspeed", "transformers", "tokenizers", "safetensors", "numpy", "pydantic"),
    *("triton", "flash-attn", "liger-kernel", "pyarrow", "datasets", "tensorboard", "accelerate"),
    *("peft", "bitsandbytes"),
)
DIFF_LIMIT_BYTES = 1024**2
_GIT_SECONDS = 20.0


def gather_record(
    plan: Plan | None, argv: Sequence[str], *, code: Path | None = None, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The record as plain JSON; runs without git, outside a repository, and without a plan.

    code: the folder whose git state counts (the run file's); None: the current one.
    environment: None: this process's.
    `git.diff` holds the uncommitted changes (at most 1 MiB); `write_record` puts them into a file beside the record.
    """
    variables = dict(os.environ) if environment is None else environment
    values = secret_values(variables)
    git = _git(code or Path.cwd())
    diff = git.pop("diff", "")
    record = {
        "time": time.time(),
        "host": platform.node(),
        "user": _user(),
        "git": git,
        "plan": {} if plan is None else describe_plan(plan),
        "environment": _environment(variables),
        "versions": _versions(),
        "hardware": _hardware(),
        "folder": str(Path.cwd()),
    }
    record = clean(record, values)
    record["git"] |= _bounded_diff(diff, values) if diff else {}
    return {**record, "command": clean_arguments(argv, values)}


def known_secrets() -> tuple[str, ...]:
    """Values that must not leave this machine: of the environment's variables with a secret-like name."""
    return secret_values(os.environ)


def write_record(run: RunDir, record: Mapping[str, Any]) -> None:
    """Write record.json, and the diff beside it as record.diff."""
    git = dict(record["git"])
    diff = git.pop("diff", "")
    if diff:
        content = diff.encode()
        run.record_diff.write_bytes(content)
        git |= {"diff_file": run.record_diff.name, "diff_sha256": hashlib.sha256(content).hexdigest()}
    text = json.dumps({**record, "git": git}, indent=2, sort_keys=True)
    write_whole(run.record, text + "\n")


def read_record(run: RunDir) -> dict[str, Any]:
    """The record as written; {} where the run has none. Raises UserError where it is damaged."""
    try:
        record: object = json.loads(run.record.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _damaged(run, str(error)) from error
    if not isinstance(record, dict):
        raise _damaged(run, "it is no JSON object")
    content = cast("dict[str, Any]", record)
    for section in ("git", "run_file"):
        if not isinstance(content.get(section, {}), dict):
            raise _damaged(run, f"its {section!r} is no JSON object")
    return content


def _damaged(run: RunDir, why: str) -> UserError:
    saved = newest_copy(run.record)
    fix = shlex.join(["cp", str(saved), str(run.record)]) if saved else f"remove {run.record}"
    return UserError(f"{run.record} cannot be read: {why}", fix=fix)


def read_diff(run: RunDir) -> bytes:
    """The uncommitted changes of the code; b"" where there were none."""
    try:
        return run.record_diff.read_bytes()
    except FileNotFoundError:
        return b""


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    recorded = {name: value for name, value in sorted(variables.items()) if name.startswith(_PREFIXES)}
    return {name: REMOVED if is_secret_variable(name) else value for name, value in recorded.items()}


def describe_plan(plan: Plan) -> dict[str, Any]:
    """What the record says of a plan; all of it stands in plan.json."""
    return {
        "name": plan.name,
        "digest": plan.digest(),
        "data": plan.data.store_hash,
        "model": plan.model.path or plan.shape.arch,
        "model_revision": plan.model.revision,
        "parameters": plan.shape.parameters,
        "strategy": plan.strategy.label,
        "processes": plan.launch.processes,
        "forced": list(plan.forced),
    }


def _git(folder: Path) -> dict[str, Any]:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), "--no-optional-locks", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=_GIT_SECONDS, check=True, stdin=subprocess.DEVNULL)
        return done.stdout.decode(errors="replace")

    try:
        git("rev-parse", "--git-dir")
    except FileNotFoundError:
        return {"available": False, "reason": "git is not installed"}
    except (subprocess.SubprocessError, OSError):
        return {"available": False, "reason": f"{folder} is in no git repository that can be read"}
    state: dict[str, Any] = {"available": True, "commit": None, "branch": None, "dirty": None}
    # One at a time: a repository without a commit has no HEAD, a huge one may be too slow for a status.
    try:
        state["branch"] = git("rev-parse", "--abbrev-ref", "HEAD").strip()
        state["commit"] = git("rev-parse", "HEAD").strip()
        state["remotes"] = sorted({line.split()[1] for line in git("remote", "-v").splitlines() if line.strip()})
        changed = git("status", "--porcelain").splitlines()
        state["dirty"] = bool(changed)
        state["untracked"] = [line[3:] for line in changed if line.startswith("??")][:100]
        if changed:
            state["diff"] = git("diff", "HEAD", "--no-color", "--no-ext-diff")
    except (subprocess.SubprocessError, OSError) as error:
        state["reason"] = f"not all could be read: {type(error).__name__}"
    return state


def _bounded_diff(text: str, values: Sequence[str]) -> dict[str, Any]:
    # Cut generously at a line, cleaned, then cut to size: a token across a cut would lose its form.
    size_bytes = len(text.encode())
    if size_bytes > DIFF_LIMIT_BYTES:
        text = text[: 2 * DIFF_LIMIT_BYTES].rpartition("\n")[0]
    kept = clean_source(text, values).encode()[:DIFF_LIMIT_BYTES].decode(errors="ignore")
    return {"diff": kept, "diff_bytes": size_bytes, "diff_cut": size_bytes > DIFF_LIMIT_BYTES}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's numeric user has no name
        return str(os.getuid())


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _hardware() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpus() -> list[dict[str, str]]:
    fields = ("name", "memory.total", "driver_version", "uuid")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_SECONDS, check=True, text=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.strip()]
    return [dict(zip(fields, row, strict=False)) for row in rows]
