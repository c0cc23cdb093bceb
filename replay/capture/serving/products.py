"""Parameters as servers load them: in their final dtype. Parameters that are multiplied with the same input
are merged.
"""

from __future__ import annotations

from opreplay.replay.capture.serving.fused import Call, Fusion, Graph, Kernel, New, Tensor, dense

_CAST = "aten::_to_copy"
JOINED = (("q_proj", "k_proj", "v_proj"), ("q_a_proj", "kv_a_proj_with_mqa"))
"""Groups of layers of the same module that vLLM merges into one layer, by their names in transformers."""
_OPERANDS = {"aten::mm": ("self", "mat2", None), "aten::addmm": ("mat1", "mat2", "self")}
"""Op that computes a matrix product → names of its arguments for rows, weight and bias (None without a bias)."""


def joined(graph: Graph, call: Call) -> Fusion | None:
    """Match the products of one input with several weights, such as query, key and value (a group of `JOINED`), to
    merge them.
    """
    operands = _OPERANDS.get(call.name)
    group = None if operands is None else _group_of(graph, call.values[operands[1]])
    if operands is None or group is None:
        return None
    rows, weight, bias = operands
    x: Tensor = call.values[rows]
    calls: list[Call] = []
    for name in group:
        found = [
            each
            for each in dict.fromkeys(graph.readers(x))
            if each.name == call.name and each.values[rows] == x and graph.name_of(each.values[weight]) == name
        ]
        if len(found) != 1:
            return None
        calls += found
    if call is not calls[-1] or any(each.values.get(key, 1) != 1 for each in calls for key in ("alpha", "beta")):
        return None
    weights = tuple(each.values[weight] for each in calls)
    inner, widths = weights[0].shape[0], [each.shape[1] for each in weights]
    dtype = weights[0].meta.dtype
    whole = New(dense((inner, sum(widths)), dtype, (1, inner)), parts=weights)
    result = New(dense((x.shape[0], sum(widths)), call.results[0].meta.dtype))
    values = {rows: x, weight: whole}
    if bias is not None:
        values[bias] = New(dense((sum(widths),), dtype), parts=tuple(each.values[bias] for each in calls))
    kernels = [
        Kernel(name=call.name, values=values, results=[result]),
        Kernel(
            name="aten::split_with_sizes",
            values={"self": result, "split_sizes": tuple(widths), "dim": -1},
            results=[each.results[0] for each in calls],
        ),
    ]
    return Fusion(kernels=kernels, calls=frozenset(calls), is_early=True)


def _group_of(graph: Graph, weight: Tensor) -> list[str] | None:
    """Return the names of all weights to be merged with this one, including its own name; None if it is not merged."""
    module, _, rest = graph.name_of(weight).rpartition("_proj")
    prefix, _, layer = f"{module}_proj".rpartition(".")
    if rest != ".weight" and not rest.startswith("_with_mqa"):
        return None
    layer += rest.removesuffix(".weight")
    for names in JOINED:
        if layer in names:
            return [f"{prefix}.{name}.weight" for name in names]
    return None


def loaded(graph: Graph, call: Call) -> Fusion | None:
    """Match a parameter's cast to another dtype: servers load the parameter in that dtype."""
    if call.name != _CAST or call.values["self"].version or call.values["self"].storage not in graph.parameters:
        return None
    return Fusion(kernels=[], calls=frozenset({call}), loaded=call.results)
