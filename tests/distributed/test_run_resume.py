"""A run that was killed and resumed is the run that never stopped: to the last bit on the same ranks and strategy,
within rounding on others, in the same order of samples.

Real ranks, the whole way: run file, plan, launcher, worker, checkpoint. Each broken run dies in the middle of step 5,
between two backward passes, and goes on from the checkpoint of step 3.
"""

from __future__ import annotations

import json
import signal
from itertools import chain

import pytest

from fakes.jobs import wait_for
from fakes.runs import (
    BROKEN,
    EVERY,
    GLOBAL_BATCH,
    SECONDS,
    STEPS,
    Run,
    Straight,
    Workplace,
    end_of,
    run_file,
    strategy_of,
)
from headway.data.order import window_at
from headway.errors import CheckpointError
from headway.plan.schedule import table

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

# Other ranks and other strategies take sums in another order.
LOSS_BOUND = 5e-6  # measured: at most 2e-7, over the 5 steps after the resume
WEIGHT_BOUND = 5e-5  # measured: at most 3e-6, at a learning rate of 1e-2


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def straight(workplace: Workplace) -> Straight:
    return Straight(workplace)


def require_equal(resumed: Run, straight: Run) -> None:
    """Everything that was learnt and measured, to the last bit."""
    assert resumed.losses() == straight.losses()
    assert [m["grad_norm"] for m in resumed.metrics()] == [m["grad_norm"] for m in straight.metrics()]
    assert resumed.evaluations() == straight.evaluations()
    assert resumed.state() == straight.state()
    assert resumed.events("done")[-1]["differences"] == []


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        *((strategy, "fp32") for strategy in ("ddp", "zero-1", "zero-2", "zero-3", "zero-2+optimizer", "zero-3+both")),
        ("zero-2", "bf16"),
    ],
)
def test_a_killed_rank_leaves_no_trace(strategy: str, precision: str, workplace: Workplace, straight: Straight) -> None:
    name = f"{strategy}-{precision}".replace("+", "-")
    watch = workplace.watch(name)
    watch.plant("kill")
    content = run_file(strategy, task=watch.task, train={"precision": precision})
    broken = workplace.headway("train", workplace.write(name, content), "--name", name)
    run = workplace.run(name)
    assert broken.code == 5
    assert "rank 1 failed first: killed by SIGKILL" in broken.err
    assert run.ranks_alive() == []
    assert list(run.losses()) == list(range(1, BROKEN))
    assert run.checkpoints() == [f"step-{EVERY:08d}"]

    watch.heal()
    workplace.headway("resume", run.path).expect(0)
    assert run.events("resumed")[-1]["step"] == EVERY
    require_equal(run, straight.of(strategy, precision))


def test_a_killed_job_leaves_no_trace(workplace: Workplace, straight: Straight) -> None:
    """The launcher too: its ranks end with it, and the run is known to have crashed."""
    watch = workplace.watch("job")
    watch.plant("hold")
    path = workplace.write("job", run_file("zero-2", task=watch.task))
    launcher = workplace.start(workplace.command("train", path, "--name", "job"))
    try:
        wait_for(lambda: watch.held() or launcher.poll() is not None, "the rank to reach the step", SECONDS)
    finally:
        launcher.kill()
        ended = end_of(launcher)
    ended.expect(-signal.SIGKILL)
    run = workplace.run("job")
    wait_for(lambda: not run.ranks_alive(), "the ranks to end", SECONDS)
    assert "crashed" in workplace.headway("show", run.path).expect(0).out

    watch.heal()
    workplace.headway("resume", run.path).expect(0)
    require_equal(run, straight["zero-2"])


def test_a_finished_run_goes_on_only_if_it_is_made_longer(workplace: Workplace, straight: Straight) -> None:
    run = straight["ddp"].copy("longer")
    ended = workplace.headway("resume", run.path).expect(CheckpointError.exit_code)
    assert f"is complete: {STEPS} of {STEPS} steps" in ended.err
    workplace.headway("resume", run.path, f"train.length={STEPS + 2} steps").expect(0)
    assert {step: run.losses()[step] for step in range(1, STEPS + 1)} == straight["ddp"].losses()
    assert sorted(run.losses()) == list(range(1, STEPS + 3))
    assert [line["lr"] for line in run.metrics()[STEPS:]] == table(run.plan().schedule)[STEPS:]


