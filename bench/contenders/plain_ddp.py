"""A training loop as a good engineer writes it by hand: DDP, fused AdamW, clipping, batches from a mapped file."""

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from recorder import ADAMW, CLIP, MICRO_BATCH, SEQUENCE, Job, Recorder
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    job = Job.from_arguments()
    record = Recorder(job)
    record.mark("imported")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    record.mark("process group")

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**job.model_config()))
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, fused=True, **ADAMW)
    record.mark("engine")

    windows = job.windows()
    order = np.random.default_rng(0).permutation(len(windows))
    ddp.train()
    for step in range(1, job.steps + 1):
        first = ((step - 1) * record.world + record.rank) * MICRO_BATCH
        batch = torch.from_numpy(windows[order[first : first + MICRO_BATCH]].astype(np.int64))
        logits = ddp(input_ids=batch[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        record.step(step, MICRO_BATCH * SEQUENCE, MICRO_BATCH * SEQUENCE, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
