# pyright: strict
"""Determine the class of work of a kernel or an op: GEMM, attention, elementwise, communication, ...

The class follows from the op that owns a kernel, because a copy made by a matrix product is part of the product. Some
ops, such as a mixture-of-experts layer or a compiled region, do several kinds of work. There the kernel's name decides.
"""

from __future__ import annotations

import re
from functools import lru_cache

from opreplay.traces.collectives.communication import computes, is_communication, is_communication_op

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
"""All classes; classes with equal times are listed in this order."""

_BY_LOWER_CASE = {name.lower(): name for name in CLASSES}

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("copies", r"^memcpy|^memset|^\[?memcpy|_copy_from|^aten::(copy_|_to_copy|to|clone|contiguous|flip|roll)$|^dma\b"
               r"|tensormove|memset|^fill_?buffer|copybuffer|(?<!conv)(?<!conv_)(?<!conv[123]d)(?<!conv[123]d_)transpose"
               r"|nchwtonhwc|nhwctonchw|_transdata_"),
    ("optimizer", r"multi_tensor_apply.*(adam|sgd|lamb|optim)|fused_?adam|fused_?sgd|applyadam"
                  r"|^aten::_fused_(adam|sgd|adagrad|lamb)"),
    ("indexing and sorting", r"reshape_and_cache|concat_and_cache|store_cache|kv_cache_update|\brouting|moe_align"
                             r"|topk_(softmax|sigmoid|gating)|grouped_topk"),
    ("reduction", r"\bmoe(::|_).*finalize|finalize_?moe|moe_sum|permute_pooled"),
    # The libraries' own names end in "flash", too: what flashinfer quantises or normalises is no attention.
    ("attention", r"flash(?!infer)|fmha|attention|attn|mha_|sdpa|paged_|pagedkv|(prefill|decode)_?with|unified_att"
                  r"|_mla_|memory_efficient"),
    ("convolution", r"conv(?!ert)|scudnn|winograd|wgrad|dgrad|fprop|miopen.*(igemm|gcn)|im2col|col2im"
                    r"|implicit_gemm|igemm_fwd"),
    ("GEMM", r"(?<!fb)gemm|gemv|cutlass(?!::\w*(float|half|int|array))|cijk_|matmul|(?<![a-z])b?mm_"
             r"|fused_moe|splitk|s\d{4,}gemm|xmma|nvjet"
             r"|^aten::(mm|addmm|bmm|baddbmm|addmv"
             r"|mv|v?dot|(mkldnn_)?linear|bilinear|_trilinear|einsum|_(scaled|grouped|int|weight_int[48]pack)_mm"
             r"|_addmm_activation|addbmm)(_|\.|$)|ampere_.*_tn|wvsplitk|llmm1|marlin"
             r"|dot_kernel"
             r"|grouped_mm|aclnn(mm|addmm|matmul|batchmatmul)"),
    ("random", r"^aten::(log_)?normal_?$|randomnormal|normal_and_transform|normal_kernel|statelessnormal"),
    # Norms of vectors and matrices are sums; that of gradients is one of them.
    ("reduction", r"^aten::(linalg_(vector_|matrix_)?|_foreach_)?norm$|norm(zero|one|two)?ops|lpnorm"),
    ("normalization", r"norm|rms_|welford|\bbn_(fw|bw)|rowwisemoments|internalgradients"
                      r"|backwardfusedparams|gradgammabeta"),
    ("softmax", r"softmax|(?<!binary)(?<!binary_)cross_?entropy|nll_loss"),
    ("random", r"philox|distribution_|dropout|bernoulli|curand|rand(int|n|perm)?\b"),
    ("elementwise", r"rotary|rope_|_rope"),
    ("indexing and sorting", r"index|gather|scatter|embedding|sort|topk|radix|scan|cumsum|unique|nonzero|masked_select"
                             r"|reshape_and_cache|compact|moe_align|select_kernel|where"),
    ("reduction", r"reduce|::(nan)?sum|::(nan)?mean|::max\b|::min\b|arg_?max|arg_?min|logsumexp|pool"
                  r"|^aten::(amax|amin|aminmax|all|any|prod|std|std_mean|var|var_mean)$"),
    ("Triton", r"^triton_"),
    ("elementwise", r"elementwise|vectorized|pointwise|unrolled|foreach|multi_tensor|::(add|sub|mul|div|neg|exp|log"
                    r"|sqrt"
                    r"|rsqrt|relu|gelu|silu|tanh|sigmoid|pow|clamp|fill_|zero_|eq|ne|lt|gt|ge|le|where|cat|abs|copysign"
                    r"|lerp|addcmul|addcdiv|threshold|hardtanh|hardswish|hardsigmoid|softplus|elu|celu"
                    r"|selu|mish|leaky_relu|masked_fill|bitwise_\w+|logical_\w+)(_|\.|$)"
                    r"|^aten::(sin|cos|tan|arc(sin|cos|tan)|a(sin|cos|tan))h?_?$"
                    r"|^aten::(arctan2|atan2|ceil|clip|digamma|divide|erf|erfc|erfinv|exp2|expm1|floor|floor_divide|fmax"
                    r"|fmin|fmod|frac|greater|greater_equal|hypot|isclose|isfinite|isinf|isnan|isneginf|isposinf|less"
                    r"|less_equal|lgamma|log10|log1p|log2|logaddexp|logaddexp2|logit|maximum|minimum|multiply|nan_to_num"
                    r"|negative|not_equal|prelu|_prelu_kernel|reciprocal|relu6|remainder|round|rsub|sgn|sign|signbit"
                    r"|sinc|square|subtract|tril|triu|true_divide|trunc|xlogy|angle|conj_physical|deg2rad|float_power|gcd"
                    r"|hardshrink|heaviside|i0|igammac?|lcm|ldexp|logit_backward|mvlgamma|nextafter|polygamma|rad2deg"
                    r"|softshrink|__(and|or|xor|[lr]shift)_"
                    r"|(mse|smooth_l1|huber|soft_margin)_loss(_backward)?)_?$"
                    r"|binary_?cross_?entropy|act_and_mul|silu|gelu|rope|rotary|catarray|cast"
                    r"|quant(?!ile|ized_(?:gru|lstm|rnn))"
                    r"|aiCore_(mul|add|sub|div|real|cast|maximum)|tensoropwithscalar|addcmul|addcdiv"),
)  # fmt: skip
_LOOPS = re.compile(r"triton_(poi|red|per|for|spl|unk)_fused")
"""Names that Inductor gives to the kernels that it generates. The kinds in the names are pointwise, reductions,
foreach, split scans, and "unk" for cooperative and mixed-order reductions.
"""
_TEMPLATE = re.compile(r"triton_tem_fused_.*?(?:(?P<attention>attention)|(?P<convolution>conv(?!ert))|(?P<GEMM>mm))")
"""Names that Inductor gives to kernels from its templates. The matching group has the name of the kernel's class."""
_LAYERS = re.compile(r"moe_forward|moe_fwd|(ck|asm|fused|marlin|scale)_moe|\bfmoe|experts", re.IGNORECASE)
"""Matches the names of ops that are mixture-of-experts layers: they route, multiply and sum."""
_NODES = ("autograd::engine::", "torch::autograd::")
_CPU_LIBRARY = re.compile(
    r"^(?:_?quantized|mkldnn|mkl|onednn)::_*(?:mkl_|wrapped_|quantized_|q(?=linear|conv|add|mul))*"
)
_CONVOLUTION = re.compile(r"conv(?:olution)?(?:\dd)?_transpose")


