"""Which calls of a captured plan are one kernel of torch_npu: what `fused` looks for, each by the call that ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import msgspec

from opreplay.replay.capture.serving import caches
from opreplay.replay.capture.serving.fused import (
    Call,
    Fusion,
    Graph,
    Kernel,
    Matcher,
    New,
    Tensor,
    made_by,
    seen_as,
)
from opreplay.replay.ir.sizes import itemsize
from opreplay.traces.model import TensorMeta, contiguous_strides

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
    """x · rsqrt(mean(x²) + ε), in float32, · weight: with the sum that it is of, where that is one of two tensors."""
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
    scale = New(_meta((*source.shape[:-1], 1), "float32"))
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
    """(weight of a norm, what makes it, calls that multiply by it): after the cast back, or before it by one more than
    a parameter, in float32."""
    narrow = graph.reader(scaled, _CAST) if is_cast else scaled
    weighted = graph.reader(narrow or scaled, _MUL)
    factor = None if weighted is None else _other(weighted, (narrow or scaled).results[0])
    if weighted is None or factor is None:
        return None
    if narrow is not None:
        return factor, [], [narrow, weighted]
    narrow, more = graph.reader(weighted, _CAST), graph.maker(factor, _ADD)
    parts = None if narrow is None or more is None else graph.matched(more, _ONE_MORE)
    if narrow is None or more is None or parts is None or more.values["other"] != 1.0:
        return None
    weight: Tensor = parts["wide"].values["self"]
    gamma = New(weight.meta)
    adding = Kernel(name="aten::add.Scalar", values={"self": weight, "other": 1.0}, results=[gamma])
    return gamma, [adding], [*parts.values(), weighted, narrow]


def _is_mean_of_squares(parts: Mapping[str, Call]) -> bool:
    """Whether it is of the last dimension, which stays, and ε is a number."""
    mean = parts["mean"].values
    of_last = mean["dim"] == (-1,) and bool(mean.get("keepdim"))
    return of_last and parts["square"].values["exponent"] == 2 and not isinstance(parts["plus"].values["other"], Tensor)


_TURNED = made_by("joined", _CAT, tensors=(made_by("negated", "aten::neg"), None))


def rotary(graph: Graph, call: Call) -> Fusion | None:
    """x · cos + (−second half, first half) · sin."""
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


_PAIRS = made_by(
    "pairs",
    _CAT,
    tensors=(
        made_by("difference", _SUB, self=made_by("even_cos", _MUL), other=made_by("odd_sin", _MUL)),
        made_by("total", _ADD, self=made_by("odd_cos", _MUL), other=made_by("even_sin", _MUL)),
    ),
)


def rotary_of_pairs(graph: Graph, call: Call) -> Fusion | None:
    """(even · cos − odd · sin, odd · cos + even · sin), of pairs that lie side by side."""
    parts = graph.matched(call, _PAIRS)
    if parts is None or call.values.get("dim") != -1:
        return None
    (even, cosine), (odd, sine), (odd_, cosine_), (even_, sine_) = (
        (parts[key].values["self"], parts[key].values["other"])
        for key in ("even_cos", "odd_sin", "odd_cos", "even_sin")
    )
    if (even, odd, cosine, sine) != (even_, odd_, cosine_, sine_) or not _is_doubled(graph, cosine):
        return None
    strides = even.meta.strides or contiguous_strides(even.shape)
    if strides[-1] != 2 or _bytes_apart(graph, even, odd) != itemsize(even.meta.dtype) or not _is_doubled(graph, sine):
        return None
    whole = _widened(even, msgspec.structs.replace(even.meta, strides=(*strides[:-1], 1)))
    values = {"x": whole, "cos": _widened(cosine, cosine.meta), "sin": _widened(sine, sine.meta)}
    kernel = Kernel(name="npu::npu_interleave_rope", values=values, results=[call.results[0]])
    return Fusion(kernels=[kernel], calls=frozenset(parts.values()))


def _is_doubled(graph: Graph, tensor: Tensor) -> bool:
    """Whether a tensor is of one that holds each angle twice, as a half and another."""
    at: Any = tensor
    while (unary := graph.maker(at, _CAST, "aten::mul.Tensor", "aten::cos", "aten::sin")) is not None:
        at = unary.values["self"]
    joined = graph.maker(at, _CAT)
    return joined is not None and len(set(joined.values["tensors"])) == 1 and len(joined.values["tensors"]) == 2


def swiglu(graph: Graph, call: Call) -> Fusion | None:
    """silu(gate) · up, of the two halves of one tensor, or of two products of one input, which are one then."""
    if call.name != _MUL or not all(isinstance(call.values[name], Tensor) for name in ("self", "other")):
        return None
    silu = graph.maker(call.values["self"], "aten::silu") or graph.maker(call.values["other"], "aten::silu")
    if silu is None or (up := _other(call, silu.results[0])) is None:
        return None
    gate: Tensor = silu.values["self"]
    if (gate.storage, gate.version) == (up.storage, up.version):
        if not _lie_side_by_side(graph, gate, up):
            return None
        return Fusion(kernels=[_swish(call, _widened(gate, gate.meta))], calls=frozenset({call, silu}))
    return _swiglu_of_products(graph, call, silu, up)


def _lie_side_by_side(graph: Graph, gate: Tensor, up: Tensor) -> bool:
    strides = gate.meta.strides or contiguous_strides(gate.shape)
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
    weight = New(_meta((inner, 2 * width), weights[0].meta.dtype, (1, inner)), parts=weights)
    both = New(_meta((first.results[0].shape[0], 2 * width), gate.meta.dtype))
    kernels = [
        Kernel(name="aten::mm", values={"self": first.values["self"], "mat2": weight}, results=[both]),
        _swish(call, both),
    ]
    return Fusion(kernels=kernels, calls=frozenset({call, silu, first, second}))


def attention(graph: Graph, call: Call) -> Fusion | None:
    """Attention of torch, in one kernel already, with the mask that it makes of booleans."""
    values = call.values
    if call.name != "aten::_scaled_dot_product_flash_attention_for_cpu" or values.get("dropout_p"):
        return None
    query, key = values["query"], values["key"]
    mask, calls, kernels = values.get("attn_mask"), {call}, []
    arguments = {
        "query": query,
        "key": key,
        "value": values["value"],
        "num_heads": query.shape[1],
        "scale": values.get("scale") or 1 / sqrt(query.shape[-1]),
        "input_layout": "BNSD",
        "num_key_value_heads": key.shape[1],
        "sparse_mode": 3 if values.get("is_causal") else 0,
    }
    if mask is not None:
        chosen = graph.maker(mask, "aten::where.self")
        if chosen is None:
            return None
        makers = (graph.maker(chosen.values[name], "aten::scalar_tensor") for name in ("self", "other"))
        ends = [end for end in makers if end is not None]
        if [end.values["s"] for end in ends] != [0.0, "-inf"]:
            return None
        calls |= {chosen, *ends}
        visible = chosen.values["condition"]
        if visible.shape[-2] > 1:  # else all queries of a sequence see the same keys: servers tell its length instead
            hidden = New(msgspec.structs.replace(visible.meta, strides=None, storage=None, storage_offset=0))
            kernels.append(Kernel(name="aten::logical_not", values={"self": visible}, results=[hidden]))
            arguments["atten_mask"] = hidden
    kernels.append(_attending(arguments, call.results[0]))
    return Fusion(kernels=kernels, calls=frozenset(calls))


def latent_attention(graph: Graph, call: Call) -> Fusion | None:
    """Attention to latents (`latent`): scores of latents and rotary parts, softmax, and the latents again."""
    if call.name != _BMM:
        return None
    narrow, rounded = _before_cast(graph, call.values["self"])
    softmax = graph.maker(narrow, "aten::_softmax")
    plain, widened = _before_cast(graph, softmax.values["self"] if softmax else None)
    masked = graph.maker(plain, "aten::masked_fill.Scalar")
    scores = graph.maker(masked.values["self"] if masked else plain, "aten::baddbmm")
    turned = graph.maker(scores.values["self"], _BMM) if scores else None
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
        "query_rope": _with_rows(rotary),
        "key_rope": _single_head(_swapped(key)),
        "num_heads": query.shape[1],
        "scale": scale,
        "input_layout": "BNSD",
        "num_key_value_heads": 1,
    }
    calls = {call, softmax, scores, turned, *rounded, *widened}
    if masked is not None:
        mask: Tensor = masked.values["mask"]
        strides = mask.meta.strides or contiguous_strides(mask.shape)
        if (mask.shape[1] > 1 and strides[1] != 0) or masked.values["value"] != "-inf":
            return None
        batch, _, keys = mask.shape
        arguments["atten_mask"] = seen_as(mask, (batch, 1, 1, keys), (strides[0], keys, keys, strides[2]))
        calls.add(masked)
    return Fusion(kernels=[_attending(arguments, _with_rows(call.results[0]))], calls=frozenset(calls))


_STATE = made_by(
    "state",
    _ADD,
    self=made_by("decayed", _MUL, other=made_by("decay", "aten::exp")),
    other=made_by(
        "update",
        _MUL,
        other=made_by(
            "delta",
            _MUL,
            self=made_by(
                "error", _SUB, self=made_by("value", _CAST), other=made_by("known", _SUM, self=made_by("met", _MUL))
            ),
            other=made_by("beta", _CAST),
        ),
    ),
)
_DELTA_RULE = made_by(
    "result",
    _CAST,
    self=made_by(
        "written",
        _COPY,
        self=made_by("zeros", "aten::zeros_like"),
        src=made_by(
            "read", _SUM, self=made_by("asked", _MUL, self=_STATE, other=made_by("scaled", "aten::div.Tensor"))
        ),
    ),
)


def delta_rule(graph: Graph, call: Call) -> Fusion | None:
    """One token of a gated delta net: its state decays, learns what the key did not know, and is read by the query."""
    parts = graph.matched(call, _DELTA_RULE)
    if parts is None:
        return None
    state, key = parts["decayed"].values["self"], parts["update"].values["self"]
    stores = [each for each in graph.readers(parts["state"].results[0]) if each.name == _COPY]
    if len(stores) != 1 or not isinstance(state, Tensor) or stores[0].values["self"] != state:
        return None
    if {parts["met"].values[name] for name in ("self", "other")} != {parts["decayed"].results[0], key}:
        return None
    query = parts["scaled"].values["self"]
    values = {
        "query": _without_tokens(query),
        "key": _without_tokens(seen_as(key, query.shape, query.meta.strides or contiguous_strides(query.shape))),
        "value": _without_tokens(parts["value"].values["self"]),
        "state": state,
        "beta": _without_tokens(parts["beta"].values["self"]),
        "scale": query.shape[-1] ** -0.5,
        "g": parts["decay"].values["self"],
    }
    name = "npu::npu_recurrent_gated_delta_rule"
    kernel = Kernel(name=name, values=values, results=call.results, written=stores[0].results)
    return Fusion(kernels=[kernel], calls=frozenset({*parts.values(), *stores}))


def gating(graph: Graph, call: Call) -> Fusion | None:
    """The experts of each token: the largest of a softmax over all."""
    values = call.values
    softmax = graph.maker(values.get("self"), "aten::_softmax") if call.name == "aten::topk" else None
    if softmax is None or softmax.values["dim"] not in (-1, len(values["self"].shape) - 1):
        return None
    if values.get("dim", -1) not in (-1, len(values["self"].shape) - 1) or values.get("largest") is False:
        return None
    weights, chosen = call.results
    narrow = New(_meta(chosen.shape, "int32"))
    kernels = [
        Kernel(
            name="npu::npu_moe_gating_top_k_softmax",
            values={"x": softmax.values["self"], "k": values["k"]},
            results=[weights, narrow, New(_meta(chosen.shape, "int32"))],
        ),
        Kernel(name="aten::_to_copy", values={"self": narrow, "dtype": "torch.int64"}, results=[chosen]),
    ]
    return Fusion(kernels=kernels, calls=frozenset({call, softmax}))


_ENDS = made_by("ends", "aten::cumsum", self=made_by("counted", "aten::histc", self=made_by("wide", _CAST)))
_ROWS = made_by("rows", _INDEX, indices=made_by("place", "aten::floor_divide", self=made_by("sort", "aten::sort")))
_EXPANDED = made_by(
    "second",
    _GROUPED,
    self=made_by("swiglu", "npu::npu_swiglu", self=made_by("first", _GROUPED, self=_ROWS, offs=_ENDS)),
)
_ORDER = made_by(
    "inverse",
    "aten::index_put_",
    self=made_by("empty", "aten::empty_like"),
    values=made_by("numbers", "aten::arange"),
)
_MIXTURE = made_by(
    "sum",
    _SUM,
    self=made_by(
        "back",
        _INDEX,
        self=made_by("weighed", _MUL, self=_EXPANDED, other=made_by("scales", _INDEX)),
        indices=_ORDER,
    ),
)


def experts(graph: Graph, call: Call) -> Fusion | None:
    """A mixture: rows in the order of experts, two products of groups around SwiGlu, and rows weighed and summed up."""
    calls = graph.matched(call, _MIXTURE)
    if calls is None:
        return None
    first, second, sort, scales = (calls[key] for key in ("first", "second", "sort", "scales"))
    order, tokens = sort.results[1], calls["rows"].values["self"]
    top_k = calls["place"].values["other"]
    if calls["wide"].values["self"] != sort.results[0] or second.values["offs"] != first.values["offs"]:
        return None
    if not calls["inverse"].values["indices"] == scales.values["indices"] == [order] or call.values["dim"] != (1,):
        return None
    if sort.values["self"].shape[0] != tokens.shape[0] * top_k:
        return None
    chosen, casts = _before_cast(graph, sort.values["self"])
    count, shape = sort.values["self"].shape[0], (tokens.shape[0], top_k)
    number = first.values["mat2"].shape[0]
    sorted_rows, ends_of, moved = (
        New(_meta(each, dtype))
        for each, dtype in (((count, tokens.shape[1]), tokens.meta.dtype), ((number,), "int64"), ((count,), "int32"))
    )
    both, halved, expanded = (New(each.results[0].meta) for each in (first, calls["swiglu"], second))
    groups = {"group_list": ends_of, "split_item": 2, "group_type": 0, "group_list_type": 0}
    scale = New(_meta((count,), "float32"))
    kernels = [
        Kernel(
            name="npu::npu_moe_init_routing_v2",
            values={
                "x": tokens,
                "expert_idx": seen_as(chosen, shape, contiguous_strides(shape)),
                "active_num": count,
                "expert_num": number,
                "expert_tokens_num_flag": True,
            },
            results=[sorted_rows, moved, ends_of, scale],
        ),
        Kernel(
            name="npu::npu_grouped_matmul",
            values={"x": [sorted_rows], "weight": [first.values["mat2"]], **groups},
            results=[both],
        ),
        Kernel(name="npu::npu_swiglu", values={"self": both, "dim": -1}, results=[halved]),
        Kernel(
            name="npu::npu_grouped_matmul",
            values={"x": [halved], "weight": [second.values["mat2"]], **groups},
            results=[expanded],
        ),
        Kernel(
            name="npu::npu_moe_finalize_routing",
            values={
                **dict.fromkeys(("skip1", "skip2", "bias", "export_for_source_row")),
                "expanded_permuted_rows": expanded,
                "scales": seen_as(scales.values["self"], shape, contiguous_strides(shape)),
                "expanded_src_to_dst_row": moved,
                "drop_pad_mode": 2,
            },
            results=call.results,
        ),
    ]
    return Fusion(kernels=kernels, calls=frozenset({*calls.values(), *casts}))


def _before_cast(graph: Graph, tensor: Any) -> tuple[Any, set[Call]]:
    """What a tensor was cast of, and the call that did; the tensor itself where none did."""
    cast = graph.maker(tensor, _CAST)
    return (tensor, set()) if cast is None else (cast.values["self"], {cast})


def _attending(arguments: dict[str, Any], result: Tensor) -> Kernel:
    return Kernel(
        name="npu::npu_fused_infer_attention_score", values=arguments, results=[result, New(_meta((1,), "float32"))]
    )


MATCHERS: Sequence[Matcher] = (
    caches.static_cache,
    caches.full_window,
    caches.growing_cache,
    rotary,
    rotary_of_pairs,
    latent_attention,
    attention,
    swiglu,
    gating,
    experts,
    delta_rule,
    rms_norm,
)


def _meta(shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> TensorMeta:
    return TensorMeta(shape=shape, dtype=dtype, strides=strides or contiguous_strides(shape))


def _widened(tensor: Tensor, meta: TensorMeta) -> Tensor:
    """The tensor with twice as many elements in its last dimension."""
    return seen_as(tensor, (*meta.shape[:-1], 2 * meta.shape[-1]), meta.strides or contiguous_strides(meta.shape))


def _with_rows(tensor: Tensor) -> Tensor:
    """[batch, heads, width] as [batch, heads, 1, width]."""
    batch, heads, width = tensor.shape
    strides = tensor.meta.strides or contiguous_strides(tensor.shape)
    return seen_as(tensor, (batch, heads, 1, width), (strides[0], strides[1], strides[1], strides[2]))


def _single_head(tensor: Tensor) -> Tensor:
    """[batch, keys, width] as [batch, 1, keys, width]."""
    batch, keys, width = tensor.shape
    strides = tensor.meta.strides or contiguous_strides(tensor.shape)
    return seen_as(tensor, (batch, 1, keys, width), (strides[0], strides[0], strides[1], strides[2]))


def _without_tokens(tensor: Tensor) -> Tensor:
    """[batch, heads, 1, ...] as [batch, heads, ...]."""
    strides = tensor.meta.strides or contiguous_strides(tensor.shape)
    return seen_as(tensor, tensor.shape[:2] + tensor.shape[3:], strides[:2] + strides[3:])


def _swapped(tensor: Tensor) -> Tensor:
    """With the last two dimensions swapped."""
    *outer, rows, columns = tensor.shape
    *before, first, second = tensor.meta.strides or contiguous_strides(tensor.shape)
    return seen_as(tensor, (*outer, columns, rows), (*before, second, first))


def _bytes_apart(graph: Graph, first: Tensor, second: Tensor) -> int:
    places = graph.sequence.places
    return places[second.memory][1] - places[first.memory][1]


def _is_operand(call: Call, tensor: Tensor) -> bool:
    return tensor in (call.values["self"], call.values["other"])


def _other(call: Call, tensor: Tensor) -> Tensor | None:
    """The other operand of a product, where it is a tensor."""
    first, second = call.values["self"], call.values["other"]
    rest = second if first == tensor else first if second == tensor else None
    return rest if isinstance(rest, Tensor) else None


def _is_sum_of_two(call: Call, total: Tensor) -> bool:
    terms = call.values["self"], call.values["other"]
    return call.values.get("alpha", 1) == 1 and all(
        isinstance(term, Tensor) and (term.shape, term.meta.dtype) == (total.shape, total.meta.dtype) for term in terms
    )
