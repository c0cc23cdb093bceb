"""Finds attention in a captured plan and replaces it by the attention kernel of Ascend servers.

In the plan, attention is either one torch call or consists of matrix products.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

import msgspec

from opreplay.replay.capture.serving import masks
from opreplay.replay.capture.serving.fused import Call, Fusion, Graph, Kernel, New, Tensor, dense, seen_as
from opreplay.traces.model import contiguous_strides

BMM, _CAST = "aten::bmm", "aten::_to_copy"


def of_torch(graph: Graph, call: Call) -> Fusion | None:
    """Match a call of torch's attention kernel, together with the calls that create its mask from booleans."""
    values = call.values
    if call.name != "aten::_scaled_dot_product_flash_attention_for_cpu" or values.get("dropout_p"):
        return None
    query, key = values["query"], values["key"]
    masking = _masking(graph, values.get("attn_mask"))
    if masking is None:
        return None
    value = values["value"]
    if "sparse_mode" in masking.arguments:
        key, value = _before_repeats(graph, key), _before_repeats(graph, value)
    arguments = {
        "query": query,
        "key": key,
        "value": value,
        "num_heads": query.shape[1],
        "scale": values.get("scale") or 1 / sqrt(query.shape[-1]),
        "input_layout": "BNSD",
        "num_key_value_heads": key.shape[1],
        "sparse_mode": 3 if values.get("is_causal") else 0,
        **masking.arguments,
    }
    kernels = [*masking.kernels, _attending(arguments, call.results[0])]
    return Fusion(kernels=kernels, calls=frozenset({call}), shared=masking.shared)


def _before_repeats(graph: Graph, tensor: Tensor) -> Tensor:
    """Return keys or values [batch, heads, tokens, width] as they were before transformers repeated the heads.

    With a mask, transformers copies each key or value head once for each query head of its group. The kernel does not
    need these copies.
    """
    copied = graph.maker(tensor, "aten::clone")
    heads = None if copied is None else copied.values["self"]
    if heads is None or len(heads.shape) != 5:
        return tensor
    return _by_heads(heads, heads.shape[0], *tensor.shape[2:]) or tensor


