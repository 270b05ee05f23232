"""Tiny heads of each format for the tests of this folder."""

from tiny_data import head_config

from jetspec_sglang.drafters.head_config import AutoregressiveConfig

__all__ = ["eagle_config", "head_config"]


def eagle_config(**changes) -> AutoregressiveConfig:
    return AutoregressiveConfig(
        **{
            "hidden_size": 32,
            "intermediate_size": 48,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 8,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e4,
            "vocab_size": 96,
            "draft_vocab_size": 24,
            "block_size": 5,
            "target_layer_ids": (0, 1, 2),
            "num_target_layers": 4,
            "max_position_embeddings": 128,
        }
        | changes
    )
