"""Invariants of predictions: the exam finds what breaks them, and some hold for calls of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.exams.invariants import (
    SOCS,
    TOLERATED,
    Call,
    Times,
    calls_of,
    has_at_least,
    least_us,
    times_of,
    violations,
)
from benchmarks.exams.kinds import texts
from opreplay.replay.ascend import load_device
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls

pytestmark = pytest.mark.slow

DEVICES = {name: load_device(name) for name in SOCS}


def op_of(text: str) -> ReplayOp:
    plan, (place,) = plan_of_calls([Written(text=text)])
    return next(op for op in plan.ops if op.id == place)


def test_there_are_200_kinds_and_each_is_predicted_by_a_rule() -> None:
    kinds = texts()
    assert len(kinds) >= 200
    assert all(len(calls) == 6 for calls in calls_of(kinds, [DEVICES["910b3"]]).values())


def test_a_chip_with_more_of_everything_is_at_least_another() -> None:
    assert has_at_least(DEVICES["910c"], DEVICES["910b3"])
    assert not has_at_least(DEVICES["910b3"], DEVICES["910c"])
    assert not has_at_least(DEVICES["950pr"], DEVICES["910b4"])


def test_operands_beyond_l2_take_what_hbm_needs_when_warm() -> None:
    least = least_us(op_of("aten::relu(f32[16384,8192])"), DEVICES["910b2"])
    assert least.warm == pytest.approx(2 * 4 * 16384 * 8192 / 1.6e6, rel=1e-6)
    assert least.cold == pytest.approx(least.warm - 192 * 2**20 / 1.6e6, rel=1e-6)


def test_products_take_what_the_cube_needs() -> None:
    least = least_us(op_of("aten::mm(bf16[4096,4096],bf16[4096,4096])"), DEVICES["910b2"])
    assert least.warm == pytest.approx(1e6 * 4096**3 / (4096 * 24 * 1.8e9), rel=1e-6)


def test_each_broken_invariant_is_named() -> None:
    devices = [DEVICES["910b3"], DEVICES["910c"]]
    op = op_of("aten::relu(f32[1024,1024])")
    times = {"910b3": Times(20.0, 21.0, 20.0), "910c": Times(21.0, 2.0, 20.0)}
    less = Call("aten::relu(f32[r,1024])", {"r": 1024}, op, times)
    more = Call(less.kind, {"r": 2048}, op, {"910b3": Times(19.0, 21.0, 20.0), "910c": Times(21.0, 2.0, 20.0)})
    assert {(one.invariant, one.call) for one in violations([less, more], devices)} == {
        ("warm slower than cold", "aten::relu(f32[r,1024]) r=1024"),
        ("more work cheaper", "aten::relu(f32[r,1024]) r=1024"),
        ("slower on a larger chip", "aten::relu(f32[r,1024]) r=1024"),
    }


@given(
    kind=st.sampled_from(list(texts())),
    sizes=st.fixed_dictionaries({
        "r": st.integers(1, 20000), "c": st.integers(4, 6000).map(lambda half: 2 * half), "k": st.integers(1, 9000),
        "b": st.integers(1, 16), "s": st.integers(1, 4096), "p": st.integers(4, 112),
    }),
    soc=st.sampled_from(SOCS),
)  # fmt: skip
def test_no_call_is_faster_than_its_chip_or_slower_when_warm(kind: str, sizes: dict[str, int], soc: str) -> None:
    plan, (place,) = plan_of_calls([Written(text=kind, sizes=sizes)])
    op = next(op for op in plan.ops if op.id == place)
    times = times_of(op, DEVICES[soc])
    assert times.warm <= TOLERATED * times.cold
    assert all(least <= TOLERATED * us for least, us in zip(least_us(op, DEVICES[soc]), times, strict=True))
