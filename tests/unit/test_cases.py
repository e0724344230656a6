"""Public bug reports of other trainers as small inputs, by the name under which they lie in tests/cases."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fakes.chats import chat_tokenizer, write_jsonl
from fakes.corpora import request_for, tokenizer_for, write_texts
from fakes.exports import make_export, word_tokenizer
from fakes.models import filled, plan_for
from fakes.plans import LAPTOP, SMALL, facts_of, run_of
from headway.config.schema import SourceConfig
from headway.data.build import StoreRequest, build_store
from headway.data.facts import data_facts, describe_store
from headway.data.handmade import Material, write_store
from headway.data.loader import LoaderSpec, rank_windows
from headway.data.manifest import TokenizerRecord
from headway.data.reading import Reading
from headway.data.seam import IGNORE, Sample
from headway.data.store import TokenStore, open_split
from headway.data.vocabulary import load_tokenizer
from headway.errors import DataError, ModelError
from headway.export.own import write_own
from headway.facts.generation import generation_note
from headway.facts.model_config import check_fit
from headway.model.huggingface import HuggingFaceSource
from headway.model.naming import unwrapped_names
from headway.model.source import source_of
from headway.parallel.ddp import TorchEngine
from headway.plan.make import make_plan
from headway.plan.schedule import table
from headway.plan.schema import CodePlan
from headway.task.causal_lm import CausalLM
from headway.task.seam import Batch, Term, Totals
from headway.train.health import Guard

CASES = Path(__file__).parents[1] / "cases"


def given(case: str, name: str) -> Any:
    return json.loads((CASES / case / name).read_text())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of 300 entries."""
    base = tmp_path_factory.mktemp("small")
    return tokenizer_for(base, write_texts(base / "corpus", ["first ok zweite Zeile third end"]))


def stored(case: str, file: str, tokenizer: Path, base: Path) -> TokenStore:
    shutil.copyfile(CASES / case / file, base / file)
    return TokenStore(build_store(request_for(base, SourceConfig(paths=(file,)), tokenizer)))


def documents(store: TokenStore) -> list[list[int]]:
    return [store.document(number).tolist() for number in store.documents("train").tolist()]


def test_dat_01_a_byte_order_mark_changes_nothing(small: Path, tmp_path: Path) -> None:
    marked, plain = (stored("dat-01", name, small, tmp_path) for name in ("bom.jsonl", "plain.jsonl"))
    assert documents(marked) == documents(plain)
    texts = [load_tokenizer(small).decode(ids) for ids in documents(marked)]
    assert texts == ["first", "zweite Zeile", "third"]


def test_dat_03_a_lone_surrogate_is_replaced_and_counted(small: Path, tmp_path: Path) -> None:
    found, literal = (
        stored("dat-03", "surrogate.jsonl", small, tmp_path),
        stored("dat-03", "literal.jsonl", small, tmp_path),
    )
    lone, pair = documents(found)
    assert load_tokenizer(small).decode(lone) == "\ufffd end"
    assert [pair] == documents(literal)
    assert found.manifest.repaired == 1
    assert any(line.startswith("1 documents held lone surrogates") for line in describe_store(found.path, 8, True))


def test_dat_05_empty_texts_are_left_out_and_counted(small: Path, tmp_path: Path) -> None:
    store = stored("dat-05", "data.jsonl", small, tmp_path)
    (kept,) = documents(store)
    assert kept[1:-1] == load_tokenizer(small).encode("ok", add_special_tokens=False).ids  # between begin and end
    assert store.manifest.skipped == {"empty": 3, "blank line": 1}
    assert "left out: 3 empty (data.jsonl:1, data.jsonl:2, data.jsonl:5)" in describe_store(store.path, 8, True)


def in_words(tokens: Sequence[int]) -> str:
    return "".join(f" w{token}" for token in tokens)


