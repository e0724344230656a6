"""`--on`, cluster files and price files: what is read, and what is said of what cannot be."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.plans import shape
from headway.errors import HeadwayError, PlanError
from headway.facts.clusterfile import ClusterFile, Rates, read_cluster, write_cluster
from headway.facts.prices import SHIPPED, read_prices
from headway.facts.wanted import HOST_MEMORY_SHARE, wanted_cluster
from headway.plan.estimate import estimate
from headway.plan.setting import Degrees, EstimateRequest

GIB = 1024**3
RATES = Rates(
    precision="bf16",
    matmul_flops=4e14,
    layer_flops=3e14,
    stream_bytes_per_second=1e12,
    copy_bytes_per_second=2e12,
    link_bytes_per_second=2e11,
    host_bytes_per_second=5e10,
)
FILE = ClusterFile(
    name="lab",
    device="cuda",
    device_name="NVIDIA H100 80GB HBM3",
    hosts=2,
    devices_per_host=4,
    device_memory=79 * GIB,
    host_memory=1000 * GIB,
    bf16=True,
    rates=RATES,
)


@pytest.mark.parametrize(
    ("text", "hosts", "devices", "name"),
    [
        ("8xH100-80GB", 1, 8, "H100-SXM5-80GB"),
        ("H100", 1, 1, "H100-SXM5-80GB"),
        ("4x8xA100-40GB", 4, 8, "A100-SXM4-40GB"),
        ("2 x 4 x L40S", 2, 4, "L40S"),
        ("NVIDIA RTX 6000 Ada Generation", 1, 1, "RTX 6000 Ada"),
        ("8xNVIDIA H100 80GB HBM3", 1, 8, "H100-SXM5-80GB"),
        ("64xA100-80GB", 8, 8, "A100-SXM4-80GB"),
        ("1xV100", 1, 1, "V100-SXM2-16GB"),
        ("8xH100-94GB", 1, 8, "H100-NVL-94GB"),
        ("8xA100-40GB-PCIe", 1, 8, "A100-PCIe-40GB"),
        ("8xrtx6000ada", 1, 8, "RTX 6000 Ada"),
        ("2x72xGB200", 2, 72, "GB200"),
    ],
)
def test_machines_by_name(text: str, hosts: int, devices: int, name: str) -> None:
    facts = wanted_cluster(text).facts
    assert (facts.hosts, facts.devices_per_host, facts.device_name) == (hosts, devices, name)
    assert facts.host_memory_bytes == pytest.approx(HOST_MEMORY_SHARE * devices * facts.device_memory_bytes, rel=1e-6)
    assert facts.bf16 == (name != "V100-SXM2-16GB")


def test_host_memory_can_be_said() -> None:
    wanted = wanted_cluster("8xH100", 2048 * GIB)
    assert wanted.facts.host_memory_bytes == 2048 * GIB
    assert wanted.assumed == ()
    assert "--host-memory" in wanted_cluster("8xH100").assumed[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8xH1000", ("is not in the table", "H100", "cluster file")),
        ("12xH100", ("1x8xH100", "2x8xH100", "not a multiple")),
        ("8", ("is no machine", "8xH100-80GB")),
        ("8xH100foo", ("more than a device's name: 'foo'", "write H100-SXM5-80GB")),
        ("8xH100-80GBx", ("'gbx'",)),
        ("x8H100", ("'x'",)),
        ("0xH100", ("has no device",)),
        ("2x0xH100", ("has no device",)),
        ("8xH100-40GB", ("another memory", "H100-SXM5-80GB (79 GiB)", "cluster file")),
        ("4xRTX 4080 Super", ("is not in the table", "RTX 4080")),
        ("8xM4", ("is not in the table", "T4", "L4")),
        ("H100x8", ("is no machine", "then the name")),
        ("nowhere.yaml", ("no such cluster file", "headway calibrate")),
    ],
)
def test_what_is_no_machine(text: str, said: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as caught:
        wanted_cluster(text)
    for part in said:
        assert part in str(caught.value)


def test_a_cluster_file_comes_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    write_cluster(path, FILE)
    assert read_cluster(path) == FILE
    wanted = wanted_cluster(str(path))
    assert wanted.file == FILE
    assert wanted.facts.hosts == 2
    machine = FILE.machine()
    assert machine.devices == 8
    assert machine.device.matmul_flops["bf16"] == 4e14  # measured, in place of the table's
    assert machine.device.link_bytes_per_second == 2e11


def test_a_device_that_no_table_has_needs_rates() -> None:
    own = FILE.model_copy(update={"device_name": "Abacus 9000"})
    assert own.machine().device.matmul_flops["bf16"] == 4e14
    with pytest.raises(PlanError, match="not in the table"):
        own.model_copy(update={"rates": None}).machine()


def test_every_wrong_entry_of_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text("name: lab\ndevice: tpu\ndevice_name: x\ndevices_per_host: 0\nhost_memory: 1 TiB\ncolour: red\n")
    with pytest.raises(PlanError) as caught:
        read_cluster(path)
    places = {problem.key: problem.where for problem in caught.value.problems}
    assert places["device"] == "lab.yaml:2"
    assert places["devices_per_host"] == "lab.yaml:4"
    assert places["colour"] == "lab.yaml:6"
    assert "device_memory" in places


@pytest.mark.parametrize("text", ["", "just text", "- a list"])
def test_a_file_that_holds_no_entries(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    with pytest.raises(HeadwayError) as caught:
        read_cluster(path)
    assert "instance of" not in str(caught.value)
    assert "lab.yaml" in str(caught.value)


def test_sizes_in_a_cluster_file_have_units(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    text = "name: lab\ndevice: cuda\ndevice_name: H100\ndevices_per_host: 8\ndevice_memory: 80 GiB\nhost_memory: 2TiB\n"
    path.write_text(text)
    assert read_cluster(path).device_memory == 80 * GIB
    assert read_cluster(path).host_memory == 2048 * GIB


def test_a_price_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(SHIPPED.read_text().replace("storage_gb_month: 0.023", "storage_gb_month: 0.5"))
    assert read_prices(path).storage_gb_month == 0.5
    path.write_text(SHIPPED.read_text().replace("share_of_price: 0.5", "share_of_price: 5"))
    with pytest.raises(PlanError, match=r"spot\.share_of_price"):
        read_prices(path)
    path.write_text(re.sub(r"low: [\d.]+", "low: 999", SHIPPED.read_text(), count=1))
    with pytest.raises(PlanError, match="must go up: low 999"):
        read_prices(path)
    with pytest.raises(PlanError, match="no such price file"):
        read_prices(tmp_path / "none.yaml")


def test_prices_from_memory_are_marked() -> None:
    devices = read_prices().devices
    assert {name for name, price in devices.items() if price.unchecked} == {"V100-SXM2-32GB"}
    undated = {name for name, price in devices.items() if not price.unchecked and "20" not in price.source}
    assert not undated


def test_a_section_that_is_none_names_its_own_entries(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text("name: lab\nprice: 3\n")
    with pytest.raises(PlanError, match=r"price: holds no entries\n.*with low, usual, high"):
        wanted_cluster(str(path))


@pytest.mark.parametrize(
    ("device", "rates", "has"),
    [
        ("H100-SXM5-80GB", "", True),
        ("V100-SXM2-32GB", "", False),
        ("H100-SXM5-80GB", "bf16: false\n", False),
        ("Abacus 9000", "rates: {precision: bf16, matmul_flops: 4e+14, copy_bytes_per_second: 2e+12}\n", True),
        ("Abacus 9000", "rates: {precision: fp16, matmul_flops: 4e+14, copy_bytes_per_second: 2e+12}\n", False),
    ],
)
def test_bf16_is_what_the_device_has_unless_the_file_says_it(
    tmp_path: Path, device: str, rates: str, has: bool
) -> None:
    path = tmp_path / "lab.yaml"
    sizes = "devices_per_host: 8\ndevice_memory: 79 GiB\nhost_memory: 1 TiB\n"
    path.write_text(f"name: lab\ndevice: cuda\ndevice_name: {device}\n{sizes}{rates}")
    assert wanted_cluster(str(path)).facts.bf16 == has


def test_rates_of_another_precision_do_not_stand_for_fp32() -> None:
    own = FILE.model_copy(update={"device_name": "Abacus 9000"})
    request = EstimateRequest(shape(10**9), own.machine(), Degrees(data=8))
    assert estimate(request).step_seconds > 0
    with pytest.raises(
        PlanError, match=r"no rate of fp32 products is known of Abacus 9000(.|\n)*train\.precision=bf16"
    ):
        estimate(replace(request, precision="fp32"))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            "rates: {precision: bf16, matmul_flops: 400, copy_bytes_per_second: 2e+12}",
            "400 TFLOP/s are written 4.0e+14",
        ),
        ("rates: {precision: bf16, matmul_flops: 4e+14, copy_bytes_per_second: 2000}", "2 TB/s are written 2.0e+12"),
        ("bf16: false\nrates: {precision: bf16, matmul_flops: 4e+14, copy_bytes_per_second: 2e+12}", "one of the two"),
    ],
)
def test_rates_that_cannot_be_meant(tmp_path: Path, entries: str, said: str) -> None:
    path = tmp_path / "lab.yaml"
    sizes = "devices_per_host: 8\ndevice_memory: 79 GiB\nhost_memory: 1 TiB\n"
    path.write_text(f"name: lab\ndevice: cuda\ndevice_name: H100\n{sizes}{entries}\n")
    with pytest.raises(PlanError, match=re.escape(said)):
        wanted_cluster(str(path))
