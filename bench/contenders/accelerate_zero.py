"""Accelerate with DeepSpeed ZeRO-2: its documented loop, over packed windows without borders."""

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from recorder import (
    ADAMW,
    CLIP,
    MICRO_BATCH,
    SEQUENCE,
    Job,
    Recorder,
    deepspeed_without_compiling,
    require_deepspeed,
    zero_2,
)
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

deepspeed_without_compiling()


def main() -> None:
    job = Job.from_arguments()
    record = Recorder(job)
    record.mark("imported")
    plugin = DeepSpeedPlugin(
        hf_ds_config={
            "train_micro_batch_size_per_gpu": MICRO_BATCH,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": CLIP,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": zero_2(),
        }
    )
    accelerator = Accelerator(deepspeed_plugin=plugin)  # with cpu=True it would run DDP and say nothing
    record.mark("process group")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**job.model_config()))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **ADAMW)
    windows = torch.from_numpy(job.windows()[:, :SEQUENCE].astype("int64"))
    loader = DataLoader(TensorDataset(windows), batch_size=MICRO_BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    require_deepspeed(model)
    record.mark("engine")

    model.train()
    for step, (ids,) in enumerate(loader, start=1):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        record.step(step, ids.numel(), ids[:, 1:].numel(), loss.item())
        if step == job.steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
