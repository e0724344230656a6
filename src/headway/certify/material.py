"""The user's data, small: real document lengths and tokens, folded into the small vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headway.certify.shrink import SEQUENCE, STEPS, Small
from headway.data.facts import data_facts
from headway.data.handmade import Material, write_store
from headway.data.manifest import TokenizerRecord
from headway.data.store import TokenStore
from headway.errors import DataError
from headway.plan.schema import Plan

_LONGEST = 3 * SEQUENCE  # documents beyond it are cut, so that a few hundred tokens hold several
_SHORTEST = 4
_ONE_SOURCE: dict[str, object] = {"sources": (), "weights": ()}
_CHATS = (14, 22, 34, SEQUENCE)  # lengths of chats, in turn


def with_material(small: Small, plan: Plan, folder: Path) -> Small:
    """The small plan on a token store written in `folder`, and the substitution said.

    Raises:
        DataError: the plan's token store has less than one small step reads; names what is needed.
    """
    vocab, windows = small.plan.shape.vocab, small.plan.batch.global_sequences
    if plan.data.store and not plan.facts.estimated:
        material, said = _users(TokenStore(Path(plan.data.store)), STEPS * windows, vocab)
    else:
        material, said = _made(plan, STEPS * windows, vocab), "made-up documents: the token store is not built yet"
    labelled = material.kind in ("labelled", "preference")
    least, found = (windows, len(material.documents)) if labelled else (windows * SEQUENCE, material.tokens)
    if found < least:
        what = ("pairs" if material.kind == "preference" else "texts") if labelled else "tokens"
        raise DataError(
            f"the data is too small for the claims: {least} {what} are needed for one step of the small plan",
            fix="give more documents, or a smaller train.global_batch",
        )
    tokenizer = TokenizerRecord(path=plan.data.tokenizer, sha256="", vocab=vocab, begin=0, end=0)
    store = write_store(folder, material, tokenizer)
    facts = data_facts(store, SEQUENCE, small.plan.data.packing)
    data = small.plan.data.model_copy(update={"store": facts.store, "store_hash": facts.store_hash, **_ONE_SOURCE})
    changed = small.plan.model_copy(update={"data": data, "facts": facts})
    return Small(changed, (*small.substitutions, said))


def _users(store: TokenStore, windows: int, vocab: int) -> tuple[Material, str]:
    """The first documents of the data, enough for so many windows, and what was done to them.

    Where plain texts are few and long, their further pieces too.
    """
    kind = store.manifest.kind
    if kind == "preference":
        return _users_pairs(store, windows, vocab)
    documents: list[np.ndarray] = []
    learnt: list[np.ndarray] = []
    classes: list[int] = []
    held: list[list[int]] = []
    numbers = store.documents("train").tolist()
    room, start, ended = windows * SEQUENCE, 0, False
    while not ended and room > 0:
        ended = True
        for number in numbers:
            whole = slice(start, start + _LONGEST)
            part = _part_of_chat(store.learnt(number), len(documents)) if kind == "chat" else whole
            piece = store.document(number)[part] % vocab
            if not len(piece):
                continue
            ended = kind != "text"
            documents.append(piece)
            if kind == "chat":
                learnt.append(store.learnt(number)[part])
            if store.has_sets:
                held.append(store.labels_of(number).tolist())
            elif store.labels is not None:
                classes.append(int(store.labels[number]))
            room -= SEQUENCE if kind == "labelled" else len(piece)
            if room <= 0:
                break
        start += _LONGEST
    cut = f"of at most {_LONGEST} tokens"
    if kind == "chat":
        cut = f"{min(_CHATS)} to {max(_CHATS)} tokens of each around what is learnt"
    said = f"{len(documents)} pieces of documents of the data, {cut}, ids folded into {vocab}"
    return Material(documents, learnt, classes, store.manifest.labels, held), said


def _users_pairs(store: TokenStore, windows: int, vocab: int) -> tuple[Material, str]:
    """The first pairs of the data, a part of each answer's side around what is learnt."""
    documents: list[np.ndarray] = []
    learnt: list[np.ndarray] = []
    seconds: list[int] = []
    for number in store.documents("train").tolist()[:windows]:
        tokens, mask = store.document(number) % vocab, store.learnt(number)
        at = 0 if store.seconds is None else int(store.seconds[number])
        sides = [slice(0, at), slice(at, len(tokens))]
        parts = [_part_of_chat(mask[side], 2 * number + place) for place, side in enumerate(sides)]
        kept = [(tokens[side][part], mask[side][part]) for side, part in zip(sides, parts, strict=True)]
        documents.append(np.concatenate([side for side, _ in kept]))
        learnt.append(np.concatenate([side for _, side in kept]))
        seconds.append(len(kept[0][0]))
    said = (
        f"{len(documents)} pairs of the data, {min(_CHATS)} to {max(_CHATS)} tokens of each side, folded into {vocab}"
    )
    return Material(documents, learnt, seconds=seconds), said


def _made_pairs(plan: Plan, windows: int, vocab: int) -> Material:
    random = np.random.default_rng(plan.numerics.seed)
    sides = [random.integers(0, vocab, int(random.integers(_SHORTEST, SEQUENCE))) for _ in range(2 * windows)]
    learnt = [(np.arange(len(side)) >= len(side) // 2).astype("u1") for side in sides]
    return Material(
        [np.concatenate(pair) for pair in zip(sides[::2], sides[1::2], strict=True)],
        [np.concatenate(pair) for pair in zip(learnt[::2], learnt[1::2], strict=True)],
        seconds=[len(side) for side in sides[::2]],
    )


def _part_of_chat(learnt: np.ndarray, number: int) -> slice:
    """A part that fits a window and holds learnt tokens behind others, of lengths that let several share a window."""
    length = _CHATS[number % len(_CHATS)]
    first = int(np.flatnonzero(learnt)[0]) if learnt.any() else 0
    start = max(0, first - length // 3)
    return slice(start, start + length)


def _made(plan: Plan, windows: int, vocab: int) -> Material:
    """Documents of random tokens, half of a chat learnt, labels in turn."""
    if plan.task.kind == "preference":
        return _made_pairs(plan, windows, vocab)
    random = np.random.default_rng(plan.numerics.seed)
    task, room = plan.task, windows * SEQUENCE
    longest = SEQUENCE if task.kind in ("instruction", "classification") else _LONGEST
    documents: list[np.ndarray] = []
    while room > 0:
        documents.append(random.integers(0, vocab, int(random.integers(_SHORTEST, longest))))
        room -= SEQUENCE if task.kind == "classification" else len(documents[-1])
    if task.kind == "instruction":
        return Material(documents, [(np.arange(len(d)) >= len(d) // 2).astype("u1") for d in documents])
    if task.kind == "classification":
        labels = tuple(task.options["labels"])
        if task.options.get("sets"):
            held = [
                [label for label in range(len(labels)) if (number >> label) & 1] for number in range(len(documents))
            ]
            return Material(documents, (), (), labels, held)
        return Material(documents, (), [number % len(labels) for number in range(len(documents))], labels)
    return Material(documents)
