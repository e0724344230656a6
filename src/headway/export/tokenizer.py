"""The tokenizer of an exported folder, and whether plain transformers reads it as it was trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headway.errors import ExportError

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja"),
    "chat_template.json",
)
# Spaces, tabs, digits, contractions, accents in both forms, other scripts, an emoji: where tokenizers differ.
_PROBE = "def  f(x):\n\treturn 12345 + x  # caf\u00e9 e\u0301 \u4f60\u597d \U0001f600\n\n   it's I'LL  done"


def copy_tokenizer(tokenizer: Path, folder: Path) -> None:
    """The tokenizer's files, and its special tokens into the generation config where that names none.

    Raises ExportError where `tokenizer` has none of its files.
    """
    present = [tokenizer / name for name in FILES if (tokenizer / name).is_file()]
    if not present:
        raise ExportError(f"the tokenizer's folder {tokenizer} has no tokenizer files")
    for path in present:
        shutil.copyfile(path, folder / path.name)
    config = folder / "generation_config.json"
    if not config.is_file():
        return
    loaded = load_tokenizer(folder)[0]
    named = json.loads(config.read_text(encoding="utf-8"))
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(loaded, key, None)
        if named.get(key) is None and value is not None:
            named[key] = value
    config.write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")


def load_tokenizer(folder: Path) -> tuple[Any, str]:
    """(tokenizer, remark). The remark says that AutoTokenizer would give other tokens than those of the training.

    For some architectures transformers puts a class of its own in place of the one that the folder names; qwen2's, for
    one, normalises text. The tokenizer that is returned is then the folder's tokenizer.json, unchanged.
    """
    loaded: Any = AutoTokenizer.from_pretrained(folder)
    file = folder / "tokenizer.json"
    if not file.is_file():
        return loaded, ""
    plain = Tokenizer.from_file(str(file))
    plain.no_padding()  # a file may say both, which is how texts are laid out and not how they are split
    plain.no_truncation()
    trained = plain.encode(_PROBE, add_special_tokens=False).ids
    if loaded(_PROBE, add_special_tokens=False)["input_ids"] == trained:
        return loaded, ""
    kind = type(loaded).__name__
    return PreTrainedTokenizerFast.from_pretrained(folder), (
        f"transformers' AutoTokenizer reads this folder as a {kind}, which splits text otherwise than the tokenizer "
        "that the model was trained with: load it with PreTrainedTokenizerFast.from_pretrained"
    )