class _Masking(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of an attention kernel that define its mask: the keys that each query attends to."""

    arguments: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    kernels: Sequence[Kernel] = ()
    """Kernels that compute the mask argument."""
    shared: Mapping[Hashable, New] = msgspec.field(default_factory=dict[Hashable, New])


def _masking(graph: Graph, mask: Tensor | None) -> _Masking | None:
    """Return the kernel arguments for a mask that is added to scores. None if the mask was not created from
    booleans.
    """
    if mask is None:
        return _Masking()
    chosen = graph.maker(mask, "aten::where.self")
    ends = [] if chosen is None else [_number(graph, chosen.values[name]) for name in ("self", "other")]
    if chosen is None or len(ends) != 2 or ends[0] != 0.0 or ends[1] is None or ends[1] > HIDDEN:
        return None
    visible: Tensor = chosen.values["condition"]
    if visible.shape[-2] == 1:
        return _Masking()  # All queries of a sequence see the same keys: servers tell its length instead.
    lower = graph.maker(visible, "aten::tril")
    if lower is not None and graph.maker(lower.values["self"], "aten::ones") is not None:
        return _Masking(arguments={"sparse_mode": 3})
    if (pattern := masks.pattern_of(graph, visible)) is not None:
        return _Masking(arguments=pattern)
    key = "hidden", visible.storage, visible.version
    if (hidden := graph.shared.get(key)) is not None:
        return _Masking(arguments={"atten_mask": hidden})
    hidden = New(msgspec.structs.replace(visible.meta, strides=None, storage=None, storage_offset=0))
    inverting = Kernel(name="aten::logical_not", values={"self": visible}, results=[hidden])
    return _Masking(arguments={"atten_mask": hidden}, kernels=[inverting], shared={key: hidden})


HIDDEN = -1e4
"""Maximum mask value that hides a key: torch uses -inf or the dtype's lowest number."""


def _number(graph: Graph, tensor: Any) -> float | None:
    """Return the value of a 0-dim tensor; None if the graph does not contain the call that created it."""
    maker = graph.maker(tensor, "aten::scalar_tensor", "aten::zeros")
    if maker is None:
        return None
    return float(maker.values["s"]) if maker.name == "aten::scalar_tensor" else 0.0


def latent(graph: Graph, call: Call) -> Fusion | None:
    """Match absorbed latent attention (see module `latent`).

    Scores are computed from latents and rotary parts. A softmax and a product with the latents follow.
    """
    if call.name != BMM:
        return None
    narrow, rounded = graph.before_cast(call.values["self"])
    softmax = graph.maker(narrow, "aten::_softmax")
    plain, widened = graph.before_cast(softmax.values["self"] if softmax else None)
    masked = graph.maker(plain, "aten::masked_fill.Scalar")
    scores = graph.maker(masked.values["self"] if masked else plain, "aten::baddbmm")
    turned = graph.maker(scores.values["self"], BMM) if scores else None
    if softmax is None or scores is None or turned is None:
        return None
    latents, scale = call.values["mat2"], scores.values.get("alpha", 1)
    if scores.values["batch2"].storage != latents.storage or scores.values.get("beta", 1) != scale:
        return None
    query, rotary, key = scores.values["batch1"], turned.values["self"], turned.values["mat2"]
    cache = _single_head(latents)
    arguments = {
        "query": _with_rows(query),
        "key": cache,
        "value": cache,
        "query_rope": _rotary_part(graph, rotary),
        "key_rope": _single_head(_swapped(key)),
        "num_heads": query.shape[1],
        "scale": scale,
        "input_layout": "BNSD",
        "num_key_value_heads": 1,
    }
    calls = {call, softmax, scores, turned, *rounded, *widened}
    if masked is not None:
        mask: Tensor = masked.values["mask"]
        strides = mask.strides
        if (mask.shape[1] > 1 and strides[1] != 0) or masked.values["value"] != "-inf":
            return None
        calls.add(masked)  # Servers tell the length of the sequence instead.
    return Fusion(kernels=[_attending(arguments, _with_rows(call.results[0]))], calls=frozenset(calls))


def plain_query(graph: Graph, call: Call) -> Fusion | None:
    """Match the product that absorbs the key projection into queries.

    transformers joins the non-rotary part of the queries with the rotary part, and then splits them again. The fused
    product reads the non-rotary part directly.
    """
    joined = graph.maker(call.values.get("self"), "aten::cat") if call.name == BMM else None
    parts = [] if joined is None else joined.values["tensors"]
    if len(parts) != 2 or len(parts[0].shape) != 4 or parts[0].shape[2] != 1:
        return None
    batch, heads, _, width = parts[0].shape
    taken: Tensor = call.values["self"]
    if taken.shape != (heads, batch, width) or joined is None or taken.memory != joined.results[0].memory:
        return None
    strides = parts[0].strides
    by_head = seen_as(parts[0], taken.shape, (strides[1], strides[0], strides[3]))
    kernel = Kernel(name=BMM, values={**call.values, "self": by_head}, results=call.results)
    return Fusion(kernels=[kernel], calls=frozenset({call}))


def _rotary_part(graph: Graph, rotary: Tensor) -> Tensor:
    """Return the rotary part of queries as it was before it was joined with the non-rotary part."""
    joined = graph.maker(rotary, "aten::cat")
    last: Tensor | None = joined.values["tensors"][-1] if joined is not None else None
    if last is None or len(last.shape) != 4 or last.shape[2:] != (1, rotary.shape[-1]):
        return _with_rows(rotary)
    return last


SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")
_SCALED = ("aten::mul.Tensor", "aten::mul.Scalar", "aten::div.Tensor", "aten::div.Scalar")
_ADDED = ("aten::add.Tensor", "aten::add_.Tensor")


def written_out(graph: Graph, call: Call) -> Fusion | None:
    """Match attention written as separate calls: a product of queries and keys, a softmax, and a product of the softmax
    with values.
    """
    if call.name != BMM:
        return None
    chances = unwrapped(graph, call.values["self"])
    softmax = graph.maker(chances.tensor, *SOFTMAX)
    if softmax is None or len(softmax.values["self"].shape) != 4 or chances.factor != 1.0:
        return None
    scores = _scores(graph, softmax.values["self"])
    if scores is None or (masking := _masking(graph, scores.mask)) is None:
        return None
    query, key, value = (
        unwrapped(graph, tensor)
        for tensor in (scores.product.values["self"], scores.product.values["mat2"], call.values["mat2"])
    )
    batch, heads = softmax.values["self"].shape[:2]
    rows, width, keys = *scores.product.values["self"].shape[1:], scores.product.results[0].shape[-1]
    queried = _by_heads(query.tensor, batch, rows, width)
    looked_up = _by_heads(key.tensor, batch, keys, width)
    read = _by_heads(value.tensor, batch, keys, call.results[0].shape[-1])
    if queried is None or looked_up is None or read is None or value.factor != 1.0:
        return None
    result, narrowed = call.results[0], set[Call]()
    if result.meta.dtype != query.tensor.meta.dtype:
        narrow = graph.reader(call, _CAST)
        if narrow is None:
            return None
        result, narrowed = narrow.results[0], {narrow}
    arguments = {
        "query": queried,
        "key": looked_up,
        "value": read,
        "num_heads": heads,
        "num_key_value_heads": looked_up.shape[1],
        "scale": scores.factor * query.factor * key.factor,
        "input_layout": "BNSD",
        **masking.arguments,
    }
    shape = (batch, heads, rows, result.shape[-1])
    kernel = _attending(arguments, seen_as(result, shape, contiguous_strides(shape)), sinks=scores.sinks)
    calls = {call, softmax, *chances.calls, *scores.calls, *query.calls, *key.calls, *value.calls, *narrowed}
    return Fusion(kernels=[*masking.kernels, kernel], calls=frozenset(calls), shared=masking.shared)


class _Scaled(NamedTuple):
    """A source tensor from which another tensor was created by copies, casts and multiplications only."""

    tensor: Tensor
    factor: float
    """Factor by which the source is multiplied."""
    calls: set[Call]


def unwrapped(graph: Graph, tensor: Tensor) -> _Scaled:
    """Return the tensor from which copies, casts and scaling created the given tensor, and the total factor of the
    scaling.
    """
    factor, calls = 1.0, set[Call]()
    while (call := graph.maker(tensor, _CAST, "aten::clone", *_SCALED)) is not None:
        if call.name in _SCALED:
            if (scale := _factor(call)) is None:
                break
            factor *= scale
        calls.add(call)
        tensor = call.values["self"]
    return _Scaled(tensor, factor, calls)


def _factor(call: Call) -> float | None:
    """Return the number by which a call multiplies; for a division, the reciprocal of the divisor. None if it is a
    tensor.
    """
    other = call.values["other"]
    if not isinstance(other, int | float):
        return None
    return 1 / other if ".div" in call.name.replace("::", ".") else float(other)


class _Scores(NamedTuple):
    """Scores of queries and keys before their softmax."""

    product: Call
    factor: float
    mask: Tensor | None
    """Mask that is added to the scores."""
    sinks: Tensor | None
    """An additional score per head (attention sink)."""
    calls: set[Call]


def _scores(graph: Graph, tensor: Tensor) -> _Scores | None:
    """Return what attention scores were computed from: product, scale, mask and attention sinks. None if the tensor
    does not hold such scores.
    """
    calls, factor = set[Call](), 1.0
    mask: Tensor | None = None
    sinks: Tensor | None = None
    while True:
        call = graph.maker(tensor, BMM, _CAST, "aten::sub.Tensor", "aten::cat", *_SCALED, *_ADDED)
        if call is None:
            return None
        calls.add(call)
        values = call.values
        if call.name == BMM:
            return _Scores(call, factor, mask, sinks, calls)
        if call.name == "aten::cat":
            if len(values["tensors"]) != 2 or sinks is not None or values["tensors"][1].shape[-1] != 1:
                return None
            tensor, sinks = values["tensors"]
            continue
        if call.name == "aten::sub.Tensor":
            largest = graph.maker(values["other"], "aten::max.dim")
            if largest is None or largest.values["self"] != values["self"]:
                return None
            calls.add(largest)
        elif call.name in _ADDED:
            if mask is not None or not isinstance(values["other"], Tensor):
                return None
            mask = values["other"]
        elif call.name in _SCALED:
            if (scale := _factor(call)) is None:
                return None
            factor *= scale
        tensor = values["self"]


def _by_heads(tensor: Tensor, batch: int, rows: int, width: int) -> Tensor | None:
    """Return a tensor as [batch, heads, rows, width]. If heads were repeated for groups of queries, the result is the
    tensor before the repetition.
    """
    shape, strides = tensor.shape, tensor.strides
    if len(shape) == 5 and strides[2] == 0:
        shape, strides = shape[:2] + shape[3:], strides[:2] + strides[3:]
    elif len(shape) == 3 and shape[0] % batch == 0:
        heads = shape[0] // batch
        shape, strides = (batch, heads, *shape[1:]), (strides[0] * heads, *strides)
    if len(shape) != 4 or shape[0] != batch:
        return None
    if shape[2:] == (width, rows) != (rows, width):
        shape, strides = (*shape[:2], rows, width), (*strides[:2], strides[3], strides[2])
    return seen_as(tensor, shape, strides) if shape[2:] == (rows, width) else None


def _attending(arguments: Mapping[str, Any], result: Tensor, sinks: Tensor | None = None) -> Kernel:
    """Return the attention kernel. If there are attention sinks, it is version 2 of the kernel, in which two arguments
    have other names.
    """
    name = "npu::npu_fused_infer_attention_score"
    if sinks is not None:
        renamed = {"num_heads": "num_query_heads", "scale": "softmax_scale"}
        arguments = {renamed.get(key, key): value for key, value in arguments.items()}
        arguments["learnable_sink"] = seen_as(sinks, (sinks.shape[1],), (1,))
        name += "_v2"
    return Kernel(name=name, values=arguments, results=[result, New(dense((1,), "float32"))])


def _with_rows(tensor: Tensor) -> Tensor:
    """View [batch, heads, width] as [batch, heads, 1, width]."""
    batch, heads, width = tensor.shape
    strides = tensor.strides
    return seen_as(tensor, (batch, heads, 1, width), (strides[0], strides[1], strides[1], strides[2]))


def _single_head(tensor: Tensor) -> Tensor:
    """View [batch, keys, width] as [batch, 1, keys, width]."""
    batch, keys, width = tensor.shape
    strides = tensor.strides
    return seen_as(tensor, (batch, 1, keys, width), (strides[0], strides[0], strides[1], strides[2]))


def _swapped(tensor: Tensor) -> Tensor:
    """Return the tensor with the last two dimensions swapped."""
    *outer, rows, columns = tensor.shape
    *before, first, second = tensor.strides
    return seen_as(tensor, (*outer, columns, rows), (*before, second, first))
