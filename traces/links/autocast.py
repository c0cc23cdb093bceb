# pyright: strict
"""Find calls that autocast intercepts: it casts their arguments and calls the op again.

The profiler records the outer call as the program made it. Inside it is an `aten::to` for each argument that autocast
casts without a cached copy. Then the inner call of the same op follows, in the types in which it computes. It has other
tensors or, for a softmax or sum on a GPU, a `dtype` that the outer call leaves open. The outer call does nothing else.
"""

from __future__ import annotations

import numpy as np

from opreplay.traces.arrays import Bools, Ints
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.model import OpSignature, Trace

CAST = "aten::to"
FLOATS = frozenset({"float32", "float16", "bfloat16", "float64"})


def autocast_wrappers(trace: Trace, parents: Ints) -> Bools:
    """Return a mask of the rows of `trace.ops` that only cast their arguments and then call the same op again.

    A masked row contains any number of `aten::to` calls and exactly one call of the same op. `parents` [rows] is the
    enclosing row of each row, or -1. The inner call must have the outer call's shapes. It must differ as autocast makes
    it differ: in floating-point types, or by a scalar for an absent argument. If the types show no difference (those of
    lists of tensors are not recorded), there must be casts before the inner call.
    """
    count = len(trace.ops)
    inner = np.flatnonzero(parents >= 0)
    if not len(inner):
        return np.zeros(count, dtype=bool)
    signature = trace.ops.signature.astype(np.int64)
    numbers: dict[str, int] = {CAST: 0}
    of_signatures = np.array(
        [numbers.setdefault(entry.name, len(numbers)) for entry in trace.signatures], dtype=np.int64
    )
    name = of_signatures[signature]
    outer = parents[inner]
    casts = np.bincount(outer[name[inner] == 0], minlength=count)
    again = inner[(name[inner] == name[outer]) & (name[inner] != 0)]
    calls = np.bincount(parents[again], minlength=count)
    again = again[(calls == 1)[parents[again]] & (np.bincount(outer, minlength=count) == casts + 1)[parents[again]]]
    pairs = signature[parents[again]] * len(trace.signatures) + signature[again]
    distinct, inverse = np.unique(pairs, return_inverse=True)
    each: list[tuple[int, int]] = [divmod(pair, len(trace.signatures)) for pair in distinct.tolist()]
    kinds = [_change(trace.signatures[a], trace.signatures[b]) for a, b in each]
    change = np.array(kinds, dtype=np.int64)[inverse]
    taken = (change == _OTHER) | ((change == _SAME) & (casts[parents[again]] > 0))
    wraps = np.zeros(count, dtype=bool)
    wraps[parents[again[taken]]] = True
    return wraps


_NEITHER, _SAME, _OTHER = 0, 1, 2


def _change(outer: OpSignature, inner: OpSignature) -> int:
    """Return how argument types differ between the outer and inner call: not at all, only as autocast changes them, or
    otherwise.
    """
    if outer.dims is None or outer.dims != inner.dims or outer.types is None or inner.types is None:
        return _NEITHER
    if len(outer.types) != len(inner.types):
        return _NEITHER
    other = [at for at, (a, b) in enumerate(zip(outer.types, inner.types, strict=True)) if a != b]
    if not all(_is_cast(outer.types[at], inner.types[at]) for at in other):
        return _NEITHER
    return _OTHER if other else _SAME


def _is_cast(outer: str, inner: str) -> bool:
    """Check whether autocast can turn one argument type into the other. It can cast between floating-point types, and
    it can fill in an absent `dtype`.
    """
    return (outer, inner) == ("", "Scalar") or {torch_dtype_name(outer), torch_dtype_name(inner)} <= FLOATS
