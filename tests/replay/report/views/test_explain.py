"""What `plan --explain` prints to ask for an op alone."""

from __future__ import annotations

import pytest

from opreplay.replay.ascend import explain_op, load_device
from opreplay.replay.ir.model import Recorded, RecordedKernel, ReplayOp
from opreplay.replay.report.views.explain import code_lines
from opreplay.replay.resolve.written.sweep import over_sizes, plan_of_calls


@pytest.mark.parametrize(("kernel", "asked"), [("Memcpy HtoD (Pageable -> Device)", False), ("copy_kernel", True)])
def test_a_copy_over_the_bus_cannot_be_asked_alone(kernel: str, asked: bool) -> None:
    written = plan_of_calls(over_sizes(["aten::copy_(f32[4096],f32[4096])"], []), allow_imports={})[0].ops[0]
    kernels = (RecordedKernel(name=kernel, count=1, total_us=9.0),)
    recorded = Recorded(host_us_total=1, host_us_median=1, device_us_total=9.0, kernels=kernels)
    op = ReplayOp(id="0" * 12, name=written.name, count=1, recorded=recorded, args=written.args)
    lines = code_lines(op, {"910b3": explain_op(op, load_device("910b3"))})
    assert any(line.startswith("opreplay op ") for line in lines) is asked
