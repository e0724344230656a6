"""A worker that only meets its peers: one all-reduce over gloo, its result written to the run directory."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path


def main(run_dir: str) -> int:
    imported_before = "torch" in sys.modules
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    dist.destroy_process_group()
    result = {
        "sum": value.item(),
        "threads": torch.get_num_threads(),
        "imported_before": imported_before,
        "accelerator": os.environ.get("DS_ACCELERATOR"),
    }
    (Path(run_dir) / f"rank-{os.environ['RANK']}.result").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
