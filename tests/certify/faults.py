"""Which claim must catch which planted fault, and under which plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fakes.plans import LAPTOP, SMALL, plan_of
from headway.certify.judge import judge
from headway.certify.run import evidence_of, make_runs, open_workshop
from headway.certify.schema import Claim
from headway.plan.schema import Plan

NAMES = {
    1: "gradients",
    2: "batch invariance",
    3: "effect",
    4: "resume",
    5: "reshape",
    6: "export",
    7: "tables",
    8: "plan",
}
DDP, ZERO_2, ZERO_3 = "strategy=ddp", "strategy=zero-2", "strategy=zero-3"
OFFLOAD = f"strategy={json.dumps({'kind': 'zero-2', 'offload': {'optimizer': 'cpu'}})}"
UNEVEN = "train.global_batch=13 sequences"  # does not divide: fillers stand in
COMPILE = "train.compile=true"
RAGGED = "data.packing=false"  # each document a window of its own length


@dataclass(frozen=True)
class Fault:
    """`plant`: a function of tests.certify.plants; `claim`: the one that must fail; `words`: overrides of the plan."""

    plant: str
    claim: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.claim}-{self.plant}"


FAULTS = (
    Fault("loss_divided_by_ranks_twice", 1, (DDP,)),
    Fault("mean_of_means", 1, (DDP, RAGGED)),
    Fault("gradients_divided_by_accumulation_again", 1, (ZERO_2,)),
    Fault("a_micro_batch_is_lost", 1, (OFFLOAD,)),
    Fault("clipped_by_the_largest_gradient", 1, (DDP,)),
    Fault("mean_of_means", 2, (DDP, RAGGED)),
    Fault("padding_is_counted", 2, (DDP, UNEVEN)),
    Fault("rows_see_each_other", 2, (DDP,)),
    Fault("activation_checkpointing_is_dropped", 3, (DDP, "train.activation_checkpointing=true")),
    Fault("activation_checkpointing_is_dropped", 3, (ZERO_3, "train.activation_checkpointing=true")),
    Fault("compile_is_dropped", 3, (DDP, COMPILE)),
    Fault("stage_is_1", 3, (ZERO_2,)),
    Fault("clipping_is_dropped", 3, (ZERO_2,)),
    Fault("offload_is_dropped", 3, (OFFLOAD,)),
    Fault("buckets_hold_everything", 3, (ZERO_2,)),
    Fault("random_state_is_not_restored", 4, (ZERO_2,)),
    Fault("data_is_off_by_a_micro_batch", 4, (DDP,)),
    Fault("moments_are_not_restored", 4, (ZERO_2,)),
    Fault("step_count_is_not_restored", 4, (DDP,)),
    Fault("a_slice_is_read_from_the_wrong_place", 5, (ZERO_2,)),
    Fault("order_depends_on_the_ranks", 5, (DDP,)),
    Fault("moments_are_dropped_on_other_ranks", 5, (DDP,)),
    Fault("head_is_untied", 6, (DDP, "model.config.tie_embeddings=true")),
    Fault("a_weight_is_lost", 6, (ZERO_3,)),
    Fault("a_weight_is_transposed", 6, (DDP,)),
    Fault("the_weights_are_stale", 6, (DDP,)),
    Fault("scheduler_is_stepped_twice", 7, (DDP,)),
    Fault("warmup_is_off_by_one", 7, (DDP,)),
    Fault("tokens_are_counted_with_padding", 7, (DDP, RAGGED)),
    Fault("optimizer_keeps_a_third_moment", 8, (ZERO_2,)),
    Fault("moments_are_kept_in_double", 8, (DDP,)),
    Fault("nothing_is_sharded", 8, (ZERO_2,)),
    Fault("weights_are_kept_whole", 8, (ZERO_3,)),
)


def plan_for(*words: str) -> Plan:
    """Two CPU processes, micro batches of 2, accumulation 4 where the batch divides; documents are made up."""
    return plan_of(SMALL, LAPTOP, "train.micro_batch=2", *words, estimated=True, tokenizer="", store="")


class Certifier:
    """Claims of plans, with or without a fault; each with its own reference, which follows the engine step by step."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._made = 0

    def claims(self, words: tuple[str, ...], claims: Sequence[int], plant: str | None = None) -> tuple[Claim, ...]:
        self._made += 1
        shop = open_workshop(plan_for(*words), self.folder / str(self._made))
        shop.plant = f"tests.certify.plants:{plant}" if plant else None
        make_runs(shop, claims)
        return judge(evidence_of(shop), claims)

    def with_fault(self, fault: Fault) -> Claim:
        """The claim that must catch the fault."""
        return self.claims(fault.words, (fault.claim,), fault.plant)[0]
