"""Finds mixtures of experts and replaces them by the kernels of Ascend servers. These kernels are gating, routing,
grouped matrix products, and exchange between ranks.
"""

from __future__ import annotations

from typing import Any

from opreplay.replay.capture.serving.fused import Call, Fusion, Graph, Kernel, New, Tensor, dense, made_by, seen_as
from opreplay.traces.model import contiguous_strides

_MUL, _ADD, _CAST = "aten::mul.Tensor", "aten::add.Tensor", "aten::_to_copy"
_SUM, _INDEX, _TOPK = "aten::sum.dim_IntList", "aten::index.Tensor", "aten::topk"
_GROUPED, _ADDED, _PRODUCT = "aten::_grouped_mm", "aten::add_.Tensor", "npu::npu_grouped_matmul"
_ROUTING, _ROUTED = "npu::npu_moe_init_routing_v2", "npu::npu_moe_finalize_routing"
_EXCHANGED, _WAITED = "_c10d_functional::all_to_all_single", "_c10d_functional::wait_tensor"
MOST_DISPATCHED = 512
"""Maximum number of tokens per rank for npu_moe_distribute_dispatch_v2, according to its documentation. Servers
exchange more tokens in another way.
"""


def gating(graph: Graph, call: Call) -> Fusion | None:
    """Match the selection of experts for each token: those with the largest values of a softmax over all experts."""
    values = call.values
    softmax = graph.maker(values.get("self"), "aten::_softmax") if call.name == _TOPK else None
    if softmax is None or softmax.values["dim"] not in (-1, len(values["self"].shape) - 1):
        return None
    if values.get("dim", -1) not in (-1, len(values["self"].shape) - 1) or values.get("largest") is False:
        return None
    kernels = _chosen(
        "npu::npu_moe_gating_top_k_softmax",
        {"x": softmax.values["self"], "k": values["k"]},
        call,
        weights=call.results[0],
        last=New(dense(call.results[1].shape, "int32")),
    )
    return Fusion(kernels=kernels, calls=frozenset({call, softmax}))


def _chosen(name: str, values: dict[str, Any], topk: Call, *, weights: Tensor, last: New) -> list[Kernel]:
    """Return two kernels. One computes the weights and indices of the chosen experts. The other casts these indices to
    int64, which other calls need.
    """
    chosen = topk.results[1]
    narrow = New(dense(chosen.shape, "int32"))
    return [
        Kernel(name=name, values=values, results=[weights, narrow, last]),
        Kernel(name=_CAST, values={"self": narrow, "dtype": "torch.int64"}, results=[chosen]),
    ]


_SCORES = made_by("scores", "aten::sigmoid")
_BIASED = made_by("biased", _ADD, self=_SCORES)
_GROUPS = made_by("groups", _TOPK, self=made_by("best_sum", _SUM, self=made_by("best", _TOPK, self=_BIASED)))
_ALLOWED = made_by(
    "allowed",
    _CAST,
    self=made_by(
        "spread",
        "aten::clone",
        self=made_by("marked", "aten::scatter_.value", self=made_by("clear", "aten::zeros_like"), index=_GROUPS),
    ),
)
_CHOSEN = made_by(
    "chosen",
    _TOPK,
    self=made_by(
        "left", "aten::masked_fill.Scalar", self=_BIASED, mask=made_by("others", "aten::bitwise_not", self=_ALLOWED)
    ),
)
_PICKED = made_by("picked", "aten::gather", self=_SCORES, index=_CHOSEN)
_SHARES = made_by(
    "shares",
    "aten::div_.Tensor",
    self=_PICKED,
    other=made_by("more", _ADD, self=made_by("total", _SUM, self=_PICKED)),
)
_WEIGHED_BY_GROUPS = made_by("scaled", _MUL, self=_SHARES)


def gating_by_groups(graph: Graph, call: Call) -> Fusion | None:
    """Match the gating that selects experts for each token by groups.

    Within the best groups, the experts with the largest sigmoid plus bias are selected. The weights of the selected
    experts sum to one.
    """
    parts = graph.matched(call, _WEIGHED_BY_GROUPS)
    if parts is None or not isinstance(call.values["other"], int | float):
        return None
    if parts["biased"].values["self"] != parts["picked"].values["self"]:
        return None
    best, groups, chosen = (parts[key] for key in ("best", "groups", "chosen"))
    values = {
        "x": parts["scores"].values["self"],
        "k": chosen.values["k"],
        "bias": parts["biased"].values["other"],
        "k_group": groups.values["k"],
        "group_count": best.values["self"].shape[-2],
        "group_select_mode": int(best.values["k"] == 2),
        "norm_type": 1,
        "routed_scaling_factor": float(call.values["other"]),
        "eps": parts["more"].values["other"],
    }
    kernels = _chosen(
        "npu::npu_moe_gating_top_k", values, chosen, weights=call.results[0], last=New(dense((0,), "float32"))
    )
    return Fusion(kernels=kernels, calls=frozenset(parts.values()))


