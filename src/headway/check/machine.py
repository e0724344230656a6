"""Has the machine what the plan needs: memory, disk, versions, compiler, ports, limits."""

from __future__ import annotations

import os
import re
import resource
import shutil
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from headway.check.report import Verdict, green, red, yellow
from headway.check.subject import Subject
from headway.facts.cluster import list_gpus
from headway.launch.ports import is_free
from headway.plan.memory import GIB, host_limit_bytes, used_bytes
from headway.plan.schema import Plan
from headway.plan.storage import checkpoint_bytes
from headway.units import format_bytes

_EXPORT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_SHM_BYTES = 1 * GIB  # NCCL's rings of a host with 8 GPUs; Docker gives 64 MiB unless told otherwise
_OPEN_FILES = 1024  # shards, logs and sockets of a rank; systems that give less give 256
_CHECKED = ("torch", "deepspeed", "transformers", "tokenizers", "safetensors", "numpy", "pydantic")
SHARED_MEMORY = Path("/dev/shm")


def memory(name: str, subject: Subject) -> Verdict:
    """The plan's memory against the device's."""
    plan = subject.plan
    used, limit = used_bytes(plan.memory, plan.cluster), plan.memory.device_limit_bytes
    figures = f"{used / GIB:.1f} of {limit / GIB:.1f} GiB a process ({plan.strategy.label})"
    if used <= limit:
        return green(name, figures)
    largest = max(plan.memory.items, key=lambda item: item.device_bytes)
    return red(name, f"{figures}; the largest part is {largest.name}, {largest.device_bytes / GIB:.1f}", _relief(plan))


def _relief(plan: Plan) -> str:
    """Overrides that need less memory, the cheapest first."""
    steps: list[str] = []
    if plan.batch.micro_batch > 1:
        steps.append(f"train.micro_batch={max(1, plan.batch.micro_batch // 2)}")
    if not plan.numerics.activation_checkpointing:
        steps.append("train.activation_checkpointing=true")
    if plan.launch.processes > 1 and plan.strategy.stage < 3:
        steps.append(f"strategy=zero-{plan.strategy.stage + 1 if plan.strategy.kind == 'deepspeed' else 2}")
    return " or ".join(steps) or "a smaller model or a shorter train.sequence"


def host_memory(name: str, subject: Subject) -> Verdict:
    """What all processes of the host put into its memory (offload, runtime), on a machine with GPUs."""
    plan = subject.plan
    if plan.cluster.device == "cpu":
        return green(name, "the device is the host: see memory")
    used = plan.memory.host_bytes * min(plan.launch.processes, plan.cluster.devices_per_host)
    limit = host_limit_bytes(plan.cluster)
    figures = f"{used / GIB:.1f} of {limit / GIB:.1f} GiB of host memory"
    fix = "offload less: strategy.offload=null, or a higher ZeRO stage on more GPUs"
    return green(name, figures) if used <= limit else red(name, figures, fix)


