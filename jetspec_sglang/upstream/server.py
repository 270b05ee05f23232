"""What JETSPEC uses of SGLang on every platform. A row names the place that *defines* the symbol."""

from __future__ import annotations

from .symbol import Symbol, class_, function, name

SERVER: tuple[Symbol, ...] = (
    # Registration and configuration.
    function(
        "speculative.spec_info.SpeculativeAlgorithm.register",
        "cls name supports_overlap validate_server_args spec_class",
    ),
    class_(
        "speculative.spec_info.SpeculativeAlgorithm",
        "need_topk carries_draft_hidden_states get_platform_worker_cls create_future_map from_string",
    ),
    class_(
        "speculative.spec_registry.CustomSpecAlgo",
        "is_dflash_family supports_target_verify_for_draft has_draft_kv create_worker",
    ),
    function(
        "speculative.spec_registry.CustomSpecAlgo.__init__",
        "self name factory supports_overlap validate_server_args",
    ),
    function(
        "speculative.spec_registry.CustomSpecAlgo.get_num_tokens_per_req_for_target_verify",
        "self num_draft_tokens is_draft_worker",
    ),
    function("speculative.spec_registry.CustomSpecAlgo.handle_server_args", "self server_args"),
    function("arg_groups.overrides.resolving_view", "server_args"),
    function("arg_groups.overrides.model_config_of", "server_args"),
    function("arg_groups.model_override_base.model_config_of", "server_args"),
    function("arg_groups.overrides.declare_resolution", "server_args source **fields"),
    function("arg_groups.resolution_hooks.register_resolution_hook", "name"),
    function("arg_groups.speculative_hook.handle_speculative_decoding", "server_args"),
    name("arg_groups.choices"),
    name("arg_groups.choices.ATTENTION_BACKEND_CHOICES"),
    name("arg_groups.choices.DRAFT_ATTENTION_BACKEND_CHOICES"),
    function("runtime_context.get_spec"),
    # Server args that we read or set.
    class_(
        "arg_groups.fields.spec.Spec",
        "speculative_algorithm speculative_draft_model_path speculative_num_steps speculative_eagle_topk "
        "speculative_num_draft_tokens speculative_draft_attention_backend "
        "speculative_draft_model_quantization _speculative_draft_quantization_explicitly_set "
        "speculative_accept_threshold_single "
        "speculative_accept_threshold_acc speculative_use_rejection_sampling speculative_adaptive "
        "speculative_use_block_verification speculative_attention_mode speculative_draft_window_size "
        "speculative_draft_sink_size speculative_token_map speculative_draft_kv_cache_dtype "
        "speculative_dflash_block_size speculative_dspark_block_size",
    ),
    class_(
        "arg_groups.fields.schedule.Schedule",
        "max_running_requests page_size enable_mixed_chunk disable_overlap_schedule "
        "prefill_only_disable_kv_cache",
    ),
    class_(
        "arg_groups.fields.parallel.Parallel",
        "tp_size pp_size attn_dp_size enable_dp_attention dcp_size attn_cp_size enable_prefill_cp",
    ),
    class_(
        "arg_groups.fields.exec_.ExecFeatures",
        "enable_custom_logit_processor enable_watermark enable_return_hidden_states "
        "return_hidden_states_mode enable_return_aux_hidden_states enable_mis "
        "enable_return_routed_experts enable_return_indexer_topk",
    ),
    class_(
        "arg_groups.fields.exec_.ExecKernel",
        "attention_backend prefill_attention_backend decode_attention_backend grammar_backend",
    ),
    class_(
        "arg_groups.fields.exec_.ExecGraph",
        "cuda_graph_config cuda_graph_backend_decode cuda_graph_backend_prefill enable_torch_compile",
    ),
    class_("arg_groups.fields.exec_.ExecOverlap", "enable_two_batch_overlap enable_single_batch_overlap"),
    class_("arg_groups.fields.exec_.ExecDllm", "dllm_algorithm"),
    class_(
        "arg_groups.fields.exec_.ExecDeterministic",
        "enable_deterministic_inference rl_on_policy_target",
    ),
    class_("arg_groups.fields.lora.Lora", "enable_lora lora_paths"),
    class_(
        "arg_groups.fields.memory.Memory",
        "enable_hierarchical_cache enable_lmcache enable_flexkv enable_hisparse enable_unified_memory "
        "enable_unified_cache_external_linker enable_page_major_kv_layout",
    ),
    class_(
        "arg_groups.fields.disagg.Disagg",
        "disaggregation_mode encoder_only language_only enable_pdmux",
    ),
    class_("arg_groups.fields.model.Model", "kv_cache_dtype is_embedding"),
    class_("arg_groups.fields.observability.Observability", "enable_metrics"),
    class_("arg_groups.fields.serving.Serving", "tokenizer_worker_num enable_strict_thinking"),
    # Graphs and facts about models.
    function("model_executor.cuda_graph_config.with_phase", "config phase **changes"),
    class_("model_executor.cuda_graph_config.Backend", "DISABLED"),
    class_("model_executor.cuda_graph_config.Phase", "DECODE PREFILL"),
    function("configs.hybrid_arch.mambaish_config", "model_config"),
    class_(
        "configs.model_config.ModelConfig",
        "hf_config hf_text_config context_len vocab_size num_hidden_layers head_dim dtype attention_arch "
        "is_multimodal is_encoder_decoder is_hybrid_swa get_num_kv_heads",
    ),
    function(
        "configs.model_config.ModelConfig.from_server_args",
        "server_args model_path model_revision is_draft_model context_length **kwargs",
    ),
    class_("configs.model_config.AttentionArch", "MHA MLA SSM"),
    name("models.registry.ModelRegistry"),
    class_("models.registry._ModelRegistry", "models"),
    # Hooks.
    function("plugins.load_plugins"),
    function("speculative.spec_registry.get_spec", "name"),
    class_("plugins.hook_registry.HookRegistry", "_hooks _patched"),
    function("plugins.hook_registry.HookRegistry.register", "cls target hook hook_type source"),
    class_("plugins.hook_registry.HookType", "AFTER AROUND REPLACE"),
    function("server_args.prepare_server_args", "argv"),
    function("speculative.dflash_utils.validate_dflash_request", "req enable_overlap"),
    class_(
        "managers.schedule_batch.Req",
        "rid sampling_params return_hidden_states return_sampling_mask origin_input_ids output_ids",
    ),
    class_("sampling.sampling_params.SamplingParams", "json_schema regex ebnf structural_tag custom_params"),
    function("mem_cache.allocation_sizing.get_alloc_len_per_decode"),
    function("mem_cache.allocation_sizing.get_alloc_reserve_per_decode"),
    function("mem_cache.allocation_sizing.get_req_to_token_extra_context_len"),
    function(
        "managers.scheduler_components.internal_state.SchedulerInternalStateController._add_speculative",
        "self state",
    ),
    function(
        "model_executor.model_runner_components.spec_aux_hidden_state.resolve_spec_aux_hidden_state_config",
        "server_args model_config spec_algorithm is_draft_worker",
    ),
    class_(
        "model_executor.model_runner_components.spec_aux_hidden_state.SpecAuxHiddenStateConfig",
        "dflash_use_aux_hidden_state dflash_target_layer_ids dflash_draft_num_layers draft_model_config",
    ),
    name("environ.envs"),
    class_("environ.Envs", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
    function("environ.EnvField.override", "self value"),
    function(
        "mem_cache.allocation.assign_req_to_token_pool_func",
        "req_pool_indices req_to_token start_offset end_offset out_cache_loc batch_size",
    ),
    # The worker and the scheduler around it.
    class_(
        "speculative.base_spec_worker.BaseSpecWorker",
        "target_worker draft_worker spec_v2_attn_backends weight_update_runners init_cuda_graphs "
        "alloc_memory_pool init_attention_backends",
    ),
    function(
        "speculative.base_spec_worker.BaseSpecWorker.on_verify_complete_cpu",
        "self num_correct_drafts_per_req batch_size",
    ),
    function("speculative.base_spec_worker.BaseSpecWorker.note_request_finished", "self rid natural_stop"),
    function("speculative.base_spec_worker.BaseSpecWorker.clear_cache_pool", "self"),
    function(
        "managers.overlap_utils.FutureMap.__init__",
        "self device spec_algo req_to_token_pool needs_cpu_seq_lens needs_confidence_relay",
    ),
    class_(
        "managers.utils.GenerationBatchResult",
        "logits_output next_token_ids accept_lens new_seq_lens next_draft_input speculative_num_draft_tokens "
        "speculative_output_stride extra_keep_alive_refs",
    ),
    function(
        "managers.tp_worker.TpModelWorker.forward_batch_generation",
        "self batch forward_batch pp_proxy_tensors is_verify skip_attn_backend_init capture_hidden_mode "
        "return_kv_loc_plan",
    ),
    class_(
        "managers.schedule_batch.ScheduleBatch",
        "reqs device model_config req_to_token_pool spec_algorithm spec_info seq_lens seq_lens_cpu seq_lens_sum "
        "req_pool_indices input_ids out_cache_loc forward_mode sampling_info return_logprob prefix_lens "
        "extend_lens is_extend_in_batch",
    ),
    function(
        "layers.logprob_processor.compute_spec_logprobs",
        "batch logits_output predict accept_index chain_stride",
    ),
    class_("layers.logits_processor.LogitsProcessorOutput", "hidden_states next_token_logits"),
    # Forward passes.
    function(
        "model_executor.forward_batch_info.ForwardBatch.init_new",
        "cls batch model_runner capture_hidden_mode return_hidden_states_before_norm extend_position_info "
        "spec_mrope_positions kv_loc_plan write_cols",
    ),
    class_("model_executor.forward_batch_info.ForwardMode", "TARGET_VERIFY is_extend is_idle"),
    class_("model_executor.forward_batch_info.CaptureHiddenMode", "FULL NULL"),
    class_(
        "speculative.spec_info.SpecInput", "spec_input_type num_tokens_per_req num_tokens_for_logprob_per_req"
    ),
    class_("speculative.spec_info.SpecInputType", "DFLASH_DRAFT EAGLE_VERIFY"),
    class_(
        "speculative.eagle_info.EagleVerifyInput",
        "draft_token custom_mask positions retrieve_index retrieve_next_token retrieve_next_sibling "
        "retrieve_cum_len spec_steps topk draft_token_num capture_hidden_mode seq_lens_sum seq_lens_cpu "
        "generate_attn_arg_prefill",
    ),
    function("speculative.eagle_utils.eagle_prepare_for_decode", "batch"),
    class_(
        "speculative.dflash_info.DFlashVerifyInput",
        "draft_token positions draft_token_num capture_hidden_mode custom_mask generate_attn_arg_prefill",
    ),
    # Sampling.
    class_(
        "sampling.sampling_batch_info.SamplingBatchInfo",
        "temperatures top_ks top_ps min_ps is_all_greedy is_any_greedy need_top_k_sampling "
        "need_top_p_sampling need_min_p_sampling max_top_k sampling_seed logit_bias "
        "acc_additive_penalties acc_scaling_penalties",
    ),
    function(
        "layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch",
        "probs top_ks top_ps min_ps need_min_p_sampling sampling_seed positions return_filtered_probs "
        "max_top_k",
    ),
    # The drafter.
    function(
        "speculative.draft_worker_common.build_draft_tp_worker",
        "server_args gpu_id nccl_port target_model_config algo_label attention_backend_override "
        "draft_worker_cls random_seed load_group",
    ),
    class_(
        "speculative.draft_worker_common.DraftWorkerBundle", "draft_worker draft_model_runner draft_model"
    ),
    class_("models.dflash.DFlashDraftModel", "layers fc hidden_norm norm"),
    function("models.dflash.DFlashDraftModel.__init__", "self config quant_config prefix"),
    function("models.dflash.DFlashDraftModel.load_weights", "self weights"),
    function("models.dflash.DFlashDraftModel.project_target_hidden", "self target_hidden"),
    function(
        "models.dflash.DFlashDraftModel.forward",
        "self input_ids positions forward_batch input_embeds get_embedding pp_proxy_tensors",
    ),
    function(
        "models.dflash.DFlashDecoderLayer.forward", "self positions hidden_states forward_batch residual"
    ),
    class_(
        "models.dflash.DFlashAttention",
        "attn num_kv_heads head_dim use_table_qk_norm_rope",
    ),
    function("models.dflash.DFlashAttention.kv_proj_only", "self hidden_states"),
    function("models.dflash.DFlashAttention.apply_k_norm", "self k"),
    function("models.dflash.DFlashAttention.apply_k_rope", "self positions k"),
    class_("models.llama_eagle3.LlamaForCausalLMEagle3", "load_weights get_hot_token_id"),
    function("models.llama_eagle3.LlamaForCausalLMEagle3.__init__", "self config quant_config prefix"),
    function(
        "models.llama_eagle3.LlamaModel.forward",
        "self input_ids positions forward_batch input_embeds pp_proxy_tensors",
    ),
    class_("models.llama_eagle3.LlamaModel", "fc layers norm embed_tokens"),
    class_("models.llama_eagle3.LlamaDecoderLayer", "hidden_norm"),
    class_("models.llama.LlamaAttention", "qkv_proj rotary_emb attn q_size kv_size num_kv_heads head_dim"),
    # KV.
    class_(
        "mem_cache.memory_pool.MHATokenToKVPool",
        "_init_kv_copy_and_warmup _kv_copy_config _slot_move_pointer_buffers k_buffer v_buffer move_kv_cache",
    ),
    function("mem_cache.memory_pool.MHATokenToKVPool._move_kv_cache_impl", "self tgt_loc src_loc"),
    function(
        "mem_cache.memory_pool.MHATokenToKVPool.set_kv_buffer",
        "self layer loc_info cache_k cache_v k_scale v_scale layer_id_override dcp_kv_mask",
    ),
    class_("mem_cache.memory_pool.KVWriteLoc", "loc physical"),
)