_CLAMPED = made_by("gate", "aten::clamp")
_CLIPPED = made_by(
    "product",
    _MUL,
    self=made_by("more", _ADD, self=made_by("up", "aten::clamp")),
    other=made_by(
        "gated",
        _MUL,
        self=_CLAMPED,
        other=made_by("sigmoid", "aten::sigmoid", self=made_by("steeper", _MUL, self=_CLAMPED)),
    ),
)


def clipped_swiglu(graph: Graph, call: Call) -> Fusion | None:
    """Match (clipped up + 1) · clipped gate · sigmoid(α · clipped gate), where gate and up are adjacent elements."""
    parts = graph.matched(call, _CLIPPED)
    if parts is None or parts["steeper"].values["self"] != parts["gated"].values["self"]:
        return None
    gate, up, limit = parts["gate"].values["self"], parts["up"].values["self"], parts["up"].values.get("max")
    strides = gate.meta.strides or ()
    if up.storage != gate.storage or up.memory == gate.memory or not strides or strides[-1] != 2:
        return None
    if parts["gate"].values.get("min") is not None or parts["gate"].values.get("max") != limit or limit is None:
        return None
    values = {
        "x": seen_as(gate, (*gate.shape[:-1], 2 * gate.shape[-1]), (*strides[:-1], 1)),
        "alpha": float(parts["steeper"].values["other"]),
        "limit": float(limit),
        "bias": float(parts["more"].values["other"]),
    }
    kernel = Kernel(name="npu::npu_clipped_swiglu", values=values, results=call.results)
    return Fusion(kernels=[kernel], calls=frozenset(parts.values()))


_ENDS = made_by("ends", "aten::cumsum", self=made_by("counted", "aten::histc", self=made_by("wide", _CAST)))
_ROWS = made_by("rows", _INDEX, indices=made_by("place", "aten::floor_divide", self=made_by("sort", "aten::sort")))
_ORDER = made_by(
    "inverse",
    "aten::index_put_",
    self=made_by("empty", "aten::empty_like"),
    values=made_by("numbers", "aten::arange"),
)
_SUMMED = made_by(
    "sum",
    _SUM,
    self=made_by("back", _INDEX, self=made_by("weighed", _MUL, other=made_by("scales", _INDEX)), indices=_ORDER),
)
_FIRST = made_by("first", _GROUPED, self=_ROWS, offs=_ENDS)


class _Product:
    """A grouped matrix product in a mixture of experts, with the bias of each row's expert if one is added."""

    def __init__(self, graph: Graph, made: Call) -> None:
        self.result = made.results[0]
        self.calls = {made}
        self.bias: Tensor | None = None
        if made.name != _GROUPED:
            biases = graph.maker(made.values["other"], _INDEX)
            made = graph.maker(made.values["self"], _GROUPED) or made
            if biases is not None:
                self.bias = biases.values["self"]
                self.calls |= {made, biases}
        self.grouped = made

    @staticmethod
    def by(graph: Graph, made: Call | None) -> _Product | None:
        """Return the grouped matrix product that `made` computes, or to which `made` adds a bias; None for any other
        call.
        """
        if made is None or (made.name != _GROUPED and graph.maker(made.values["self"], _GROUPED) is None):
            return None
        return _Product(graph, made)

    def kernel(self, rows: Tensor | New, groups: dict[str, Any]) -> Kernel:
        values = {"x": [rows], "weight": [self.grouped.values["mat2"]], **groups}
        if self.bias is not None:
            values["bias"] = [self.bias]
        return Kernel(name=_PRODUCT, values=values, results=[self.result])


