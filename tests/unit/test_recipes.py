"""Every run file in the tree is read and planned, on the machines that it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.plans import A100_8, LAPTOP, facts_of
from fakes.recipes import ROOT, lay_out
from headway.api import preparing
from headway.api.outlooks import Inquiry, look_ahead
from headway.check.checks import run_checks
from headway.config.load import load_run
from headway.errors import PlanError
from headway.facts.schema import ClusterFacts
from headway.plan.make import make_plan
from headway.plan.memory import used_bytes
from headway.plan.schema import Plan

RECIPES = sorted(path.relative_to(ROOT) for path in (ROOT / "recipes").glob("*.yaml"))
OWN_MODULE = Path("examples/own_module/run.yaml")
ONE_GPU = A100_8.model_copy(update={"devices_per_host": 1})
ONE_CORE = LAPTOP.model_copy(update={"devices_per_host": 1})
MACHINES = {"a laptop": LAPTOP, "one core": ONE_CORE, "one GPU": ONE_GPU, "eight GPUs": A100_8}
NEEDS_PRETRAINED = {"smollm2-sft-lora", "smollm2-sft-full", "minilm-classification"}


def planned(path: Path, cluster: ClusterFacts) -> Plan:
    run = load_run(path)
    return make_plan(run, facts_of(run, cluster))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("recipes"))


def test_there_are_recipes() -> None:
    assert {path.stem for path in RECIPES} >= {"quickstart", "dpo", *NEEDS_PRETRAINED}


@pytest.mark.usefixtures("probe_here")
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("recipe", [*RECIPES, OWN_MODULE], ids=lambda path: path.stem)
def test_every_recipe_has_a_plan_that_fits_its_machine(
    place: Path, recipe: Path, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MACHINES[machine]
    if recipe == OWN_MODULE and machine != "a laptop":
        pytest.skip("asks for two processes")
    monkeypatch.setattr(preparing, "probe_cluster", lambda device: cluster)
    monkeypatch.chdir(place)
    if recipe.stem == "sft-qlora":
        monkeypatch.setattr(preparing, "require_extra", lambda room, kind: None)  # planned with and without it
        if cluster.device == "cpu":
            with pytest.raises(PlanError, match="is for GPUs only"):
                preparing.plan_run((loaded := preparing.load(recipe, ())), preparing.look_at_data(loaded))
            return
    # Two published DeepSpeed files ask for fp16, which no CPU trains: the one word that they need there.
    overrides = ["train.precision=fp32"] if cluster.device == "cpu" and recipe.stem.endswith("-json") else []
    loaded = preparing.load(recipe, overrides)
    plan = preparing.plan_run(loaded, preparing.look_at_data(loaded))
    assert plan.launch.device == cluster.device
    assert plan.launch.processes <= cluster.devices_per_host
    assert used_bytes(plan.memory, plan.cluster) <= plan.memory.device_limit_bytes
    assert plan.schedule.steps >= 1


@pytest.mark.parametrize(
    ("cluster", "processes", "precision"),
    [(LAPTOP, 2, "fp32"), (ONE_CORE, 1, "fp32"), (ONE_GPU, 1, "bf16"), (A100_8, 8, "bf16")],
)
def test_the_quickstart_fits_every_machine(cluster: ClusterFacts, processes: int, precision: str) -> None:
    """Two processes on a CPU, or every GPU that there is."""
    plan = planned(ROOT / "recipes" / "quickstart.yaml", cluster)
    assert plan.strategy.label == "zero-2"
    assert (plan.launch.processes, plan.launch.device, plan.numerics.precision) == (
        processes,
        cluster.device,
        precision,
    )
    assert plan.batch.global_sequences == 16


def test_recipes_of_pretrained_models_say_what_they_are(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "probe_cluster", lambda device: LAPTOP)
    monkeypatch.chdir(place)
    names = ("smollm2-sft-lora", "smollm2-sft-full", "minilm-classification")
    runs = [preparing.load(Path("recipes") / f"{name}.yaml", ()) for name in names]
    plans = [preparing.plan_run(run, preparing.look_at_data(run)) for run in runs]
    lora, full, classifier = plans
    assert lora.adapter is not None
    assert lora.shape.trainable_parameters == 4_884_480  # 16 x (in + out) of the seven layers of 30 blocks
    assert full.adapter is None
    assert full.shape.parameters == full.shape.trainable_parameters == 134_515_008
    assert [plan.task.kind for plan in plans] == ["instruction", "instruction", "classification"]
    assert classifier.model.fresh_head
    assert {plan.strategy.label for plan in plans} == {"zero-2"}
    assert all(run_checks(plan, None, place).ok for plan in plans)


def test_a_recipe_for_a_gpu_is_planned_for_one_elsewhere_without_its_packages(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(room: str, kind: str) -> None:
        raise AssertionError(f"{room} {kind} must be installed on the other machine, not here")

    monkeypatch.setattr(preparing, "require_extra", refuse)
    monkeypatch.chdir(place)
    planned, found = look_ahead(Inquiry(file=Path("recipes/sft-qlora.yaml"), on="1xA100-80GB"))
    assert planned.plan.adapter is not None
    assert planned.plan.adapter.quantization == "nf4"
    assert found is not None
