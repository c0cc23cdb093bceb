"""Verdicts on meta tensors: what fits, what differs from the recording, and what meta tensors cannot tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import KINDS
from opreplay.replay.ir.verdicts import MetaCheck
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.meta.check import check_op, check_plan, compare
from opreplay.replay.resolve.policy import Policy
from opreplay.traces import read_trace
from opreplay.traces.model import TensorMeta
from tests.factories import meta, tensor

pytestmark = pytest.mark.slow


def made(name: str, *args: ReplayArg, **fields: Any) -> ReplayOp:
    return ReplayOp(
        **{
            "id": "0" * 12,
            "name": name,
            "count": 1,
            "recorded": Recorded(host_us_total=1.0, host_us_median=1.0),
            "resolved_by": "jit",
            "overload": "",
            "args": args,
            **fields,
        }
    )


def check(name: str, *args: ReplayArg, **fields: Any) -> MetaCheck:
    return check_op(made(name, *args, **fields), Policy())


MM = (tensor("self", 2, 3), tensor("mat2", 3, 4))


def test_a_call_that_fits_is_ok() -> None:
    assert check("aten::mm", *MM) == MetaCheck(status="ok")
    assert check("aten::mm", *MM, recorded_outputs=(meta(2, 4),)) == MetaCheck(status="ok", results_compared=1)


@pytest.mark.parametrize("recorded", [meta(2, 5), meta(2, 4, dtype="bfloat16"), meta(8)])
def test_results_of_another_size_or_type_differ(recorded: TensorMeta) -> None:
    found = check("aten::mm", *MM, recorded_outputs=(recorded,))
    assert found.status == "differs"
    assert found.detail.startswith("result 0 is float32[2,4], but ")


def test_nothing_is_allocated() -> None:
    huge = tensor("self", 2**40, 2**15)
    assert check("aten::relu", huge).status == "ok"
    assert check("aten::mm", tensor("self", 2**38, 8), tensor("mat2", 8, 2**38)).status == "failed"  # 2**76 elements


def test_floods_of_results_are_not_made() -> None:
    split = ReplayArg(name="split_size", type="int", value=1)
    found = check("aten::split", tensor("self", 2**40), split, overload="Tensor")
    assert str(found) == f"failed: budget: would return {2**40} tensors, limit 65536"


def test_a_call_that_does_not_fit_failed() -> None:
    found = check("aten::mm", tensor("self", 2, 3), tensor("mat2", 9, 4))
    assert found.status == "failed"
    assert "RuntimeError" in found.detail
    assert str(found) == f"failed: {found.detail}"


@pytest.mark.parametrize(
    ("name", "args", "overload"),
    [
        ("aten::nonzero", (tensor("self", 4),), ""),
        ("aten::item", (tensor("self"),), ""),
        ("aten::_local_scalar_dense", (tensor("self"),), ""),
        ("aten::is_nonzero", (tensor("self", 1),), ""),
        ("aten::equal", (tensor("self", 4), tensor("other", 4)), ""),
        ("aten::masked_select", (tensor("self", 4), tensor("mask", 4, dtype="bool")), ""),
        ("aten::argwhere", (tensor("self", 4),), ""),
        ("aten::where", (tensor("condition", 4),), ""),
        ("aten::bincount", (tensor("self", 4, dtype="int64"),), ""),
        ("aten::_unique2", (tensor("self", 4),), ""),
        ("aten::repeat_interleave", (tensor("self", 4), tensor("repeats", 4, dtype="int64")), "self_Tensor"),
        (
            "aten::index",
            (tensor("self", 4), ReplayArg(name="indices", type="Tensor[]", tensors=(meta(4, dtype="bool"),))),
            "Tensor",
        ),
    ],
)
def test_results_that_depend_on_contents_are_said_to(name: str, args: tuple[ReplayArg, ...], overload: str) -> None:
    assert check(name, *args, overload=overload).status == "data-dependent"


def test_a_data_dependent_op_that_does_not_fit_still_failed() -> None:
    index = ReplayArg(name="indices", type="Tensor[]", tensors=(meta(4, dtype="int64"),) * 3)
    assert check("aten::index", tensor("self", 4), index, overload="Tensor").status == "failed"


def test_an_op_without_meta_kernel_is_not_blamed() -> None:
    found = check("aten::_nested_tensor_from_mask", tensor("t", 2, 3, 4), tensor("mask", 2, 3, dtype="bool"))
    assert found.status == "no meta kernel"


def test_what_the_policy_refuses_is_not_called() -> None:
    found = check("aten::from_file", tensor("self", 2))
    assert found.status == "failed"
    assert found.detail.startswith("policy: ")


@pytest.mark.parametrize(("shape", "status"), [((2, 4), "ok"), ((0,), "ok"), ((2, 9), "differs")])
def test_an_out_argument_has_the_size_that_the_op_gives_it(shape: tuple[int, ...], status: str) -> None:
    out = tensor("out", *shape, keyword_only=True, mutated=True)
    assert check("aten::mm", *MM, out, overload="out").status == status


def test_an_op_may_resize_what_it_is_called_on() -> None:
    size = ReplayArg(name="size", type="int[]", value=(7,))
    assert check("aten::resize_", tensor("self", 2, 3, mutated=True), size).status == "ok"


@pytest.mark.parametrize(
    ("found", "recorded", "status", "compared"),
    [
        ([meta(2), None], [meta(2), meta(3)], "ok", 1),  # the vendor's op returned a mask, the stand-in does not
        ([meta(2), meta(3)], [meta(2), None, meta(3)], "ok", 2),  # an undefined gradient in between
        ([meta(2)], [meta(2), meta(9)], "ok", 1),
        ([meta(2), meta(3)], [meta(2), meta(4)], "differs", 2),
        ([], [], "ok", 0),
    ],
)
def test_only_what_both_sides_have_is_compared(
    found: list[TensorMeta | None], recorded: list[TensorMeta | None], status: str, compared: int
) -> None:
    verdict = compare(found, recorded)
    assert (verdict.status, verdict.results_compared) == (status, compared)


def test_ops_with_a_reason_are_left_out() -> None:
    ops = (made("aten::mm", *MM), made("nccl:x", id="1" * 12, resolved_by=None))
    plan = ReplayPlan(source="t", device_us_total=0.0, host_us_total=1.0, ops=ops)
    assert list(check_plan(plan)) == ["0" * 12]


LARGE = {
    "h100_owlv2_large",
    "h100_timesformer",
    "mi300_vllm_piecewise_capture",
    "nvidia_trace_diff_control",
    "nvidia_nccl_parser",
    "nvidia_sampled_rank1",
    "param_linear_kineto",
    "param_resnet_kineto",
}
"""Files that take long to read and hold nothing that the others lack."""


def test_public_traces(shared_traces: Path) -> None:
    """Hardly any resolved op is wrong, whatever was recorded has the recorded size, and no reason is off the list."""
    called = wrong = compared = 0
    for path in sorted(shared_traces.glob("*.json.gz")):
        if path.name.partition(".")[0] in LARGE:
            continue
        trace = read_trace(path)
        for select in ("owner", "leaf"):
            plan = build_plan(trace, select=select)
            assert {op.reason.kind for op in plan.ops if op.reason is not None} <= set(KINDS)
            assert all(op.reason is not None or op.resolved_by is not None for op in plan.ops)
            checks = check_plan(plan)
            called += len(checks)
            wrong += sum(one.status in ("differs", "failed") for one in checks.values())
            if trace.info.dialect == "execution_trace":
                compared += sum(one.results_compared > 0 for one in checks.values())
                assert not [one for one in checks.values() if one.status == "differs"]
    assert called > 2000
    assert compared > 1000
    assert wrong <= 0.002 * called


def test_scratch_of_a_backward_is_not_compared() -> None:
    """The CPU's kernel of an embedding bag leaves out what only the gradient of another mode needs."""
    bag = (
        tensor("weight", 20, 4),
        tensor("indices", 9, dtype="int64"),
        tensor("offsets", 3, dtype="int64"),
    )
    longs = meta(0, dtype="int64")
    recorded = (meta(3, 4), longs, meta(3, dtype="int64"), longs)
    assert check("aten::_embedding_bag", *bag, recorded_outputs=recorded).status == "ok"
    assert check("aten::_embedding_bag", *bag, recorded_outputs=(meta(4, 4), *recorded[1:])).status == "differs"


def test_results_of_quantized_types_are_not_compared() -> None:
    call = (
        tensor("self", 8),
        ReplayArg(name="scale", type="float", value=0.1),
        ReplayArg(name="zero_point", type="int", value=0),
        ReplayArg(name="dtype", type="ScalarType", value="torch.quint8"),
    )
    found = check("aten::quantize_per_tensor", *call, recorded_outputs=(meta(8, dtype="quint8"),))
    assert (found.status, found.results_compared) == ("ok", 0)
