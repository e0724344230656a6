"""A look at the first records before the token store is built: what would stop the build is found by the checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.chats import CHATS, PLAIN, chat_tokenizer, turn, write_jsonl
from fakes.plans import SMALL, run_of
from headway import api
from headway.check.report import Report, Verdict
from headway.cli.lines import check_lines, finding_lines
from headway.config.load import LoadedRun
from headway.data import look

NO_ANSWER = {"messages": [turn("user", "hello")]}
FORGETS = "{% for m in messages %}{{ m.content if loop.last else '...' }}<|im_end|>{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def run(base: Path, records: list[Any], task: Any, **data: Any) -> LoadedRun:
    write_jsonl(base / "data.jsonl", records)
    given = SMALL | {"data": {"train": ["data.jsonl"], **data}, "task": task}
    return run_of(given, base=base)


def here(loaded: LoadedRun, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    """As `records`, without the process of its own."""
    with monkeypatch.context() as patch:
        patch.setattr(look, "_apart", look.examine)
        return look.records("records", loaded, tokenizer)


def with_template(tokenizer: Path, folder: Path, template: str) -> Path:
    folder.mkdir()
    for file in tokenizer.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_chats_are_rendered_in_a_process_of_its_own(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = run(tmp_path, [CHATS["one turn"], CHATS["system"], NO_ANSWER], "instruction")
    monkeypatch.setattr(look, "_RENDER_SECONDS", 120)  # a busy machine imports slowly
    found = look.records("records", loaded, tokenizer)
    assert (found.level, found.evidence) == ("red", "data.jsonl:3")
    assert found.finding.startswith("the record has no word of the assistant's: nothing of it would be learnt")
    monkeypatch.setattr(look, "_RENDER_SECONDS", 0.001)
    assert look.records("records", loaded, tokenizer).level == "note"


def test_what_a_template_makes_of_chats(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = [CHATS["one turn"], CHATS["two turns"]]
    found = here(run(tmp_path, two, "instruction"), tokenizer, monkeypatch)
    assert (found.level, found.finding) == (
        "green",
        "the first 2 records render in the chat template, and each has words to learn",
    )
    forgetful = with_template(tokenizer, tmp_path / "forgetful", FORGETS)
    found = here(run(tmp_path, two, "instruction"), forgetful, monkeypatch)
    assert (found.level, found.evidence) == ("red", "data.jsonl:1")
    assert "what the assistant wrote cannot be told" in found.finding
    assert here(run(tmp_path, two, {"kind": "instruction", "loss_on": "all"}), forgetful, monkeypatch).level == "green"
    broken = with_template(tokenizer, tmp_path / "broken", PLAIN + "{% if %}")
    found = here(run(tmp_path, two, "instruction"), broken, monkeypatch)
    assert (found.level, "is not valid, line" in found.finding) == ("red", True)
    skipping = {"paths": ["data.jsonl"], "options": {"on_error": "skip"}}
    found = here(run(tmp_path, [NO_ANSWER] * 3, "instruction", train=skipping), tokenizer, monkeypatch)
    assert (found.level, found.finding) == ("red", "none of the first 3 records can be used")
    assert here(run(tmp_path, [*two, NO_ANSWER], "instruction", train=skipping), tokenizer, monkeypatch).ok


def test_a_trained_tokenizer_has_no_chat_template(tmp_path: Path) -> None:
    found = look.records("records", run(tmp_path, [CHATS["one turn"]], "instruction"), None)
    assert (found.level, "no chat template" in found.finding) == ("red", True)
    pairs = [{"prompt": "a", "response": "b"}, {"prompt": "a", "response": " "}]
    found = look.records("records", run(tmp_path, pairs, "instruction"), None)
    assert (found.level, found.evidence) == ("red", "data.jsonl:2")
    assert "empty 'response'" in found.finding
    answers = [{"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "chosen": "b", "rejected": "b"}]
    found = look.records("records", run(tmp_path, answers, "preference"), None)
    assert (found.level, found.evidence) == ("red", "data.jsonl:2")
    assert look.records("records", run(tmp_path, pairs, "causal_lm"), None).level == "green"


@pytest.mark.parametrize(
    ("records", "level", "words"),
    [
        ([("a", "x"), ("b", "y")], "green", "the first 2 records have 2 labels"),
        ([("a", "x"), ("b", "x")], "red", "every text has the label 'x'"),
        ([("a", "x"), ("b", None)], "red", "has no 'label'"),
        ([("a", "x"), ("b", ["y"])], "red", "holds a list"),
        ([("a", ["x", "y"]), ("b", [])], "green", "2 labels"),
        ([("a", "x")] * 65 + [("b", "y")], "green", "1 labels"),  # more lies beyond: the build will see
    ],
)
def test_labels(tmp_path: Path, records: list[tuple[str, Any]], level: str, words: str) -> None:
    lines = [{"text": text} | ({} if label is None else {"label": label}) for text, label in records]
    found = look.records("records", run(tmp_path, lines, "classification"), None)
    assert (found.level, words in found.finding) == (level, True), found
    assert found.fix or level == "green"


def test_a_label_that_only_the_held_out_data_have(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "held.jsonl", [{"text": "c", "label": "z"}])
    train = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    found = look.records("records", run(tmp_path, train, "classification", eval=["held.jsonl"]), None)
    assert (found.level, found.evidence) == ("red", "held.jsonl:1")
    assert "held-out data only" in found.finding


def test_a_store_that_is_not_built_yet_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sound new file exits with 0, and the command that builds the store is shown all the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("words of a text\n" * 50)
    report = api.plan(SMALL | {"data": {"train": ["a.txt"]}}).report
    stated = {verdict.name: verdict for verdict in report.verdicts}
    assert report.ok
    assert (stated["data"].level, stated["records"].level) == ("note", "green")
    assert "headway data build" in stated["data"].fix
    alone = Report((stated["data"], stated["records"]))
    assert alone.exit_code == 0
    assert any("headway data build" in line for line in check_lines(alone))
    assert finding_lines(alone, every=False, width=200)[-1] == "0 to fix, 0 warnings, 2 in order"
