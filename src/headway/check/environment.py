"""Do the programs of this machine fit each other: torch, CUDA, driver, NCCL, compilers, ops that are compiled."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from headway.check.host import Machine, installed
from headway.check.report import Verdict, green, red, yellow
from headway.units import format_bytes, format_seconds

# NVIDIA's table of minimum drivers by CUDA's major release (CUDA Toolkit release notes, minor version compatibility).
_DRIVERS = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}
# Packages that are compiled against one torch: their own metadata names it.
_BUILT_FOR_TORCH = ("torchvision", "torchaudio", "xformers", "torchao", "vllm", "fbgemm-gpu", "torchtext")
_BREAKS_TRANSFORMERS = {"torchvision"}
_BUILDERS = {"ninja", "nvcc", "cc1plus", "cicc", "ptxas", "c++", "g++"}
_LOCK_SECONDS = 60.0  # a build that has just begun may not show its compiler yet
_MEMLOCK_BYTES = 64 * 1024**2
_NVCC_SECONDS = 2.0
_CLOCK_STATES = {5: "TIME_ERROR"}
_FILES = 10_000  # of a run with its logs, checkpoints and export


def python(name: str, machine: Machine) -> Verdict:
    """The interpreter."""
    version, where = ".".join(map(str, sys.version_info[:3])), sys.executable
    if sys.maxsize < 2**32:
        return red(
            name, f"Python {version} is a 32-bit build: torch has none", "install a 64-bit Python", evidence=where
        )
    return green(name, f"Python {version}", evidence=where)


def pairs(name: str, machine: Machine) -> Verdict:
    """Packages that were built for another torch than the installed one, by their own metadata."""
    have = installed("torch")
    if have is None:
        return red(name, "torch is not installed", "pip install headway")
    wrong: list[tuple[str, str]] = []
    for package in _BUILT_FOR_TORCH:
        try:
            needs = [Requirement(text) for text in metadata.requires(package) or ()]
        except (metadata.PackageNotFoundError, InvalidRequirement):
            continue
        public = Version(have).public
        misses = [n for n in needs if n.name == "torch" and not n.specifier.contains(public, prereleases=True)]
        wrong += [(package, f"{package} {installed(package)} needs torch{need.specifier}") for need in misses]
    if not wrong:
        return green(name, f"nothing was built for another torch than {have}")
    finding = f"torch {have} is installed, but {'; '.join(text for _, text in wrong)}"
    names = " ".join(package for package, _ in wrong)
    if _BREAKS_TRANSFORMERS & {package for package, _ in wrong}:
        return red(name, f"{finding}: transformers' models that import it fail", f"pip uninstall -y {names}")
    return yellow(name, finding, f"pip install --upgrade {names}, or pip uninstall -y {names}")


def cuda(name: str, machine: Machine) -> Verdict:
    """torch's CUDA release against the driver."""
    torch = machine.torch
    if torch is None:
        return red(name, "torch is not installed", "pip install headway")
    if torch.is_cpu:
        if machine.has_gpus:
            fix = "install the CUDA build of torch: pip install --force-reinstall torch"
            return yellow(name, "there are GPUs, and torch is a CPU build", fix, evidence=f"torch {torch.version}")
        return green(name, f"torch {torch.version}, a CPU build", evidence="no NVIDIA driver")
    if not machine.driver:
        what = f"torch {torch.version} was built for CUDA {torch.cuda}; no NVIDIA driver was found, it uses the CPU"
        return green(name, what)
    least = _DRIVERS.get(torch.cuda.partition(".")[0])
    evidence = f"driver {machine.driver}, torch {torch.version} for CUDA {torch.cuda}"
    if least and Version(machine.driver) < Version(least):
        fix = f"update the NVIDIA driver to {least} or newer, or install a torch for an older CUDA"
        return red(name, f"the driver is too old for CUDA {torch.cuda}", fix, evidence=evidence)
    return green(name, f"the driver runs CUDA {torch.cuda}", evidence=evidence)


