"""What becomes of each key of a DeepSpeed JSON: the run file's key, the engine's, or none."""

from __future__ import annotations

from typing import Any

from headway.config.deepspeed_table import Path

# JSON key -> run-file key, of those whose value is taken over as it is.
SAME: dict[Path, str] = {
    ("train_micro_batch_size_per_gpu",): "train.micro_batch",
    ("gradient_accumulation_steps",): "train.accumulation",
    ("gradient_clipping",): "optimizer.clip",
    ("zero_optimization", "stage"): "strategy.stage",
    ("zero_optimization", "reduce_bucket_size"): "strategy.reduce_bucket",
    ("zero_optimization", "allgather_bucket_size"): "strategy.allgather_bucket",
    ("zero_optimization", "stage3_prefetch_bucket_size"): "strategy.prefetch_bucket",
    ("zero_optimization", "stage3_param_persistence_threshold"): "strategy.persistence_threshold",
    ("zero_optimization", "overlap_comm"): "strategy.overlap_comm",
    ("zero_optimization", "zero_quantized_weights"): "strategy.quantized_weights",
    ("zero_optimization", "zero_quantized_gradients"): "strategy.quantized_gradients",
    ("zero_optimization", "zero_hpz_partition_size"): "strategy.secondary_partition",
    ("steps_per_print",): "train.log_every",
}
ZERO_PLUS = {"strategy.quantized_weights", "strategy.quantized_gradients", "strategy.secondary_partition"}
STAGE_3 = {"strategy.prefetch_bucket", "strategy.persistence_threshold"}
# Given to the engine unchanged: whole sections, and single keys.
PASSED_SECTIONS = ("flops_profiler", "comms_logger", "timers")
PASSED_KEYS: frozenset[Path] = frozenset(
    [
        *((name,) for name in ("wall_clock_breakdown", "memory_breakdown", "dump_state", "communication_data_type")),
        *((name,) for name in ("prescale_gradients", "gradient_predivide_factor", "disable_allgather")),
        *((name,) for name in ("disable_python_gc", "log_level")),
        *(("fp16", name) for name in ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis")),
        *(("fp16", name) for name in ("min_loss_scale", "consecutive_hysteresis")),
        *(
            ("zero_optimization", name)
            for name in (
                *("allgather_partitions", "reduce_scatter", "contiguous_gradients", "round_robin_gradients"),
                *("use_multi_rank_bucket_allreduce", "ignore_unused_parameters", "sub_group_size"),
                *("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_model_persistence_threshold"),
                *("stage3_module_granularity_threshold", "stage3_use_all_reduce_for_fetch_params"),
                *("stage3_allgather_sequential", "log_trace_cache_warnings", "enable_sanity_checks"),
                *("memory_efficient_linear", "override_module_apply", "parameter_alignment", "leaf_module"),
            )
        ),
        *(("zero_optimization", part, "pin_memory") for part in ("offload_optimizer", "offload_param")),
    ]
)
LEAF = ("zero_optimization", "leaf_module")

# Keys without an effect here at any value: why.
IDLE: dict[Path, str] = {
    ("zero_allow_untested_optimizer",): "has no effect: the optimizers are torch's, held to plain PyTorch by a test",
    ("zero_force_ds_cpu_optimizer",): "has no effect: torch's fused optimizer runs on the host, with the same bits",
    ("dataloader_drop_last",): "has no effect: Headway's loader fills what does not divide, and drops nothing",
    ("managed_gradient_accumulation",): "has no effect: Headway says which micro batch is a step's last",
    ("vocabulary_size",): "has no effect: the model has its own vocabulary",
    ("seq_parallel_communication_data_type",): "has no effect without sequence parallelism",
    ("use_data_before_expert_parallelism",): "has no effect without expert parallelism",
    ("optimizer", "legacy_fusion"): "has no effect: the optimizer is torch's fused one",
    ("optimizer", "params", "torch_adam"): "has no effect: the optimizer is torch's in any case",
    ("optimizer", "params", "foreach"): "has no effect: the optimizer is torch's fused one",
    ("optimizer", "params", "fused"): "has no effect: the optimizer is torch's fused one",
    ("scheduler", "params", "last_batch_iteration"): "has no effect: a resume takes the step from its checkpoint",
    ("zero_optimization", "load_from_fp32_weights"): "has no effect: Headway's checkpoints hold the fp32 weights",
    ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"): (
        "has no effect: Headway exports whole weights at every stage"
    ),
    ("zero_optimization", "stage3_gather_fp16_weights_on_model_save"): (
        "is an old name, and has no effect: Headway exports whole weights at every stage"
    ),
    ("zero_optimization", "elastic_checkpoint"): (
        "has no effect: Headway's checkpoints go on at any number of processes"
    ),
    ("zero_optimization", "cpu_offload_use_pin_memory"): (
        "is an old name, and has no effect: write pin_memory in offload_optimizer"
    ),
    ("zero_optimization", "save_muon_momentum_buffer_in_memory"): "has no effect: the optimizer is not Muon",
    ("zero_optimization", "pipeline_loading_checkpoint"): "has no effect: Headway loads its own checkpoints",
    **{
        ("zero_optimization", "offload_optimizer", name): "has no effect: states wait in host memory, not on NVMe"
        for name in ("buffer_count", "pipeline_read", "pipeline_write", "fast_init", "nvme_path", "cpuadam_cores_perc")
    },
    **{
        ("zero_optimization", "offload_param", name): "has no effect: parameters wait in host memory, not on NVMe"
        for name in ("buffer_count", "buffer_size", "max_in_cpu", "nvme_path")
    },
}

