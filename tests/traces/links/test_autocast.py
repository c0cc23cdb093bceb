"""Which calls only cast for the same call inside."""

from __future__ import annotations

import numpy as np
import pytest

from opreplay.traces.links.autocast import autocast_wrappers
from opreplay.traces.model import KernelTable, OpSignature, OpTable, Trace, TraceInfo

WIDE, NARROW = "float", "c10::BFloat16"
TO = OpSignature(name="aten::to", dims=((8, 4),), types=(WIDE,))
COPY = OpSignature(name="aten::copy_", dims=((8, 4),), types=(WIDE,))


def call(name: str, *types: str) -> OpSignature:
    return OpSignature(name=name, dims=((8, 4),) * len(types), types=types)


MM, INNER = call("aten::mm", NARROW, WIDE), call("aten::mm", NARROW, NARROW)
CAT = call("aten::cat", "TensorList")
OPEN, DTYPE = call("aten::softmax", NARROW, "Scalar", ""), call("aten::softmax", NARROW, "Scalar", "Scalar")


def wrappers(calls: list[OpSignature], parents: list[int]) -> list[int]:
    signatures = tuple(dict.fromkeys(calls))
    places = np.arange(len(calls), dtype=np.int64)
    trace = Trace(
        info=TraceInfo(path="t.json", dialect="kineto", bytes_read=0, events=len(calls)),
        signatures=signatures,
        ops=OpTable(
            signature=np.array([signatures.index(one) for one in calls], np.uint32),
            start_ns=places,
            dur_ns=places,
            track=np.zeros(len(calls), np.int64),
        ),
        tracks=(("1", "1"),),
        kernel_names=(),
        kernels=KernelTable.none(),
        annotations=(),
    )
    return np.flatnonzero(autocast_wrappers(trace, np.array(parents, np.int64))).tolist()


@pytest.mark.parametrize(
    ("calls", "parents", "expected"),
    [
        ([MM, TO, INNER], [-1, 0, 0], [0]),
        ([MM, INNER], [-1, 0], [0]),  # autocast had a copy
        ([CAT, TO, CAT], [-1, 0, 0], [0]),  # lists tell no types, the cast does
        ([CAT, CAT], [-1, 0], []),
        ([TO, TO], [-1, 0], []),
        ([MM, TO, COPY, INNER], [-1, 0, 0, 0], []),  # does more than cast
        ([MM, INNER, INNER], [-1, 0, 0], []),
        ([MM, call("aten::mm", NARROW, "long int")], [-1, 0], []),
        ([MM, call("aten::mm", NARROW)], [-1, 0], []),
        ([MM, TO], [-1, 0], []),
        ([OPEN, DTYPE], [-1, 0], [0]),  # softmax and sum on a GPU: autocast adds the dtype
        ([DTYPE, OPEN], [-1, 0], []),
        ([OPEN, OPEN], [-1, 0], []),
        ([MM], [-1], []),
    ],
)
def test_wrappers(calls: list[OpSignature], parents: list[int], expected: list[int]) -> None:
    assert wrappers(calls, parents) == expected
