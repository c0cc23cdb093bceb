# pyright: strict
"""What kind of work a kernel or an op does, told by its name alone: GEMM, attention, elementwise, communication, ..."""

from __future__ import annotations

import re
from functools import lru_cache

CLASSES = (
    "GEMM",
    "attention",
    "convolution",
    "normalization",
    "softmax",
    "reduction",
    "elementwise",
    "indexing and sorting",
    "optimizer",
    "random",
    "communication",
    "copies",
    "Triton",
    "other",
)
"""All classes, in the order in which they are listed where times are equal."""

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("communication", r"nccl|rccl|hccl|hcom_|xccl|gloo:|c10d::|record_param_comms|all_?reduce|all_?gather"
                      r"|reduce_?scatter|all_?to_?all|cross_device_reduce|one_shot|two_shot"
                      r"|^notify|^write value$|^event_wait|^sdma$|^rdma_?send|^reduce[_ ]?inline$"),
    ("copies", r"^memcpy|^memset|^\[?memcpy|_copy_from|^aten::(copy_|_to_copy|to|clone|contiguous)$|^dma\b|tensormove"
               r"|memset|^fill_?buffer|copybuffer|transpose|nchwtonhwc|nhwctonchw|_transdata_"),
    ("optimizer", r"multi_tensor_apply.*(adam|sgd|lamb|optim)|fused_?adam|fused_?sgd|applyadam"
                  r"|^aten::_fused_(adam|sgd|adagrad|lamb)"),
    ("attention", r"flash|fmha|attention|attn|mha_|sdpa|paged_|unified_att|_mla_|ck_tile.*fmha|memory_efficient"),
    ("convolution", r"conv|scudnn|winograd|wgrad|dgrad|fprop|miopen.*(igemm|gcn)|im2col|col2im"
                    r"|implicit_gemm|igemm_fwd"),
    ("GEMM", r"gemm|gemv|cutlass|cijk_|matmul|\bmm_|splitk|s\d{4,}gemm|xmma|nvjet"
             r"|^aten::(mm|addmm|bmm|baddbmm|addmv"
             r"|mv|dot|linear|einsum|_scaled_mm|_grouped_mm|addbmm)(_|\.|$)|ampere_.*_tn|wvsplitk|llmm1|marlin"
             r"|dot_kernel"
             r"|grouped_mm|aclnn(mm|addmm|matmul|batchmatmul)"),
    ("normalization", r"norm|rms_|welford|\bbn_(fw|bw)|rowwisemoments|internalgradients"
                      r"|backwardfusedparams|gradgammabeta"),
    ("softmax", r"softmax|cross_?entropy|nll_loss"),
    ("random", r"philox|distribution_|dropout|bernoulli|curand|rand(int|n|perm)?\b"),
    ("indexing and sorting", r"index|gather|scatter|embedding|sort|topk|radix|scan|cumsum|unique|nonzero|masked_select"
                             r"|reshape_and_cache|compact|moe_align|select_kernel|where"),
    ("reduction", r"reduce|::sum|::mean|::max\b|::min\b|arg_?max|arg_?min|logsumexp|::norm|pool"),
    ("Triton", r"^triton_"),
    ("elementwise", r"elementwise|vectorized|pointwise|unrolled|foreach|multi_tensor|::(add|sub|mul|div|neg|exp|log"
                    r"|sqrt"
                    r"|rsqrt|relu|gelu|silu|tanh|sigmoid|pow|clamp|fill_|zero_|eq|ne|lt|gt|ge|le|where|cat|abs|copysign"
                    r"|lerp|addcmul|addcdiv|threshold|hardtanh|leaky_relu|masked_fill|bitwise_\w+|logical_\w+)(_|\.|$)"
                    r"|act_and_mul|silu|gelu|rope|rotary|catarray|cast|quant"
                    r"|aiCore_(mul|add|sub|div|real|cast|maximum)|tensoropwithscalar|addcmul|addcdiv"),
)  # fmt: skip
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)


@lru_cache(maxsize=65536)
def class_of(name: str) -> str:
    """The class of a kernel ("ampere_bf16_s16816gemm_...", "Memcpy DtoD") or of an op ("aten::addmm"), by its name.

    A Triton kernel counts as what its name says where inductor or an author wrote it there ("triton_red_fused__softmax"
    is "softmax"), else as "Triton". What no name tells is "other".
    """
    text = name[:400]
    for kind, pattern in _COMPILED:
        if pattern.search(text):
            return "Triton" if text.startswith("triton_") and kind not in ("GEMM", "attention") else kind
    return "other"
