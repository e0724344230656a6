"""TRL's SFTTrainer with packing, under DDP. Variants are its packing strategies: `bfd` (its default) and `wrapped`.

Three of its defaults are turned off, because they would slow it down here: bf16 (50 times slower than fp32 on most
CPUs), gradient checkpointing (a third more arithmetic, for memory that nobody lacks), and DDP's search for unused
parameters.
"""

import torch.distributed as dist
from counted import Counted, Marks
from datasets import Dataset
from recorder import ADAMW, CLIP, MICRO_BATCH, SEQUENCE, Job, Recorder, require_ddp
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer


class PackedTrainer(Counted, SFTTrainer):
    pass


def main() -> None:
    job = Job.from_arguments()
    record = Recorder(job)
    record.mark("imported")
    set_seed(0)
    settings = SFTConfig(
        output_dir=str(job.out / "trainer"),
        max_steps=job.steps,
        per_device_train_batch_size=MICRO_BATCH,
        max_length=SEQUENCE,
        packing=True,
        packing_strategy=job.variant,
        learning_rate=ADAMW["lr"],
        adam_beta1=ADAMW["betas"][0],
        adam_beta2=ADAMW["betas"][1],
        weight_decay=ADAMW["weight_decay"],
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
    tokenizer = AutoTokenizer.from_pretrained(job.data / "tokenizer")
    model = LlamaForCausalLM(LlamaConfig(**job.model_config()))
    data = Dataset.from_dict({"input_ids": job.documents()})
    trainer = PackedTrainer(model=model, args=settings, train_dataset=data, processing_class=tokenizer)
    trainer.add_callback(Marks(trainer, record, require_ddp))
    trainer.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
