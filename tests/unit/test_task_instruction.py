"""The loss on what the assistant wrote, from a store of chats, against plain transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fakes.chats import CHATS, PLAIN, chat_tokenizer, write_jsonl
from fakes.models import config_of, gradients, largest_difference, model_for, plan_for
from headway.config.schema import SourceConfig
from headway.data.build import StoreRequest, build_store
from headway.data.reading import LossOn, Reading
from headway.data.store import TokenStore, open_split
from headway.errors import ConfigError
from headway.task.causal_lm import CausalLM
from headway.task.instruction import Instruction
from headway.task.seam import Totals

SEQUENCE = 96


@pytest.mark.parametrize("loss_on", ["assistant", "all"])
def test_loss_and_gradients_are_those_of_transformers_on_each_chat_alone(tmp_path: Path, loss_on: LossOn) -> None:
    folder = chat_tokenizer(tmp_path, PLAIN)
    write_jsonl(tmp_path / "a.jsonl", list(CHATS.values()))
    request = StoreRequest(
        (SourceConfig(paths=("a.jsonl",)),),
        None,
        folder,
        Path("cache"),
        tmp_path,
        reading=Reading("instruction", loss_on),
    )
    store = build_store(request)
    opened = TokenStore(store)
    vocab = opened.manifest.tokenizer.vocab
    options = {"kind": "instruction", "options": {"loss_on": loss_on}}
    changes = {"task": options, "shape": {"vocab": vocab}, "data": {"sequence": SEQUENCE}}
    config = config_of("llama", vocab_size=vocab)
    task, model = Instruction(plan_for("llama", config=config, **changes)), model_for("llama", config=config, **changes)
    windows = open_split(store, "train", SEQUENCE, True)
    assert len(windows) < len(CHATS)  # several chats share a window
    batch = task.collate([windows[number] for number in range(len(windows))], SEQUENCE)
    loss = task.loss(model, batch)["loss"]
    loss.backward()
    mine = gradients(model)

    total, count = torch.zeros(()), 0
    for number in range(len(CHATS)):
        ids = torch.from_numpy(opened.document(number).astype("int64"))[None, :SEQUENCE]
        learnt = torch.from_numpy(opened.learnt(number).astype("int64"))[None, :SEQUENCE]
        labels = ids.masked_fill(learnt == 0, -100)
        targets = int((labels[0, 1:] != -100).sum())
        total = total + model(input_ids=ids, labels=labels, use_cache=False).loss * targets
        count += targets
    total.backward()
    assert batch.counts == {"loss": count}
    assert loss.item() == pytest.approx(total.item(), rel=1e-6)
    assert largest_difference(mine, gradients(model)) < 1e-5
    assert task.metrics(task_totals(loss.item(), count))["loss"] == pytest.approx(total.item() / count, rel=1e-6)


def task_totals(total: float, count: int) -> Totals:
    return Totals({"loss": total}, {"loss": float(count)})


def test_options_are_its_own() -> None:
    options = {"loss_on": "all"}
    Instruction(plan_for("llama", task={"kind": "instruction", "options": options}))
    with pytest.raises(ConfigError, match=r"task\.options.beta: instruction has no such option"):
        Instruction(plan_for("llama", task={"kind": "instruction", "options": options | {"beta": 1}}))
    with pytest.raises(ConfigError, match=r"task\.options.loss_on: causal_lm has no such option"):
        CausalLM(plan_for("llama", task={"kind": "causal_lm", "options": options}))
