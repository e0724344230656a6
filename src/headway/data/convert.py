"""python -m headway.data.convert FOLDER_OR_ID OUT [REVISION]: write a tokenizer in the form that `tokenizers` reads.

Runs in a process of its own, for it imports transformers.
"""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    from transformers import AutoTokenizer

    source, out, *revision = arguments
    tokenizer = AutoTokenizer.from_pretrained(source, use_fast=True, revision=revision[0] if revision else "main")
    if not tokenizer.is_fast:
        print(f"{source}: {type(tokenizer).__name__} has no form that the tokenizers library reads", file=sys.stderr)
        return 1
    tokenizer.save_pretrained(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
