"""Hugging Face Trainer with DeepSpeed ZeRO-2.

Variants: `windows` (packed, no borders) and `padded` (ragged documents, its usual collator).
"""

from typing import Any

from counted import Counted, Marks
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
from torch.utils.data import Dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

deepspeed_without_compiling()


class Windows(Dataset):
    """Packed windows; the model itself shifts labels by one."""

    def __init__(self, windows: Any):
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = self.windows[index][:SEQUENCE].astype("int64")
        return {"input_ids": ids, "labels": ids}


class HFTrainer(Counted, Trainer):
    pass


def arguments(job: Job) -> TrainingArguments:
    """One place for both variants; the optimizer is transformers' default, fused AdamW."""
    return TrainingArguments(
        output_dir=str(job.out / "trainer"),
        max_steps=job.steps,
        per_device_train_batch_size=MICRO_BATCH,
        learning_rate=ADAMW["lr"],
        adam_beta1=ADAMW["betas"][0],
        adam_beta2=ADAMW["betas"][1],
        weight_decay=ADAMW["weight_decay"],
        lr_scheduler_type="constant",
        max_grad_norm=CLIP,
        optim="adamw_torch_fused",
        deepspeed={
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "zero_allow_untested_optimizer": True,
            "zero_optimization": zero_2(),
        },
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main() -> None:
    job = Job.from_arguments()
    record = Recorder(job)
    record.mark("imported")
    set_seed(0)
    settings = arguments(job)
    record.mark("process group")
    model = LlamaForCausalLM(LlamaConfig(**job.model_config()))
    if job.variant == "padded":
        from datasets import Dataset as Table

        tokenizer = AutoTokenizer.from_pretrained(job.data / "tokenizer")
        tokenizer.pad_token = tokenizer.eos_token
        data: Any = Table.from_dict({"input_ids": [ids[:SEQUENCE] for ids in job.documents()]})
        collator: Any = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    else:
        data, collator = Windows(job.windows()), default_data_collator
    trainer = HFTrainer(model=model, args=settings, train_dataset=data, data_collator=collator)
    trainer.add_callback(Marks(trainer, record, require_deepspeed))
    trainer.train()


if __name__ == "__main__":
    main()
