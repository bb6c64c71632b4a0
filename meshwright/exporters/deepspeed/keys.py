"""The keys that DeepSpeed 0.19.8 reads, and what it takes in silence though it cannot mean it.

From its runtime/config.py, constants.py, precision_config.py, zero/config.py and zero/offload_config.py. An unknown key at top
level, a hpZ that divides nothing, parameters offloaded below stage 3 and NVMe without a path pass its parser; they are errors
here.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


TOP = _names(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps managed_gradient_accumulation steps_per_print
    dump_state disable_python_gc disable_allgather communication_data_type seq_parallel_communication_data_type
    prescale_gradients gradient_predivide_factor gradient_allreduce_op zero_optimization activation_checkpointing comms_logger
    tensorboard wandb csv_monitor comet gradient_clipping fp16 bf16 bfloat16 torch_autocast optimizer scheduler
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer flops_profiler wall_clock_breakdown memory_breakdown autotuning
    use_data_before_expert_parallelism hybrid_engine pipeline data_efficiency checkpoint data_types aio dataloader_drop_last
    log_level datastates_ckpt weight_quantization compile timers tensor_parallel expert_parallel sequence_parallel_size
    data_parallel_size vocabulary_size
    """
)
ZERO = _names(
    """
    stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce allgather_partitions
    allgather_bucket_size overlap_comm compute_grad_norm load_from_fp32_weights elastic_checkpoint offload_param
    offload_optimizer zenflow sub_group_size cpu_offload_param cpu_offload_use_pin_memory cpu_offload prefetch_bucket_size
    stage3_prefetch_bucket_size param_persistence_threshold stage3_param_persistence_threshold model_persistence_threshold
    stage3_model_persistence_threshold max_live_parameters stage3_max_live_parameters max_reuse_distance
    stage3_max_reuse_distance gather_16bit_weights_on_model_save stage3_gather_16bit_weights_on_model_save
    module_granularity_threshold stage3_module_granularity_threshold use_all_reduce_for_fetch_params
    stage3_use_all_reduce_for_fetch_params allgather_sequential stage3_allgather_sequential
    stage3_gather_fp16_weights_on_model_save ignore_unused_parameters legacy_stage1 round_robin_gradients parameter_alignment
    zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients
    memory_efficient_linear pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings enable_sanity_checks
    save_muon_momentum_buffer_in_memory leaf_module
    """
)
# Of the releases that runtime deepspeed was measured with; 0.19.8 has removed them and refuses them.
REMOVED_TOP = _names(
    """
    amp compression_training curriculum_learning eigenvalue elasticity graph_harvesting nebula progressive_layer_drop
    quantize_training sparse_attention sparse_gradients
    """
)
REMOVED_ZERO = _names("mics_shard_size mics_hierarchical_params_gather zeropp_loco_param")
OFFLOAD = _names(
    """
    device nvme_path buffer_count buffer_size max_in_cpu pin_memory pipeline_read pipeline_write fast_init ratio super_offload
    cpuadam_cores_perc
    """
)
# Sections whose values are read here. DeepSpeed refuses other keys of all but activation_checkpointing.
SECTIONS = {
    "bf16": _names(
        """
        enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states
        """
    ),
    "fp16": _names(
        """
        enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis min_loss_scale
        fp16_master_weights_and_grads
        """
    ),
    "tensor_parallel": _names(
        """
        dtype autotp_size tp_overlap_comm vocab_parallel_lm_head vocab_parallel_ce_backend tensor_parallel tp
        injection_policy_tuple partition_config preset_model keep_module_on_host replace_with_kernel_inject kernel_inject
        """
    ),
    "activation_checkpointing": _names(
        """
        partition_activations number_checkpoints contiguous_memory_optimization synchronize_checkpoint_boundary profile
        cpu_checkpointing
        """
    ),
}
SECTIONS["bfloat16"] = SECTIONS["bf16"]
# "auto" in these is filled in by transformers (integrations/deepspeed.py) and accelerate (utils/dataclasses.py).
FILLED = _names(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping fp16.enabled bf16.enabled
    bfloat16.enabled fp16.auto_cast zero_optimization.reduce_bucket_size zero_optimization.stage3_prefetch_bucket_size
    zero_optimization.stage3_param_persistence_threshold zero_optimization.stage3_gather_16bit_weights_on_model_save
    """
)
# Of torch's and DeepSpeed's Adam and SGD; another one is a TypeError when training starts.
OPTIMIZER_PARAMS = _names(
    """
    lr betas eps weight_decay momentum dampening nesterov amsgrad maximize foreach fused capturable differentiable torch_adam
    adam_w_mode bias_correction set_grad_none adamw_mode fp32_optimizer_states
    """
)
# DeepSpeed's name, lower case -> ours; the others keep other states, or send other gradients.
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "sgd": "sgd"}
