"""`headway plan` on machines that are not here: families, reasons, sizes, degrees, the page, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.plans import A100_8, shape
from headway.api.outlooks import Inquiry, look_ahead
from headway.cli.main import main
from headway.cli.page import page
from headway.errors import ModelError, PlanError, Problem
from headway.facts.hardware import machine_of
from headway.plan.degrees import Asked, check, remarks
from headway.plan.outlook import Outlook, as_json
from headway.plan.schema import Plan

CASES = Path(__file__).parents[1] / "cases"

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
# 405 B parameters.
LARGE = LLAMA | {
    "vocab_size": 128256,
    "hidden_size": 16384,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "intermediate_size": 53248,
}


@pytest.fixture
def llama(tmp_path: Path) -> str:
    return written(tmp_path, LLAMA)


def written(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def ahead(model: str, on: str, *overrides: str, **asked: Any) -> tuple[Plan, Outlook]:
    planned, found = look_ahead(Inquiry(model=model, on=on, overrides=overrides, **asked))
    assert found is not None
    return planned.plan, found


def test_every_family_has_its_best_setting_or_its_reason(llama: str) -> None:
    _, found = ahead(llama, "8xH100-80GB")
    assert [candidate.family for candidate in found.candidates] == [
        "ddp", "zero-1", "zero-2", "zero-3",
        "zero-2 +offload(optimizer)", "zero-3 +offload(optimizer)", "zero-3 +offload(optimizer, parameters)",
    ]  # fmt: skip
    ddp = found.candidates[0]
    assert re.fullmatch(r"\d+\.\d of \d+\.\d GiB; [a-z0-9 -]+ \d+\.\d", ddp.reason), ddp.reason
    for candidate in found.candidates[1:]:
        assert candidate.fits, candidate.reason
        assert candidate.forecast.device_bytes == sum(item.device_bytes for item in candidate.forecast.items)
        assert candidate.plan.batch.slots == candidate.plan.batch.global_sequences
    slowest = found.candidates[-1].forecast.tokens_per_second
    assert slowest < 0.95 * found.candidates[3].forecast.tokens_per_second  # the update waits for the host


def test_ddp_is_enough_for_a_small_model(tmp_path: Path) -> None:
    small = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "intermediate_size": 2816}
    plan, found = ahead(written(tmp_path, LLAMA | small), "8xA100-80GB")
    assert plan.strategy.kind == "ddp"
    assert found.verdict.startswith("DDP is enough")


def test_autocast_makes_a_written_out_gelu_slow(tmp_path: Path) -> None:
    """GPT-2's has a power, which autocast takes in fp32; DeepSpeed's 16-bit weights need no autocast."""
    plan, found = ahead(written(tmp_path, GPT2), "8xA100-80GB")
    assert plan.strategy.kind == "ddp"
    assert found.verdict.startswith("zero-1")


def test_time_and_money_follow_from_the_steps(llama: str) -> None:
    plan, found = ahead(llama, "2x8xH100-80GB", "train.length=10B tokens")
    assert plan.launch.processes == 16
    tokens = plan.schedule.steps * plan.batch.global_sequences * plan.data.sequence
    assert found.days * 86400 == pytest.approx(tokens / found.forecast.tokens_per_second)
    assert sum(item.seconds for item in found.forecast.times) == pytest.approx(found.forecast.step_seconds)
    demand = found.bills[0]
    assert demand.usual == pytest.approx(demand.wall_seconds / 3600 * 16 * demand.device_hour + demand.storage)
    assert found.storage.save_seconds == pytest.approx(found.storage.checkpoint_bytes / 2e9 / 2)


def test_sizes_of_the_cluster(llama: str) -> None:
    _, found = ahead(llama, "4x8xH100-80GB", "strategy=zero-3", hosts=(2, 4, 8))
    rates = [scale.forecast.tokens_per_second for scale in found.scales if scale.forecast]
    assert len(rates) == 3
    assert rates == sorted(rates)
    assert found.scales[0].efficiency == 1.0
    assert all(0.3 < scale.efficiency <= 1.001 for scale in found.scales)
    assert found.smallest is not None
    assert found.smallest.devices <= 8


def test_405_billion_parameters_on_four_thousand_gpus_without_torch(tmp_path: Path) -> None:
    code = "\n".join([
        "import sys, headway.cli.main as cli",
        f"code = cli.main(['plan', '--model', {written(tmp_path, LARGE)!r}, '--on', '512x8xH100-80GB', '--json'])",
        "heavy = {'torch', 'transformers', 'deepspeed'} & set(sys.modules)",
        "sys.exit(code or len(heavy))",
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert answer["plan"]["shape"]["parameters"] == pytest.approx(405e9, rel=0.01)
    assert answer["plan"]["launch"]["processes"] == 4096
    families = {each["family"]: each for each in answer["outlook"]["candidates"]}
    assert not families["ddp"]["fits"]
    assert families["zero-3"]["fits"]


def test_nothing_fits_says_what_would(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        ahead(written(tmp_path, LARGE), "1xT4")
    for part in ("fits no strategy", "zero-3", "GiB", "fix:"):
        assert part in str(caught.value)


def test_a_model_without_its_numbers_says_which(tmp_path: Path) -> None:
    short = {key: value for key, value in LLAMA.items() if key not in ("hidden_size", "num_hidden_layers")}
    with pytest.raises(ModelError, match="hidden_size, num_hidden_layers"):
        ahead(written(tmp_path, short), "8xH100")
    with pytest.raises(ModelError, match="model_type"):
        ahead(written(tmp_path, {"hidden_size": 5}), "8xH100")


def test_degrees_are_advice_and_must_be_legal(llama: str) -> None:
    _, found = ahead(llama, "2x8xH100", asked=Asked(tensor=4, pipeline=2))
    assert found.advice is not None
    assert (found.advice.degrees.tensor, found.advice.degrees.pipeline, found.advice.degrees.data) == (4, 2, 2)
    assert as_json(found)["advice"]["engine_has_it"] is False
    with pytest.raises(PlanError) as caught:
        ahead(llama, "2x8xH100", asked=Asked(tensor=3, pipeline=5))
    problems = {problem.key: problem for problem in caught.value.problems}
    assert problems["--tensor"].fix == "one of 1, 2, 4, 8"
    assert problems["--pipeline"].fix.startswith("one of 1, 2, 4, 8, 16; the model alone allows")
    with pytest.raises(PlanError, match="must divide the 8 devices"):
        ahead(llama, "8xH100", asked=Asked(tensor=8, pipeline=8))


def test_pln_03_degrees_that_do_not_divide_say_both_numbers_and_what_is_legal() -> None:
    heads, shared, vocabulary, layers = json.loads((CASES / "pln-03" / "plan.json").read_text())
    eight = machine_of(A100_8)

    def refused(asked: Asked, **model: int) -> Problem:
        with pytest.raises(PlanError) as caught:
            check(asked, shape(10**9).model_copy(update=model), eight, 2048)
        (problem,) = caught.value.problems
        return problem

    found = refused(Asked(tensor=heads["tp"]), heads=heads["heads"], kv_heads=heads["heads"])
    assert (found.value, "the 25 key and value heads" in found.rule) == (2, True)
    assert found.fix == f"one of 1; the model alone allows {', '.join(map(str, heads['legal']))}"
    found = refused(Asked(tensor=shared["tp"]), heads=shared["heads"], kv_heads=shared["kv_heads"])
    assert (found.value, found.fix) == (8, "one of 1, 2, 4")
    assert "4 key and value heads (of 28 heads)" in found.rule
    found = refused(Asked(pipeline=layers["pp"]), layers=layers["layers"])
    assert (found.value, found.fix) == (4, "one of 1, 2; the model alone allows 1, 2, 3, 6")
    assert "6 layers" in found.rule
    (said,) = remarks(Asked(tensor=vocabulary["tp"]), shape(10**9).model_copy(update={"vocab": vocabulary["vocab"]}))
    assert f"model.config.vocab={vocabulary['padded']}" in said
    assert remarks(Asked(tensor=7), shape(10**9).model_copy(update={"vocab": 301})) == ()


def test_the_page_holds_everything_and_asks_no_one(llama: str) -> None:
    _, found = ahead(llama, "8xH100-80GB", hosts=(1, 2, 4))
    text = page(found)
    for candidate in found.candidates:
        assert candidate.family in text
    for part in ("Memory by strategy", "time goes", "polyline", "on demand", found.verdict, found.candidates[0].reason):
        assert part in text
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    hostile = replace(found, plan=found.plan.model_copy(update={"name": "<script>alert(1)</script>"}))
    assert "<script>" not in page(hostile)


def test_the_command_prints_each_section(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.html"
    assert main(["plan", "--model", llama, "--on", "4x8xH100", "strategy=zero-3", "--html", str(target)]) == 0
    out = capsys.readouterr().out
    for part in ("memory of one device", "memory of a host", "time of one step", "MFU", "on demand", "spot",
                 "alternatives", "the smallest that fits", "one more host", "assumed:", "Daly 2006"):  # fmt: skip
        assert part in out, part
    assert target.read_text().startswith("<!doctype html>")
    assert main(["plan", "--model", llama, "--on", "8xH100", "--explain", "batch.micro_batch"]) == 0
    assert capsys.readouterr().out.startswith("batch.micro_batch = ")


def test_a_known_model_needs_no_folder() -> None:
    plan, found = look_ahead(Inquiry(model="meta-llama/Llama-3.1-8B-Instruct", on="8xH100"))
    assert plan.plan.shape.parameters == 8_030_261_248
    assert found is not None
    assert found.forecast.step_seconds > 0
    with pytest.raises(ModelError, match=r"or a known model: .*llama-3\.1-8b"):
        look_ahead(Inquiry(model="lama-3.1-8b", on="8xH100"))


def test_a_base_in_4_bits_is_partitioned_where_no_device_holds_it() -> None:
    plan, _ = look_ahead(Inquiry(model="llama-3.1-70b", on="1xA100-80GB", overrides=("adapter=qlora",)))
    assert plan.plan.strategy.kind == "single"
    plan, found = look_ahead(Inquiry(model="llama-3.1-70b", on="4xA100-40GB", overrides=("adapter=qlora",)))
    assert plan.plan.strategy.label == "zero-3"
    assert found is not None
    assert {candidate.family: candidate.fits for candidate in found.candidates}["zero-2"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs a run file, or --model"),
        (["run.yaml", "--model", "x"], "not both"),
        (["run.yaml", "--nodes", "many"], "no range of hosts"),
        (["run.yaml", "--nodes", "0..3"], "no range of hosts"),
        (["--model", "nowhere/config.json", "--on", "8xH100"], "nowhere"),
        (["run.yaml", "--host-memory", "much"], "must be a size"),
    ],
)
def test_what_the_command_refuses(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) in (2, 3)
    assert said in capsys.readouterr().err


def test_hosts_of_cpus_are_not_scanned(tmp_path: Path, llama: str) -> None:
    path = tmp_path / "farm.yaml"
    sizes = "device_memory: 512 GiB\nhost_memory: 512 GiB\n"
    path.write_text(f"name: farm\ndevice: cpu\ndevice_name: a CPU\nhosts: 4\ndevices_per_host: 64\n{sizes}")
    with pytest.raises(PlanError, match=r"launch\.processes"):
        look_ahead(Inquiry(model=llama, on=str(path), hosts=(1, 2)))


def test_a_learnt_factor_is_said_to_be_one_for_all(tmp_path: Path, llama: str) -> None:
    path = tmp_path / "lab.yaml"
    learned = "learned: {runs: [run-a], step_time: 1.5, memory: 1.1}\n"
    sizes = "device_memory: 79 GiB\nhost_memory: 1 TiB\nbf16: true\n"
    path.write_text(f"name: lab\ndevice: cuda\ndevice_name: H100\ndevices_per_host: 8\n{sizes}{learned}")
    _, plain = ahead(llama, "8xH100-80GB")
    _, found = ahead(llama, str(path))
    assert any("run-a" in text and "every strategy" in text for text in found.assumed)
    assert not any("learnt" in text for text in plain.assumed)


def test_a_price_from_memory_is_marked_where_it_is_used(tmp_path: Path) -> None:
    model = written(tmp_path, GPT2)
    assert ahead(model, "8xV100-32GB")[1].priced.startswith("UNCHECKED")
    assert "UNCHECKED" not in ahead(model, "8xH100-80GB")[1].priced


def test_a_model_alone_takes_an_adapter_and_a_task(llama: str) -> None:
    whole, _ = ahead(llama, "8xH100-80GB")
    lora, found = ahead(llama, "8xH100-80GB", "adapter.kind=lora", "adapter.rank=16")
    assert lora.shape.adapter is not None
    assert lora.shape.trainable_parameters < 0.02 * whole.shape.trainable_parameters
    assert lora.strategy.kind == "ddp"
    assert found.forecast.fits
    labels, _ = ahead(llama, "8xH100-80GB", "task=classification")
    assert labels.shape.embedding_parameters < 0.6 * whole.shape.embedding_parameters


def test_a_fixed_strategy_that_does_not_fit_ends_with_the_code_of_a_red_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "--model", written(tmp_path, LARGE), "--on", "8xH100-80GB"]
    assert main([*words, "strategy=zero-2"]) == 4
    assert "DOES NOT FIT" in capsys.readouterr().out


def test_more_devices_than_sequences_are_no_use(tmp_path: Path) -> None:
    plan, found = ahead(written(tmp_path, GPT2), "8xH100-80GB", hosts=(1, 4096))
    assert plan.batch.global_sequences < 4096 * 8
    assert found.scales[0].forecast is not None
    assert found.scales[1].forecast is None
    assert "fewer than the devices" in found.scales[1].reason


def test_how_weights_are_stored_changes_a_note_alone(tmp_path: Path, llama: str) -> None:
    plan, _ = ahead(llama, "8xH100-80GB")
    (tmp_path / "stored").mkdir()
    stored = LLAMA | {"quantization_config": {"quant_method": "fp8"}}
    quantised, found = ahead(written(tmp_path / "stored", stored), "8xH100-80GB")
    assert "note: the config says that the weights are quantised (fp8)" in page(found)
    assert quantised.memory == plan.memory
    assert any("quantised (fp8)" in reason for key, reason in quantised.reasons.items() if key.startswith("notes."))


def test_the_task_of_a_model_alone_is_known_before_its_shape(llama: str) -> None:
    causal, _ = ahead(llama, "8xH100-80GB")
    labels, _ = ahead(llama, "8xH100-80GB", "task.kind=classification")
    assert causal.shape.parameters - labels.shape.parameters == 32000 * 4096 - 2 * 4096


def test_an_empty_key_explains_nothing(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", llama, "--on", "8xH100", "--explain", ""]) == 2
    assert "no value ''" in capsys.readouterr().err
