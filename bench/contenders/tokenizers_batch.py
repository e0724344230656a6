"""`tokenizers` by itself, on all cores: read the texts, encode them in batches, write the ids."""

import json
import sys
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

BATCH = 512


def main(data: Path, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    began = time.perf_counter()
    texts = [json.loads(line)["text"] for line in (data / "prose.jsonl").open(encoding="utf-8")]
    texts = [text for text in texts if text.strip()]
    encoding = 0.0
    tokens = 0
    with (folder / "ids.bin").open("wb") as out:
        for first in range(0, len(texts), BATCH):
            started = time.perf_counter()
            encoded = tokenizer.encode_batch_fast(texts[first : first + BATCH], add_special_tokens=False)
            encoding += time.perf_counter() - started
            for one in encoded:
                ids = np.array(one.ids, dtype=np.uint16)
                tokens += len(ids)
                ids.tofile(out)
    print(
        json.dumps(
            {
                "bytes": sum(len(text.encode()) for text in texts),
                "documents": len(texts),
                "tokens": tokens,
                "encode_seconds": encoding,
                "seconds": time.perf_counter() - began,
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
