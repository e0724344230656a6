"""Any run of any state comes back, whatever ranks wrote it; a hole in the state is noticed when it is saved."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from fakes.checkpoints import (
    KINDS,
    SHAPES,
    assert_holds,
    make_state,
    open_newest,
    rank_slices,
    run_ranks,
    save,
    save_job,
)
from headway.checkpoint.load import newest_complete, open_reader
from headway.checkpoint.random_state import capture_random_state
from headway.checkpoint.reader import state_hash
from headway.checkpoint.save import save_checkpoint
from headway.checkpoint.store import LocalStore
from headway.errors import CheckpointError
from headway.parallel.seam import Slice


def save_on(store: LocalStore, world: int, seed: int, **changes: object) -> None:
    state = make_state(seed)
    for outcome in run_ranks(world, lambda ranks: save_checkpoint(store, save_job(5, state, ranks, **changes), ranks)):
        assert not isinstance(outcome, Exception), outcome


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("part_bytes", [64, 10**6])
def test_every_range_is_stitched_from_whatever_wrote_it(tmp_path: Path, world: int, part_bytes: int) -> None:
    store, state, draw = LocalStore(tmp_path), make_state(1), random.Random(0)
    save_on(store, world, 1, part_bytes=part_bytes)
    with open_newest(store) as reader:
        assert_holds(reader, state)
        for _ in range(50):
            (name, kind), tensor = draw.choice(list(state.items()))
            start = draw.randint(0, tensor.numel())
            length = draw.randint(0, tensor.numel() - start)
            expected = tensor.reshape(-1)[start : start + length]
            assert torch.equal(reader.read(name, kind, start, length), expected), (name, kind, start, length)


def test_a_read_result_is_private_and_outlives_the_reader(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(store, 5)
    reader = open_newest(store)
    read = reader.read("embed.weight", "weight", 0, 8)
    reader.close()
    read.zero_()
    assert_holds(open_newest(store), make_state(5))


def test_names_kinds_shapes_types_and_training_state(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(store, 5)
    reader = open_newest(store)
    assert reader.names() == list(SHAPES)
    assert reader.kinds("scale") == set(KINDS)
    assert reader.kinds("unknown") == set()
    assert reader.shape("embed.weight") == (37, 8)
    assert reader.dtype("embed.weight", "exp_avg") == torch.bfloat16
    assert (reader.state.step, reader.state.position, reader.state.tokens) == (5, 40, 5000)
    assert reader.scalars == {"optimizer_step": 5.0}


@pytest.mark.parametrize(
    ("name", "kind", "offset", "length", "message"),
    [
        ("unknown", "weight", 0, 1, "holds no 'weight' of 'unknown'"),
        ("scale", "momentum_buffer", 0, 1, "stored for it: exp_avg, exp_avg_sq, weight"),
        ("layer.0.norm", "weight", 4, 5, "has 8 elements; asked for 4 to 9"),
        ("layer.0.norm", "weight", -1, 2, "has 8 elements; asked for -1 to 1"),
    ],
)
def test_what_is_not_stored_is_an_error(
    tmp_path: Path, name: str, kind: str, offset: int, length: int, message: str
) -> None:
    save(LocalStore(tmp_path), 5)
    with pytest.raises(CheckpointError, match=message):
        open_newest(LocalStore(tmp_path)).read(name, kind, offset, length)


def test_random_states_are_each_rank_s_own(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    states = []
    for seed in range(2):
        torch.manual_seed(seed)
        states.append(capture_random_state())
    state = make_state(1)
    run_ranks(
        2, lambda ranks: save_checkpoint(store, save_job(5, state, ranks, random_state=states[ranks.rank]), ranks)
    )
    reader = open_newest(store)
    for rank in range(2):
        restored = reader.random_state(rank)
        assert restored is not None
        assert torch.equal(restored.torch_cpu, states[rank].torch_cpu)
    assert reader.random_state(2) is None


def test_state_hash_is_the_same_for_every_cut_and_differs_for_one_bit(tmp_path: Path) -> None:
    hashes = []
    for world in (1, 3):
        store = LocalStore(tmp_path / str(world))
        save_on(store, world, 1, part_bytes=96)
        hashes.append(state_hash(open_newest(store)))
    assert hashes[0] == hashes[1]
    assert set(hashes[0]) == set(SHAPES)
    changed = make_state(1)
    changed["layer.0.norm", "exp_avg"].view(torch.int16)[3] ^= 1
    other = LocalStore(tmp_path / "changed")
    save_checkpoint(other, save_job(5, changed))
    differing = {name for name, value in state_hash(open_newest(other)).items() if value != hashes[0][name]}
    assert differing == {"layer.0.norm"}


def whole(name: str, tensor: torch.Tensor) -> Slice:
    return Slice(name, "weight", tuple(tensor.shape), 0, tensor.reshape(-1))


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        (
            [Slice("a", "weight", (10,), 0, torch.ones(4)), Slice("a", "weight", (10,), 5, torch.ones(5))],
            "element 4 of",
        ),
        ([Slice("a", "weight", (10,), 0, torch.ones(9))], r"a \(weight\): element 9 of 10 is in no rank's slices"),
        ([Slice("a", "weight", (10,), 4, torch.ones(9))], "does not lie in the flattened parameter of 10"),
        ([Slice("a", "weight", (2, 2), 0, torch.ones(2, 2))], "does not lie"),
        ([whole("a", torch.ones(3)), whole("a", torch.ones(3))], "offset 0 twice"),
        (
            [Slice("a", "weight", (4,), 0, torch.ones(2)), Slice("a", "weight", (4,), 2, torch.ones(2).half())],
            "different shapes or types",
        ),
    ],
)
def test_state_with_holes_is_refused_when_it_is_saved(tmp_path: Path, slices: list[Slice], message: str) -> None:
    store = LocalStore(tmp_path)
    save(store, 4)
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(store, save_job(5, {}, slices=iter(slices)))
    assert newest_complete(store).step == 4


def test_slices_that_overlap_or_are_not_contiguous_are_read_right(tmp_path: Path) -> None:
    store, whole_tensor = LocalStore(tmp_path), torch.arange(12.0)
    slices = [
        Slice("a", "weight", (12,), 0, whole_tensor[:7]),
        Slice("a", "weight", (12,), 2, whole_tensor[2:5].clone()),
        Slice("a", "weight", (12,), 5, whole_tensor[5:].clone()),
        Slice("b", "weight", (6,), 0, whole_tensor[::2]),
    ]
    save_checkpoint(store, save_job(5, {}, slices=iter(slices)))
    reader = open_newest(store)
    assert torch.equal(reader.read("a", "weight", 0, 12), whole_tensor)
    assert torch.equal(reader.read("b", "weight", 0, 6), whole_tensor[::2])


def test_parts_are_bounded_also_where_one_slice_is_larger(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    saved = save(store, 5, part_bytes=256)
    parts = list((tmp_path / saved.name).glob("*.safetensors"))
    assert len(parts) > 5
    headers = [int.from_bytes(part.read_bytes()[:8], "little") for part in parts]
    assert all(part.stat().st_size - 8 - header <= 256 for part, header in zip(parts, headers, strict=True))


def test_only_tensors_and_json_are_written(tmp_path: Path) -> None:
    save(LocalStore(tmp_path), 5, random_state=capture_random_state(), documents={"plan.json": b"{}"})
    folder = tmp_path / "step-00000005"
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}
    for path in folder.glob("*.json"):
        json.loads(path.read_text())
    assert (folder / "plan.json").read_bytes() == b"{}"


def test_a_rank_s_slices_partition_the_state() -> None:
    """The fake itself: together the ranks give each element once, or the tests above would prove little."""
    state = make_state(1)
    counts = {key: torch.zeros(tensor.numel()) for key, tensor in state.items()}
    for rank in range(3):
        for item in rank_slices(state, rank, 3):
            counts[item.name, item.kind][item.offset : item.offset + item.data.numel()] += 1
    assert all(torch.all(count == 1) for count in counts.values())


def test_reading_needs_no_manifest_order(tmp_path: Path) -> None:
    """A reference kept from an earlier look still opens after newer checkpoints were saved."""
    store = LocalStore(tmp_path)
    save(store, 5)
    ref = newest_complete(store)
    save(store, 6)
    assert_holds(open_reader(store, ref), make_state(5))
