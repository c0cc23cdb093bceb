"""Ranks of a recorded collective: by its own arguments, else the job's."""

from __future__ import annotations

import pytest

from opreplay.replay.ir.model import MAX_RANKS, Reason, Recorded, ReplayOp, ReplayPlan
from opreplay.replay.ir.verify import verify
from opreplay.replay.plan.collectives.arguments import ranks_of
from opreplay.traces.errors import FormatError
from opreplay.traces.model import OpSignature


def signature(name: str, types: list[str], concrete: list[str]) -> OpSignature:
    return OpSignature(name=name, dims=((4,), *((),) * (len(types) - 1)), types=tuple(types), concrete=tuple(concrete))


PARAMETERS = signature(
    "record_param_comms",
    ["TensorList", "", "", "Scalar", "", "ScalarList", "ScalarList", "Scalar", "Scalar", "Scalar"],
    ["", "", "", "0", "", "[]", "[]", "0", "1", "4"],
)


@pytest.mark.parametrize(
    ("recorded", "job", "ranks"),
    [
        (PARAMETERS, 16, 4),
        (signature("record_param_comms", ["float", *["Scalar"] * 3, *[""] * 3], ["", *"789", "", "", ""]), 16, 16),
        (signature("_c10d_functional::all_gather_into_tensor", ["float", "Scalar", ""], ["", "2", ""]), 16, 2),
        (signature("vllm::all_gather", ["float", "Scalar", "Scalar", ""], ["", "0", "8", ""]), None, 8),
        (signature("c10d::allreduce_", ["TensorList", "", "", "", "Scalar"], ["", "", "", "", "-1"]), 16, 16),
        (signature("c10d::allreduce_", ["TensorList"], [""]), None, None),
        (signature("c10d::allreduce_", ["TensorList"], [""]), -1, None),
        (signature("_c10d_functional::all_gather_into_tensor", ["float", "Scalar", ""], ["", "9" * 300, ""]), 16, 16),
        (signature("aten::mm", ["float", "float"], ["", ""]), 16, None),
    ],
)
def test_ranks(recorded: OpSignature, job: int | None, ranks: int | None) -> None:
    assert ranks_of(recorded, job) == ranks


@pytest.mark.parametrize("ranks", [0, -1, MAX_RANKS + 1, 10**30])
def test_a_plan_with_impossible_ranks_is_refused(ranks: int) -> None:
    def plan(number: int | None) -> ReplayPlan:
        op = ReplayOp(
            id="0" * 12,
            name="c10d::allreduce_",
            count=1,
            recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
            reason=Reason("collective"),
            ranks=number,
        )
        return ReplayPlan(source="t.json", device_us_total=0.0, host_us_total=1.0, ops=(op,))

    verify(plan(None))
    verify(plan(8))
    with pytest.raises(FormatError, match="ranks instead of 1 to"):
        verify(plan(ranks))