def class_named(text: str) -> str | None:
    """Return the class with this name in any case: "gemm" is "GEMM"; None if there is none."""
    return _BY_LOWER_CASE.get(text.strip().lower())


@lru_cache(maxsize=65536)
def class_of(name: str) -> str:
    """Return the class of a kernel ("ampere_bf16_s16816gemm_...", "Memcpy DtoD"), judging only by its name.

    A Triton kernel that Inductor made from a template ("triton_tem_fused_addmm_relu_3") is "GEMM", "attention" or
    "convolution". Generated loops ("triton_red_fused__softmax_0") are "Triton", because they fuse work of several
    classes. Unknown names are "other".
    """
    if is_communication(name):
        return "communication"
    text = name[:400]
    if _LOOPS.match(text):
        return "Triton"
    if (template := _TEMPLATE.match(text)) and template.lastgroup:
        return template.lastgroup
    for kind, pattern in _PATTERNS:
        if re.search(pattern, text, re.IGNORECASE):  # compiled when first needed, which few traces do for all
            return "Triton" if text.startswith("triton_") and kind not in ("GEMM", "attention") else kind
    return "other"


@lru_cache(maxsize=65536)
def class_of_op(name: str) -> str:
    """Return the class of an op ("aten::addmm") from its name.

    An op of PyTorch's CPU libraries ("quantized::linear_relu") has the class of the aten op that it is named after.
    Return "other" for labels, autograd nodes, and mixture-of-experts layers.
    """
    if is_communication_op(name):
        return "communication"
    is_op = "::" in name and not name.startswith(_NODES)
    if not is_op or is_layer_of_experts(name):
        return "other"
    name = _CPU_LIBRARY.sub("aten::", name)
    if name.startswith("aten::"):
        name = name.partition(".")[0]  # without the overload
    if _CONVOLUTION.search(name):
        return "convolution"
    return "other" if (kind := class_of(name)) == "communication" else kind


def is_layer_of_experts(op: str) -> bool:
    """Check whether the op is a whole mixture-of-experts layer, with several weight matrices per expert."""
    return _LAYERS.search(op.rpartition("::")[2]) is not None


def class_of_work(op: str, kernel: str) -> str:
    """Return the class of a kernel launched by an op; `op` is "" if it is unknown.

    A communication kernel is communication, whatever op launched it. Otherwise the class of the op decides, if it has
    one. Communication ops are an exception: only their kernels with unknown names get their class, while copies and
    casts keep their own.
    """
    of_kernel, of_op = class_of(kernel), class_of_op(op)
    if of_kernel == "communication" or of_op == "other":
        return of_kernel
    return of_kernel if of_op == "communication" and not is_uninformative(kernel) else of_op


_MULTIPLYING = frozenset({"GEMM", "attention", "convolution", "other"})


def may_multiply(kind: str, name: str) -> bool:
    """Check whether work of this class may be compute-bound: it is a product, or work of an unknown kind."""
    return kind in _MULTIPLYING or name.startswith("triton_tem_")


def is_uninformative(kernel: str) -> bool:
    """Check whether a kernel's name does not tell if it communicates: it shows no known class and no known library."""
    return class_of(kernel) in ("other", "reduction", "Triton") and not computes(kernel)
