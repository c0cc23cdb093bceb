# pyright: strict
"""Choice of an op with a similar name, for an op without a cost rule.

This serves only calls that are predicted but not replayed. The similar op's cost rule is used. An op with the same name
stem has priority, whatever its namespace, prefix or version. If there is none, the first line of `KIN` whose pattern
matches the stem decides.
"""

from __future__ import annotations

import re
from functools import cache

from opreplay.replay.ops.catalog import LIBRARIES
from opreplay.replay.ops.table import rows

NAMESPACES = ("aten", "prims", "quantized", "torchvision", "aclnn", "atb")
"""Namespaces of torch and CANN in which similar names mean similar ops; those in `LIBRARIES` count as well."""

_AFFIXES = re.compile(r"^(_*(npu|aclnn|ai_infra|inplace|foreach)_+|_+)+|(_?v\d+|_?(quant_)?\d+|_)+$")
"""Parts of a name that do not describe the op: prefixes of libraries, and versions."""

KIN: tuple[tuple[str, str], ...] = (
    (r"metadata|workspace|infer_output|get_.*(shape|format|status)", "aten::empty"),
    (r"adam|lamb|lars|sgd|adagrad|rmsprop|adadelta|ftrl", "aten::_fused_adamw_"),
    (r"(^|_)i?(fft|stft)(_|$)", "aten::_fft_c2c"),
    (r"(attention|flash|sdpa|\bmha|fia).*(grad|backward)", "npu::npu_fusion_attention_grad"),
    (r"flash_attn|flash_attention_forward", "aten::_flash_attention_forward"),
    (r"sparse.*(attention|attn)", "npu::npu_sparse_flash_attention"),
    (r"attention|\battn|_attn|sdpa|flash|\bfia", "npu::npu_fused_infer_attention_score"),
    (r"delta_rule|(^|_)gdn$", "npu::npu_chunk_gated_delta_rule"),
    (r"(^|_)m?hc_|hyper_connection", "npu::npu_mhc_post"),
    (r"lightning_indexer", "npu::npu_lightning_indexer"),
    (r"mla_prolog|mla_preprocess", "npu::npu_mla_prolog_v3"),
    (r"(grouped_mat_?mul|gmm).*swiglu", "npu::npu_grouped_matmul_swiglu_quant"),
    (r"grouped_mat_?mul|grouped_gemm|gmm", "npu::npu_grouped_matmul"),
    (r"weight_quant.*mat_?mul|(int4|w4).*(gemm|mat_?mul)", "npu::npu_weight_quant_batchmatmul"),
    (r"quant.*(mat_?mul|gemm|linear)|(mat_?mul|gemm|linear).*quant|w8a8|_int_mm|scaled_mm", "npu::npu_quant_matmul"),
    (r"conv.*transpose|deconv|conv.*(grad|backward)", "aten::convolution_backward"),
    (r"causal_conv", "_C::causal_conv1d_fwd"),
    (r"deform.*conv|conv\d?d?$|conv", "aten::convolution"),
    (r"mat_?mul|gemm|linear|addmm|addmv|bmm|\bmm\b|\bmv\b|outer", "aten::matmul"),
    (r"lstm.*(grad|backward)|gru.*(grad|backward)", "npu::npu_lstm_backward"),
    (r"lstm|gru|rnn", "aten::lstm"),
    (r"finalize_routing|unpermute|combine", "npu::npu_moe_finalize_routing"),
    (r"init_routing|permute|re_routing|dispatch", "npu::npu_moe_init_routing"),
    (r"gating|topk_softmax|topk_sigmoid", "npu::npu_moe_gating_top_k"),
    (r"add.*rms_?norm", "npu::npu_add_rms_norm"),
    (r"rms_?norm.*(grad|backward)", "npu::npu_rms_norm_backward"),
    (r"rms_?norm.*rope|kv_?rms", "npu::npu_kv_rmsnorm_rope_cache"),
    (r"rms_?norm", "npu::npu_rms_norm"),
    (r"group_?norm.*(grad|backward)", "aten::native_group_norm_backward"),
    (r"group_?norm", "aten::native_group_norm"),
    (r"layer_?norm.*(grad|backward)", "aten::native_layer_norm_backward"),
    (r"layer_?norm|deep_?norm", "aten::native_layer_norm"),
    (r"(batch|instance|sync|bn)_?norm.*(grad|backward)|bn_.*grad", "aten::native_batch_norm_backward"),
    (r"(batch|instance)_?norm|\bbn_", "aten::native_batch_norm"),
    (r"norm", "aten::native_layer_norm"),
    (r"log_?softmax.*(grad|backward)", "aten::_log_softmax_backward_data"),
    (r"softmax.*(grad|backward)", "aten::_softmax_backward_data"),
    (r"log_?softmax", "aten::_log_softmax"),
    (r"cross_entropy|nll", "aten::cross_entropy_loss"),
    (r"softmax", "aten::_softmax"),
    (r"swi_?glu.*(grad|backward)", "npu::npu_swiglu_backward"),
    (r"swi_?glu.*quant", "npu::npu_dequant_swiglu_quant"),
    (r"swi_?glu|silu_and_mul", "npu::npu_swiglu"),
    (r"ge_?glu.*(grad|backward)", "npu::npu_geglu_grad"),
    (r"ge_?glu|gelu_and_mul|gelu_mul", "npu::npu_geglu"),
    (r"rope|rotary|mrope", "npu::npu_rotary_mul"),
    (r"anti_?quant|dequant", "npu::npu_anti_quant"),
    (
        r"(dynamic|mx|block|per_token|per_group).*quant|quant.*(dynamic|mx|block|per_token|per_group)",
        "npu::npu_dynamic_quant",
    ),
    (r"quant", "npu::npu_quantize"),
    (r"roi.*(grad|backward)", "torchvision::_roi_align_backward"),
    (r"(^|_)roi", "npu::npu_roi_align"),
    (r"nms", "torchvision::nms"),
    (r"(^|_)iou|iou$", "npu::npu_iou"),
    (r"pool.*(grad|backward)", "aten::max_pool2d_with_indices_backward"),
    (r"pool", "aten::max_pool2d_with_indices"),
    (r"(upsample|resize|interpolate).*(grad|backward)", "aten::upsample_bilinear2d_backward"),
    (r"upsample|resize|interpolate|grid_?sample|dilation", "aten::upsample_bilinear2d"),
    (r"argm(ax|in)", "aten::argmax"),
    (r"top_?k|sort|multinomial|sample|unique", "aten::topk"),
    (r"cum(sum|prod|max|min)|scan", "aten::cumsum"),
    (r"scatter|index_(put|add|copy|fill)|cache|slot|update|assign", "npu::npu_scatter_nd_update"),
    (r"embedding.*(grad|backward)", "aten::embedding_dense_backward"),
    (r"gather|index|embedding|(^|_)take|lookup", "aten::index_select"),
    (r"transpose|permute", "npu::npu_transpose"),
    (r"(grad|backward)$", "aten::silu_backward"),
    (r"(^|_)(sum|mean|amax|amin|reduce|prod|var|std)(_|$)", "aten::sum"),
    (r"(^|_)(cat|stack|concat)", "aten::cat"),
    (r"(^|_)pad", "aten::constant_pad_nd"),
)
"""Pattern searched in a name without affixes → op whose cost rule is used; the first match decides."""