def nccl(name: str, machine: Machine) -> Verdict:
    """torch brings its NCCL; another on the library path takes its place."""
    torch = machine.torch
    if torch is None or torch.is_cpu:
        return green(name, "not used: torch is a CPU build")
    own = [
        (package, version)
        for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
        if (version := installed(package))
    ]
    said = ", ".join(f"{package} {version}" for package, version in own) or "built into torch"
    places = [
        p for v in ("LD_PRELOAD", "LD_LIBRARY_PATH") for p in re.split("[: ]", machine.environment.get(v, "")) if p
    ]
    others = [found for place in places if (found := _libnccl(Path(place))) is not None]
    if others:
        what = f"another NCCL is loaded before torch's own ({said})"
        return yellow(name, what, "unset LD_PRELOAD LD_LIBRARY_PATH, or remove it there", evidence=str(others[0]))
    if len(own) > 1:
        return yellow(name, "several NCCL packages are installed", f"pip uninstall -y {own[-1][0]}", evidence=said)
    return green(name, said)


def _libnccl(place: Path) -> Path | None:
    if place.name.startswith("libnccl.so"):
        return place
    return next(place.glob("libnccl.so*"), None) if place.is_dir() else None


def toolkit(name: str, machine: Machine) -> Verdict:
    """nvcc against torch's CUDA: DeepSpeed refuses to compile its ops with another major release."""
    torch = machine.torch
    if torch is None or torch.is_cpu:
        return green(name, "not needed: torch is a CPU build")
    home = machine.environment.get("CUDA_HOME") or machine.environment.get("CUDA_PATH")
    found = f"{home}/bin/nvcc" if home and Path(home, "bin/nvcc").exists() else _which("nvcc", machine)
    if home and not Path(home, "bin/nvcc").exists():
        return yellow(name, f"CUDA_HOME is {home}, and there is no bin/nvcc in it", "export CUDA_HOME=/usr/local/cuda")
    if found is None:
        what = f"no CUDA toolkit (nvcc): kernels that are compiled at first use cannot be; torch has CUDA {torch.cuda}"
        return yellow(name, what, f"apt-get install cuda-nvcc-{torch.cuda.replace('.', '-')}; or use no such kernel")
    text = _output([found, "--version"])
    match = re.search(r"release (\d+)\.(\d+)", text)
    if match is None:
        return yellow(name, f"{found} does not say its version", "reinstall the CUDA toolkit", evidence=text[:100])
    release = f"{match[1]}.{match[2]}"
    evidence = f"{found} is {release}, torch has {torch.cuda}"
    if match[1] != torch.cuda.partition(".")[0]:
        fix = f"export CUDA_HOME=/usr/local/cuda-{torch.cuda}"
        return red(
            name, "nvcc is of another CUDA release: DeepSpeed refuses to compile its ops", fix, evidence=evidence
        )
    return green(name, f"nvcc {release}", evidence=evidence)


def _which(tool: str, machine: Machine) -> str | None:
    return shutil.which(tool, path=machine.environment.get("PATH"))


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NVCC_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout + done.stderr


def build_tools(name: str, machine: Machine) -> Verdict:
    """ninja and a C++ compiler, for whatever is compiled at first use."""
    compiler = next((found for tool in ("c++", "g++", "clang++") if (found := _which(tool, machine))), None)
    beside = Path(sys.executable).parent / "ninja"
    ninja = _which("ninja", machine) or (str(beside) if beside.exists() else None)
    absent = [what for what, found in (("g++", compiler), ("ninja", ninja)) if found is None]
    if not absent:
        return green(name, "a C++ compiler and ninja", evidence=f"{compiler}, {ninja}")
    fix = " && ".join({"g++": "apt-get install -y g++", "ninja": "pip install ninja"}[what] for what in absent)
    return yellow(name, f"absent: {', '.join(absent)}; nothing can be compiled at first use", fix)


