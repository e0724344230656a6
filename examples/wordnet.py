"""Data for two recipes, from WordNet 3.0 as Debian's package wordnet-base has it: glosses by their class, and chats.

    apt-get install wordnet-base
    python examples/wordnet.py data          # writes data/glosses.jsonl and data/chats.jsonl

glosses.jsonl holds 117,659 records of text and label: a gloss, and which of WordNet's 45 files it stands in
(noun.animal, verb.motion, ...). chats.jsonl asks what each word means and answers with its gloss.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

WORDNET = Path("/usr/share/wordnet")
PARTS = ("noun", "verb", "adj", "adv")
# The names of WordNet's files by their number in the data, from its manual page lexnames(5WN).
FILES = [
    "adj.all",
    "adj.pert",
    "adv.all",
    "noun.Tops",
    "noun.act",
    "noun.animal",
    "noun.artifact",
    "noun.attribute",
    "noun.body",
    "noun.cognition",
    "noun.communication",
    "noun.event",
    "noun.feeling",
    "noun.food",
    "noun.group",
    "noun.location",
    "noun.motive",
    "noun.object",
    "noun.person",
    "noun.phenomenon",
    "noun.plant",
    "noun.possession",
    "noun.process",
    "noun.quantity",
    "noun.relation",
    "noun.shape",
    "noun.state",
    "noun.substance",
    "noun.time",
    "verb.body",
    "verb.change",
    "verb.cognition",
    "verb.communication",
    "verb.competition",
    "verb.consumption",
    "verb.contact",
    "verb.creation",
    "verb.emotion",
    "verb.motion",
    "verb.perception",
    "verb.possession",
    "verb.social",
    "verb.stative",
    "verb.weather",
    "adj.ppl",
]
_SPEECH = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}


class Synset(NamedTuple):
    """One meaning: its file's name, its part of speech, its words, and what it means."""

    file: str
    speech: str
    words: list[str]
    gloss: str


def synsets(folder: Path) -> Iterator[Synset]:
    """Every meaning in the data files, in their order."""
    for part in PARTS:
        for line in (folder / f"data.{part}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  "):  # the licence
                continue
            fields, _, gloss = line.partition(" | ")
            _, file, speech, count, *rest = fields.split(" ")
            words = [rest[2 * n].partition("(")[0].replace("_", " ") for n in range(int(count, 16))]
            yield Synset(FILES[int(file)], _SPEECH[speech], words, gloss.strip())


def chat(synset: Synset) -> dict[str, list[dict[str, str]]]:
    question = f"What does the {synset.speech} '{synset.words[0]}' mean?"
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": synset.gloss}]}


def write(folder: Path, out: Path) -> dict[str, int]:
    """Write both files into `out`; how many records each has."""
    out.mkdir(parents=True, exist_ok=True)
    every = list(synsets(folder))
    rows = {
        "glosses.jsonl": [{"text": synset.gloss, "label": synset.file} for synset in every],
        "chats.jsonl": [chat(synset) for synset in every],
    }
    for name, records in rows.items():
        (out / name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return {name: len(records) for name, records in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("data"))
    parser.add_argument("--wordnet", type=Path, default=WORDNET, help=f"default: {WORDNET}")
    asked = parser.parse_args()
    for name, count in write(asked.wordnet, asked.out).items():
        print(f"{asked.out / name}: {count} records")


if __name__ == "__main__":
    main()
