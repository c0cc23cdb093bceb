"""torch_npu's launches are recorded as ops; the op of torch around each owns the device time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from opreplay.traces import OpSignature, OpTable, read_trace
from opreplay.traces.dialects.trace_events import owners_above_launches


def test_owners_move_up_to_the_op_around_a_launch() -> None:
    names = ("aten::linear", "aten::mm", "aclnnMm", "Lonely", "AddmmBackward0")
    ops = OpTable(
        signature=np.array([0, 1, 2, 3, 4, 2], np.uint32),
        start_ns=np.array([0, 1, 2, 50, 100, 101]),
        dur_ns=np.array([20, 10, 5, 5, 20, 5]),
        track=np.zeros(6, np.uint16),
    )
    owner = np.array([2, 3, -1, 1, 5])
    moved = owners_above_launches(owner, ops, tuple(OpSignature(name=n) for n in names))
    assert moved.tolist() == [1, 3, -1, 1, 5]


def test_device_time_of_a_real_trace_belongs_to_ops_of_torch(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "npu_alexnet_trace_view.json.gz")
    owners = {trace.signatures[trace.ops.signature[row]].name for row in trace.kernels.owner if row >= 0}
    assert {"aten::mm", "aten::convolution_backward", "aten::relu_"} <= owners
    assert not {"aclnnMm", "Conv2D"} & owners