def jit_lock(name: str, machine: Machine) -> Verdict:
    """A lock that a killed build left behind: every later start that loads the op waits for it, without a word."""
    locks = sorted(machine.extensions.glob("*/lock")) + sorted(machine.extensions.glob("*/*/lock"))
    if not locks:
        return green(name, "no build holds a lock", evidence=str(machine.extensions))
    old = [lock for lock in locks if _age_seconds(lock) > _LOCK_SECONDS]
    builders = _builders() if old else []
    stale = [lock for lock in old if not any(str(lock.parent) in where for where in builders)]
    if stale:
        what = "a build that was killed left its lock: whatever loads this op hangs"
        evidence = ", ".join(f"{lock} ({format_seconds(_age_seconds(lock))} old)" for lock in stale)
        fix = f"rm -f {' '.join(map(str, stale))}"
        if not machine.loads_ops:
            return yellow(name, f"{what}; this plan loads none", fix, evidence=evidence)
        return red(name, what, fix, evidence=evidence)
    return yellow(name, "an op is being compiled at this moment", "wait until it is done", evidence=str(locks[0]))


def _age_seconds(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _builders() -> list[str]:
    """Folders and command lines of compilers that run now."""
    places: list[str] = []
    for process in psutil.process_iter(["name", "cmdline", "cwd"]):
        if process.info["name"] in _BUILDERS:
            places += [str(process.info["cwd"]), " ".join(process.info["cmdline"] or ())]
    return places


def jit_ops(name: str, machine: Machine) -> Verdict:
    """What is compiled already. Headway itself needs none: it trains with torch's own fused optimizers."""
    built = (
        sorted({path.parent.name for path in machine.extensions.glob("**/*.so")}) if machine.extensions.exists() else []
    )
    if not built:
        what = "no op is compiled; Headway needs none, DeepSpeed's own optimizers and NVMe offload do"
        return green(name, what, evidence=str(machine.extensions))
    return green(name, f"compiled: {', '.join(built)}", evidence=str(machine.extensions))


def locked_memory(name: str, machine: Machine) -> Verdict:
    """InfiniBand registers memory, which needs the right to lock it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else format_bytes(soft)
    devices = sorted(path.name for path in (machine.sys / "class/infiniband").glob("*"))
    if devices and soft != resource.RLIM_INFINITY and soft < _MEMLOCK_BYTES:
        what = f"only {limit} of memory may be locked, and NCCL needs more over {', '.join(devices)}"
        return red(name, what, "ulimit -l unlimited; in a container: docker run --ulimit memlock=-1", evidence=limit)
    return green(name, f"{limit} may be locked" if devices else "no InfiniBand: not needed")


def inodes(name: str, machine: Machine) -> Verdict:
    """A disk can be full of files while it has bytes left."""
    folder = machine.folder.absolute()
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    if found.f_files and found.f_favail < _FILES:
        what = f"only {found.f_favail} more files can be made in {folder}"
        return yellow(name, what, f"remove small files there (df -i {folder}), or runs=FOLDER elsewhere")
    return green(name, "as many files as a run makes", evidence=f"{found.f_favail} more in {folder}")


def clock(name: str, machine: Machine) -> Verdict:
    """The kernel's word on whether the clock is synchronised, and whether it can be right at all."""
    newest = max((path.stat().st_mtime for path in Path(__file__).parent.glob("*.py")), default=0.0)
    behind = newest - time.time()
    if behind > 3600:
        what = f"the clock is {format_seconds(behind)} before Headway's own installation"
        return yellow(name, what, "timedatectl set-ntp true", evidence=time.strftime("%Y-%m-%d %H:%M:%S"))
    state = _clock_state()
    if state in _CLOCK_STATES and machine.several:
        what = "the clock is not synchronised: the times in the hosts' logs cannot be compared"
        return yellow(name, what, "timedatectl set-ntp true, or start chronyd", evidence=_CLOCK_STATES[state])
    said = "synchronised" if state not in (None, 5) else "not known to be synchronised; one host needs no more"
    return green(name, said, evidence=time.strftime("%Y-%m-%d %H:%M:%S %z"))


def _clock_state() -> int | None:
    """adjtimex's return value: 5 is TIME_ERROR, the clock is not synchronised; None where it cannot be asked."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return int(libc.adjtimex(ctypes.create_string_buffer(256)))
    except (OSError, AttributeError):
        return None
