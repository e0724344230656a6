"""Headway's whole way from the same texts to a token store, on all cores: hashes, split, manifest and all."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from corpus import store_request

from headway.data.arrays import TokenStore
from headway.data.build import build_store


def main(data: Path, folder: Path) -> None:
    began = time.perf_counter()
    store = TokenStore(build_store(store_request(data, "prose", folder / "cache")))
    seconds = time.perf_counter() - began
    print(json.dumps({"tokens": store.manifest.train.tokens, "seconds": seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
