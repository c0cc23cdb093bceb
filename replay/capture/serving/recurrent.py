"""Finds recurrent layers of a captured decode step (convolutions, gated delta nets), to replace them by
Ascend kernels.
"""

from __future__ import annotations

from opreplay.replay.capture.serving.fused import Call, Fusion, Graph, Kernel, New, Tensor, dense, made_by, seen_as

_ADD, _MUL, _SUB, _CAST = "aten::add.Tensor", "aten::mul.Tensor", "aten::sub.Tensor", "aten::_to_copy"
_CAT, _SUM, _COPY = "aten::cat", "aten::sum.dim_IntList", "aten::copy_"


def causal_convolution(graph: Graph, call: Call) -> Fusion | None:
    """Match one step of a causal convolution and the SiLU that follows it.

    The convolution reads the last tokens of each sequence and one new token. The stored tokens are shifted by one.
    """
    convolved = graph.maker(call.values.get("self"), "aten::convolution") if call.name == "aten::silu" else None
    joined = None if convolved is None else graph.maker(convolved.values["input"], _CAT)
    parts = [] if joined is None else joined.values["tensors"]
    if convolved is None or joined is None or len(parts) != 2 or len(parts[0].shape) != 3:
        return None
    state, x = parts
    weight, (batch, channels, columns) = convolved.values["weight"], x.shape
    stores = [each for each in graph.readers(joined.results[0]) if each.name == _COPY and each.values["self"] == state]
    if columns != 1 or len(stores) != 1 or convolved.values["groups"] != channels:
        return None
    x_strides, strides = (each.strides for each in (x, weight))
    key = "sequences", batch
    numbers = graph.shared.get(key)
    kernels: list[Kernel] = []
    if numbers is None:
        numbers = New(dense((batch,), "int32"))
        kernels.append(Kernel(name="aten::arange", values={"end": batch, "dtype": "torch.int32"}, results=[numbers]))
    values = {
        "x": seen_as(x, (batch, channels), x_strides[:2]),
        "weight": seen_as(weight, (channels, weight.shape[2]), (strides[0], strides[2])),
        "conv_state": state,
        "conv_state_indices": numbers,
        "bias": convolved.values.get("bias"),
        "activation_mode": True,
    }
    written = stores[0].results
    kernels.append(Kernel(name="npu::causal_conv1d_update", values=values, results=call.results, written=written))
    calls = frozenset({call, convolved, joined, *stores})
    return Fusion(kernels=kernels, calls=calls, shared={key: numbers})


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
    """Match the update of a gated delta net by one token.

    The state decays. It is then corrected by the error of its prediction for the key. Finally, the query reads it.
    """
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
        "key": _without_tokens(seen_as(key, query.shape, query.strides)),
        "value": _without_tokens(parts["value"].values["self"]),
        "state": state,
        "beta": _without_tokens(parts["beta"].values["self"]),
        "scale": query.shape[-1] ** -0.5,
        "g": parts["decay"].values["self"],
    }
    name = "npu::npu_recurrent_gated_delta_rule"
    kernel = Kernel(name=name, values=values, results=call.results, written=stores[0].results)
    return Fusion(kernels=[kernel], calls=frozenset({*parts.values(), *stores}))


def _without_tokens(tensor: Tensor) -> Tensor:
    """View [batch, heads, 1, ...] as [batch, heads, ...]."""
    strides = tensor.strides
    return seen_as(tensor, tensor.shape[:2] + tensor.shape[3:], strides[:2] + strides[3:])
