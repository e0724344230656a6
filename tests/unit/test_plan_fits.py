"""What fits, by how much, on how few devices, and what is said where nothing does: each answer planned again."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

import pytest

from headway.api.outlooks import Inquiry, look_ahead
from headway.cli.page import page
from headway.errors import ModelError, PlanError
from headway.plan.degrees import Asked
from headway.plan.outlook import Outlook, as_json
from headway.plan.schema import Plan
from headway.plan.work import useful_flops_per_token

SHAPES = Path(__file__).parents[2] / "examples" / "shapes"
CLUSTER = (
    "name: lab\ndevice: cuda\ndevice_name: H100-SXM5-80GB\nhosts: 4\ndevices_per_host: 6\n"
    "device_memory: 79.1 GiB\nhost_memory: 2 TiB\n"
)


def ahead(model: str, on: str, *overrides: str, **asked: Any) -> tuple[Plan, Outlook]:
    planned, found = look_ahead(Inquiry(model=model, on=on, overrides=overrides, **asked))
    assert found is not None
    return planned.plan, found


def refused(model: str, on: str, *overrides: str, **asked: Any) -> str:
    with pytest.raises(PlanError) as caught:
        ahead(model, on, *overrides, **asked)
    return str(caught.value)


@pytest.mark.parametrize("model", ["llama-3.1-405b", "deepseek-v3"])
def test_the_fewest_devices_that_are_named_are_the_fewest(model: str) -> None:
    said = refused(model, "8xH100-80GB")
    named = re.findall(r"(zero-3[^;]*) fits on (\d+) devices", said.partition("fix: ")[2])
    assert [("offload" in label) for label, _ in named] == [True, False]
    (label, few), (_, many) = named
    plan, found = ahead(model, f"{few}xH100-80GB")
    assert plan.strategy.label == label.removesuffix(" +activation checkpointing")
    assert found.forecast.fits
    refused(model, f"{int(few) // 2}xH100-80GB")
    plan, _ = ahead(model, f"{many}xH100-80GB")
    assert plan.strategy.label == "zero-3"
    assert int(few) < int(many)


def test_where_nothing_fits_other_degrees_are_advised() -> None:
    long = "train.sequence=131072"
    said = refused("llama-3.1-8b", "8xH100-80GB", long, asked=Asked(context=8))
    assert re.search(r"advice, not in this engine: context 8, .* fits: \d+\.\d of 71\.2 GiB", said)
    assert "fewer processes" not in said  # on a GPU they would need more
    assert "advice, not in this engine: " in refused("llama-3.1-8b", "8xH100-80GB", long)
    assert "one of 1, 2, 4, 8" in refused("llama-3.1-8b", "8xH100-80GB", long, asked=Asked(tensor=3))
    assert "advice" not in refused("llama-3.1-405b", "8xH100-80GB")


def test_a_plan_that_fits_by_less_than_its_band_says_what_leaves_more_room() -> None:
    asked = ("train.length=1B tokens", "train.precision=fp16")
    model, memory = str(SHAPES / "gpt-4b.json"), 120 * 2**30
    plan, found = ahead(model, "V100-16GB", *asked, host_memory_bytes=memory)
    assert found.forecast.fits
    assert found.forecast.high_bytes > plan.cluster.device_memory_bytes
    assert re.match(r"it fits by less than its band, which goes up to \d+\.\d of the device's 15\.8 GiB", found.caution)
    assert escape(found.caution) in page(found)
    assert as_json(found)["caution"] == found.caution
    words = found.caution.rpartition(": ")[2].split()
    plan, roomy = ahead(model, "V100-16GB", *asked, *words, host_memory_bytes=memory)
    assert roomy.forecast.high_bytes <= plan.cluster.device_memory_bytes
    assert roomy.caution == ""


def test_a_plan_with_room_says_nothing_of_it() -> None:
    assert ahead("gpt2", "8xH100-80GB")[1].caution == ""


def test_of_a_plan_that_does_not_fit_the_verdict_names_one_that_does() -> None:
    plan, found = ahead("llama-3.1-8b", "8xH100-80GB", "strategy=ddp")
    assert plan.strategy.label == "ddp"
    assert not found.forecast.fits
    assert found.verdict.startswith("what is planned does not fit; ")
    _, other = ahead("llama-3.1-8b", "8xH100-80GB", *found.verdict.rpartition(": ")[2].split())
    assert other.forecast.fits


def test_the_smallest_cluster_of_hosts_of_six(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(CLUSTER)
    offloaded = ("strategy=zero-3", "strategy.offload.optimizer=cpu")
    _, found = ahead("llama-3.1-405b", str(path), *offloaded)
    assert found.smallest is not None
    hosts = found.smallest.hosts
    assert (found.smallest.devices, hosts > 4) == (6 * hosts, True)
    scan = ahead(
        "llama-3.1-405b", str(path), "strategy=zero-3", "strategy.offload.optimizer=cpu", hosts=(hosts - 1, hosts)
    )
    assert [scale.forecast is not None for scale in scan[1].scales] == [False, True]


@pytest.mark.parametrize(
    ("overrides", "peak"),
    [
        ([], 989.4e12),
        (["train.precision=fp32", "train.tf32=true"], 494.7e12),
        (["adapter.kind=lora"], 989.4e12),
    ],
)
def test_utilisation_is_what_a_run_calls_so(overrides: list[str], peak: float) -> None:
    """Of the peak of the precision that computes, and of the operations that `headway.train.reporter` counts."""
    plan, found = ahead("llama-3.2-1b", "8xH100-80GB", *overrides)
    rate = found.forecast.tokens_per_second / 8
    counted = rate * useful_flops_per_token(plan.shape, plan.data.sequence) / peak
    assert found.forecast.mfu == pytest.approx(counted, rel=0.01)
    assert found.forecast.mfu < 0.8
    assert plan.cluster.matmul_flops == pytest.approx(peak, rel=0.01)


def test_experts_that_a_token_does_not_pass_through_do_no_work() -> None:
    plan, _ = ahead("mixtral-8x7b", "4x8xH100-80GB")
    assert plan.shape.experts is not None
    active = plan.shape.parameters - plan.shape.experts.idle_parameters
    assert useful_flops_per_token(plan.shape, 1) == pytest.approx(6 * active, rel=0.02)


def test_a_group_of_zero_plus_plus_divides_the_ranks() -> None:
    said = refused("llama-3.1-8b", "2x8xH100-80GB", "strategy=zero-3", "strategy.secondary_partition=7")
    assert "strategy.secondary_partition = 7: must divide the 16 processes" in said
    assert "one of 1, 2, 4, 8, 16" in said
    ahead("llama-3.1-8b", "2x8xH100-80GB", "strategy=zero-3", "strategy.secondary_partition=64")  # as one of 16


def test_a_model_alone_is_held_to_its_positions_and_its_task() -> None:
    for model, longest in (("gpt2", 1024), ("opt-125m", 2048)):
        with pytest.raises(ModelError, match=rf"learned positions for {longest} tokens"):
            ahead(model, "8xH100-80GB", "train.sequence=4096")
    plan, _ = ahead("bert-base-uncased", "8xH100-80GB")
    assert "task=classification" in plan.reasons["notes.0"]
    plan, _ = ahead("bert-base-uncased", "8xH100-80GB", "task=classification")
    assert "notes.0" not in plan.reasons
    assert plan.numerics.loss_chunk_tokens == 0


def test_what_would_change_nothing_is_refused(tmp_path: Path) -> None:
    said = ""
    try:
        look_ahead(Inquiry(model="gpt2", host_memory_bytes=2**40, asked=Asked(tensor=2), hosts=(1, 2)))
    except PlanError as error:
        said = str(error)
    for part in ("--host-memory", "--tensor", "--nodes"):
        assert part in said
    path = tmp_path / "lab.yaml"
    path.write_text(CLUSTER)
    plan, _ = ahead("gpt2", str(path), host_memory_bytes=100 * 2**30)
    assert plan.cluster.host_memory_bytes == 100 * 2**30


def test_fillers_are_said_where_the_batch_is() -> None:
    from headway.plan.explain import summary_rows

    plan, _ = ahead("gpt2", "4x8xH100-80GB", "train.global_batch=16 sequences", "train.length=100 steps")
    (row,) = [row for row in summary_rows(plan) if row[0].startswith("micro batch")]
    assert "16 of 32 places hold a filler" in row[2]


def test_a_process_of_a_cpu_that_was_not_measured_computes_with_its_threads(tmp_path: Path) -> None:
    def products(cores: int) -> float:
        path = tmp_path / "cpu.yaml"
        sizes = "device_memory: 64 GiB\nhost_memory: 64 GiB\n"
        path.write_text(f"name: it\ndevice: cpu\ndevice_name: a CPU\ndevices_per_host: {cores}\n{sizes}")
        plan, found = ahead("pythia-70m", str(path), "train.length=10 steps", "train.global_batch=8 sequences")
        assert (plan.launch.processes, plan.launch.threads) == (2, cores // 2)
        return next(item.seconds for item in found.forecast.times if item.name == "matrix products")

    assert products(2) > 4 * products(16)  # of eight: the rest waits for memory


def exchanged(on: str, *overrides: str) -> float:
    """Seconds of a step, exposed and hidden, in which parameters and gradients are on their way."""
    _, found = ahead("llama-3.1-70b", on, "train.length=1B tokens", "train.micro_batch=1", *overrides)
    return sum(item.seconds + item.hidden_seconds for item in found.forecast.times if item.name == "data parallel")


def test_what_is_quantised_on_its_way_takes_less_of_it() -> None:
    """ZeRO++ (Wang et al. 2023, table 1) sends 0.75 of three times the parameters, with all of its parts."""
    stage = ("8x8xA100-80GB", "strategy=zero-3", "train.activation_checkpointing=true")
    plain = exchanged(*stage)
    weights, gradients = (f"strategy.quantized_{what}=true" for what in ("weights", "gradients"))
    for one in (weights, gradients, "strategy.secondary_partition=8"):
        assert exchanged(*stage, one) < 0.97 * plain
    assert exchanged(*stage, weights, gradients, "strategy.secondary_partition=8") < 0.5 * plain


def test_compressed_gradients_take_half_of_the_way() -> None:
    asked = ("2x8xA100-80GB", "strategy=ddp", "adapter.kind=lora", "train.activation_checkpointing=true")
    assert exchanged(*asked, "strategy.gradient_compression=bf16") == pytest.approx(0.5 * exchanged(*asked), rel=0.1)
