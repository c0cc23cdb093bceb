"""Finds calls of a captured plan that form one kernel of torch_npu. Each matcher is given the last of these calls."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from opreplay.replay.capture.serving import attention, caches, mixtures, products, recurrent
from opreplay.replay.capture.serving.fused import (
    Call,
    Fusion,
    Graph,
    Kernel,
    Matcher,
    New,
    Tensor,
    dense,
    made_by,
    seen_as,
)
from opreplay.replay.ir.sizes import itemsize

_ADD, _MUL, _SUB, _CAST = "aten::add.Tensor", "aten::mul.Tensor", "aten::sub.Tensor", "aten::_to_copy"
_INDEX, _GROUPED = "aten::index.Tensor", "aten::_grouped_mm"
_MM, _BMM, _CAT = "aten::mm", "aten::bmm", "aten::cat"
_SUM, _COPY = "aten::sum.dim_IntList", "aten::copy_"


_INVERSE_ROOT = made_by(
    "root",
    "aten::rsqrt",
    self=made_by(
        "plus", _ADD, self=made_by("mean", "aten::mean.dim", self=made_by("square", "aten::pow.Tensor_Scalar"))
    ),
)


def rms_norm(graph: Graph, call: Call) -> Fusion | None:
    """Match RMS norm in float32 with a weight: x · rsqrt(mean(x²) + ε) · weight.

    If x is a sum of two tensors, the kernel also replaces the addition.
    """
    parts = graph.matched(call, _INVERSE_ROOT)
    scaled = graph.reader(call, _MUL)
    if parts is None or scaled is None or not _is_mean_of_squares(parts):
        return None
    wide, epsilon = parts["square"].values["self"], parts["plus"].values["other"]
    cast = graph.maker(wide, _CAST)
    if cast is not None and set(graph.readers(wide)) != {parts["square"], scaled}:
        cast = None
    weighing = _weighing(graph, scaled, is_cast=cast is not None)
    if weighing is None or not _is_operand(scaled, wide):
        return None
    source = wide if cast is None else cast.values["self"]
    weight, before, weighed_by = weighing
    if weight.meta.shape != source.shape[-1:] or weight.meta.dtype != source.meta.dtype:
        return None
    calls = {*parts.values(), scaled, *weighed_by} | (set() if cast is None else {cast})
    result = weighed_by[-1].results[0]
    scale = New(dense((*source.shape[:-1], 1), "float32"))
    total = graph.maker(source, _ADD)
    if total is not None and _is_sum_of_two(total, source):
        values = {"x1": total.values["self"], "x2": total.values["other"], "gamma": weight, "epsilon": epsilon}
        kernel = Kernel(name="npu::npu_add_rms_norm", values=values, results=[result, scale, total.results[0]])
        fusion = Fusion(kernels=[*before, kernel], calls=frozenset({*calls, total}))
        if graph.is_sound(fusion):
            return fusion
    values = {"self": source, "gamma": weight, "epsilon": epsilon}
    kernel = Kernel(name="npu::npu_rms_norm", values=values, results=[result, scale])
    return Fusion(kernels=[*before, kernel], calls=frozenset(calls))


_ONE_MORE = made_by("more", _ADD, self=made_by("wide", _CAST))


def _weighing(graph: Graph, scaled: Call, *, is_cast: bool) -> tuple[Tensor | New, list[Kernel], list[Call]] | None:
    """Return (weight of a norm, kernels that create it, calls that multiply by it); None if there is no weight.

    The weight is a parameter, or a parameter plus one. The norm is computed in float32; the multiplication may come
    before or after the cast back.
    """
    narrow = graph.reader(scaled, _CAST) if is_cast else scaled
    weighted = graph.reader(narrow or scaled, _MUL)
    factor = None if weighted is None else _other(weighted, (narrow or scaled).results[0])
    if weighted is None or factor is None:
        return None
    if narrow is not None:
        return factor, [], [narrow, weighted]
    narrow, more = graph.reader(weighted, _CAST), graph.maker(factor, _ADD)
    if narrow is not None and factor.meta.dtype == narrow.results[0].meta.dtype:
        return factor, [], [weighted, narrow]
    parts = None if narrow is None or more is None else graph.matched(more, _ONE_MORE)
    if narrow is None or more is None or parts is None or more.values["other"] != 1.0:
        return None
    weight: Tensor = parts["wide"].values["self"]
    gamma = New(weight.meta)
    adding = Kernel(name="aten::add.Scalar", values={"self": weight, "other": 1.0}, results=[gamma])
    return gamma, [adding], [*parts.values(), weighted, narrow]


def _is_mean_of_squares(parts: Mapping[str, Call]) -> bool:
    """Check whether the calls compute mean(x²) + ε, where the mean is over the last dimension, which is kept with size
    1.
    """
    mean = parts["mean"].values
    of_last = mean["dim"] == (-1,) and bool(mean.get("keepdim"))
    return of_last and parts["square"].values["exponent"] == 2 and not isinstance(parts["plus"].values["other"], Tensor)


_TURNED = made_by("joined", _CAT, tensors=(made_by("negated", "aten::neg"), None))


def rotary(graph: Graph, call: Call) -> Fusion | None:
    """Match rotary embedding of x: x · cos + (−second half of x, first half of x) · sin."""
    products = graph.matched(call, made_by("sum", _ADD, self=made_by("plain", _MUL), other=made_by("turned", _MUL)))
    if products is None or products["plain"] is products["turned"]:
        return None
    plain, turned = products["plain"].values, products["turned"].values
    for name, sine in (("self", "other"), ("other", "self")):
        joined = graph.maker(turned[name], _CAT)
        halves = None if joined is None else graph.matched(joined, _TURNED)
        if halves is None:
            continue
        first, negated = halves["joined"].values["tensors"][1], halves["negated"]
        for x, cosine in ((plain["self"], plain["other"]), (plain["other"], plain["self"])):
            if isinstance(cosine, Tensor) and isinstance(x, Tensor) and _are_halves(graph, x, first, negated):
                values = {"self": x, "r1": cosine, "r2": turned[sine]}
                kernel = Kernel(name="npu::npu_rotary_mul", values=values, results=[call.results[0]])
                return Fusion(kernels=[kernel], calls=frozenset({*products.values(), *halves.values()}))
    return None


def _are_halves(graph: Graph, x: Tensor, first: Tensor, negated: Call) -> bool:
    second, half = negated.values["self"], x.shape[-1] // 2
    return (
        first.shape[-1] == half == second.shape[-1]
        and {(each.storage, each.version) for each in (x, first, second)} == {(x.storage, x.version)}
        and first.memory == x.memory
        and _bytes_apart(graph, x, second) == half * itemsize(x.meta.dtype)
    )


_HALVES = made_by(
    "halves",
    _CAT,
    tensors=(
        made_by("difference", _SUB, self=made_by("first_cos", _MUL), other=made_by("second_sin", _MUL)),
        made_by("total", _ADD, self=made_by("second_cos", _MUL), other=made_by("first_sin", _MUL)),
    ),
)


def rotary_of_halves(graph: Graph, call: Call) -> Fusion | None:
    """Match rotary embedding of halves, in which each angle is stored once.

    It computes (first half · cos − second half · sin, second half · cos + first half · sin).
    """
    parts = graph.matched(call, _HALVES)
    if parts is None or call.values.get("dim") != -1:
        return None
    (first, cosine), (second, sine), (second_, cosine_), (first_, sine_) = (
        (parts[key].values["self"], parts[key].values["other"])
        for key in ("first_cos", "second_sin", "second_cos", "first_sin")
    )
    if (first, second, cosine, sine) != (first_, second_, cosine_, sine_) or not isinstance(sine, Tensor):
        return None
    width = first.shape[-1] * itemsize(first.meta.dtype)
    if cosine.shape[-1] != first.shape[-1] or first.storage != second.storage:
        return None
    if _bytes_apart(graph, first, second) != width or (first.meta.strides or (1,))[-1] != 1:
        return None
    angles: list[New] = []
    kernels: list[Kernel] = []
    shared: dict[Hashable, New] = {}
    for half in (cosine, sine):
        key = "doubled", half.storage, half.version
        whole = graph.shared.get(key)
        if whole is None:
            whole = New(dense((*half.shape[:-1], 2 * half.shape[-1]), half.meta.dtype))
            kernels.append(Kernel(name=_CAT, values={"tensors": [half, half], "dim": -1}, results=[whole]))
            shared[key] = whole
        angles.append(whole)
    values = {"self": _widened(first), "r1": angles[0], "r2": angles[1]}
    kernels.append(Kernel(name="npu::npu_rotary_mul", values=values, results=call.results))
    return Fusion(kernels=kernels, calls=frozenset(parts.values()), shared=shared)


_PAIRS = made_by(
    "pairs",
    _CAT,
    tensors=(
        made_by("difference", _SUB, self=made_by("even_cos", _MUL), other=made_by("odd_sin", _MUL)),
        made_by("total", _ADD, self=made_by("odd_cos", _MUL), other=made_by("even_sin", _MUL)),
    ),
)


def rotary_of_pairs(graph: Graph, call: Call) -> Fusion | None:
    """Match rotary embedding of adjacent elements: (even · cos − odd · sin, odd · cos + even · sin)."""
    parts = graph.matched(call, _PAIRS)
    if parts is None or call.values.get("dim") != -1:
        return None
    (even, cosine), (odd, sine), (odd_, cosine_), (even_, sine_) = (
        (parts[key].values["self"], parts[key].values["other"])
        for key in ("even_cos", "odd_sin", "odd_cos", "even_sin")
    )
    if (even, odd, cosine, sine) != (even_, odd_, cosine_, sine_) or not _is_doubled(graph, cosine):
        return None
    strides = even.strides
    if strides[-1] != 2 or _bytes_apart(graph, even, odd) != itemsize(even.meta.dtype) or not _is_doubled(graph, sine):
        return None
    whole = _widened(seen_as(even, even.shape, (*strides[:-1], 1)))
    values = {"x": whole, "cos": _widened(cosine), "sin": _widened(sine)}
    kernel = Kernel(name="npu::npu_interleave_rope", values=values, results=[call.results[0]])
    return Fusion(kernels=[kernel], calls=frozenset(parts.values()))


def _is_doubled(graph: Graph, tensor: Tensor) -> bool:
    """Check whether a tensor was computed from a concatenation of the rotation angles with themselves."""
    at: Any = tensor
    while (unary := graph.maker(at, _CAST, "aten::mul.Tensor", "aten::cos", "aten::sin")) is not None:
        at = unary.values["self"]
    joined = graph.maker(at, _CAT)
    return joined is not None and len(set(joined.values["tensors"])) == 1 and len(joined.values["tensors"]) == 2


def swiglu(graph: Graph, call: Call) -> Fusion | None:
    """Match silu(gate) · up.

    Either gate and up are halves of one tensor, or they are two products with one input. Two products are joined into
    one.
    """
    if call.name != _MUL or not all(isinstance(call.values[name], Tensor) for name in ("self", "other")):
        return None
    silu = graph.maker(call.values["self"], "aten::silu") or graph.maker(call.values["other"], "aten::silu")
    if silu is None or (up := _other(call, silu.results[0])) is None:
        return None
    gate: Tensor = silu.values["self"]
    if (gate.storage, gate.version) == (up.storage, up.version):
        if not _lie_side_by_side(graph, gate, up):
            return None
        return Fusion(kernels=[_swish(call, _widened(gate))], calls=frozenset({call, silu}))
    return _swiglu_of_products(graph, call, silu, up)


def _lie_side_by_side(graph: Graph, gate: Tensor, up: Tensor) -> bool:
    strides = gate.strides
    return strides[-1] == 1 and _bytes_apart(graph, gate, up) == gate.shape[-1] * itemsize(gate.meta.dtype)


def _swish(call: Call, halves: Tensor | New) -> Kernel:
    return Kernel(name="npu::npu_swiglu", values={"self": halves, "dim": -1}, results=call.results)


def _swiglu_of_products(graph: Graph, call: Call, silu: Call, up: Tensor) -> Fusion | None:
    gate: Tensor = silu.values["self"]
    first, second = graph.maker(gate, _MM), graph.maker(up, _MM)
    if first is None or second is None or first.values["self"] != second.values["self"]:
        return None
    weights = first.values["mat2"], second.values["mat2"]
    if weights[0].shape != weights[1].shape or any(weight.version for weight in weights):
        return None
    inner, width = weights[0].shape
    weight = New(dense((inner, 2 * width), weights[0].meta.dtype, (1, inner)), parts=weights)
    both = New(dense((first.results[0].shape[0], 2 * width), gate.meta.dtype))
    kernels = [
        Kernel(name="aten::mm", values={"self": first.values["self"], "mat2": weight}, results=[both]),
        _swish(call, both),
    ]
    return Fusion(kernels=kernels, calls=frozenset({call, silu, first, second}))


MATCHERS: Sequence[Matcher] = (
    caches.static_cache,
    caches.full_window,
    caches.growing_cache,
    rotary,
    rotary_of_pairs,
    rotary_of_halves,
    attention.latent,
    attention.plain_query,
    attention.of_torch,
    attention.written_out,
    swiglu,
    mixtures.gating,
    mixtures.gating_by_groups,
    mixtures.clipped_swiglu,
    mixtures.experts,
    mixtures.shared_experts,
    mixtures.exchanged_experts,
    recurrent.causal_convolution,
    recurrent.delta_rule,
    rms_norm,
    products.joined,
    products.loaded,
)


def _widened(tensor: Tensor) -> Tensor:
    """Return the tensor with its last dimension doubled."""
    return seen_as(tensor, (*tensor.shape[:-1], 2 * tensor.shape[-1]), tensor.strides)


def _bytes_apart(graph: Graph, first: Tensor, second: Tensor) -> int:
    places = graph.sequence.places
    return places[second.memory][1] - places[first.memory][1]


def _is_operand(call: Call, tensor: Tensor) -> bool:
    return tensor in (call.values["self"], call.values["other"])


def _other(call: Call, tensor: Tensor) -> Tensor | None:
    """Return the other operand of a multiplication if it is a tensor, otherwise None."""
    first, second = call.values["self"], call.values["other"]
    rest = second if first == tensor else first if second == tensor else None
    return rest if isinstance(rest, Tensor) else None


def _is_sum_of_two(call: Call, total: Tensor) -> bool:
    terms = call.values["self"], call.values["other"]
    return call.values.get("alpha", 1) == 1 and all(
        isinstance(term, Tensor) and (term.shape, term.meta.dtype) == (total.shape, total.meta.dtype) for term in terms
    )