def pairs(base: Path, examples: Sequence[dict[str, Any]]) -> TokenStore:
    """Prompts and answers of these tokens. The answer's last token, 2, is the end that the store itself adds."""
    tokenizer = word_tokenizer(base / "words")
    rows = [{"prompt": in_words(e["prompt"]), "response": in_words(e["answer"][:-1])} for e in examples]
    write_jsonl(base / "pairs.jsonl", rows)
    source, reading = SourceConfig(paths=("pairs.jsonl",)), Reading("instruction")
    return TokenStore(build_store(StoreRequest((source,), None, tokenizer, Path("cache"), base, reading=reading)))


def test_dat_07_a_prompt_that_fills_the_window_is_left_out_and_counted(tmp_path: Path) -> None:
    case = given("dat-07", "tokens.json")
    store = pairs(tmp_path, case["examples"])
    assert [int(store.learnt(number).sum()) for number in (0, 1)] == [3, 3]
    facts = data_facts(store.path, case["max_length"], True)
    (lost,) = (note for note in facts.lost if "no token to learn" in note)
    assert lost.startswith("1 of 2 chats (50.0%)")
    assert "train.sequence (8)" in lost
    assert "a longer sequence keeps them" in lost
    windows = open_split(store.path, "train", case["max_length"], True)
    assert len(windows) == facts.train_windows == 1
    assert int((windows[0].labels != IGNORE).sum()) == facts.train_targets == 3
    (tmp_path / "all").mkdir()
    hopeless = pairs(tmp_path / "all", case["examples"][:1])
    with pytest.raises(DataError, match="no example has a token to learn within 8 tokens"):
        data_facts(hopeless.path, case["max_length"], True)


def test_dat_09_the_end_token_is_learnt_though_padding_may_be_the_same(tmp_path: Path) -> None:
    """What is padding follows from each row's length, never from a token's number: no pad token is needed at all."""
    case = given("dat-09", "rows.json")
    rows = [np.array(row, dtype=np.int32) for row in case["rows"]]
    samples = [
        Sample(n, row, np.append(row[1:], IGNORE), np.arange(len(row)), np.zeros(len(row)))
        for n, row in enumerate(rows)
    ]
    labels = CausalLM(plan_for("llama")).collate(samples, 5).inputs["labels"]
    # The case's labels stand at their own tokens; these stand one before, where they are predicted.
    expected = [[*row[1:], IGNORE] for row in case["expected_labels"]]
    assert labels.tolist() == expected
    assert int((labels == case["eos"]).sum()) == 2