# Values that Headway does not drive: what is accepted, and why nothing else is.
ONLY: dict[Path, tuple[Any, str, str]] = {
    ("gradient_allreduce_op",): ("mean", "would scale the loss by the number of processes", 'write "mean"'),
    ("sequence_parallel_size",): (1, "is not driven by Headway's engine", "write 1, or remove it"),
    ("fp16", "fp16_master_weights_and_grads"): (False, "gives up the fp32 master weights", "write false"),
    ("fp16", "auto_cast"): (False, "would cast the token ids of the input", "write false"),
    ("bf16", "bf16_master_weights_and_grads"): (False, "gives up the fp32 master weights", "write false"),
    ("bf16", "bf16_optimizer_states"): (False, "gives up the fp32 states", "write false"),
    ("bf16", "immediate_grad_update"): (False, "belongs to the optimizer path of stage 0 in bf16", "write false"),
    ("zero_optimization", "compute_grad_norm"): (True, "Headway judges every step by its norm", "write true"),
    ("zero_optimization", "legacy_stage1"): (False, "is not held to plain PyTorch by a test", "write false"),
    ("zero_optimization", "zero_quantized_nontrainable_weights"): (False, "is not driven by Headway", "write false"),
    ("zero_optimization", "offload_optimizer", "ratio"): (1.0, "splits the states between two optimizers", "write 1.0"),
    ("zero_optimization", "offload_optimizer", "super_offload"): (False, "is not driven by Headway", "write false"),
    ("optimizer", "params", "bias_correction"): (True, "is another optimizer", "write true"),
    ("optimizer", "params", "amsgrad"): (False, "is another optimizer", "write false"),
    ("optimizer", "params", "fp32_optimizer_states"): (True, "gives up the fp32 states", "write true"),
    ("optimizer", "params", "nesterov"): (False, "is another optimizer", "write false"),
    ("optimizer", "params", "dampening"): (0.0, "is another optimizer", "write 0"),
    ("optimizer", "params", "centered"): (False, "is another optimizer", "write false"),
    ("compile", "deepcompile"): (False, "is not driven by Headway", "write false, or train: {compile: true}"),
    ("data_types", "grad_accum_dtype"): (
        "fp32",
        "Headway accumulates gradients in fp32 or the weights' type",
        "remove it",
    ),
    ("data_types", "param_dtype"): (None, "contradicts the precision that fp16 or bf16 chooses", "remove it"),
    ("data_types", "buffer_dtype"): (None, "would change the model's buffers", "remove it"),
    ("data_types", "keep_in_fp32_modules"): ("auto", "would change the model's buffers", 'write "auto"'),
}
# Sections without an effect here, whatever they say: why.
IDLE_SECTIONS = {
    "aio": "has no effect: it tunes offload to NVMe, and nothing is offloaded there",
    "compile": "has no effect: it tunes DeepCompile, which is off",
}
OFF_UNLESS_ENABLED = ("data_efficiency", "autotuning", "hybrid_engine", "torch_autocast")
OTHER_DRIVERS = {
    "pipeline": "pipeline parallelism",
    "data_efficiency": "data efficiency",
    "autotuning": "autotuning",
    "expert_parallel": "expert parallelism",
    "weight_quantization": "weight quantisation",
    "hybrid_engine": "the hybrid engine",
    "torch_autocast": "torch autocast inside DeepSpeed",
    "datastates_ckpt": "DataStates checkpoints",
    "tensor_parallel": "tensor parallelism by DeepSpeed",
}
MONITORS = {"tensorboard": "tensorboard", "wandb": "wandb", "csv_monitor": "", "comet": ""}