def disk(name: str, subject: Subject) -> Verdict:
    """Room for the checkpoints that are kept, the one being written beside them, and the export.

    What a run that is resumed holds already is counted: it is replaced, not added to.
    """
    plan, folder = subject.plan, subject.run_dir.absolute()
    held = _stored_bytes(folder / "checkpoints")
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return red(name, f"no run folder can be made in {folder}", "runs=FOLDER, one that can be written to")
    free = shutil.disk_usage(folder).free
    one = checkpoint_bytes(plan)
    count = plan.checkpoint.keep + 1
    needed = max(one, one * count - held)
    needed += _EXPORT_BYTES[plan.export.dtype] * plan.shape.parameters * plan.export.at_end
    more = " more" if held else ""
    figures = (
        f"{format_bytes(needed)}{more} for {count} checkpoints and the export, {format_bytes(free)} free at {folder}"
    )
    if needed <= free:
        return green(name, figures)
    room = max(0, free // one - 1) if one else 0
    fix = f"checkpoint.keep={room}" if room >= 1 else "free some space"
    return red(name, figures, f"{fix}, or runs=FOLDER on a larger disk")


def _stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def versions(name: str, subject: Subject) -> Verdict:
    """The installed packages against the ranges that Headway's own metadata names."""
    try:
        declared = [Requirement(text) for text in metadata.requires("headway") or []]
    except metadata.PackageNotFoundError:
        return yellow(
            name, "headway is not installed as a package, so its requirements are unknown", "pip install -e ."
        )
    found: list[str] = []
    wrong: list[str] = []
    fixes: list[str] = []
    for need in declared:
        if need.name not in _CHECKED or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        have = _version(need.name)
        if have is None or not need.specifier.contains(have, prereleases=True):
            wrong.append(f"{need.name} {have or 'is absent'} (needs {need.specifier})")
            fixes.append(f"'{need.name}{need.specifier}'")
        else:
            found.append(f"{need.name} {have}")
    if wrong:
        return red(name, "; ".join(wrong), f"pip install {' '.join(fixes)}")
    return green(name, ", ".join(found[:3]))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def compiler(name: str, subject: Subject) -> Verdict:
    """A C compiler, only where something will be compiled at the first step."""
    plan = subject.plan
    needs = ["torch.compile"] if plan.numerics.compile else []
    needs += ["flex attention"] if plan.model.attention == "flex" else []
    if not needs:
        return green(name, "nothing has to be compiled")
    found = next((path for tool in ("c++", "g++", "clang++", "cc", "gcc") if (path := shutil.which(tool))), None)
    what = " and ".join(needs)
    if found is None:
        fix = "apt-get install g++, or train.compile=false model.attention=sdpa"
        return red(name, f"{what} needs a C++ compiler, and there is none on PATH", fix)
    return green(name, f"{found}, for {what}")


def port(name: str, subject: Subject) -> Verdict:
    """A fixed rendezvous port that is taken: another one is chosen, so it is never a failure."""
    wanted = subject.plan.launch.port
    if wanted is None:
        return green(name, "a free one is chosen")
    if is_free(wanted):
        return green(name, f"{wanted} is free")
    return yellow(name, f"{wanted} is in use; a free one is taken instead", "launch.port=null")


def shared_memory(name: str, subject: Subject) -> Verdict:
    """/dev/shm, through which NCCL moves data between the GPUs of a host."""
    launch = subject.plan.launch
    if launch.device == "cpu" or launch.processes == 1 or not SHARED_MEMORY.is_dir():
        return green(name, "not used by this plan")
    total = shutil.disk_usage(SHARED_MEMORY).total
    if total < _SHM_BYTES:
        fix = "docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir with medium: Memory at /dev/shm"
        return yellow(name, f"/dev/shm has only {format_bytes(total)}: NCCL may end with a bus error", fix)
    return green(name, f"/dev/shm has {format_bytes(total)}")


def open_files(name: str, subject: Subject) -> Verdict:
    """The limit on open files of one process."""
    return judge_open_files(name)


def judge_open_files(name: str) -> Verdict:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES:
        fix = f"ulimit -n {_OPEN_FILES}"
        if soft == hard:  # only root can raise it
            fix = f"nofile {_OPEN_FILES} in /etc/security/limits.conf, or docker run --ulimit nofile={_OPEN_FILES}"
        return yellow(name, f"{soft} files may be open at once (the hard limit is {hard})", fix)
    return green(name, "no limit" if soft == resource.RLIM_INFINITY else f"{soft} may be open at once")


def device(name: str, subject: Subject) -> Verdict:
    """A CPU plan on a machine whose GPUs torch cannot use is rarely what was meant."""
    plan, run = subject.plan, subject.run
    if plan.launch.device == "cuda":
        return green(name, f"{plan.launch.processes} of {plan.cluster.devices_per_host} x {plan.cluster.device_name}")
    chosen = run is not None and run.config.launch.device == "cpu"
    gpus = [] if chosen else list_gpus()
    if not gpus:
        return green(name, f"CPU, {plan.launch.processes} processes of {plan.launch.threads} threads")
    why = "torch is a CPU build" if "+cpu" in (_version("torch") or "") else "torch cannot use them"
    fix = "install the CUDA build of torch, or write launch.device=cpu"
    names = re.sub(r"^NVIDIA ", "", gpus[0].name)
    return yellow(name, f"{len(gpus)} x {names} lie idle: {why}", fix)
