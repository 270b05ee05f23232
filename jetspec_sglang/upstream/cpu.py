"""What the CPU platform uses of SGLang."""

from __future__ import annotations

from .symbol import Symbol, class_, function, name

CPU: tuple[Symbol, ...] = (
    # The platform.
    name("platforms.current_platform"),
    class_("platforms.cpu.CpuDeviceMixin", "device_type get_device"),
    class_("platforms.device_mixin.PlatformEnum", "OOT"),
    class_("platforms.interface.PlatformCapabilities"),
    class_(
        "platforms.interface.SRTPlatform",
        "apply_server_args_defaults init_backend get_default_attention_backend get_kv_pool_cls "
        "get_default_speculative_draft_attention_backend supports_speculative_draft_attention_backend "
        "supports_speculative_algorithm get_compile_backend post_load_model get_dispatch_key_name",
    ),
    # Attention.
    class_(
        "layers.attention.base_attn_backend.AttentionBackend",
        "init_forward_metadata forward_extend forward_decode forward_mixed support_triton "
        "get_cuda_graph_seq_len_fill_value",
    ),
    function(
        "layers.attention.base_attn_backend.AttentionBackend.forward_extend",
        "self q k v layer forward_batch save_kv_cache **kwargs",
    ),
    function(
        "layers.attention.base_attn_backend.AttentionBackend.forward_decode",
        "self q k v layer forward_batch save_kv_cache **kwargs",
    ),
    function("layers.attention.attention_registry.register_attention_backend", "name"),
    name("layers.attention.attention_registry.ATTENTION_BACKENDS"),
    class_(
        "layers.radix_attention.RadixAttention",
        "layer_id scaling logit_cap attn_type sliding_window_size qk_head_dim v_head_dim tp_q_head_num",
    ),
    class_("layers.radix_attention.AttentionType", "DECODER ENCODER_ONLY"),
    class_("model_executor.model_runner.ModelRunner"),
    # Layer operations.
    function("kernels.fused_op.BaseFusedOp.register_oot_forward", "cls op_cls fn platform_key"),
    function("layers.activation.SiluAndMul.forward_native", "self x"),
    class_(
        "layers.layernorm.RMSNorm",
        "variance_epsilon hidden_size variance_size_override override_orig_dtype cast_x_before_out_mul "
        "fp32_residual",
    ),
    function(
        "layers.layernorm.RMSNorm.forward_native", "self x residual post_residual_addition quant_linear"
    ),
    class_(
        "layers.rotary_embedding.base.RotaryEmbedding", "cos_sin_cache rotary_dim head_size is_neox_style"
    ),
    function(
        "layers.rotary_embedding.base.RotaryEmbedding.forward_native",
        "self positions query key offsets fused_set_kv_buffer_arg",
    ),
    # Packed linear layers.
    class_("layers.quantization.base_config.QuantizeMethodBase", "apply process_weights_after_loading"),
    function("layers.quantization.unquant.UnquantizedLinearMethod.apply", "self layer x bias"),
    function("layers.quantization.unquant.UnquantizedEmbeddingMethod.apply", "self layer x bias"),
    # KV.
    function("mem_cache.memory_pool.MHATokenToKVPool._store_kv_layer", "self layer_idx loc cache_k cache_v"),
)
