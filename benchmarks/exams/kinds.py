# pyright: strict
"""Kinds of calls that invariants are checked on: texts with names of sizes, each in some dtypes (`T`)."""

from __future__ import annotations

BOTH, SINGLE, HALF = ("f32", "bf16"), ("f32",), ("bf16",)

SIZES: tuple[dict[str, int], ...] = (
    {"r": 16, "c": 256, "k": 512, "b": 1, "s": 128, "p": 14},
    {"r": 1024, "c": 2048, "k": 2048, "b": 4, "s": 1024, "p": 56},
    {"r": 16384, "c": 8192, "k": 8192, "b": 16, "s": 4096, "p": 112},
)
"""Small: within the launch; middle: in L2; large: more than L2. Rows and columns, depth of products, batch and length
of attention, height and width of images."""

UNARY = """abs neg exp log sqrt rsqrt reciprocal sin cos tanh sigmoid relu gelu silu mish erf floor round sign softplus
    hardtanh hardswish hardsigmoid leaky_relu elu selu log1p expm1 square trunc atan isnan logical_not"""
BINARY = "add sub mul div maximum minimum remainder fmod pow eq lt ge ne logical_and atan2 hypot"
ALONG = "sum.dim_IntList mean.dim amax amin var.dim std.dim logsumexp"
ALONG_ONE = "argmax argmin max.dim min.dim prod.dim_int any.dim cumsum cumprod sort topk.values logcumsumexp cummax"
ONE_DIM = {"topk.values": "aten::topk(T[r,c],8,D)", "argmax": "aten::argmax(T[r,c],D,False)",
           "argmin": "aten::argmin(T[r,c],D,False)", "sort": "aten::sort(T[r,c],D,False)"}  # fmt: skip

OTHERS: dict[str, tuple[str, ...]] = {
    "aten::add(T[r,c],T[c])": BOTH,
    "aten::mul(T[r,c],T[r,1])": BOTH,
    "aten::mul(T[r,c],2.0)": BOTH,
    "aten::addcmul(T[r,c],T[r,c],T[r,c])": SINGLE,
    "aten::lerp(T[r,c],T[r,c],0.5)": SINGLE,
    "aten::clamp(T[r,c],-1.0,1.0)": BOTH,
    "aten::where(bool[r,c],T[r,c],T[r,c])": BOTH,
    "aten::masked_fill(T[r,c],bool[r,c],0.0)": BOTH,
    "aten::bitwise_and(i32[r,c],i32[r,c])": SINGLE,
    "aten::sum(T[r,c])": BOTH,
    "aten::mean(T[r,c])": SINGLE,
    "aten::linalg_vector_norm(T[r,c])": SINGLE,
    "aten::mse_loss(T[r,c],T[r,c])": SINGLE,
    "aten::softmax(T[r,c],-1)": BOTH,
    "aten::log_softmax(T[r,c],-1)": BOTH,
    "aten::softmax(T[r,c],0)": SINGLE,
    "aten::_softmax_backward_data(T[r,c],T[r,c],-1,torch.float32)": SINGLE,
    "aten::native_layer_norm(T[r,c],[c],T[c],T[c],1e-05)": BOTH,
    "aten::native_group_norm(T[b,64,p,p],T[64],T[64],b,64,p*p,8,1e-05)": BOTH,
    "aten::native_batch_norm(T[b,64,p,p],T[64],T[64],T[64],T[64],False,0.1,1e-05)": SINGLE,
    "npu::npu_rms_norm(T[r,c],T[c])": BOTH,
    "npu::npu_add_rms_norm(T[r,c],T[r,c],T[c])": HALF,
    "npu::npu_swiglu(T[r,c])": BOTH,
    "npu::npu_dynamic_quant(T[r,c])": HALF,
    "npu::npu_rotary_mul(T[b,s,32,128],T[1,s,1,128],T[1,s,1,128])": HALF,
    "aten::cat([T[r,c],T[r,c]],0)": BOTH,
    "aten::cat([T[r,c],T[r,c]],1)": BOTH,
    "aten::stack([T[r,c],T[r,c]],0)": SINGLE,
    "aten::flip(T[r,c],[1])": SINGLE,
    "aten::roll(T[r,c],[1],[0])": SINGLE,
    "aten::t_copy(T[r,c])": BOTH,
    "aten::clone(T[r,c])": BOTH,
    "aten::constant_pad_nd(T[r,c],[1,1],0.0)": SINGLE,
    "aten::repeat(T[r,c],[2,1])": SINGLE,
    "aten::tril(T[r,c],0)": SINGLE,
    "aten::_to_copy(T[r,c],dtype=torch.float16)": BOTH,
    "aten::fill_(T[r,c],1.0)": BOTH,
    "aten::native_dropout(T[r,c],0.1,True)": BOTH,
    "aten::embedding(T[32000,c],i64[r])": BOTH,
    "aten::index_select(T[32000,c],0,i64[r])": BOTH,
    "aten::gather(T[r,c],1,i64[r,c])": SINGLE,
    "aten::scatter(T[r,c],1,i64[r,c],T[r,c])": SINGLE,
    "aten::index_add(T[r,c],0,i64[r],T[r,c])": SINGLE,
    "aten::index_copy(T[r,c],0,i64[r],T[r,c])": SINGLE,
    "aten::unique_consecutive(T[r])": SINGLE,
    "aten::mm(T[r,k],T[k,c])": (*BOTH, "f16"),
    "aten::mm(T[1,k],T[k,c])": HALF,
    "aten::addmm(T[c],T[r,k],T[k,c])": BOTH,
    "aten::linear(T[r,k],T[c,k])": BOTH,
    "aten::bmm(T[b,r,128],T[b,128,r])": BOTH,
    "aten::bmm(T[32,s,128],T[32,128,s])": HALF,
    "npu::npu_quant_matmul(i8[r,k],i8[k,c],f32[c],output_dtype=torch.bfloat16)": SINGLE,
    "aten::scaled_dot_product_attention(T[b,32,s,128],T[b,32,s,128],T[b,32,s,128])": HALF,
    "aten::convolution(T[b,64,p,p],T[64,64,3,3],None,[1,1],[1,1],[1,1],False,[0,0],1)": (*BOTH, "f16"),
    "aten::max_pool2d(T[b,64,p,p],[2,2],[2,2])": SINGLE,
    "aten::avg_pool2d(T[b,64,p,p],[2,2],[2,2])": SINGLE,
    "aten::upsample_nearest2d(T[b,64,p,p],[2*p,2*p])": SINGLE,
    "aten::upsample_bilinear2d(T[b,64,p,p],[2*p,2*p],False)": SINGLE,
}  # fmt: skip


def texts() -> dict[str, str]:
    """Kind ("aten::add(f32[r,c],f32[r,c])") → what of more of it is more work: rows or batch."""
    templates: dict[str, tuple[str, ...]] = {f"aten::{name}(T[r,c])": BOTH for name in UNARY.split()}
    templates |= {f"aten::{name}(T[r,c],T[r,c])": BOTH for name in BINARY.split()}
    for dim in ("1", "0"):
        templates |= {f"aten::{name}(T[r,c],[{dim}])": BOTH for name in ALONG.split()}
        for name in ALONG_ONE.split():
            templates[ONE_DIM.get(name, f"aten::{name}(T[r,c],D)").replace("D", dim)] = SINGLE
    kinds = {text.replace("T[", f"{dtype}["): text for text, dtypes in (templates | OTHERS).items() for dtype in dtypes}
    return {kind: "b" if "[b," in kind else "s" if "s," in kind else "r" if "[r" in kind else "c" for kind in kinds}
