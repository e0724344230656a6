"""`--on`: the machine that a plan is asked of. `8xH100-80GB`, `4x8xA100-40GB`, a cluster file, or nothing: this one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headway.errors import PlanError, Problem
from headway.facts.clusterfile import ClusterFile, read_cluster
from headway.facts.hardware import other_make, require_device, unknown_words
from headway.facts.schema import ClusterFacts

# Host memory over the memory of its GPUs, where nobody says it: the large clouds' hosts have 1.4 (8 x B200) to 4.
HOST_MEMORY_SHARE = 1.8
_LARGEST_HOST = 8  # GPUs; more are several hosts
_WORDS = re.compile(r"(?:(?P<hosts>\d+)\s*[xX*]\s*)?(?:(?P<count>\d+)\s*[xX*]\s*)?(?P<name>[A-Za-z].*)")
_COUNT_BEHIND = re.compile(r"(?<=[\dbB])\s?[xX*]\s?\d+$")  # 'H100x8'
FILE_ENDINGS = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True)
class Wanted:
    """The machine as facts; file: where a cluster file said so; assumed: what nobody said, in words."""

    facts: ClusterFacts
    file: ClusterFile | None = None
    assumed: tuple[str, ...] = ()


def wanted_cluster(text: str, host_memory_bytes: int | None = None) -> Wanted:
    """The machine that `--on` names.

    Raises:
        PlanError: no such device (the near ones are named) or file, or a number of devices that no hosts hold.
        ConfigError: the cluster file is no YAML.
    """
    if text.endswith(FILE_ENDINGS) or "/" in text:
        if not Path(text).is_file():
            fix = "`headway calibrate --out FILE` writes one of this machine; or name devices: 8xH100-80GB"
            raise PlanError(problems=[Problem("--on", "there is no such cluster file", text, fix)])
        file = read_cluster(Path(text))
        if host_memory_bytes:
            file = file.model_copy(update={"host_memory": host_memory_bytes})
        return Wanted(file.facts(), file)
    match = _WORDS.fullmatch(text.strip())
    if match is None or _COUNT_BEHIND.search(match["name"]):
        fix = "8xH100-80GB, 4x8xA100-40GB (hosts x devices, then the name), or a cluster file"
        raise PlanError(problems=[Problem("--on", "is no machine", text, fix)])
    device = require_device(match["name"])
    if unknown := unknown_words(match["name"]):
        rule = f"has more than a device's name: {', '.join(map(repr, unknown))}"
        raise PlanError(problems=[Problem("--on", rule, text, f"write {device.name}")])
    hosts, count = _hosts(match, text)
    memory = host_memory_bytes or int(HOST_MEMORY_SHARE * count * device.memory_bytes)
    assumed = () if host_memory_bytes else (
        f"{memory / 1024**3:.0f} GiB of host memory: {HOST_MEMORY_SHARE} x its GPUs'; --host-memory says it",
    )  # fmt: skip
    if other_make(match["name"], device):
        assumed = (f"{device.name} ({device.memory_bytes / 1024**3:.0f} GiB) for {match['name']}", *assumed)
    facts = ClusterFacts(
        device="cuda",
        device_name=device.name,
        devices_per_host=count,
        device_memory_bytes=device.memory_bytes,
        host_memory_bytes=memory,
        hosts=hosts,
        bf16=device.peak.bf16 > 0,
        matmul_flops=(device.peak.bf16 or device.peak.fp32) * 1e12,
    )
    return Wanted(facts, assumed=assumed)


def _hosts(match: re.Match[str], text: str) -> tuple[int, int]:
    """(hosts, devices of each): a single number above a host's eight must be whole hosts of eight."""
    first, second = match["hosts"], match["count"]
    if 0 in (int(first or 1), int(second or 1)):
        raise PlanError(problems=[Problem("--on", "has no device", text, "at least 1")])
    if first and second:
        return int(first), int(second)
    count = int(first or second or 1)
    if count <= _LARGEST_HOST:
        return 1, count
    hosts, rest = divmod(count, _LARGEST_HOST)
    if rest:
        name = match["name"]
        fix = f"{hosts}x{_LARGEST_HOST}x{name}, {hosts + 1}x{_LARGEST_HOST}x{name}, or HOSTSxDEVICESx{name}"
        rule = f"hosts have up to {_LARGEST_HOST} devices, and {count} is not a multiple"
        raise PlanError(problems=[Problem("--on", rule, text, fix)])
    return hosts, _LARGEST_HOST