def stem_of(name: str) -> str:
    """Return the stem of an op's name: moe_init_routing for npu_moe_init_routing_v2 and aclnnMoeInitRoutingV2."""
    tail = name.rpartition("::")[2].partition(".")[0]
    tail = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tail).lower()
    return _AFFIXES.sub("", tail).replace("_grad", "_backward") or tail


@cache
def _by_stem() -> dict[str, str]:
    known = [row.name for row in rows() if row.cost is not None]
    return {stem_of(name): name for name in sorted(known, key=_is_preferred)}


def _is_preferred(name: str) -> tuple[bool, bool, str]:
    """Return the sort key among ops with the same stem, of which the last in order is used.

    torch_npu's ops come after torch's, and torch's after those of other libraries. Newer versions come after older
    versions.
    """
    return name.startswith("npu::"), name.startswith("aten::"), name


def kin_of(name: str) -> str | None:
    """Return the op with a cost rule whose name is most similar, or None if no name is similar.

    Names outside the known namespaces give None, because the name of a user's own op can mean anything.
    """
    if name.partition("::")[0] not in (*NAMESPACES, *LIBRARIES):
        return None
    stem = stem_of(name)
    return _by_stem().get(stem) or next((op for pattern, op in KIN if re.search(pattern, stem)), None)
