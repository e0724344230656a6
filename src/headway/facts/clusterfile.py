"""A cluster file: what `headway calibrate` measured of a machine, or what someone wrote of one that is not at hand.

`headway plan run.yaml --on cluster.yaml` plans for it. Sizes may be written as `80 GiB`, rates as plain numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from headway.errors import PlanError
from headway.facts.hardware import Device, Machine, Peak, find_device, machine_of
from headway.facts.prices import Price
from headway.facts.reading import read_facts
from headway.facts.schema import ClusterFacts, Facts
from headway.run.whole import write_whole
from headway.units import parse_bytes

_USUAL_HOST_LINK, _USUAL_NETWORK = 25e9, 12.5e9  # PCIe 4 x16 and 100 Gbit/s, where a file says nothing
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Rate = Annotated[float, Field(gt=0)]
_SLOWEST_FLOPS, _SLOWEST_COPY = 1e8, 1e6  # below any device that trains: the unit is another
Seconds = Annotated[float, Field(ge=0)]


class Rates(Facts):
    """Measured while all devices of the host work at once. Every rate is one device's.

    matmul_flops: a large product alone. layer_flops and stream_bytes_per_second: what training steps of the real
    engine take for their matrix products, and for everything that moves activations through memory; update_parameters:
    how many the optimizer updates in a second (each None where the fit saw nothing of it). layer_seconds: what a layer
    takes beside both, forward and backward; step_seconds: a step beside all that, whatever its size (dispatch of what
    is done once, counts and verdicts that the ranks agree on, clipping). stage_2_*: DeepSpeed's own work beside that,
    in stages 1 and 2: of a layer (hooks, small collectives), of a parameter (copies to and from its flat buffers, its
    fp32 partition), the more where these buffers are so large that the C library maps them anew each time, and of a
    step; stage_3_*: in stage 3.
    link_bytes_per_second: an all-reduce's bus bandwidth between the devices of a host; link_seconds: its least time.
    host_bytes_per_second: from the host's memory to the device's. disk_bytes_per_second: writing, with fsync.
    """

    precision: Literal["fp32", "bf16", "fp16"]
    matmul_flops: Rate
    layer_flops: Rate | None = None
    stream_bytes_per_second: Rate | None = None
    update_parameters_per_second: Rate | None = None
    layer_seconds: Seconds = 0.0
    step_seconds: Seconds = 0.0
    stage_2_layer_seconds: Seconds = 0.0
    stage_2_parameter_seconds: Seconds = 0.0
    stage_2_mapped_parameter_seconds: Seconds = 0.0
    stage_2_step_seconds: Seconds = 0.0
    stage_3_layer_seconds: Seconds = 0.0
    stage_3_parameter_seconds: Seconds = 0.0
    stage_3_mapped_parameter_seconds: Seconds = 0.0
    stage_3_step_seconds: Seconds = 0.0
    copy_bytes_per_second: Rate
    link_bytes_per_second: Rate | None = None
    link_seconds: float = Field(default=0.0, ge=0)
    network_bytes_per_second: Rate | None = None
    host_bytes_per_second: Rate | None = None
    disk_bytes_per_second: Rate | None = None

    @field_validator("matmul_flops")
    @classmethod
    def _in_flops(cls, rate: float) -> float:
        if rate < _SLOWEST_FLOPS:
            raise ValueError("is in FLOP/s: 400 TFLOP/s are written 4.0e+14")
        return rate

    @field_validator("copy_bytes_per_second")
    @classmethod
    def _in_bytes(cls, rate: float) -> float:
        if rate < _SLOWEST_COPY:
            raise ValueError("is in bytes a second: 2 TB/s are written 2.0e+12")
        return rate


class Learned(Facts):
    """What runs on this cluster taught: measured / planned, the median over their steps. runs: their names."""

    runs: tuple[str, ...]
    step_time: float = Field(gt=0)
    memory: float = Field(gt=0)


class ClusterFile(Facts):
    """One cluster. devices_per_host: GPUs, or CPU cores. price: of one device and hour, before the price table's.

    bf16: left out, what the table says of the device; of one that no table has, what its rates were measured in.
    """

    name: str
    device: Literal["cpu", "cuda"]
    device_name: str
    hosts: int = Field(default=1, ge=1)
    devices_per_host: int = Field(ge=1)
    device_memory: Bytes
    host_memory: Bytes
    bf16: bool | None = None
    measured: str = ""  # when and by what, for people
    rates: Rates | None = None
    price: Price | None = None
    learned: Learned | None = None

    def machine(self) -> Machine:
        """The machine with what was measured in place of the table's rates.

        Raises PlanError for a device that is in no table and that the file has no rates of.
        """
        rates = self.rates
        if self.device == "cuda" and rates is not None and find_device(self.device_name) is None:
            device = _unlisted(self, rates)
            return Machine(
                device, self.devices_per_host, self.hosts, self.host_memory,
                network_bytes_per_second=rates.network_bytes_per_second,
            )  # fmt: skip
        machine = machine_of(self.facts())
        if rates is None:
            return machine
        device = replace(
            machine.device,
            matmul_flops=machine.device.matmul_flops | {rates.precision: rates.matmul_flops},
            bandwidth_bytes_per_second=rates.copy_bytes_per_second,
            link_bytes_per_second=rates.link_bytes_per_second or machine.device.link_bytes_per_second,
            host_link_bytes_per_second=rates.host_bytes_per_second or machine.device.host_link_bytes_per_second,
        )
        return replace(machine, device=device, network_bytes_per_second=rates.network_bytes_per_second)

    @model_validator(mode="after")
    def _one_word_on_bf16(self) -> Self:
        if self.bf16 is False and self.rates is not None and self.rates.precision == "bf16":
            raise ValueError("bf16 is false, and its rates were measured in bf16: one of the two is wrong")
        return self

    @property
    def has_bf16(self) -> bool:
        if self.bf16 is not None or self.device == "cpu":
            return bool(self.bf16)
        known = find_device(self.device_name)
        if known is not None:
            return known.peak.bf16 > 0
        return self.rates is not None and self.rates.precision == "bf16"

    def facts(self) -> ClusterFacts:
        return ClusterFacts(
            device=self.device,
            device_name=self.device_name,
            devices_per_host=self.devices_per_host,
            device_memory_bytes=self.device_memory,
            host_memory_bytes=self.host_memory,
            hosts=self.hosts,
            bf16=self.has_bf16,
            matmul_flops=self.rates.matmul_flops if self.rates else None,
        )


def _unlisted(file: ClusterFile, rates: Rates) -> Device:
    """A device that no table has, from what was measured or written of it: its best product stands for its peak."""
    rate = rates.matmul_flops
    host = rates.host_bytes_per_second or _USUAL_HOST_LINK
    peaks = {"fp32": 0.0, "bf16": 0.0, "fp16": 0.0}
    peaks |= {rates.precision: rate} | ({"bf16": rate, "fp16": rate} if file.has_bf16 else {})
    return Device(
        name=file.device_name,
        memory_bytes=file.device_memory,
        bandwidth_bytes_per_second=rates.copy_bytes_per_second,
        peak=Peak(peaks["fp32"] / 1e12, 0.0, peaks["bf16"] / 1e12, peaks["fp16"] / 1e12, (0, 0)),
        fp8_peak_flops=0,
        matmul_flops={name: peak for name, peak in peaks.items() if peak},
        link_bytes_per_second=rates.link_bytes_per_second or host,
        host_link_bytes_per_second=host,
        network_bytes_per_second=rates.network_bytes_per_second or _USUAL_NETWORK,
        source="its cluster file",
    )


def read_cluster(path: Path) -> ClusterFile:
    """Raises ConfigError or PlanError naming every wrong entry with its line."""
    return read_facts(path, ClusterFile)


def write_cluster(path: Path, cluster: ClusterFile) -> None:
    """Write the file whole or not at all; people read it, so it is YAML with a line for each entry.

    Raises PlanError where it cannot be written.
    """
    from io import StringIO

    from ruamel.yaml import YAML

    stream = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(cluster.model_dump(mode="json", exclude_none=True), stream)  # pyright: ignore[reportUnknownMemberType]
    head = "# Written by Headway; every entry may be changed. `headway plan run.yaml --on` this file plans for it.\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, head + stream.getvalue())
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}", fix="name another file") from error
