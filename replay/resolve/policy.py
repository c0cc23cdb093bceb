# pyright: strict
"""The rules for what a trace may run and import, as tables and pure functions; independent of torch.

The verdict depends on a schema's name and argument types. It is made before anything is looked up as a Python attribute
or called. `names` does the lookup; budgets are in `ir.sizes`. tests/golden/policy_verdicts.txt holds the verdict for
every schema of the torch version that the project is tested with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from opreplay.replay.host.libraries import MODULE_OF
from opreplay.replay.ir.model import Reason
from opreplay.replay.ir.names import COLLECTIVE_NAMESPACES, split_name
from opreplay.traces.errors import UsageError

REFUSED_NAMESPACES: frozenset[str] = frozenset(
    {
        "prim",
        "profiler",
        "inductor",
        "symm_mem",
        "static_runtime",  # the interpreter, raw memory, the network
        "debugprims",
        "debug_mode_ops",
        "export",
        "_test",
        "onnx",  # files, hooks and test doubles, not computation
    }
)


TORCH_NAMESPACES: frozenset[str] = frozenset(
    {
        "aten",
        "prims",
        "quantized",
        "_quantized",
        "quantization",
        "onednn",
        "mkldnn",
        "mkldnn_prepacked",
        "mkl",
        "sparse",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "c10d",
        "rngprims",
        "inductor_prims",
        "_dtensor",
        "_native",
        *REFUSED_NAMESPACES,
    }
)
"""Namespaces that torch itself registers; all others belong to vendors or users."""

UNSAFE_WORDS: tuple[str, ...] = ("unsafe", "unchecked", "reinterpret")

SAFE_DESPITE_NAME: dict[str, str] = {
    "aten::_unsafe_view": "checks sizes like view; it is unsafe only for autograd's view tracking",
    "aten::unsafe_chunk": "same as chunk; it is unsafe only for autograd's view tracking",
    "aten::unsafe_split": "same as split; it is unsafe only for autograd's view tracking",
    "aten::unsafe_split_with_sizes": "same as split_with_sizes; it is unsafe only for autograd's view tracking",
}
"""Op that checks its arguments although its name contains "unsafe" → the reason to allow it."""

REFUSED_ARGUMENTS: frozenset[str] = frozenset({"filename"})
"""Names of arguments. An op that has one of them is forbidden."""

FIXED_ARGUMENTS: dict[str, bool] = {"unsafe": False}
"""Arguments that may have only one value, as name → this value. The reason for `unsafe`: `segment_reduce(unsafe=True)`
reads out of bounds.
"""

REFUSED_TYPES: tuple[str, ...] = (
    "Storage",
    "RRef",
    "Any",
    "Dict",
    "Future",
    "Await",
    "Stream",
    "AnyEnumType",
    "AnyClassType",
    "Tuple",
    "__torch__.",  # script objects: packed weights, process groups, reduce ops
)

STRING_ARGUMENTS: frozenset[tuple[str, str]] = frozenset(
    (f"aten::{op}", argument)
    for argument, ops in {
        "approximate": ("gelu", "gelu_", "gelu_backward"),
        "rounding_mode": ("div", "div_", "divide", "divide_"),
        "equation": ("einsum",),
        "reduce": (
            "scatter", "scatter_", "scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_",
            "segment_reduce", "_segment_reduce_backward", "_sparse_mm", "_sparse_mm_reduce_impl",
            "_sparse_mm_reduce_impl_backward",
        ),
        "mode": ("pad", "linalg_qr"),
        "norm": tuple(
            f"fft_{kind}{rank}" for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for rank in ("", "2", "n")
        ),
        "padding": ("conv1d", "conv2d", "conv3d", "_convolution_mode"),
        "padding_side": ("pad_sequence",),
        "pad_mode": ("stft",),
        "side": ("searchsorted",),
        "indexing": ("meshgrid",),
        "interpolation": ("quantile", "nanquantile"),
        "driver": ("linalg_lstsq", "linalg_svd", "linalg_svdvals", "_linalg_svd"),
        "UPLO": ("linalg_eigh", "linalg_eigvalsh", "_linalg_eigh"),
        "ord": ("linalg_norm", "linalg_matrix_norm"),
        "p": ("linalg_cond",),
        "activation": ("_mixed_dtypes_linear", "_sparse_semi_structured_linear"),
        "api_name": ("_linalg_check_errors",),
        "assert_msg": ("_assert_async", "_functional_assert_async"),
    }.items()
    for op in ops
)  # fmt: skip
"""(op, argument) pairs that may take a string, which selects a mode or appears in an error message."""

VENDOR_STRING_ARGUMENTS: frozenset[str] = frozenset(
    {
        "kv_cache_dtype", "activation", "layer_name", "quant_method", "input_layout", "layout", "rotary_mode",
        "kvcache_dtype", "alibi_slopes_name", "scoring_func", "activation_type", "act", "actMode", "roundMode",
        "round_mode", "rounding_mode", "cache_mode", "quant_mode", "dispatch_policy", "mode", "prefix", "group_name",
        "all2all_backend", "backend", "act_method", "norm_type", "approximate", "quant_type", "quant_dtype", "dtype",
        "softcap_mode", "encoded_layer_name", "kv_layer_name", "q_dtype_str", "comm_alg", "group_ep", "group_tp",
        "act_type", "kernelName", "kernel_name", "kernelId", "bias_type", "moe_activation", "global_layer_name",
        "mfma_type", "ocp_mx_scheme", "shared_expert_scoring_func", "score_func", "kv_cache_layout", "dst_type",
        "softmax_layout", "input_softmax_layout", "layout_query", "layout_key", "layout_kv", "layout_q",
        "q_input_layout", "kv_input_layout", "attn_type", "gate_mode", "scaling_mode", "scale_calculation_mode",
        "scale_fmt", "fp8_format", "format_mode", "conv_mode", "activation_mode", "activation_str", "reduction",
        "hadamard", "scale_dtype", "index_cache_dtype", "output_dtype", "in_dtype", "out_dtype", "compute_type",
        "weight_type", "scale_type", "kernel_type", "fused_op_type", "post_sample", "mapping_type", "logprobs_mode",
        "swizzle_axis", "schedule", "maybe_schedule", "config",
    }
)  # fmt: skip
"""Names of string arguments allowed for vendor ops; their values come from a table here, never from a trace."""

_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_:.,+> -]{0,128}")
"""Matches allowed strings: modes, dtypes, devices, numbers and einsum equations. Path separators, quotes and control
characters are not allowed.
"""


_NAMESPACE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

Imports = Mapping[str, str | Sequence[str]] | Iterable[str | tuple[str, str]]
"""Modules by namespace, as a mapping, as pairs, or as strings "NAMESPACE=MODULE"."""


def named_modules(imports: Imports | None) -> dict[str, str]:
    """Convert the user's input to `Policy.allow_imports`.

    If a namespace is repeated, its modules are combined. Raises UsageError for input that names no namespace or module.
    """
    entries: Any = [imports] if isinstance(imports, str) else imports or ()
    pairs: Iterable[Any] = cast("Mapping[Any, Any]", entries).items() if isinstance(entries, Mapping) else entries
    modules: dict[str, list[str]] = {}
    for pair in pairs:
        parts: Any = pair.split("=", 1) if isinstance(pair, str) else pair
        namespace, given = _two(parts)
        several: Any = given.split(",") if isinstance(given, str) else given
        if not _are_names(namespace, several):
            raise UsageError(f"{pair!r} does not name a module to import", hint='Write {"myops": "my_package.ops"}.')
        modules.setdefault(namespace, []).extend(several)
    return {namespace: ",".join(dict.fromkeys(several)) for namespace, several in modules.items()}


def _two(parts: Any) -> tuple[Any, Any]:
    """Return the two items of a pair; (None, None) for anything else."""
    items = cast("Sequence[Any]", parts) if isinstance(parts, list | tuple) else ()
    return (items[0], items[1]) if len(items) == 2 else (None, None)


def _are_names(namespace: Any, modules: Any) -> bool:
    """Check whether these are a valid op namespace and a list of at least one module name."""
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        return False
    listed = cast("Sequence[Any]", modules) if isinstance(modules, list | tuple) else ()
    return bool(listed) and all(isinstance(module, str) and _MODULE.fullmatch(module) for module in listed)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The user's permissions. By default, the libraries of `MODULE_OF` are allowed, and collectives are not."""

    allow_imports: dict[str, str] = {}
    """Modules that the user allows, by namespace (`--allow-import NAMESPACE=MODULE`). Several modules of a namespace
    are separated by commas.
    """
    known_libraries: bool = True
    """Whether to import modules of `MODULE_OF` if they are installed."""
    collectives: bool = False
    """Whether ops of c10d may be called (collective mode)."""

    def modules_for(self, namespace: str) -> tuple[str, ...]:
        """Return the modules that may be imported for `namespace`; () if none may be imported."""
        if namespace in self.allow_imports:
            return tuple(self.allow_imports[namespace].split(","))
        return (MODULE_OF[namespace],) if self.known_libraries and namespace in MODULE_OF else ()


