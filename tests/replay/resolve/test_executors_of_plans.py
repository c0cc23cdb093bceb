"""A user's executor applies to the ops of a plan that was made without it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from opreplay import register_executor
from opreplay.replay import plugins
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.resolve.by_argument_name import resolve_named
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls

CALL = "aten::tanh(f32[4])"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    plugins.clear_registrations()


def resolved(text: str, reason: Reason | None = None) -> ReplayOp:
    plan = plan_of_calls([Written(text=text)])[0]
    op = plan.ops[0] if reason is None else msgspec.structs.replace(plan.ops[0], reason=reason, resolved_by=None)
    return resolve_named(msgspec.structs.replace(plan, ops=(op,)), Policy()).ops[0]


@pytest.mark.parametrize("override", [True, False])
def test_one_that_overrides_goes_before_torchs_own(override: bool) -> None:
    register_executor("aten::tanh", override=override)(lambda x: x)
    op = resolved(CALL)
    assert (op.resolved_by == "executor") is override
    assert any("executor" in note.what for note in op.assumptions) is override


def test_one_runs_an_op_whose_library_was_missing() -> None:
    missing = Reason("library missing", "not name a module")
    assert resolved(CALL, missing).reason == missing
    register_executor("aten::tanh")(lambda x: x)
    op = resolved(CALL, missing)
    assert (op.reason, op.resolved_by) == (None, "executor")
