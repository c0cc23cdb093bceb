# pyright: strict
"""Table of device-only ops and the equivalents that replay them.

An equivalent takes the arguments of the ORIGINAL schema, so a plan keeps the recorded op's arguments. It does the same
work with ops that run on every device. Results are not bit-equal, because random numbers and workspaces differ. torch
is imported only when an equivalent is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from math import prod
from typing import Any, cast

import msgspec

from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ops.aten.legacy.forms import Legacy, legacy_form
from opreplay.replay.ops.calls import by_schema


class Equivalent(msgspec.Struct, frozen=True, kw_only=True):
    """Replacement of one op on devices that have no kernel for it."""

    via: str
    """The op that does the work; "plain torch" for a composition of several ops."""
    module: str
    function: str
    needs_accelerator: bool = False
    """Whether the CPU has no usable kernel.

    Its kernel needs an accelerator's driver, or is a stub that accelerators replace.
    """
    one_dtype: tuple[str, ...] = ()
    """Arguments that the CPU kernel requires to have the same dtype.

    With mixed dtypes, the kernel counts as missing.
    """
    wants: tuple[tuple[str, str], ...] = ()
    """(argument, dtype) pairs that the kernel requires.

    An argument of another dtype is in a device-specific form. The device is then treated as having no kernel.
    """
    op: str = ""
    """Name of the op in `aten` if `function` reads the arguments by their schema names, otherwise ""."""
    lacks: Callable[[Mapping[str, str], Mapping[str, Any]], bool] | None = None
    """Function that takes (dtypes, values) and returns True if the CPU has no kernel for them.

    Both are keyed by argument name. The value of a tensor is its size.
    """

    def is_needed_on_cpu(self, dtypes: Mapping[str, str], values: Mapping[str, Any]) -> bool:
        """Check whether the CPU has no kernel for these dtypes and values, or is treated as having none."""
        mixed = {dtypes[argument] for argument in self.one_dtype if argument in dtypes}
        lacks = self.lacks is not None and self.lacks(dtypes, values)
        return self.needs_accelerator or lacks or len(mixed) > 1

    def load(self) -> Callable[..., Any]:
        """Return the function that runs the op. It takes the original schema's arguments, keyword-only ones
        by keyword.
        """
        function = getattr(import_module(f"opreplay.replay.ops.aten.{self.module}"), self.function)
        if not self.op:
            return function
        import torch

        return by_schema(function, getattr(torch.ops.aten, self.op).default._schema)


def _entries(module: str, entries: dict[str, str]) -> dict[str, Equivalent]:
    """Return {op: equivalent} for `entries` {op name: op that does the work}.

    An equivalent's function is named like the op, without leading and trailing underscores.
    """
    equivalents: dict[str, Equivalent] = {}
    for op, via in entries.items():
        equivalents[f"aten::{op}"] = Equivalent(via=via, module=module, function=op.strip("_"), op=op)
    return equivalents


def equivalent_for(
    name: str, dtypes: Mapping[str, str], values: Mapping[str, Any] | None = None, *, has_kernel: bool, device: str
) -> Equivalent | None:
    """Return the equivalent to use for a call.

    Returns None if the op itself can run, or if there is no equivalent. `dtypes` maps tensor arguments to dtypes.
    `values` maps tensor arguments to sizes, and other arguments to their values.
    """
    equivalent = EQUIVALENTS.get(name)
    if equivalent is None or not has_kernel:
        return equivalent
    if any(dtypes.get(argument, dtype) != dtype for argument, dtype in equivalent.wants):
        return None if device.startswith("npu") else equivalent
    on_cpu = device.startswith("cpu")
    return equivalent if on_cpu and equivalent.is_needed_on_cpu(dtypes, values or {}) else None


def equivalent_of(op: ReplayOp) -> Equivalent | Legacy | None:
    """Return the equivalent that replays an op of a plan, or None if the plan calls a torch op instead."""
    form = legacy_form(op.name, op.overload)
    if form is not None:
        return form
    return EQUIVALENTS.get(op.name) if op.resolved_by == "equivalent" else None


def _writes_float(dtypes: Mapping[str, str], values: Mapping[str, Any]) -> bool:
    return values.get("half_to_float") is True


def _writes_half(dtypes: Mapping[str, str], values: Mapping[str, Any]) -> bool:
    return dtypes.get("grad_output") == "float32" and values.get("input_dtype") in ("torch.float16", "torch.bfloat16")


def _scales_blocks(dtypes: Mapping[str, str], values: Mapping[str, Any]) -> bool:
    """Check whether a scaled product has block scales.

    Other products have float32 scales: one per tensor, or one per row and one per column.
    """
    if dtypes.get("self") == "float4_e2m1fn_x2":
        return True
    x, mat2, scale_a, scale_b = (_size(values.get(name)) for name in ("self", "mat2", "scale_a", "scale_b"))
    if len(x) != 2 or len(mat2) != 2:
        return False
    of_tensors = prod(scale_a) == prod(scale_b) == 1
    of_rows = scale_a == (x[0], 1) and scale_b == (1, mat2[1])
    return {dtypes.get("scale_a"), dtypes.get("scale_b")} != {"float32"} or not (of_tensors or of_rows)


def _size(value: object) -> tuple[int, ...]:
    return cast("tuple[int, ...]", value) if isinstance(value, tuple) else ()


def _scales_blocks_by_recipe(dtypes: Mapping[str, str], values: Mapping[str, Any]) -> bool:
    recipes = (*(values.get("recipe_a") or ()), *(values.get("recipe_b") or ()))
    return any(recipe not in (0, 1) for recipe in recipes)


_SDPA = "aten::scaled_dot_product_attention"
_SDPA_BACKWARD = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"

EQUIVALENTS: dict[str, Equivalent] = {
    **_entries("convolution", {
        "cudnn_convolution": "aten::convolution",
        "cudnn_convolution_transpose": "aten::convolution",
        "cudnn_convolution_relu": "aten::convolution",
        "cudnn_convolution_add_relu": "aten::convolution",
        "miopen_convolution": "aten::convolution",
        "miopen_convolution_transpose": "aten::convolution",
        "miopen_depthwise_convolution": "aten::convolution",
        "miopen_convolution_relu": "aten::convolution",
        "miopen_convolution_add_relu": "aten::convolution",
        "_conv_depthwise2d": "aten::convolution",
        "conv_depthwise3d": "aten::convolution",
    }),
    **{f"aten::{op}_overrideable": Equivalent(
        via=f"aten::{op}", module="convolution", function=f"{op}_overrideable", op=f"{op}_overrideable",
        needs_accelerator=True,
    ) for op in ("convolution", "convolution_backward")},
    **{f"aten::_{op}": Equivalent(via=f"aten::_{op}", module="softmax", function=f"{op}_to_float", lacks=_writes_float)
       for op in ("softmax", "log_softmax")},
    **{f"aten::_{op}_data": Equivalent(
        via=f"aten::_{op}_data", module="softmax", function=f"{op}_to_half", lacks=_writes_half,
    ) for op in ("softmax_backward", "log_softmax_backward")},
    **_entries("products", {
        "_scaled_grouped_mm": "aten::_grouped_mm",
        "_scaled_grouped_mm_v2": "plain torch",
    }),
    **{f"aten::{op}": Equivalent(via="plain torch", module="products", function=op.strip("_"), op=op, lacks=lacks)
       for op, lacks in (("_scaled_mm", _scales_blocks), ("_scaled_mm_v2", _scales_blocks_by_recipe))},
    **_entries("norm", {
        "cudnn_batch_norm": "aten::native_batch_norm",
        "cudnn_batch_norm_backward": "aten::native_batch_norm_backward",
        "miopen_batch_norm": "aten::native_batch_norm",
        "miopen_batch_norm_backward": "aten::native_batch_norm_backward",
        "batch_norm_stats": "plain torch",
        "batch_norm_elemt": "plain torch",
        "batch_norm_gather_stats": "plain torch",
        "batch_norm_gather_stats_with_counts": "plain torch",
        "batch_norm_backward_reduce": "plain torch",
        "batch_norm_backward_elemt": "plain torch",
        "_fused_rms_norm_backward": "plain torch",
    }),
    **_entries("attention", {
        "_scaled_dot_product_flash_attention": _SDPA,
        "_scaled_dot_product_efficient_attention": _SDPA,
        "_scaled_dot_product_cudnn_attention": _SDPA,
        "_flash_attention_forward": _SDPA,
        "_efficient_attention_forward": _SDPA,
        "_cudnn_attention_forward": _SDPA,
    }),
    **_entries("attention_backward", {
        "_scaled_dot_product_flash_attention_backward": _SDPA_BACKWARD,
        "_scaled_dot_product_efficient_attention_backward": _SDPA_BACKWARD,
        "_scaled_dot_product_cudnn_attention_backward": _SDPA_BACKWARD,
        "_flash_attention_backward": _SDPA_BACKWARD,
        "_efficient_attention_backward": _SDPA_BACKWARD,
        "_cudnn_attention_backward": _SDPA_BACKWARD,
    }),
    **_entries("recurrent", {
        "_cudnn_rnn": "aten::lstm, gru or rnn",
        "miopen_rnn": "aten::lstm, gru or rnn",
        "_cudnn_rnn_flatten_weight": "aten::cat",
        "_thnn_fused_lstm_cell": "plain torch",
        "_thnn_fused_gru_cell": "plain torch",
        "_cudnn_rnn_backward": "forward and backward of aten::lstm, gru or rnn",
        "miopen_rnn_backward": "forward and backward of aten::lstm, gru or rnn",
        "_thnn_fused_lstm_cell_backward_impl": "plain torch",
        "_thnn_fused_gru_cell_backward": "plain torch",
    }),
    **_entries("losses", {
        "_cudnn_ctc_loss": "aten::_ctc_loss",
        "miopen_ctc_loss": "aten::_ctc_loss",
    }),
    **_entries("pointwise", {
        "cudnn_grid_sampler_backward": "aten::grid_sampler_2d_backward",
        "cudnn_affine_grid_generator_backward": "aten::affine_grid_generator_backward",
        "_fused_dropout": "aten::native_dropout",
        "_masked_scale": "aten::mul",
        "cudnn_grid_sampler": "aten::grid_sampler",
        "cudnn_affine_grid_generator": "aten::affine_grid_generator",
        "_weight_int4pack_mm": "aten::_weight_int4pack_mm_for_cpu",
    }),
    **{f"aten::{op}": Equivalent(via="aten::clone", module="pointwise", function="pin_memory", needs_accelerator=True)
       for op in ("pin_memory", "_pin_memory")},
    "aten::native_batch_norm_backward": Equivalent(
        via="aten::native_batch_norm_backward", module="norm", function="native_batch_norm_backward",
        op="native_batch_norm_backward",
        one_dtype=("weight", "running_mean", "running_var", "save_mean", "save_invstd"),
    ),
    "aten::max_pool2d_with_indices_backward": Equivalent(
        via="aten::max_pool2d_with_indices_backward", module="pointwise", function="max_pool2d_backward",
        wants=(("indices", "int64"),),
    ),
    **{f"aten::{op}": Equivalent(via=f"aten::{op}", module="pointwise", function=f"{op}_to_dtype")
       for op in ("mm", "bmm", "addmm", "baddbmm")},
}  # fmt: skip
"""Map of recorded op to equivalent.

`mm` and similar ops are listed only because of their `dtype` overloads. Their other overloads have kernels everywhere.
"""