def test_dat_11_answers_are_found_where_the_template_marks_none(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(tmp_path, (CASES / "dat-11" / "template.jinja").read_text())
    shutil.copyfile(CASES / "dat-11" / "chat.jsonl", tmp_path / "chat.jsonl")
    source, reading = SourceConfig(paths=("chat.jsonl",)), Reading("instruction")
    store = TokenStore(build_store(StoreRequest((source,), None, tokenizer, Path("cache"), tmp_path, reading=reading)))
    learnt = store.document(0)[store.learnt(0).astype(bool)]
    assert load_tokenizer(tokenizer).decode(learnt.tolist()).endswith("beta.<|end|>")
    assert 0 < store.learnt(0).sum() < len(store.document(0))


def test_dat_13_positions_begin_anew_with_each_packed_document(tmp_path: Path) -> None:
    case = given("dat-13", "docs.json")
    material = Material([np.array(document, dtype=np.int32) for document in case["docs"]])
    record = TokenizerRecord(path="", sha256="", vocab=100, begin=0, end=1)
    store = write_store(tmp_path / "store", material, record)
    (window,) = (open_split(store, "train", case["seq_len"], True)[0],)
    order = np.split(window.tokens, np.flatnonzero(np.diff(window.documents)) + 1)
    assert sorted(part.tolist() for part in order) == sorted(case["docs"])  # in an order of the store's own
    assert window.positions.tolist() == [place for part in order for place in range(len(part))]
    assert window.documents.tolist() == [number for number, part in enumerate(order) for _ in part]
    # A document's first token is nobody's target: its place is the label of no other document.
    ends = np.cumsum([len(part) for part in order]) - 1
    assert window.labels[ends].tolist() == [IGNORE] * 3
    batch = CausalLM(plan_for("llama")).collate([window], case["seq_len"])
    places = sorted(map(tuple, np.split(batch.inputs["position_ids"][0, :9].numpy(), ends[:-1] + 1)), key=len)
    assert places == [(0, 1), (0, 1, 2), (0, 1, 2, 3)]


class Scaled:
    """A task whose loss is a given sum times the module's one weight."""

    def __init__(self) -> None:
        self.terms = {"loss": Term()}

    def collate(self, samples: Sequence[Sample], sequence: int) -> Batch:
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        return {"loss": model(batch.inputs["sum"]).sum()}

    def metrics(self, totals: Totals) -> dict[str, float]:
        return totals.means()


@pytest.mark.parametrize("split", [True, False], ids=["two micro batches", "one batch"])
def test_trn_01_a_step_is_the_mean_of_its_tokens_not_of_means(split: bool) -> None:
    case = given("trn-01", "micro.json")
    sums, counts = case["loss_sum"], case["tokens"]
    if not split:
        sums, counts = [sum(sums)], [sum(counts)]
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    engine = TorchEngine(module, module, Scaled(), plan_for("llama"))
    batches = [Batch({"sum": torch.tensor([[s]])}, {"loss": float(n)}, n) for s, n in zip(sums, counts, strict=True)]
    result = engine.train_step(batches, 0.0, Guard())
    assert result.totals.means() == {"loss": case["right"]}
    assert result.grad_norm == case["right"]


@pytest.mark.parametrize(("epochs", "steps"), [(2, 5), (1, 3)])
def test_trn_03_plan_schedule_and_loader_agree_on_the_steps_of_an_epoch(epochs: int, steps: int) -> None:
    """The rule here: a length is rounded up to whole steps, and a step may span two epochs; it is never a short one."""
    changes = {"train.length": f"'{epochs} epochs'", "train.global_batch": "4 sequences", "train.micro_batch": "1"}
    words = [f"{key}={value}" for key, value in changes.items()]
    run = run_of(SMALL, *words, "strategy=single", "launch.processes=1")
    plan = make_plan(run, facts_of(run, LAPTOP, train_windows=10))
    assert (plan.batch.accumulation, plan.schedule.steps, len(table(plan.schedule))) == (4, steps, steps)
    assert plan.reasons["schedule.steps"] == f"train.length: {epochs} epochs x 10 windows / 4, rounded up"
    spec = LoaderSpec(plan.numerics.seed, 10, 4, 1, 4, 0, 1, 1, steps)
    read = [row for step in range(1, steps + 1) for rows in rank_windows(spec, step) for row in rows]
    assert len(read) == 4 * steps
    assert None not in read
    for epoch in range(epochs):
        assert sorted(read[10 * epoch : 10 * epoch + 10]) == list(range(10))


def test_trn_07_a_token_without_a_row_in_the_embedding_is_told_before_the_start() -> None:
    config = {"model_type": "llama", **given("trn-07", "model_config.json")}
    (row,) = given("trn-07", "ids.json")
    with pytest.raises(ModelError, match=r"the tokenizer has 303 entries \(ids to 302\), .* only 300 rows"):
        check_fit(config, vocab=max(row) + 1, sequence=8, where="config.json")
    check_fit(config, vocab=300, sequence=8, where="config.json")


# Two pairs of tied tensors, and none between the pairs.
TWO_PAIRS = """
from torch import nn

class TwoPairs(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed_tokens, self.lm_head = nn.Embedding(4, width), nn.Linear(width, 4, bias=False)
        self.left, self.right = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.lm_head.weight, self.right.weight = self.embed_tokens.weight, self.left.weight
"""


def test_exp_01_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    export = make_export(tmp_path, "llama")  # tied
    export.write()
    assert "lm_head.weight" not in load_file(export.folder / "model.safetensors")
    check = export.again()  # loaded in plain transformers: no key missing, tied, the same logits
    assert check.verified, check.sentence()
    assert ("lm_head.weight", "model.embed_tokens.weight") in check.census.tied


def test_exp_01_each_pair_of_a_users_own_module_is_tied_to_its_partner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two_pairs.py").write_text(TWO_PAIRS)
    monkeypatch.syspath_prepend(tmp_path)
    code = CodePlan(root=str(tmp_path), files={"two_pairs.py": ""})
    plan = plan_for("llama", model={"kind": "two_pairs:TwoPairs", "options": {"width": 2}})
    plan = plan.model_copy(update={"code": (code,)})
    source = source_of(plan)
    model: Any = source.build()
    (tensor,) = load_file(CASES / "exp-01" / "model.safetensors").values()
    with torch.no_grad():
        model.embed_tokens.weight.copy_(tensor)
    folder = tmp_path / "export"
    folder.mkdir()
    source.save(folder, model.named_parameters(), model)
    write_own(folder, plan, None)
    assert sorted(load_file(folder / "model.safetensors")) == ["embed_tokens.weight", "left.weight"]
    found: dict[str, Any] = {"__file__": str(folder / "load.py"), "__name__": "load"}
    exec((folder / "load.py").read_text(), found)
    again = found["load"]()
    assert again.lm_head.weight is again.embed_tokens.weight
    assert again.right.weight is again.left.weight
    assert torch.equal(again.lm_head.weight, tensor)
    assert torch.equal(again.right.weight, model.left.weight)


def test_exp_03_wrappers_are_taken_off_the_names_and_nothing_else(tmp_path: Path) -> None:
    stored = load_file(CASES / "exp-03" / "model.safetensors")
    plain = unwrapped_names(stored, {"layers.0.w", "layers.1.w", "enc.module.w"})
    assert sorted(plain.values()) == ["enc.module.w", "layers.0.w", "layers.1.w"]
    assert unwrapped_names(["module.w"], {"module.w"}) == {"module.w": "module.w"}  # a true submodule
    with pytest.raises(ModelError, match=r"_orig_mod\.w and module\.w are both w"):
        unwrapped_names(["module.w", "_orig_mod.w"], {"w"})


def test_exp_03_a_folder_saved_from_within_a_wrapper_is_read_and_exported_without(tmp_path: Path) -> None:
    export = make_export(tmp_path, "llama")
    export.write()
    whole = load_file(export.folder / "model.safetensors")
    save_file({f"module._orig_mod.{k}": v for k, v in whole.items()}, export.folder / "model.safetensors")
    (tmp_path / "again").mkdir()
    plan = plan_for("llama", path=str(export.folder), config=json.loads((export.folder / "config.json").read_text()))
    source = HuggingFaceSource(plan)
    model = filled(source)
    source.save(tmp_path / "again", model.named_parameters(), model)
    saved = load_file(tmp_path / "again" / "model.safetensors")
    assert saved.keys() == whole.keys()
    assert all(torch.equal(saved[name], whole[name]) for name in whole)


def pretrained(folder: Path, generation: dict[str, Any]) -> HuggingFaceSource:
    (folder / "generation_config.json").write_text(json.dumps(generation))
    config = json.loads((folder / "config.json").read_text())
    return HuggingFaceSource(plan_for("llama", path=str(folder), config=config))


def test_exp_05_a_generation_config_that_contradicts_itself_is_told_and_mended(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    export = make_export(tmp_path, "llama")
    export.write()
    case = given("exp-05", "generation_config.json")
    source = pretrained(export.folder, case | {"eos_token_id": 7})
    note = generation_note(export.folder)
    assert "temperature 0.9, top_p 0.6" in note
    (tmp_path / "again").mkdir()
    model = filled(source)
    source.save(tmp_path / "again", model.named_parameters(), model)
    saved = GenerationConfig.from_pretrained(tmp_path / "again")
    saved.validate(strict=True)
    assert (saved.do_sample, saved.temperature, saved.eos_token_id) == (False, None, 7)
    # What cannot be mended stops before the first step, not after the last.
    with pytest.raises(ModelError, match=r"transformers refuses its generation_config\.json: Greedy methods"):
        pretrained(export.folder, {"num_return_sequences": 5})
    assert pretrained(export.folder, {"do_sample": True, "temperature": 0.9, "top_p": 0.6})
    assert generation_note(export.folder) == ""
