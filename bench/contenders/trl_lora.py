"""TRL's SFTTrainer with a LoRA adapter through PEFT, under DDP. Variants: `bfd`, its packing, and `padded`.

It reads token ids and labels that were made before. As in trl_sft.py, bf16, gradient checkpointing and DDP's search for
unused parameters are turned off, because they would slow it down here.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from counted import Marks
from datasets import Dataset
from peft import LoraConfig
from recorder import CLIP, Job, Recorder, require_ddp
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import SFTConfig, SFTTrainer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chats import ALPHA, LR, RANK, ROWS, SEQUENCE, WINDOWS, model_folder


class CountedTrainer(SFTTrainer):
    """Tokens, targets and loss of the present step; a target is a token that carries loss."""

    tokens = targets = 0
    loss: Any = None

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        mask = inputs.get("attention_mask")
        padded = mask is not None and mask.dim() == 2
        self.tokens = mask.sum() if padded else inputs["input_ids"].numel()
        self.targets = (inputs["labels"][:, 1:] != -100).sum()
        self.loss = super().training_step(model, inputs, *args, **kwargs)
        return self.loss


def chats(data: Path) -> Dataset:
    """input_ids, and labels of -100 where a token is not learnt."""
    cuts = np.load(data / "chat-offsets.npy")[1:-1]
    tokens = np.split(np.load(data / "chat-tokens.npy").astype("int64"), cuts)
    learnt = np.split(np.load(data / "chat-learnt.npy"), cuts)
    labels = [np.where(mask == 1, ids, -100) for ids, mask in zip(tokens, learnt, strict=True)]
    return Dataset.from_dict({"input_ids": tokens, "labels": labels})


def main() -> None:
    job = Job.from_arguments()
    record = Recorder(job)
    record.mark("imported")
    set_seed(0)
    packed = job.variant == "bfd"
    settings = SFTConfig(
        output_dir=str(job.out / "trainer"),
        max_steps=job.steps,
        per_device_train_batch_size=WINDOWS if packed else ROWS,
        max_length=SEQUENCE,
        packing=packed,
        learning_rate=LR,
        lr_scheduler_type="constant",
        max_grad_norm=CLIP,
        optim="adamw_torch_fused",
        bf16=False,
        gradient_checkpointing=False,
        ddp_find_unused_parameters=False,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    record.mark("process group")
    folder = model_folder(job.data)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    trainer = CountedTrainer(
        model=model,
        args=settings,
        train_dataset=chats(job.data),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.add_callback(Marks(trainer, record, require_ddp))
    trainer.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
