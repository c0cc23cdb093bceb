# pyright: strict
"""Table of ops and overloads of torch 1.8 to 1.13 that torch has removed, with their present equivalents.

The schemas were read from the operator registries of the released torch 1.8.1, 1.9.1, 1.10.2, 1.11.0, 1.12.1 and
1.13.1. `RENAMED` holds ops that were only renamed, with all their overloads. A functional overload that needs more than
a new name has a row here.

`out=` variants of removed ops have no row, because autograd and the public functions of these versions call the
functional forms. torch is imported only when a row is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import msgspec

from opreplay.replay.host.dispatcher import parse_schema
from opreplay.replay.ops.calls import by_schema


class Legacy(msgspec.Struct, frozen=True, kw_only=True):
    """One overload that torch removed after some version, and its equivalent."""

    schema: str
    """Schema without the namespace.

    The overload name is the one that torch used, or `until_1_10` if torch now uses that name for another overload.
    """
    via: str
    """Op that does the work today; "plain torch" for a composition of several ops."""
    function: str = ""
    """Function of package `ops.aten` that runs the overload, as "module.function".

    It takes the arguments of `schema`. If this is "", op `via` is called instead, by keyword, with the arguments that
    both schemas have.
    """
    given: tuple[tuple[str, Any], ...] = ()
    """Arguments of `via` that the old overload did not have, with their values."""

    @property
    def name(self) -> str:
        """Return the qualified op name, "aten::op"."""
        return "aten::" + self.schema.partition("(")[0].partition(".")[0]

    @property
    def overload(self) -> str:
        """Return the overload name, "" for the default overload."""
        return self.schema.partition("(")[0].partition(".")[2]

    def load(self) -> Callable[..., Any]:
        """Return the function that runs the overload. It takes the arguments of `schema`, keyword-only ones
        by keyword.
        """
        if self.function:
            module, _, function = self.function.rpartition(".")
            run = getattr(import_module(f"opreplay.replay.ops.aten.{module}"), function)
            return by_schema(run, parse_schema(f"aten::{self.schema}"))
        return _by_name(self)


@lru_cache(maxsize=256)
def _by_name(row: Legacy) -> Callable[..., Any]:
    """Return a function that takes the old schema's arguments and calls `row.via`.

    It drops arguments that `row.via` does not have, and adds the constants in `row.given`.
    """
    import torch

    arguments = parse_schema(f"aten::{row.schema}").arguments
    old = [argument.name for argument in arguments]
    packet, _, overload = row.via.removeprefix("aten::").partition(".")
    target = getattr(getattr(torch.ops.aten, packet), overload or "default")
    shared = {argument.name for argument in target._schema.arguments} & set(old)
    constants = dict(row.given)

    def call(*args: Any, **kwargs: Any) -> Any:
        by_name = dict(zip(old, args, strict=False)) | kwargs
        return target(**{name: value for name, value in by_name.items() if name in shared} | constants)

    return call


RENAMED: dict[str, str] = {
    "aten::_cat": "aten::cat",
    "aten::_s_where": "aten::where",
    "aten::s_copy_": "aten::copy_",
    "aten::_index_copy_": "aten::index_copy_",
    "aten::_cumsum": "aten::cumsum",
    "aten::_cumprod": "aten::cumprod",
    "aten::_std": "aten::std",
    "aten::_var": "aten::var",
    "aten::_mode": "aten::mode",
    "aten::_baddbmm_mkl_": "aten::baddbmm_",
    "aten::_mps_linear": "aten::linear",
    "aten::_mps_max_pool2d": "aten::max_pool2d",
    "aten::_weight_norm_cuda_interface": "aten::_weight_norm_interface",
    "aten::_weight_norm_cuda_interface_backward": "aten::_weight_norm_interface_backward",
    "aten::_triangular_solve_helper": "aten::triangular_solve",
    "aten::thnn_conv2d_forward": "aten::_slow_conv2d_forward",
    "aten::slow_conv2d_forward": "aten::_slow_conv2d_forward",
}
"""Removed op → op that replaces it, with the same leading arguments."""

_CUDNN = "int[] padding, int[] stride, int[] dilation, int groups, bool benchmark, bool deterministic, bool allow_tf32"
_CUDNN_UP = _CUDNN.replace("int[] stride", "int[] output_padding, int[] stride", 1)
_MIOPEN = _CUDNN.removesuffix(", bool allow_tf32")
_MIOPEN_UP = _CUDNN_UP.removesuffix(", bool allow_tf32")
_PLAIN = "int[] padding, int[] stride, int[] dilation, int groups"
_BACK = "aten::convolution_backward"
_TWO, _THREE = "(Tensor, Tensor)", "(Tensor, Tensor, Tensor)"
_NAMED = "(Tensor grad_input, Tensor grad_weight, Tensor grad_bias)"
_WINDOW = "int[{n}] kernel_size, int[{n}] stride, int[{n}] padding"


def _back(schema: str, function: str = "backward", via: str = _BACK) -> Legacy:
    return Legacy(schema=schema, via=via, function=f"legacy.convolution.{function}")


def _whole(prefix: str, tensors: str, rest: str, outs: int) -> str:
    return f"{prefix}({tensors}, {rest}, bool[{outs}] output_mask) -> {_TWO if outs == 2 else _THREE}"


_SELF = "Tensor self, Tensor grad_output, Tensor weight"
_TO_INPUT, _TO_WEIGHT = "int[] self_size, Tensor grad_output, Tensor weight", "int[] weight_size, Tensor grad_output"

_CONVOLUTIONS: tuple[Legacy, ...] = (
    _back(_whole("cudnn_convolution_backward", _SELF, _CUDNN, 2)),
    _back(f"cudnn_convolution_backward_input({_TO_INPUT}, {_CUDNN}) -> Tensor", "to_input"),
    _back(f"cudnn_convolution_backward_weight({_TO_WEIGHT}, Tensor self, {_CUDNN}) -> Tensor", "to_weight"),
    _back(_whole("cudnn_convolution_transpose_backward", _SELF, _CUDNN_UP, 2)),
    _back(f"cudnn_convolution_transpose_backward_input(Tensor grad_output, Tensor weight, {_CUDNN}) -> Tensor",
          "transpose_to_input", "aten::convolution"),
    _back(f"cudnn_convolution_transpose_backward_weight({_TO_WEIGHT}, Tensor self, {_CUDNN}) -> Tensor",
          "transpose_to_weight"),
    *(row for kind in ("miopen_convolution", "miopen_depthwise_convolution") for row in (
        _back(_whole(f"{kind}_backward", _SELF, _MIOPEN, 3)),
        _back(f"{kind}_backward_input({_TO_INPUT}, {_MIOPEN}) -> Tensor", "to_input"),
        _back(f"{kind}_backward_weight({_TO_WEIGHT}, Tensor self, {_MIOPEN}) -> Tensor", "to_weight"),
    )),
    _back("miopen_convolution_backward_bias(Tensor grad_output) -> Tensor", "to_bias", "aten::sum"),
    _back(_whole("miopen_convolution_transpose_backward", _SELF, _MIOPEN_UP, 3)),
    _back(f"miopen_convolution_transpose_backward_input(Tensor grad_output, Tensor weight, {_MIOPEN}) -> Tensor",
          "transpose_to_input", "aten::convolution"),
    _back(f"miopen_convolution_transpose_backward_weight({_TO_WEIGHT}, Tensor self, {_MIOPEN}) -> Tensor",
          "transpose_to_weight"),
    _back(_whole("mkldnn_convolution_backward", _SELF, _PLAIN, 3)),
    _back(f"mkldnn_convolution_backward_input({_TO_INPUT}, {_PLAIN}, bool bias_defined) -> Tensor", "to_input"),
    _back(f"mkldnn_convolution_backward_weights({_TO_WEIGHT}, Tensor self, {_PLAIN}, bool bias_defined) -> {_TWO}",
          "to_weight_and_bias"),
    _back(f"_nnpack_spatial_convolution_backward(Tensor input, Tensor grad_output, Tensor weight, int[2] padding, "
          f"bool[3] output_mask) -> {_THREE}", "nnpack"),
    _back("_nnpack_spatial_convolution_backward_input(Tensor input, Tensor grad_output, Tensor weight, "
          "int[2] padding) -> Tensor", "nnpack_to_input"),
    _back("_nnpack_spatial_convolution_backward_weight(Tensor input, int[] weightsize, Tensor grad_output, "
          "int[2] padding) -> Tensor", "nnpack_to_weight"),
    _back(f"thnn_conv2d_backward.output_mask(Tensor grad_output, Tensor self, Tensor weight, {_WINDOW.format(n=2)}, "
          f"Tensor finput, Tensor fgrad_input, bool[3] output_mask) -> {_NAMED}", "slow"),
    _back(f"slow_conv3d_backward.output_mask(Tensor grad_output, Tensor self, Tensor weight, {_WINDOW.format(n=3)}, "
          f"Tensor finput, Tensor fgrad_input, bool[3] output_mask) -> {_NAMED}", "slow"),
    _back(f"_slow_conv2d_backward.until_1_10(Tensor grad_output, Tensor self, Tensor weight, {_WINDOW.format(n=2)}, "
          f"Tensor finput, bool[3] output_mask) -> {_NAMED}", "slow"),
    *(_back(f"slow_conv_dilated{n}d_backward(Tensor grad_output, Tensor self, Tensor weight, {_WINDOW.format(n=n)}, "
            f"int[{n}] dilation, bool[3] output_mask) -> {_NAMED}", "slow") for n in (2, 3)),
    *(_back(f"slow_conv_transpose{n}d_backward.output_mask(Tensor grad_output, Tensor self, Tensor weight, "
            f"{_WINDOW.format(n=n)}, int[{n}] output_padding, int[{n}] dilation, Tensor {a}, Tensor {b}, "
            f"bool[3] output_mask) -> {_NAMED}", "slow")
      for n, a, b in ((2, "columns", "ones"), (3, "finput", "fgrad_input"))),
    *(_back(f"{name}.output_mask(Tensor grad_output, Tensor self, Tensor weight, {_WINDOW.format(n=2)}, "
            "int[2] dilation, bool[2] output_mask) -> (Tensor grad_input, Tensor grad_weight)", "depthwise")
      for name in ("_conv_depthwise2d_backward", "thnn_conv_depthwise2d_backward")),
    _back(f"conv_depthwise3d_backward.output_mask(Tensor grad_output, Tensor self, Tensor weight, "
          f"{_WINDOW.format(n=3)}, int[3] dilation, bool[3] output_mask) -> {_NAMED}", "depthwise"),
    *(Legacy(schema=f"{name}(Tensor self, Tensor weight, int[2] kernel_size, Tensor? bias{bias}, int[2] stride{one}, "
                    f"int[2] padding{none}, int[2] dilation{one}) -> Tensor",
             via="aten::convolution", function="convolution.conv_depthwise2d")
      for name, bias, one, none in (("thnn_conv_depthwise2d", "=None", "=1", "=0"),
                                    ("thnn_conv_depthwise2d_forward", "", "", ""))),
    Legacy(schema="_convolution_nogroup(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
                  "int[] dilation, bool transposed, int[] output_padding) -> Tensor",
           via="aten::convolution", given=(("groups", 1),)),
    Legacy(schema="_convolution_double_backward.until_1_10(Tensor? ggI, Tensor? ggW, Tensor? ggb, Tensor gO, "
                  "Tensor weight, Tensor self, int[] stride, int[] padding, int[] dilation, bool transposed, "
                  "int[] output_padding, int groups, bool benchmark, bool deterministic, bool cudnn_enabled, "
                  f"bool allow_tf32, bool[3] output_mask) -> {_THREE}", via="aten::_convolution_double_backward"),
    Legacy(schema=f"cudnn_convolution.deprecated(Tensor self, Tensor weight, Tensor? bias, {_MIOPEN}) -> Tensor",
           via="aten::convolution", function="convolution.miopen_convolution"),
    Legacy(schema=f"cudnn_convolution.deprecated2(Tensor self, Tensor weight, {_MIOPEN}) -> Tensor",
           via="aten::convolution", function="convolution.cudnn_convolution"),
    Legacy(schema="cudnn_convolution_transpose.deprecated(Tensor self, Tensor weight, Tensor? bias, "
                  f"{_MIOPEN_UP}) -> Tensor",
           via="aten::convolution", function="convolution.miopen_convolution_transpose"),
    Legacy(schema=f"cudnn_convolution_transpose.deprecated2(Tensor self, Tensor weight, {_MIOPEN_UP}) -> Tensor",
           via="aten::convolution", function="convolution.cudnn_convolution_transpose"),
)  # fmt: skip


def _row(schema: str, via: str = "plain torch", function: str = "", **constants: Any) -> Legacy:
    return Legacy(schema=schema, via=via, function=function, given=tuple(constants.items()))


_ATTENTION = "(Tensor query, Tensor key, Tensor value, "
_OPTIONS = (
    "Tensor? attn_mask=None, float dropout_p=0.0, bool need_attn_weights=False, bool is_causal=False) "
    "-> (Tensor, Tensor)"
)

_GRADIENTS: tuple[Legacy, ...] = (
    *(_row(f"_{kind}_backward_data.until_1_10(Tensor grad_output, Tensor output, int dim, Tensor self) -> Tensor",
           f"aten::_{kind}_backward_data", f"legacy.gradients.{kind}_backward_data")
      for kind in ("softmax", "log_softmax")),
    _row("batch_norm_backward_elemt.until_1_8(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, "
         "Tensor? weight, Tensor mean_dy, Tensor mean_dy_xmu) -> Tensor", function="legacy.gradients.batch_norm_elemt"),
    _row("_embedding_bag_dense_backward.until_1_8(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, "
         "Tensor bag_size, Tensor maximum_indices, int num_weights, bool scale_grad_by_freq, int mode, "
         "Tensor? per_sample_weights) -> Tensor", "aten::_embedding_bag_dense_backward"),
    *(_row(f"grid_sampler_{n}d_backward.until_1_11(Tensor grad_output, Tensor input, Tensor grid, "
           "int interpolation_mode, int padding_mode, bool align_corners) -> (Tensor, Tensor)",
           f"aten::grid_sampler_{n}d_backward", output_mask=(True, True)) for n in (2, 3)),
    _row("adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor",
         "aten::_adaptive_avg_pool3d_backward"),
    _row("cumprod_backward.until_1_8(Tensor grad, Tensor input, int dim) -> Tensor",
         function="legacy.gradients.cumprod_backward"),
    *(_row(f"{name}_backward.vec(Tensor grad_output, int[]? output_size, int[] input_size, {corners}"
           "float[]? scale_factors) -> Tensor", f"aten::{name}_backward",
           f"legacy.gradients.{name.strip('_')}_backward")
      for names, corners in (
          (("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
            "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), "bool align_corners, "),
          (("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
            "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"), ""),
      ) for name in names),
    _row("binary_cross_entropy_with_logits_backward(Tensor grad_output, Tensor self, Tensor target, "
         "Tensor? weight=None, Tensor? pos_weight=None, int reduction=1) -> Tensor",
         function="legacy.gradients.binary_cross_entropy_with_logits_backward"),
    _row("kl_div_backward(Tensor grad_output, Tensor self, Tensor target, int reduction=1, *, bool log_target=False) "
         "-> Tensor", function="legacy.gradients.kl_div_backward"),
    _row("l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor",
         function="legacy.gradients.l1_loss_backward"),
    _row("prelu_backward(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, Tensor)",
         function="legacy.gradients.prelu_backward"),
    _row("col2im_backward(Tensor grad_output, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) "
         "-> Tensor", "aten::im2col", "legacy.gradients.col2im_backward"),
    _row("im2col_backward(Tensor grad_output, int[2] input_size, int[2] kernel_size, int[2] dilation, "
         "int[2] padding, int[2] stride) -> Tensor", "aten::col2im", "legacy.gradients.im2col_backward"),
    _row("diag_backward(Tensor grad, int[] input_sizes, int diagonal) -> Tensor",
         function="legacy.gradients.diag_backward"),
    _row("take_backward(Tensor grad, Tensor input, Tensor index) -> Tensor", "aten::put_",
         "legacy.gradients.take_backward"),
    _row("max_unpool2d_backward(Tensor grad_output, Tensor self, Tensor indices, int[2] output_size) -> Tensor",
         "aten::gather", "legacy.gradients.max_unpool2d_backward"),
    _row("max_unpool3d_backward(Tensor grad_output, Tensor self, Tensor indices, int[3] output_size, int[3] stride, "
         "int[3] padding) -> Tensor", "aten::gather", "legacy.gradients.max_unpool3d_backward"),
    _row("_mps_linear_backward_input(int[] input_size, Tensor grad_output, Tensor weight) -> Tensor",
         "aten::matmul", "legacy.gradients.linear_to_input"),
    _row("_mps_linear_backward_weights(Tensor grad_output, Tensor input, Tensor weight, bool bias_defined) "
         "-> (Tensor, Tensor)", function="legacy.gradients.linear_to_weights"),
    _row("mps_linear_backward(Tensor self, Tensor grad_output, Tensor weight, bool[3] output_mask) "
         "-> (Tensor, Tensor, Tensor)", function="legacy.gradients.linear_backward"),
    _row("mps_max_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride=[], "
         "int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor",
         function="legacy.gradients.max_pool2d_backward"),
    _row("segment_reduce_backward(Tensor grad, Tensor output, Tensor data, *, Tensor? lengths=None) -> Tensor",
         "aten::_segment_reduce_backward", reduce="max"),
)  # fmt: skip

_OTHERS: tuple[Legacy, ...] = (
    _row("_bmm(Tensor self, Tensor mat2, *, bool deterministic=False) -> Tensor", "aten::bmm"),
    _row(f"_scaled_dot_product_attention{_ATTENTION}{_OPTIONS}", "aten::scaled_dot_product_attention",
         "legacy.attention.attention"),
    _row(f"_scaled_dot_product_attention_forward{_ATTENTION}{_OPTIONS}", "aten::scaled_dot_product_attention",
         "legacy.attention.attention"),
    _row(f"_scaled_dot_product_attention_math.until_1_13{_ATTENTION}{_OPTIONS}",
         "aten::_scaled_dot_product_attention_math"),
    _row(f"_flash_scaled_dot_product_attention{_ATTENTION}Tensor cum_seq_q, Tensor cum_seq_k, int max_q, int max_k, "
         "float dropout_p, bool is_causal) -> Tensor", "aten::scaled_dot_product_attention",
         "legacy.attention.flash_attention"),
)  # fmt: skip

LEGACY: tuple[Legacy, ...] = _CONVOLUTIONS + _GRADIENTS + _OTHERS


@lru_cache(maxsize=1)
def _by_op() -> dict[str, tuple[Legacy, ...]]:
    rows_by_op: dict[str, list[Legacy]] = {}
    for row in LEGACY:
        rows_by_op.setdefault(row.name, []).append(row)
    return {name: tuple(rows) for name, rows in rows_by_op.items()}


def legacy_of(name: str) -> tuple[Legacy, ...]:
    """Return the old overloads of "aten::op", or () if the op never changed."""
    return _by_op().get(name, ())


def legacy_form(name: str, overload: str | None) -> Legacy | None:
    """Return the row of one old overload, or None if "aten::op" has no old overload of that name."""
    return next((row for row in legacy_of(name) if row.overload == (overload or "")), None)
