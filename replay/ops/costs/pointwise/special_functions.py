# pyright: strict
"""Lowering of rarer elementwise functions, each by a CANN type of similar work; see `elementwise` for others."""

from __future__ import annotations

from opreplay.replay.ops.costs.pointwise.elementwise import one_kernel
from opreplay.replay.ops.table import costs

CHEAP: dict[str, str] = {
    "absolute": "Abs", "fix": "Trunc", "deg2rad": "Muls", "rad2deg": "Muls", "float_power": "Pow", "gcd": "Gcd",
    "lcm": "FloorMod", "nextafter": "Add", "conj_physical": "Neg", "_conj_physical": "Neg", "__lshift__": "BitwiseAnd",
    "__rshift__": "BitwiseAnd", "__ilshift__": "BitwiseAnd", "__irshift__": "BitwiseAnd", "__xor__": "BitwiseXor",
    "__ixor__": "BitwiseXor", "__iand__": "BitwiseAnd", "__ior__": "BitwiseOr", "_masked_scale": "MaskedScale",
    "_add_relu": "Add", "hardshrink": "Threshold", "softshrink": "Threshold", "_neg_view_copy": "Neg",
    "hardshrink_backward": "ReluGrad", "softshrink_backward": "ReluGrad", "rrelu": "LeakyRelu",
    "rrelu_with_noise": "LeakyRelu", "rrelu_with_noise_functional": "LeakyRelu",
    "rrelu_with_noise_backward": "LeakyReluGrad", "fake_quantize_per_tensor_affine": "ClipByValueV2",
    "fake_quantize_per_channel_affine": "ClipByValueV2",
    "fake_quantize_per_tensor_affine_cachemask": "ClipByValueV2",
    "fake_quantize_per_channel_affine_cachemask": "ClipByValueV2",
    "fake_quantize_per_tensor_affine_cachemask_backward": "Mul",
    "fake_quantize_per_channel_affine_cachemask_backward": "Mul",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": "ClipByValueV2",
    "_fake_quantize_learnable_per_tensor_affine": "ClipByValueV2",
    "_fake_quantize_learnable_per_channel_affine": "ClipByValueV2",
    "_fake_quantize_learnable_per_tensor_affine_backward": "Mul",
    "_fake_quantize_learnable_per_channel_affine_backward": "Mul", "special_round": "Round", "outer": "Mul",
    "ger": "Mul", "kron": "Mul", "cross": "Mul", "linalg_cross": "Mul", "vander": "Pow", "linalg_vander": "Pow",
    "cartesian_prod": "Tile", "_rowwise_prune": "Select", "_saturate_weight_to_fp16": "ClipByValueV2",
    "_amp_update_scale": "Mul", "gradient": "Sub", "cumprod_backward": "Mul", "matrix_exp": "Exp",
    "_compute_linear_combination": "Mul", "glu_jvp": "Mul", "glu_backward_jvp": "Mul", "_dirichlet_grad": "RealDiv",
    "_standard_gamma_grad": "RealDiv", "_unsafe_masked_index": "MaskedFill", "affine_grid_generator": "Mul",
    "complex": "Pack", "_philox_key_split": "Add", "_philox_key_fold_in": "Add", "frexp": "Log", "angle": "Atan2",
}  # fmt: skip
"""aten op → CANN type, for arithmetic and selections."""

TRANSCENDENTAL: dict[str, str] = {
    "acosh": "Log",
    "asinh": "Log",
    "atanh": "Log",
    "arccosh": "Log",
    "arcsinh": "Log",
    "arctanh": "Log",
    "arccos": "Acos",
    "arcsin": "Asin",
    "arctan": "Atan",
    "arctan2": "Atan2",
    "erfc": "Erf",
    "i0": "Exp",
    "logaddexp2": "Exp",
    "igamma": "Lgamma",
    "igammac": "Lgamma",
    "mvlgamma": "Lgamma",
    "polygamma": "Digamma",
    "polar": "Cos",
    "infinitely_differentiable_gelu_backward": "GeluGrad",
}
"""aten op → CANN type, for functions of more than arithmetic."""

SPECIAL = (
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "digamma",
    "erfcx",
    "erfinv",
    "gammainc",
    "gammaincc",
    "gammaln",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "multigammaln",
    "ndtri",
    "polygamma",
    "psi",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
    "sinc",
    "spherical_bessel_j0",
    "zeta",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "log_ndtr",
)
"""torch.special's series and continued fractions: as long as a gamma function's."""

EXPONENTIAL = {
    "entr": "Log",
    "erf": "Erf",
    "erfc": "Erf",
    "exp2": "Exp",
    "expm1": "Expm1",
    "log1p": "Log1p",
    "logit": "Log",
    "ndtr": "Erf",
    "xlog1py": "Log1p",
    "xlogy": "Log",
}
"""torch.special's others."""

PREDICATES: dict[str, str] = {
    "greater_equal": "GreaterEqual",
    "less_equal": "LessEqual",
    "isreal": "Equal",
    "is_nan": "IsNan",
}
"""aten op → CANN type, for ops that give booleans."""

for _name, _kind in {**CHEAP, **TRANSCENDENTAL}.items():
    costs(f"aten::{_name}")(one_kernel(_kind, boolean=False))
for _name in SPECIAL:
    costs(f"aten::special_{_name}")(one_kernel("Lgamma", boolean=False))
for _name, _kind in EXPONENTIAL.items():
    costs(f"aten::special_{_name}")(one_kernel(_kind, boolean=False))
for _name, _kind in PREDICATES.items():
    costs(f"aten::{_name}")(one_kernel(_kind, boolean=True))
