"""Small configs of the kinds of models that transformers has, by kind and `model_type`; no step of their own, no data.

They are for `capture_models.py --configs` and for tests: `hf:CONFIG` captures a forward of each from its config alone,
and a training step is one of a module that its constructor made. Layers and frames left out by a draw
(`layerdrop`, `mask_time_prob`) are switched off: a capture would have those of one draw, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from benchmarks.small_models import step_from
from opreplay.replay.capture.from_config import Shape, class_of, config_of, inputs_of, maker

Config = dict[str, Any]

TEXT: Config = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
HEADS: Config = {**TEXT, "head_dim": 8}
EXPERTS: Config = {
    **HEADS, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
LATENT: Config = {
    **TEXT, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "n_group": 2, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
}  # fmt: skip
GPT: Config = {
    "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
BOTH: Config = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": 2,
    "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip
T5: Config = {
    "vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "pad_token_id": 0,
    "decoder_start_token_id": 0,
}  # fmt: skip
IMAGE: Config = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
STAGES: Config = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 64}
WINDOWS: Config = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip
SOUND: Config = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
    "layerdrop": 0.0, "mask_time_prob": 0.0,
}  # fmt: skip
SEEN: Config = {
    "depth": 2, "hidden_size": 32, "num_heads": 4, "patch_size": 28, "spatial_merge_size": 2,
}  # fmt: skip
SEEING: Config = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}
SECTIONS: Config = {**TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
STATES: Config = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
DETECTING: Config = {
    **{name: value for name, value in BOTH.items() if name != "vocab_size"}, "num_queries": 5, "backbone": None,
    "use_timm_backbone": False, "use_pretrained_backbone": False,
    "backbone_config": {"model_type": "resnet", "embedding_size": 8, **STAGES, "out_features": ["stage4"]},
}  # fmt: skip
SEGMENTING: Config = {
    "vision_config": {
        "hidden_size": 32, "output_channels": 16, "num_pos_feats": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 64, "patch_size": 16, "window_size": 2, "global_attn_indexes": [1], "mlp_dim": 64,
    },
    "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 16, "mask_input_channels": 8},
    "mask_decoder_config": {"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 4, "iou_head_hidden_dim": 16},
}  # fmt: skip

KINDS: dict[str, dict[str, Config]] = {
    "text decoder": {
        "llama": TEXT, "qwen2": TEXT, "qwen3": HEADS, "mistral": {**TEXT, "sliding_window": 8}, "phi3": TEXT,
        "gemma2": {**HEADS, "sliding_window": 8}, "gemma3_text": {**HEADS, "sliding_window": 8}, "olmo2": TEXT,
        "cohere": TEXT, "gpt2": GPT, "gptj": {**GPT, "rotary_dim": 4}, "gpt_neox": TEXT,
        "opt": {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32},
        "bloom": {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "falcon": {**TEXT, "num_kv_heads": 2, "new_decoder_architecture": True},
    },
    "experts": {
        "mixtral": EXPERTS, "qwen2_moe": EXPERTS, "qwen3_moe": EXPERTS, "olmoe": EXPERTS, "gpt_oss": EXPERTS,
        "granitemoe": EXPERTS, "deepseek_v2": {**LATENT, "topk_method": "greedy"}, "deepseek_v3": LATENT,
        "llama4_text": {**EXPERTS, "intermediate_size_mlp": 48},
    },
    "encoder": {
        "bert": TEXT, "roberta": TEXT, "distilbert": {"vocab_size": 96, "dim": 32, "hidden_dim": 48, "n_layers": 2,
        "n_heads": 4}, "albert": {**TEXT, "embedding_size": 16}, "electra": {**TEXT, "embedding_size": 16},
        "deberta-v2": {**TEXT, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["c2p", "p2c"]},
        "modernbert": {**TEXT, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 8}, "fnet": TEXT,
        "longformer": {**TEXT, "attention_window": [4, 4]}, "esm": {**TEXT, "mask_token_id": 3},
    },
    "encoder and decoder": {"t5": T5, "bart": BOTH, "pegasus": BOTH, "marian": BOTH, "m2m_100": BOTH},
    "vision": {
        "vit": IMAGE, "deit": IMAGE, "dinov2": IMAGE, "dinov3_vit": IMAGE, "beit": IMAGE, "convnext": STAGES,
        "convnextv2": STAGES, "swin": WINDOWS, "swinv2": WINDOWS, "resnet": {"embedding_size": 8, **STAGES},
        "regnet": {"embedding_size": 8, "groups_width": 4, **STAGES}, "poolformer": STAGES,
        "segformer": {**STAGES, "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16},
        "yolos": {**IMAGE, "image_size": [32, 32], "num_detection_tokens": 5}, "detr": DETECTING, "sam": SEGMENTING,
        "mobilenet_v2": {"image_size": 64}, "vivit": {**IMAGE, "num_frames": 4, "tubelet_size": [2, 8, 8]},
        "vit_mae": {**IMAGE, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1,
                    "decoder_num_attention_heads": 2, "decoder_intermediate_size": 16},
        "timesformer": {**IMAGE, "num_frames": 2},
    },
    "speech": {
        "whisper": {**BOTH, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 32},
        "wav2vec2": SOUND, "hubert": SOUND, "wavlm": SOUND, "data2vec-audio": SOUND,
        "audio-spectrogram-transformer": {**IMAGE, "max_length": 32, "num_mel_bins": 16, "frequency_stride": 8,
                                          "time_stride": 8},
        "encodec": {"num_filters": 4, "hidden_size": 16, "codebook_size": 8, "codebook_dim": 16},
    },
    "text and images": {
        "clip": {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 16},
        "siglip": {"text_config": TEXT, "vision_config": IMAGE},
        "blip": {"text_config": {**TEXT, "encoder_hidden_size": 32}, "vision_config": IMAGE, "projection_dim": 16},
        "llava": {"text_config": {"model_type": "llama", **TEXT}, "image_token_id": 5, "image_token_index": 5,
                  "vision_config": {"model_type": "clip_vision_model", **IMAGE}},
        "paligemma": {"text_config": {"model_type": "gemma", **HEADS}, "image_token_id": 5, "image_token_index": 5,
                      "vision_config": {"model_type": "siglip_vision_model", **IMAGE}, "projection_dim": 32},
        "gemma3": {"text_config": HEADS, "vision_config": IMAGE, "mm_tokens_per_image": 4, "image_token_index": 5},
        "internvl": {"text_config": {"model_type": "qwen2", **TEXT}, "image_token_id": 5,
                     "vision_config": {**IMAGE, "image_size": [32, 32], "patch_size": [8, 8]}},
        "qwen2_vl": {"text_config": SECTIONS, "vision_config": {**SEEN, "embed_dim": 32, "mlp_ratio": 2}, **SEEING},
        "qwen2_5_vl": {"text_config": SECTIONS, "vision_config": {
            **SEEN, "out_hidden_size": 32, "intermediate_size": 48, "window_size": 112, "fullatt_block_indexes": [1],
        }, **SEEING},
    },
    "state space and recurrent": {
        "mamba": STATES, "falcon_mamba": STATES, "rwkv": {**STATES, "attention_hidden_size": 32, "context_length": 64},
        "mamba2": {**STATES, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
        "recurrent_gemma": {**HEADS, "lru_width": 32, "attention_window_size": 8, "num_hidden_layers": 3},
        "jamba": {**EXPERTS, "mamba_d_state": 4, "attn_layer_offset": 1, "attn_layer_period": 2,
                  "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False},
        "lfm2": {**TEXT, "layer_types": ["conv", "full_attention"]},
    },
    "series": {
        "patchtst": {"num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 16,
                     "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 32},
    },
}  # fmt: skip
"""Kind → `model_type` → config."""

CONFIGS = {name: config for configs in KINDS.values() for name, config in configs.items()}
CONTEXT = 24
MODES = ("prefill", "sgd")
"""A forward by `hf:`, and a training step of a module that its constructor made."""


class _ByName(nn.Module):
    """A model whose inputs have names."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self._names = model, names

    def forward(self, *values: torch.Tensor) -> Any:
        return self.model(**dict(zip(self._names, values, strict=True)))


def step_of_config(name: str, mode: str) -> Callable[[], Any]:
    """`make()` of a model by its `model_type`, of one mode."""
    shape = Shape(batch=2, context=CONTEXT, dtype="float32")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": name, **CONFIGS[name]}))
        if mode == "prefill":
            return maker(str(path), shape)
        config = config_of(path)

    def build() -> tuple[nn.Module, tuple[Any, ...]]:
        model = class_of(config)(deepcopy(config))
        inputs = inputs_of(model, shape)
        return _ByName(model, tuple(inputs)), tuple(inputs.values())

    return step_from(build, mode)
