"""Data for the recipes, from WordNet 3.0 as Debian's package wordnet-base has it: glosses by their class, and chats.

    apt-get install wordnet-base
    python examples/wordnet.py data     # data/glosses.jsonl and data/chats.jsonl, with -eval.jsonl beside each

WordNet has 117,659 meanings. A record of glosses.jsonl is a text and its label: a gloss, and which of WordNet's 45
files it stands in (noun.animal, verb.motion, ...). One of chats.jsonl asks what a word means and answers with its
gloss. One gloss in fifty, chosen by its own words, is held out in the files -eval.jsonl. The chats are of one meaning
in ten, which is more than the recipes read in the time that they take.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
HELD_OUT = 50  # one gloss in so many
CHATS = 10  # a chat for one meaning in so many
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


def is_held_out(synset: Synset) -> bool:
    """By its gloss alone: no gloss is in both parts, however often it occurs."""
    return zlib.crc32(synset.gloss.encode()) % HELD_OUT == 0


def write(folder: Path, out: Path, every: int = 1) -> dict[str, int]:
    """Write the files into `out`, of one meaning in `every`; how many records each has."""
    out.mkdir(parents=True, exist_ok=True)
    chosen = list(synsets(folder))[::every]
    rows: dict[str, list[dict[str, Any]]] = {}
    for suffix, held_out in (("", False), ("-eval", True)):
        mine = [synset for synset in chosen if is_held_out(synset) == held_out]
        rows[f"glosses{suffix}.jsonl"] = [{"text": synset.gloss, "label": synset.file} for synset in mine]
        rows[f"chats{suffix}.jsonl"] = [chat(synset) for synset in mine[::CHATS]]
    for name, records in rows.items():
        (out / name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return {name: len(records) for name, records in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("data"))
    parser.add_argument("--wordnet", type=Path, default=WORDNET, help=f"default: {WORDNET}")
    parser.add_argument("--every", type=int, default=1, help="one meaning in so many, for a quick look")
    asked = parser.parse_args()
    if not (asked.wordnet / "data.noun").is_file():
        parser.error(f"there is no WordNet in {asked.wordnet}: apt-get install wordnet-base")
    for name, count in write(asked.wordnet, asked.out, asked.every).items():
        print(f"{asked.out / name}: {count} records")


if __name__ == "__main__":
    main()
