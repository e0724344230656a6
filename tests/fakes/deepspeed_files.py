"""Twenty valid DeepSpeed files that together use every part Headway drives."""

from __future__ import annotations

from typing import Any

ADAM = {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}
FP16 = {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2}
CPU = {"device": "cpu", "pin_memory": True}
BATCH = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4}

VALID: dict[str, dict[str, Any]] = {
    "plain": {**BATCH, "optimizer": ADAM, "gradient_clipping": 1.0},
    "stage 1": {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}},
    "stage 2": {
        **BATCH,
        "zero_optimization": {
            "stage": 2,
            "allgather_partitions": True,
            "allgather_bucket_size": 2e8,
            "overlap_comm": True,
            "reduce_scatter": True,
            "reduce_bucket_size": 2e8,
            "contiguous_gradients": True,
            "round_robin_gradients": False,
        },
    },
    "stage 2 offload": {"train_batch_size": 16, "zero_optimization": {"stage": 2, "offload_optimizer": CPU}},
    "stage 3": {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 3,
            "stage3_prefetch_bucket_size": 5e7,
            "stage3_param_persistence_threshold": 1e5,
            "stage3_max_live_parameters": 1e9,
            "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
            "sub_group_size": 1e9,
        },
    },
    "infinity": {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU},
        "aio": {"block_size": 1048576, "queue_depth": 8, "single_submit": False, "overlap_events": True},
    },
    "fp16": {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 1},
        "fp16": FP16 | {"min_loss_scale": 1, "consecutive_hysteresis": False},
    },
    "bf16": {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True, "check_grad_overflow": True},
    },
    "trainer": {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
        "bf16": {"enabled": "auto"},
    },
    "warm-up": {
        "train_batch_size": 8,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 5}},
    },
    "decay": {
        "train_batch_size": 8,
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"total_num_steps": 90, "warmup_num_steps": 9, "warmup_type": "linear"},
        },
    },
    "cosine": {
        "train_batch_size": 8,
        "scheduler": {
            "type": "WarmupCosineLR",
            "params": {"total_num_steps": 90, "warmup_num_steps": 9, "cos_min_ratio": 0.1},
        },
    },
    "recomputed": {
        "train_batch_size": 8,
        "activation_checkpointing": {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
            "number_checkpoints": 4,
            "synchronize_checkpoint_boundary": False,
            "profile": False,
        },
    },
    "profiled": {
        "train_batch_size": 8,
        "steps_per_print": 100,
        "wall_clock_breakdown": False,
        "memory_breakdown": False,
        "dump_state": False,
        "flops_profiler": {"enabled": True, "profile_step": 2, "module_depth": 3, "top_modules": 1, "detailed": True},
        "comms_logger": {"enabled": True, "verbose": False, "prof_all": True, "debug": False},
    },
    "monitored": {
        "train_batch_size": 8,
        "tensorboard": {"enabled": True, "output_path": "logs", "job_name": "a"},
        "csv_monitor": {"enabled": False, "output_path": "logs", "job_name": "a"},
        "wandb": {"enabled": False, "group": "g", "team": "t", "project": "p"},
    },
    "zero++": {
        "train_batch_size": 8,
        "zero_optimization": {
            "stage": 3,
            "zero_quantized_weights": True,
            "zero_quantized_gradients": True,
            "zero_hpz_partition_size": 8,
        },
    },
    "sgd": {
        "train_batch_size": 8,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False}},
    },
    "rmsprop": {
        "train_batch_size": 8,
        "optimizer": {"type": "RMSprop", "params": {"lr": 0.01, "alpha": 0.9, "eps": 1e-8, "centered": False}},
    },
    "wire": {
        "train_batch_size": 8,
        "communication_data_type": "fp32",
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "disable_allgather": False,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    },
    "saved": {
        "train_batch_size": 8,
        "checkpoint": {"tag_validation": "Warn", "load_universal": False, "use_node_local_storage": False},
        "dataloader_drop_last": False,
        "data_types": {"grad_accum_dtype": "fp32"},
        "timers": {"throughput": {"enabled": True, "synchronized": True}},
        "compile": {"deepcompile": False, "free_activation": False, "offload_parameters": False},
    },
}