def experts(graph: Graph, call: Call) -> Fusion | None:
    """Match a mixture of experts.

    It consists of rows sorted by expert, two grouped products with an activation in between, and a weighted sum of
    rows.
    """
    calls = graph.matched(call, _SUMMED)
    second = (
        None if calls is None else _Product.by(graph, graph.maker(calls["weighed"].values["self"], _GROUPED, _ADDED))
    )
    if calls is None or second is None:
        return None
    between = graph.between(second.grouped.values["self"], _GROUPED, _ADDED)
    first = None if between is None else _Product.by(graph, between.start)
    matched = None if first is None else graph.matched(first.grouped, _FIRST)
    if between is None or first is None or matched is None:
        return None
    calls |= matched
    sort, scales = calls["sort"], calls["scales"]
    order, tokens = sort.results[1], calls["rows"].values["self"]
    top_k = calls["place"].values["other"]
    if calls["wide"].values["self"] != sort.results[0] or second.grouped.values["offs"] != first.grouped.values["offs"]:
        return None
    if not calls["inverse"].values["indices"] == scales.values["indices"] == [order] or call.values["dim"] != (1,):
        return None
    if sort.values["self"].shape[0] != tokens.shape[0] * top_k:
        return None
    chosen, casts = graph.before_cast(sort.values["self"])
    count, shape = sort.values["self"].shape[0], (tokens.shape[0], top_k)
    number = first.grouped.values["mat2"].shape[0]
    sorted_rows, ends_of, moved, scale = (
        New(dense(each, dtype))
        for each, dtype in (
            ((count, tokens.shape[1]), tokens.meta.dtype), ((number,), "int64"), ((count,), "int32"),
            ((count,), "float32"),
        )
    )  # fmt: skip
    groups = {"group_list": ends_of, "split_item": 2, "group_type": 0, "group_list_type": 0}
    routing = {
        "x": tokens,
        "expert_idx": seen_as(chosen, shape, contiguous_strides(shape)),
        "active_num": count,
        "expert_num": number,
        "expert_tokens_num_flag": True,
    }
    kernels = [
        Kernel(name=_ROUTING, values=routing, results=[sorted_rows, moved, ends_of, scale]),
        first.kernel(sorted_rows, groups),
        *between.kernels,
        second.kernel(second.grouped.values["self"], groups),
        _summing(second.result, seen_as(scales.values["self"], shape, contiguous_strides(shape)), moved, call),
    ]
    every = {*calls.values(), *casts, *between.calls, *first.calls, *second.calls}
    return Fusion(kernels=kernels, calls=frozenset(every))


def _summing(rows: Tensor, weights: Tensor, moved: Tensor | New, call: Call) -> Kernel:
    """Return the kernel that adds up each token's rows from its experts, multiplied by their weights."""
    values = {
        **dict.fromkeys(("skip1", "skip2", "bias", "export_for_source_row")),
        "expanded_permuted_rows": rows,
        "scales": weights,
        "expanded_src_to_dst_row": moved,
        "drop_pad_mode": 2,
    }
    return Kernel(name=_ROUTED, values=values, results=call.results)


def shared_experts(graph: Graph, call: Call) -> Fusion | None:
    """Match the experts of this rank if every rank has all tokens. Routing and summing then skip the experts of other
    ranks.
    """
    if call.name != "aten::index_add" or graph.maker(call.values["self"], "aten::zeros_like") is None:
        return None
    source, narrowed = graph.before_cast(call.values["source"])
    summing = graph.maker(source, _ROUTED)
    between = None if summing is None else graph.between(summing.values["expanded_permuted_rows"], _ROUTING)
    routing = None if between is None else between.start
    rows = None if routing is None else graph.maker(routing.values["x"], _INDEX)
    local = None if routing is None else graph.maker(routing.values["expert_idx"], "aten::remainder.Scalar")
    if summing is None or between is None or routing is None or rows is None or local is None:
        return None
    cast = graph.maker(local.values["self"], _CAST, _TOPK)
    if rows.values["indices"] != [call.values["index"]] or cast is None:
        return None
    tokens = rows.values["self"]
    chosen = next(each for each in cast.results if each.storage == local.values["self"].storage)
    shape = (tokens.shape[0], chosen.shape[-1])
    moved = New(dense((shape[0] * shape[1],), "int32"))
    results = list(routing.results)
    number = results[2].shape[0]
    values = {
        **routing.values, "x": tokens, "expert_idx": chosen, "expert_num": local.values["other"],
        "active_expert_range": (0, number),
    }  # fmt: skip
    weights = summing.values["scales"]
    kernels = [
        Kernel(name=_ROUTING, values=values, results=[results[0], moved, *results[2:]]),
        *between.kernels,
        _summing(
            summing.values["expanded_permuted_rows"], seen_as(weights, shape, contiguous_strides(shape)), moved, call
        ),
    ]
    return Fusion(kernels=kernels, calls=frozenset({call, *narrowed, summing, routing, rows, *between.calls}))


_RETURNED = made_by(
    "sum",
    _SUM,
    self=made_by(
        "weighed",
        _MUL,
        self=made_by(
            "back",
            _INDEX,
            self=made_by("waited", _WAITED, tensor=made_by("returned", _EXCHANGED)),
            indices=made_by(
                "inverse",
                "aten::scatter_.src",
                self=made_by("empty", "aten::empty_like"),
                src=made_by("numbers", "aten::arange"),
            ),
        ),
    ),
)
_SENT = made_by("arrived", _WAITED, tensor=made_by("sent", _EXCHANGED))
_NUMBERS_SENT = made_by(
    "numbers_arrived",
    _WAITED,
    tensor=made_by("numbers_sent", _EXCHANGED, input=made_by("local", "aten::remainder.Scalar")),
)