class Elsewhere:
    """Runs without dropout, so that the losses do not depend on the number of ranks: one whole, two broken."""

    def __init__(self, workplace: Workplace):
        self.workplace = workplace
        self.watch = workplace.watch("elsewhere")
        self.straight, self.windows = self._train("zero-2", "elsewhere", 0)
        self.broken: dict[str, Run] = {}
        self.windows_before: dict[str, list[list[int]]] = {}

    def _train(self, strategy: str, name: str, code: int) -> tuple[Run, list[list[int]]]:
        model = run_file(strategy)["model"]
        model["config"]["dropout"] = 0.0
        run = self.workplace.train(name, run_file(strategy, model=model, task=self.watch.task), code=code)
        windows = self.watch.windows() if code == 0 else []
        self.watch.heal()
        return run, windows

    def broken_copy(self, strategy: str, name: str) -> Run:
        if strategy not in self.broken:
            self.watch.plant("kill")
            self.broken[strategy], _ = self._train(strategy, f"{strategy}-broken", 5)
        return self.broken[strategy].copy(name)


@pytest.fixture(scope="module")
def elsewhere(workplace: Workplace) -> Elsewhere:
    return Elsewhere(workplace)


def test_each_step_reads_its_positions_once(elsewhere: Elsewhere) -> None:
    plan = elsewhere.straight.plan()
    assert EVERY * GLOBAL_BATCH < plan.facts.train_windows < STEPS * GLOBAL_BATCH  # it goes on into a second epoch
    expected = [window_at(plan.numerics.seed, p, plan.facts.train_windows) for p in range(STEPS * GLOBAL_BATCH)]
    assert list(chain(*elsewhere.windows)) == expected


@pytest.mark.parametrize(
    ("before", "ranks", "override"),
    [
        ("zero-2", 1, "launch.processes=1"),
        ("zero-3", 3, "launch.processes=3"),
        ("zero-3", 2, "strategy=ddp"),
        ("zero-2", 2, f"strategy={json.dumps(strategy_of('zero-3+both'))}"),
    ],
    ids=["zero-2-on-1-rank", "zero-3-on-3-ranks", "zero-3-to-ddp", "zero-2-to-zero-3-offload"],
)
def test_a_run_goes_on_elsewhere(
    before: str, ranks: int, override: str, elsewhere: Elsewhere, request: pytest.FixtureRequest
) -> None:
    run = elsewhere.broken_copy(before, request.node.callspec.id)
    elsewhere.workplace.headway("resume", run.path, override).expect(0)
    windows = elsewhere.watch.windows(ranks)
    elsewhere.watch.heal()

    assert windows == elsewhere.windows[EVERY:]
    assert run.plan().launch.processes == ranks
    expected = elsewhere.straight
    differences = [abs(loss - expected.losses()[step]) for step, loss in run.losses().items()]
    apart = {name: float((w - run.weights()[name]).abs().max()) for name, w in expected.weights().items()}
    print(f"losses within {max(differences):.1e}, weights within {max(apart.values()):.1e}")
    assert len(differences) == STEPS
    assert max(differences) < LOSS_BOUND
    assert max(apart.values()) < WEIGHT_BOUND
    assert [e["text"] for e in run.events("notice") if "the plan changed" in e["text"]]
    assert run.events("done")[-1]["differences"] == []


def test_sources_keep_their_weights_over_a_kill(workplace: Workplace) -> None:
    """Two sources, 3 to 1 in windows: the run that was killed reads what the straight one read, and counts it so."""
    data = {"train": [{"path": "corpus/0*.txt", "weight": 0.75}, {"path": "corpus/1*.txt", "weight": 0.25}]}
    straight = workplace.train("mixed-straight", run_file("ddp", data=data))
    watch = workplace.watch("mixed")
    watch.plant("kill")
    path = workplace.write("mixed", run_file("ddp", data=data, task=watch.task))
    workplace.headway("train", path, "--name", "mixed").expect(5)
    run = workplace.run("mixed")
    watch.heal()
    workplace.headway("resume", run.path).expect(0)
    require_equal(run, straight)
    counted = [event["sources"] for event in run.events("checkpoint")]
    assert counted[-1] == straight.events("checkpoint")[-1]["sources"]
    assert sum(counted[-1].values()) == run.events("done")[-1]["tokens"]
    with run.newest() as reader:
        written = reader.document("sources.json")
    assert written == {"position": STEPS * GLOBAL_BATCH, "tokens": counted[-1]}
    assert "tokens by source" in workplace.headway("show", run.path).out
    other = workplace.headway("resume", run.path, "train.length=9 steps", "data.train.weight=0.5").expect(2)
    assert "data.train" in other.err
