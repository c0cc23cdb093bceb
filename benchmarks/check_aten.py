"""False alarms of `opreplay check`: 200 ops of ATen, which are right, against decompositions or float64.

    python benchmarks/check_aten.py [--only NAME] [--from N] [--count N] [--json FILE]

Each is held against torch's decomposition where there is one, else against itself in float64, at every point but speed.
A point that fails is an alarm; that nothing is registered (missing) or taken (refused) is none. `TRUE` names the alarms
that were looked at and are no false ones, with the reason.

Bar: false alarms at 1 % of the points.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

from opreplay.replay.check.model import POINTS
from opreplay.replay.session.checking import check
from opreplay.traces.errors import UsageError

UNARY = """abs acos acosh angle asin asinh atan atanh bitwise_not ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2
expm1 floor frac i0 isfinite isinf isnan lgamma log log10 log1p log2 logical_not logit nan_to_num neg positive rad2deg
reciprocal relu round rsqrt sigmoid sgn sign signbit silu sin sinc sinh special_bessel_j0 special_bessel_j1
special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri sqrt square tan tanh trunc
gelu mish hardswish hardsigmoid softplus elu selu celu leaky_relu relu6 hardtanh log_sigmoid tril triu
fliplr flipud ravel clone contiguous detach alias t"""
BINARY = """add.Tensor sub.Tensor mul.Tensor div.Tensor atan2 copysign.Tensor eq.Tensor ne.Tensor lt.Tensor le.Tensor
gt.Tensor ge.Tensor fmax fmin maximum minimum fmod.Tensor remainder.Tensor floor_divide hypot logaddexp logaddexp2
logical_and logical_or logical_xor nextafter heaviside xlogy.Tensor special_xlog1py true_divide.Tensor mse_loss
l1_loss huber_loss smooth_l1_loss dist rsub.Tensor special_zeta cosine_similarity kl_div soft_margin_loss"""
CALLS = """
sum.dim_IntList(f32[16,32], [1])
sum(f32[16,32])
mean.dim(f32[16,32], [1])
mean(f32[16,32])
amax(f32[16,32], [1])
amin(f32[16,32], [0])
aminmax(f32[16,32], dim=1)
argmax(f32[16,32], 1)
argmin(f32[16,32], 1)
max.dim(f32[16,32], 1)
min.dim(f32[16,32], 0)
prod.dim_int(f32[16,32], 1)
var.correction(f32[16,32], [1])
std.correction(f32[16,32], [1])
var_mean.correction(f32[16,32], [1])
norm.ScalarOpt_dim(f32[16,32], 2.0, [1])
linalg_vector_norm(f32[16,32], 2.0, [1])
logsumexp(f32[16,32], [1])
all.dim(bool[16,32], 1)
any.dim(bool[16,32], 1)
count_nonzero.dim_IntList(f32[16,32], [1])
nansum(f32[16,32], [1])
cumsum(f32[16,32], 1)
cumprod(f32[16,32], 1)
cummax(f32[16,32], 1)
logcumsumexp(f32[16,32], 1)
softmax.int(f32[16,32], 1)
_softmax(f32[16,32], 1, False)
log_softmax.int(f32[16,32], 1)
_log_softmax(f32[16,32], 1, False)
sort(f32[16,32], 1)
argsort(f32[16,32], 1)
topk(f32[16,32], 3, 1)
mm(f32[16,32], f32[32,24])
bmm(f32[2,16,32], f32[2,32,24])
matmul(f32[16,32], f32[32,24])
addmm(f32[24], f32[16,32], f32[32,24])
baddbmm(f32[2,16,24], f32[2,16,32], f32[2,32,24])
mv(f32[16,32], f32[32])
dot(f32[32], f32[32])
outer(f32[16], f32[32])
linear(f32[16,32], f32[24,32], f32[24])
addmv(f32[16], f32[16,32], f32[32])
addr(f32[16,32], f32[16], f32[32])
native_layer_norm(f32[16,32], [32], f32[32], f32[32], 1e-5)
layer_norm(f32[16,32], [32], f32[32], f32[32])
native_group_norm(f32[2,8,12,12], f32[8], f32[8], 2, 8, 144, 4, 1e-5)
rms_norm(f32[16,32], [32], f32[32])
convolution(f32[2,8,12,12], f32[4,8,3,3], f32[4], [1,1], [1,1], [1,1], False, [0,0], 1)
conv2d(f32[2,8,12,12], f32[4,8,3,3], f32[4])
conv1d(f32[2,8,12], f32[4,8,3], f32[4])
max_pool2d_with_indices(f32[2,8,12,12], [2,2])
avg_pool2d(f32[2,8,12,12], [2,2])
adaptive_avg_pool2d(f32[2,8,12,12], [3,3])
upsample_nearest2d(f32[2,8,12,12], [24,24])
upsample_bilinear2d(f32[2,8,12,12], [24,24], False)
constant_pad_nd(f32[16,32], [1,2], 0.5)
reflection_pad1d(f32[2,8,12], [1,2])
replication_pad1d(f32[2,8,12], [1,2])
cat([f32[16,32], f32[16,32]], 0)
stack([f32[16,32], f32[16,32]], 0)
hstack([f32[16,32], f32[16,32]])
flip(f32[16,32], [0])
roll(f32[16,32], [1], [0])
rot90(f32[16,32], 1, [0,1])
repeat(f32[16,32], [2,1])
tile(f32[16,32], [2,1])
transpose.int(f32[16,32], 0, 1)
permute(f32[2,16,32], [2,0,1])
unsqueeze(f32[16,32], 0)
squeeze.dim(f32[16,1,32], 1)
expand(f32[1,32], [16,32])
select.int(f32[16,32], 0, 1)
slice.Tensor(f32[16,32], 0, 1, 3)
narrow(f32[16,32], 0, 1, 1)
split.Tensor(f32[16,32], 4, 0)
chunk(f32[16,32], 2, 0)
unbind.int(f32[4,32], 0)
diagonal(f32[16,32])
diag_embed(f32[16,32])
unfold(f32[16,32], 0, 2, 1)
embedding(f32[64,32], i64[16])
index_select(f32[64,32], 0, i64[16])
gather(f32[16,32], 1, i64[16,4])
where.self(bool[16,32], f32[16,32], f32[16,32])
masked_fill.Scalar(f32[16,32], bool[16,32], 0.5)
lerp.Scalar(f32[16,32], f32[16,32], 0.5)
addcmul(f32[16,32], f32[16,32], f32[16,32])
addcdiv(f32[16,32], f32[16,32], f32[16,32])
clamp(f32[16,32], -0.5, 0.5)
clamp.Tensor(f32[16,32], f32[16,32], f32[16,32])
threshold(f32[16,32], 0.1, 0.0)
pow.Tensor_Scalar(f32[16,32], 2)
glu(f32[16,32], 1)
silu_backward(f32[16,32], f32[16,32])
gelu_backward(f32[16,32], f32[16,32])
tanh_backward(f32[16,32], f32[16,32])
sigmoid_backward(f32[16,32], f32[16,32])
threshold_backward(f32[16,32], f32[16,32], 0.0)
_softmax_backward_data(f32[16,32], f32[16,32], 1, torch.float32)
scaled_dot_product_attention(f32[2,4,16,8], f32[2,4,16,8], f32[2,4,16,8])
one_hot(i64[16], 100)
full_like(f32[16,32], 0.5)
zeros_like(f32[16,32])
ones_like(f32[16,32])
add_.Tensor(f32[16,32], f32[16,32])
mul_.Tensor(f32[16,32], f32[16,32])
relu_(f32[16,32])
copy_(f32[16,32], f32[16,32])
"""
TRUE: dict[str, dict[str, str]] = {
    "aten::addr": {
        "broadcast, scalars": "a number of float64 decides on the dtype, of the decomposition it does not",
        "gradient": "none for a number of float64 beside float32: its formula wants one dtype",
    },
    "aten::gelu": {
        "correctness": "oneDNN's kernel, where it is used, gives 0.0 for -0.0",
        "in-place, out=": "a buffer with other strides is left unwritten",
    },
    "aten::_softmax": {"in-place, out=": "a buffer is written as if it were contiguous"},
    "aten::_log_softmax": {"in-place, out=": "the same"},
    "aten::adaptive_avg_pool2d": {"in-place, out=": "a buffer with other strides gets contiguous ones"},
    "aten::huber_loss": {
        "gradient": "of an argument that is broadcast: only Python's wrapper expands it first",
        "broadcast, scalars": "a number of float64 decides on the dtype, of the decomposition it does not",
    },
    "aten::smooth_l1_loss": {"gradient": "of an argument that is broadcast: only Python's wrapper expands it first"},
    "aten::mse_loss": {"gradient": "as huber_loss", "dtypes": "overflows float16"},
    "aten::dist": {"gradient": "raises for p=0"},
    "aten::embedding": {"gradient": "rows of padding_idx have none; that of the decomposition does not leave them out"},
    "aten::upsample_nearest2d": {
        "shape inference": "the fake kernel raises TypeError for no images",
        "correctness": "scales that are no ratio of the sizes are used, the decomposition takes the ratio",
        "gradient": "the same",
    },
    "aten::native_layer_norm": {
        "correctness": "the mean of no columns is 0",
        "gradient": "none through the mean and the deviation",
    },
    "aten::native_group_norm": {
        "correctness": "strides of the weight are ignored",
        "gradient": "none through the mean and the deviation",
    },
    "aten::upsample_bilinear2d": {
        "correctness": "beside infinity a weight of zero gives no NaN",
        "bad input": "the same",
        "dtypes": "uint8 is interpolated with whole numbers",
    },
    "aten::threshold": {"dtypes": "large int32 go through float32 in the decomposition, not in the op"},
    "aten::threshold_backward": {
        "bad input": "gradients of int64 come back as float32, of the decomposition as int64",
        "broadcast, scalars": "a gradient of float64 without dimensions gives float32, in the decomposition float64",
    },
    "aten::_softmax_backward_data": {
        "shape inference": "the CPU kernel does not use input_dtype, the fake kernel does",
        "correctness": "the same",
        "dtypes": "the same",
        "bad input": "infinity times a weight of zero",
        "in-place, out=": "a buffer is written as if it were contiguous",
    },
}
"""Op → point → why it differs from its decomposition indeed."""
NEVER = ("speed",)
WANTED = 200


def calls() -> list[str]:
    """200 calls, each an op."""
    texts = [f"aten::{name}(f32[16,32])" for name in UNARY.split()]
    texts = [call.replace("f32", "bool") if "bitwise_not" in call else call for call in texts]
    texts += [f"aten::{name}(f32[16,32], f32[16,32])" for name in BINARY.split()]
    texts += [f"aten::{line.strip()}" for line in CALLS.strip().splitlines()]
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    chosen = [call for call in calls() if options.only in call][options.first : options.first + options.count]
    for call in chosen:
        name = call.partition("(")[0]
        started = time.perf_counter()
        against = "decomposition"
        points = [point for point in POINTS if point not in NEVER]
        try:
            try:
                report = check(name, against=against, shapes=(call,), points=points, isolation="none")
            except UsageError as error:
                if "decomposition" not in str(error):
                    raise
                against = "float64"
                report = check(name, against=against, shapes=(call,), points=points, isolation="none")
        except Exception as error:
            print(f"NOT CHECKED {call}: {type(error).__name__}: {error}", flush=True)
            continue
        failed = [checked for checked in report.points if checked.verdict == "fail"]
        alarms = {checked.point: f"{checked.cases[0].case} {checked.cases[0].detail}" for checked in failed}
        tried = sum(checked.verdict != "not applicable" for checked in report.points)
        seconds = round(time.perf_counter() - started, 1)
        peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
        rows.append(
            {"call": call, "against": against, "alarms": alarms, "points": tried, "seconds": seconds, "peak_gib": peak}
        )
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))
        for point, detail in alarms.items():
            kind = "true " if point in TRUE.get(name, {}) else "ALARM"
            print(f"{kind} {call} [{against}] {point}: {detail[:260]}", flush=True)
    points = sum(row["points"] for row in rows)
    alarmed = [(row["call"].partition("(")[0], point) for row in rows for point in row["alarms"]]
    false = [(name, point) for name, point in alarmed if point not in TRUE.get(name, {})]
    share = len(false) / max(1, points)
    print(f"{len(rows)} ops, {points} points: {len(alarmed)} alarms, {len(alarmed) - len(false)} of them true;")
    print(f"{len(false)} false ({share:.2%} of the points) in {len(dict(false))} ops")
    print(f"{sum(row['against'] == 'decomposition' for row in rows)} against decompositions, the others float64")


if __name__ == "__main__":
    main()
