"""Users' registrations that return nonsense, for any op on any device: an error that names the function."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.ascend import explain_op, list_devices, load_device, simulate_op
from opreplay.replay.ascend.custom.estimators import (
    CustomOpError,
    clear_registrations,
    load_custom_ops,
    register_op_estimator,
)
from opreplay.replay.ascend.custom.op_invoke import ComputeOps, OpInvokeInfo, PerformanceModel, PerformanceProperties
from opreplay.replay.ascend.simulate.step import simulate_step
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta
from tests.replay.ops.names import costed_ops

DEVICES = [load_device(name) for name in list_devices()]
OPS = [name for name in costed_ops() if "::" in name]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    clear_registrations()
    yield
    clear_registrations()


class Unprintable:
    """What a careless class of a user may be."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class FailsUnprintably(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def one(name: str) -> ReplayOp:
    meta = TensorMeta(shape=(4, 8), dtype="bfloat16")
    args = tuple(ReplayArg(name=n, type="Tensor", tensors=(meta,)) for n in ("self", "other"))
    return ReplayOp(
        id="0" * 12, name=name, count=2, recorded=Recorded(host_us_total=1.0, host_us_median=1.0), args=args
    )


GOOD: list[Any] = [0, 1, 2.5e-6, np.float32(1e-6), np.int64(1), Fraction(1, 10**6), PerformanceModel.Result(1e-6)]
WRONG: list[Any] = [
    None,
    float("nan"),
    float("inf"),
    -1,
    -1e-9,
    True,
    "1e-6",
    10**400,
    1e300,
    Decimal("1e-6"),
    [1e-6],
    1j,
    object(),
    Unprintable(),
    PerformanceModel.Result(None),  # type: ignore[arg-type]
    PerformanceModel.Result(float("nan")),
    "x" * 100_000,
    np.array([1.0, 2.0]),
]


@given(
    st.sampled_from(OPS), st.sampled_from(OPS), st.sampled_from(DEVICES), st.sampled_from(GOOD + WRONG), st.booleans()
)
def test_whatever_an_estimator_returns(name: str, other: str, device: Any, value: Any, everywhere: bool) -> None:
    clear_registrations()

    @register_op_estimator(name, None if everywhere else device)
    def careless(op_invoke_info: Any, device_profile: Any) -> Any:
        return value

    plain = other.split(".")[0] != name.split(".")[0]
    if any(value is wrong for wrong in WRONG):
        with pytest.raises(
            CustomOpError, match=r"test_odd_registrations.py:\d+: the estimator of .* not a time"
        ) as caught:
            simulate_op(one(name), device)
        assert len(str(caught.value)) < 1000
    else:
        found = simulate_op(one(name), device)
        seconds = value.execution_time_s if isinstance(value, PerformanceModel.Result) else float(value)
        assert found.time_us == pytest.approx(seconds * 1e6)
        assert explain_op(one(name), device).simulated == found
        assert simulate_step([one(name), one(other)], device).total_us >= 2 * found.time_us * (1 - 1e-9)
    if plain:
        for each in DEVICES:
            assert simulate_op(one(other), each).time_us >= 0


@pytest.mark.parametrize(
    "error", [KeyError(None), SystemExit(3), RecursionError(), FailsUnprintably(), StopIteration()]
)
def test_whatever_an_estimator_raises(error: BaseException) -> None:
    def fails(op_invoke_info: Any, device_profile: Any, *, more: int = 0) -> Any:
        raise error

    class Callable:
        def __call__(self, op_invoke_info: Any, device_profile: Any) -> Any:
            raise error

    for function in (fails, partial(fails, more=1), Callable()):
        register_op_estimator("aten::mm", override=True)(function)
        for device in DEVICES:
            with pytest.raises(CustomOpError, match=r"test_odd_registrations.py:\d+: .*failed for aten::mm"):
                simulate_op(one("aten::mm"), device)


def test_arguments_that_torch_refuses_are_reported_at_the_users_line() -> None:
    meta = TensorMeta(shape=(4, 8), dtype="bfloat16", strides=(1, 1, 1))
    op = ReplayOp(
        id="0" * 12,
        name="your::op",
        count=1,
        recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
        args=(ReplayArg(name="x", type="Tensor", tensors=(meta,)),),
    )
    register_op_estimator("your::op")(lambda info, device: info.args[0].stride(7))
    with pytest.raises(CustomOpError, match=r"test_odd_registrations.py:\d+"):
        simulate_op(op, DEVICES[0])


WRONG_PROPERTIES: list[Any] = [
    None,
    3,
    {},
    PerformanceProperties(memory_read_bytes=float("nan")),
    PerformanceProperties(memory_write_bytes=-1),
    PerformanceProperties(memory_readwrite_bytes=None),  # type: ignore[arg-type]
    PerformanceProperties(memory_read_bytes=10**400),
    PerformanceProperties(compute_ops=None),  # type: ignore[arg-type]
    PerformanceProperties(compute_ops={"bfloat16": 3}),  # type: ignore[dict-item]
    PerformanceProperties(compute_ops={None: ComputeOps(mma_ops=-1)}),
    PerformanceProperties(compute_ops={Unprintable(): ComputeOps(gp_ops="much")}),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("value", WRONG_PROPERTIES)
def test_wrong_properties_name_the_function(value: Any) -> None:
    OpInvokeInfo.register_op_properties("your::op")(lambda info: value)
    for device in DEVICES:
        with pytest.raises(CustomOpError, match=r"test_odd_registrations.py:\d+: the properties of your::op are"):
            simulate_op(one("your::op"), device)


@given(
    st.dictionaries(
        st.one_of(st.none(), st.text(max_size=8), st.integers()),
        st.builds(ComputeOps, mma_ops=st.floats(0, 1e30), gp_ops=st.integers(0, 10**30)),
        max_size=3,
    ),
    st.floats(0, 1e30),
    st.sampled_from(DEVICES),
)
def test_right_properties_give_a_finite_time(ops: Any, read: float, device: Any) -> None:
    clear_registrations()
    made = PerformanceProperties(compute_ops=ops, memory_read_bytes=read)
    OpInvokeInfo.register_op_properties("your::op")(lambda info: made)
    found = simulate_op(one("your::op"), device)
    assert 0 < found.low_us <= found.time_us <= found.high_us < float("inf")


def test_a_file_that_exits_hides_no_other(tmp_path: Any) -> None:
    (tmp_path / "a.py").write_text("raise SystemExit(0)\n")
    good = "from opreplay.replay.ascend.custom.estimators import register_op_estimator\n"
    (tmp_path / "b.py").write_text(good + "register_op_estimator('your::op')(lambda info, device: 1e-6)\n")
    with pytest.raises(CustomOpError, match=r"a.py:1: SystemExit"):
        load_custom_ops(tmp_path)
    assert simulate_op(one("your::op"), DEVICES[0]).time_us == pytest.approx(1.0)


@pytest.mark.parametrize("devices", [(), []])
def test_an_estimator_is_for_a_device(devices: Any) -> None:
    with pytest.raises(CustomOpError, match="estimator of mine::op names no device"):
        register_op_estimator("mine::op", devices)
