"""`headway evaluate` of model folders: tasks of lm-evaluation-harness over local files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fakes.chats import PLAIN
from fakes.exports import make_export
from headway.errors import DataError, ExportError, UserError
from headway.export.evaluating import EvaluationRequest, evaluate
from headway.export.harness import HarnessRequest
from headway.run.evaluations import Evaluation, keep, read_all

QUESTIONS = ["w3 w4", "w5 w6 w7", "w8", "w9 w10 w11", "w12 w13"]
CHOICES = ["w20", "w21 w22", "w23"]
TASK = """\
task: next_words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    export = make_export(tmp_path_factory.mktemp("evaluated"))
    export.write()
    return export.folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "questions.jsonl"
    lines = [{"question": q, "choices": CHOICES, "answer": n % len(CHOICES)} for n, q in enumerate(QUESTIONS)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "next_words.yaml").write_text(TASK.format(data=data))
    return folder


@torch.no_grad()
def accuracy(folder: Path, rendered: Any) -> float:
    """The same by plain transformers: the choice of highest summed log-probability behind the question."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    right = 0
    for number, question in enumerate(QUESTIONS):
        scores: list[float] = []
        for choice in CHOICES:
            text, special = rendered(tokenizer, question)
            start = tokenizer(text, add_special_tokens=special)["input_ids"]
            end = tokenizer(choice, add_special_tokens=False)["input_ids"]
            logits = model(torch.tensor([[*start, *end]])).logits[0].log_softmax(-1)
            scores.append(sum(float(logits[len(start) - 1 + at, token]) for at, token in enumerate(end)))
        right += scores.index(max(scores)) == number % len(CHOICES)
    return right / len(QUESTIONS)


def in_words(tokenizer: Any, question: str) -> tuple[str, bool]:
    return question, False


def as_chat(tokenizer: Any, question: str) -> tuple[str, bool]:
    chat = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True), False


@pytest.mark.parametrize("chat", [False, True])
def test_a_local_task_is_scored_as_plain_transformers_scores_it(folder: Path, tasks: Path, chat: bool) -> None:
    pytest.importorskip("lm_eval", reason="the extra 'lm-eval' is not installed")
    template = folder / "chat_template.jinja"
    template.unlink(missing_ok=True)
    if chat:
        template.write_text(PLAIN)
    asked = EvaluationRequest(held_out=False, tasks=HarnessRequest(("next_words",), tasks))
    found, path = evaluate(folder, asked)
    assert found.tasks["next_words"]["acc"] == accuracy(folder, as_chat if chat else in_words)
    assert found.settings["chat_template"] is chat
    assert found.settings["samples"] == {"next_words": len(QUESTIONS)}
    assert (found.step, found.held_out) == (7, {})
    assert read_all(folder)[-1].tasks == found.tasks
    assert path == folder / "evaluations" / f"{found.sha256[:16]}.json"


def test_an_unknown_task_is_named_with_a_near_one(folder: Path, tasks: Path) -> None:
    pytest.importorskip("lm_eval", reason="the extra 'lm-eval' is not installed")
    asked = EvaluationRequest(held_out=False, tasks=HarnessRequest(("next_word",), tasks))
    with pytest.raises(UserError, match=r"there is no task next_word\n    fix: did you mean next_words\\?"):
        evaluate(folder, asked)


def test_task_data_that_is_not_there_is_the_user_s_error(folder: Path, tasks: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="the extra 'lm-eval' is not installed")
    (tmp_path / "next_words.yaml").write_text(TASK.format(data=tmp_path / "nowhere.jsonl"))
    asked = EvaluationRequest(held_out=False, tasks=HarnessRequest(("next_words",), tmp_path))
    with pytest.raises(UserError, match=r"could not be evaluated(.|\n)*nowhere.jsonl(.|\n)*fix: check the task's"):
        evaluate(folder, asked)


def test_what_cannot_be_judged_says_why(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing is to be evaluated"):
        evaluate(folder, EvaluationRequest(held_out=False))
    with pytest.raises(ExportError, match="holds no model"):
        evaluate(tmp_path, EvaluationRequest())
    plain = tmp_path / "plain"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(plain)
    with pytest.raises(DataError, match=r"its held-out data is not known\n    fix: evaluate tasks alone"):
        evaluate(plain, EvaluationRequest())


def test_results_of_one_model_are_kept_together(tmp_path: Path) -> None:
    digest = "ab" * 32
    keep(Evaluation("step-1", digest, 1.0, held_out={"loss": 2.0}, data_hash="d"), tmp_path)
    keep(Evaluation("step-1", digest, 2.0, tasks={"a": {"acc": 0.5}}), tmp_path)
    keep(Evaluation("step-1", digest, 3.0, tasks={"b": {"acc": 0.25}}), tmp_path)
    keep(Evaluation("step-2", "cd" * 32, 4.0), tmp_path)
    (tmp_path / "evaluations" / "damaged.json").write_text("{")
    first, second = read_all(tmp_path)
    assert (first.held_out, first.data_hash, first.time) == ({"loss": 2.0}, "d", 3.0)
    assert first.tasks == {"a": {"acc": 0.5}, "b": {"acc": 0.25}}
    assert second.what == "step-2"
