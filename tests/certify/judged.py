"""python -m tests.certify.judged CLAIMS WORDS [WORDS ...]: claims of plans as JSON, in the environment of a python."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from headway.launch.local import warm_up


def main(claims: str, *plans: str) -> None:
    warm_up("cpu")
    from tests.certify.faults import Certifier

    numbers = tuple(int(number) for number in claims.split(","))
    with tempfile.TemporaryDirectory() as folder:
        certifier = Certifier(Path(folder))
        found = [certifier.claims(tuple(words.split("|")), numbers) for words in plans]
    print(json.dumps([[claim.model_dump(mode="json") for claim in claims] for claims in found]))


if __name__ == "__main__":
    main(*sys.argv[1:])
