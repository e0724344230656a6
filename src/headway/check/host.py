"""This machine as its checks see it: gathered once, without importing torch; a test hands in another."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path

from headway.check.report import Verdict
from headway.facts.nvml import Nvml, read_nvml


@dataclass(frozen=True)
class TorchBuild:
    """What torch was built for, read from its version file. cuda "" for a CPU build."""

    version: str
    cuda: str
    folder: Path

    @property
    def is_cpu(self) -> bool:
        return not self.cuda


def torch_build() -> TorchBuild | None:
    """The installed torch; None where there is none or its version file says nothing."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    said = {
        name: match[1] if (match := re.search(rf"^{name}\b[^=\n]*= *'?([^'\n]+)", text, re.MULTILINE)) else "None"
        for name in ("__version__", "cuda", "hip")
    }
    cuda = said["cuda"] if said["cuda"] != "None" else ""
    return TorchBuild(said["__version__"], cuda or ("hip" if said["hip"] != "None" else ""), folder)


def installed(package: str) -> str | None:
    """A package's version; None where it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Machine:
    """Where checks of a machine look. All but the environment is found when it is first asked for.

    several: whether other hosts take part, so that loopback is not enough. loads_ops: whether what would run here loads
    ops that DeepSpeed compiles; Headway's own strategies do not.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: Path = field(default_factory=Path.cwd)  # where runs are written
    several: bool = False
    loads_ops: bool = True
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    ask_nvml: Callable[[], Nvml] = read_nvml

    @cached_property
    def torch(self) -> TorchBuild | None:
        return torch_build()

    @cached_property
    def nvml(self) -> Nvml:
        return self.ask_nvml()

    @property
    def has_gpus(self) -> bool:
        return bool(self.nvml.gpus) or (self.proc / "driver/nvidia/version").exists()

    @property
    def driver(self) -> str:
        """The NVIDIA driver's version; an empty string where there is none."""
        if self.nvml.driver:
            return self.nvml.driver
        try:
            text = (self.proc / "driver/nvidia/version").read_text(encoding="utf-8")
        except OSError:
            return ""
        match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)", text)
        return match[1] if match else ""

    @property
    def extensions(self) -> Path:
        """Where torch and DeepSpeed keep compiled ops."""
        if given := self.environment.get("TORCH_EXTENSIONS_DIR"):
            return Path(given)
        cache = self.environment.get("XDG_CACHE_HOME") or str(Path(self.environment.get("HOME", "~")) / ".cache")
        return Path(os.path.expanduser(cache)) / "torch_extensions"


# name of the check, machine -> verdict
MachineCheck = Callable[[str, Machine], Verdict]
