# pyright: strict
"""Lowering of rarer elementwise functions, each to a CANN kernel of similar cost.

`elementwise` has the common functions.
"""

from __future__ import annotations

from opreplay.replay.ops.costs.pointwise.elementwise import one_kernel
from opreplay.replay.ops.table import costs_by_kernel

costs_by_kernel(
    """
        Abs=absolute Trunc=fix Muls=deg2rad,rad2deg Pow=float_power,vander,linalg_vander Gcd=gcd FloorMod=lcm
        Add=nextafter,_add_relu,_philox_key_split,_philox_key_fold_in Neg=conj_physical,_conj_physical,_neg_view_copy
        BitwiseAnd=__lshift__,__rshift__,__ilshift__,__irshift__,__iand__ BitwiseXor=__xor__,__ixor__ BitwiseOr=__ior__
        MaskedScale=_masked_scale Threshold=hardshrink,softshrink ReluGrad=hardshrink_backward,softshrink_backward
        LeakyRelu=rrelu,rrelu_with_noise,rrelu_with_noise_functional LeakyReluGrad=rrelu_with_noise_backward
        ClipByValueV2=fake_quantize_per_tensor_affine,fake_quantize_per_channel_affine
        ClipByValueV2=fake_quantize_per_tensor_affine_cachemask,fake_quantize_per_channel_affine_cachemask
        ClipByValueV2=_fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        ClipByValueV2=_fake_quantize_learnable_per_tensor_affine,_fake_quantize_learnable_per_channel_affine
        ClipByValueV2=_saturate_weight_to_fp16
        Mul=fake_quantize_per_tensor_affine_cachemask_backward,fake_quantize_per_channel_affine_cachemask_backward
        Mul=_fake_quantize_learnable_per_tensor_affine_backward,_fake_quantize_learnable_per_channel_affine_backward
        Mul=outer,ger,kron,cross,linalg_cross,_amp_update_scale,cumprod_backward,_compute_linear_combination,glu_jvp
        Mul=glu_backward_jvp,affine_grid_generator Round=special_round Tile=cartesian_prod Select=_rowwise_prune
        Sub=gradient Exp=i0,logaddexp2,special_exp2 RealDiv=_dirichlet_grad,_standard_gamma_grad
        Mul=affine_grid_generator_backward,cudnn_affine_grid_generator,cudnn_affine_grid_generator_backward
        Add=_transform_bias_rescale_qkv
        MaskedFill=_unsafe_masked_index Pack=complex
        Log=frexp,acosh,asinh,atanh,arccosh,arcsinh,arctanh,special_entr,special_logit,special_xlogy Atan2=angle,arctan2
        Acos=arccos Asin=arcsin Atan=arctan Erf=erfc,special_erf,special_erfc,special_ndtr
        Lgamma=igamma,igammac,mvlgamma Digamma=polygamma Cos=polar GeluGrad=infinitely_differentiable_gelu_backward
        Expm1=special_expm1 Log1p=special_log1p,special_xlog1py
    """,
    one_kernel,
)

# Series and continued fractions of torch.special: as long as a gamma function's.
costs_by_kernel(
    """
        Lgamma=airy_ai,bessel_j0,bessel_j1,bessel_y0,bessel_y1,chebyshev_polynomial_t,chebyshev_polynomial_u
        Lgamma=chebyshev_polynomial_v,chebyshev_polynomial_w,digamma,erfcx,erfinv,gammainc,gammaincc,gammaln
        Lgamma=hermite_polynomial_h,hermite_polynomial_he,laguerre_polynomial_l,legendre_polynomial_p
        Lgamma=modified_bessel_i0,modified_bessel_i1,modified_bessel_k0,modified_bessel_k1,multigammaln,ndtri,polygamma
        Lgamma=psi,scaled_modified_bessel_k0,scaled_modified_bessel_k1,shifted_chebyshev_polynomial_t
        Lgamma=shifted_chebyshev_polynomial_u,shifted_chebyshev_polynomial_v,shifted_chebyshev_polynomial_w,sinc
        Lgamma=spherical_bessel_j0,zeta,i0,i0e,i1,i1e,log_ndtr
    """,
    one_kernel,
    "aten::special_",
)

costs_by_kernel(
    """
        GreaterEqual=greater_equal LessEqual=less_equal Equal=isreal IsNan=is_nan
    """,
    lambda kind: one_kernel(kind, boolean=True),
)
