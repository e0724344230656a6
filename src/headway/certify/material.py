"""The user's data, small: real document lengths and tokens, folded into the small vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headway.certify.shrink import SEQUENCE, STEPS, Small
from headway.data.facts import data_facts
from headway.data.handmade import write_store
from headway.data.manifest import TokenizerRecord
from headway.data.store import TokenStore
from headway.errors import DataError
from headway.plan.schema import Plan

_LONGEST = 3 * SEQUENCE  # documents beyond it are cut, so that a few hundred tokens hold several
_SHORTEST = 4


def with_material(small: Small, plan: Plan, folder: Path) -> Small:
    """The small plan on a token store written in `folder`, and the substitution said.

    Raises:
        DataError: the plan's token store has fewer tokens than one small step reads; names the number needed.
    """
    vocab = small.plan.shape.vocab
    needed_tokens = STEPS * small.plan.batch.global_sequences * SEQUENCE
    if plan.data.store and not plan.facts.estimated:
        documents = _users_documents(Path(plan.data.store), needed_tokens, vocab)
        said = (
            f"{len(documents)} pieces of documents of the data, of at most {_LONGEST} tokens, ids folded into {vocab}"
        )
    else:
        documents = _made_documents(needed_tokens, vocab, plan.numerics.seed)
        said = "made-up documents: the token store is not built yet"
    least = small.plan.batch.global_sequences * SEQUENCE
    if sum(len(document) for document in documents) < least:
        raise DataError(
            f"the data is too small for the claims: {least} tokens are needed for one step of the small plan",
            fix="give more documents, or a smaller train.global_batch",
        )
    tokenizer = TokenizerRecord(path=plan.data.tokenizer, sha256="", vocab=vocab, begin=0, end=0)
    store = write_store(folder, documents, tokenizer)
    facts = data_facts(store, SEQUENCE, small.plan.data.packing)
    data = small.plan.data.model_copy(update={"store": facts.store, "store_hash": facts.store_hash})
    changed = small.plan.model_copy(update={"data": data, "facts": facts})
    return Small(changed, (*small.substitutions, said))


def _users_documents(store: Path, needed_tokens: int, vocab: int) -> list[np.ndarray]:
    """The starts of the training documents; where they are few and long, their further pieces too."""
    opened = TokenStore(store)
    numbers = opened.documents("train").tolist()
    pieces: list[np.ndarray] = []
    tokens, start, ended = 0, 0, False
    while not ended:
        ended = True
        for number in numbers:
            piece = opened.document(number)[start : start + _LONGEST] % vocab
            if len(piece):
                ended = False
                pieces.append(piece)
                tokens += len(piece)
            if tokens >= needed_tokens:
                return pieces
        start += _LONGEST
    return pieces


def _made_documents(needed_tokens: int, vocab: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    documents: list[np.ndarray] = []
    tokens = 0
    while tokens < needed_tokens:
        documents.append(random.integers(0, vocab, int(random.integers(_SHORTEST, _LONGEST))))
        tokens += len(documents[-1])
    return documents