def refuse_name(name: str, policy: Policy) -> Reason | None:
    """Return why no op of this name may run, or None. Raises ValueError if the name is not `namespace::op`."""
    parts = split_name(name)
    if parts is None:
        raise ValueError(f"not a qualified op name: {name!r}")
    namespace, op, _ = parts
    if namespace in REFUSED_NAMESPACES:
        return Reason("policy", f"namespace {namespace} is not allowed")
    if namespace in COLLECTIVE_NAMESPACES and not policy.collectives:
        return Reason("policy", f"namespace {namespace} is allowed only with --ranks")
    word = next((word for word in UNSAFE_WORDS if word in op), None)
    if word is not None and f"{namespace}::{op}" not in SAFE_DESPITE_NAME:
        return Reason("policy", f"name contains {word!r}")
    return None


def refuse_arguments(name: str, arguments: Iterable[tuple[str, str]]) -> Reason | None:
    """Return why the policy forbids a schema with these (argument name, type text) pairs; None if it is allowed.

    `name` is "namespace::op" without the overload. The type text is from the schema object, e.g. "Optional[str]".
    """
    namespace = name.partition("::")[0]
    for argument, type_text in arguments:
        if argument in REFUSED_ARGUMENTS:
            return Reason("policy", f"argument {argument!r} is not allowed")
        if any(refused in type_text for refused in REFUSED_TYPES):
            return Reason("policy", f"argument {argument!r} has type {type_text}, which is not allowed")
        if _base(type_text) == "str" and not _may_be_string(namespace, name, argument):
            return Reason("policy", f"string argument {argument!r} is not on the list of allowed arguments")
        if re.fullmatch(r"(Optional\[|List\[)*t\w*\]*", type_text):
            return Reason("policy", f"argument {argument!r} accepts any type")
    return None


def refuse_value(argument: str, value: object) -> Reason | None:
    """Return why the policy forbids this value of an argument, or None."""
    if argument in FIXED_ARGUMENTS and value is not None and bool(value) != FIXED_ARGUMENTS[argument]:
        return Reason("policy", f"{argument}={value} is not allowed")
    texts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    if any(isinstance(text, str) and not _PLAIN_TEXT.fullmatch(text) for text in texts):
        return Reason("policy", f"the string value of argument {argument!r} is not allowed")
    return None


def _may_be_string(namespace: str, name: str, argument: str) -> bool:
    if namespace in TORCH_NAMESPACES:
        return (name, argument) in STRING_ARGUMENTS
    return argument in VENDOR_STRING_ARGUMENTS


def _base(type_text: str) -> str:
    """Return the base type of a type text, e.g. "str" for "Optional[List[str]]"."""
    return type_text.replace("Optional[", "").replace("List[", "").rstrip("]")