def exchanged_experts(graph: Graph, call: Call) -> Fusion | None:
    """Match experts that are distributed over all ranks.

    Tokens are sent to the ranks of their experts; results are sent back and summed. If the kernels accept the number of
    tokens, one kernel sends the tokens and another one returns the results. For more tokens, one kernel replaces only
    the reordering and the sum of the returned rows.
    """
    calls = graph.matched(call, _RETURNED)
    if calls is None or call.values["dim"] != (1,):
        return None
    weights, casts = graph.before_cast(calls["weighed"].values["other"])
    sort = graph.maker(calls["inverse"].values["index"], "aten::sort")
    if sort is None or not isinstance(weights, Tensor):
        return None
    chosen, chosen_casts = graph.before_cast(sort.values["self"])
    tokens, top_k = call.results[0].shape[0], call.values["self"].shape[1]
    shape = (tokens, top_k)
    weights = seen_as(weights, shape, contiguous_strides(shape))
    if tokens > MOST_DISPATCHED:
        moved = New(dense((tokens * top_k,), "int32"))
        cast = Kernel(name=_CAST, values={"self": calls["inverse"].results[0], "dtype": "torch.int32"}, results=[moved])
        summing = Kernel(
            name="npu::npu_moe_token_unpermute",
            values={"permuted_tokens": calls["waited"].results[0], "sorted_indices": moved, "probs": weights},
            results=call.results,
        )
        return Fusion(kernels=[cast, summing], calls=frozenset({call, calls["weighed"], calls["back"], *casts}))
    finished, finished_casts = graph.before_cast(calls["returned"].values["input"])
    summed = graph.maker(finished, _ROUTED)
    between = None if summed is None else graph.between(summed.values["expanded_permuted_rows"], _ROUTING)
    routing = None if between is None else between.start
    if summed is None or between is None or routing is None:
        return None
    arrived = graph.maker(routing.values["x"], _WAITED)
    numbers = graph.maker(routing.values["expert_idx"], _WAITED)
    sent = None if arrived is None else graph.matched(arrived, _SENT)
    numbered = None if numbers is None else graph.matched(numbers, _NUMBERS_SENT)
    rows = None if sent is None else _before_padding(graph, sent["sent"].values["input"])
    picked = None if rows is None else graph.matched(rows, _ROWS)
    if sent is None or numbered is None or picked is None or picked["sort"] is not sort:
        return None
    local = routing.results[2].shape[0]
    ranks = len(calls["returned"].values["output_split_sizes"])
    exchange = {
        "group_ep": "experts", "ep_world_size": ranks, "ep_rank_id": graph.rank, "moe_expert_num": ranks * local,
    }  # fmt: skip
    numbers_of = seen_as(chosen, shape, contiguous_strides(shape))
    received, counts = routing.results[0], routing.results[2]
    facts, sources, none = (New(dense((size,), dtype)) for size, dtype in (
        (received.shape[0] * 128, "int32"), (ranks * local, "int32"), (1, "int32"),
    ))  # fmt: skip
    scales, row_scales = New(dense((received.shape[0],), "float32")), New(dense((received.shape[0],), "float32"))
    kernels = [
        Kernel(
            name="npu::npu_moe_distribute_dispatch_v2",
            values={"x": picked["rows"].values["self"], "expert_ids": numbers_of, **exchange},
            results=[received, scales, facts, counts, sources, none, row_scales],
            exchange=sent["sent"],
        ),
        *between.kernels,
        Kernel(
            name="npu::npu_moe_distribute_combine_v2",
            values={
                "expand_x": summed.values["expanded_permuted_rows"], "expert_ids": numbers_of,
                "assist_info_for_combine": facts, "ep_send_counts": sources, "expert_scales": weights, **exchange,
            },
            results=call.results,
            exchange=calls["returned"],
        ),
    ]  # fmt: skip
    every = {
        *calls.values(), *casts, *chosen_casts, *finished_casts, summed, *between.calls, routing, *sent.values(),
        *numbered.values(), *picked.values(), rows, *_padding(graph, sent["sent"]), *_padding(graph, numbered["local"]),
    }  # fmt: skip
    return Fusion(kernels=kernels, calls=frozenset(each for each in every if each is not None))


def _padding(graph: Graph, call: Call) -> set[Call]:
    """Return the call that padded the input of an exchange to a multiple of the number of ranks, if there is one."""
    taken = call.values["input" if "input" in call.values else "self"]
    pad = graph.maker(taken, "aten::constant_pad_nd")
    return set() if pad is None else {pad}


def _before_padding(graph: Graph, tensor: Tensor) -> Call | None:
    """Return the indexing call that created the rows of an exchange, before any padding; None if another call did."""
    pad = graph.maker(tensor, "aten::constant_pad_nd")
    return graph.maker(tensor if pad is None else pad.values["self"], _INDEX)
