from __future__ import annotations

import warnings
from typing import Any

import msgspec
import pytest

from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.fake import FakeExecutor, FakePrepared
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.model import Reason, ReplayArg, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable, reason_for
from opreplay.replay.ir.sizes import over_budget
from opreplay.replay.results.outcome import unable
from opreplay.traces.errors import Malformed, PolicyError
from opreplay.traces.model import TensorMeta
from tests.factories import op as fake_op


class Raising(FakeExecutor):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def prepare(self, op: ReplayOp, *, seed: int) -> FakePrepared:
        raise self.error


def outcome_of(error: BaseException) -> Any:
    return attempt(Raising(error), fake_op("fake::x"), seed=0, options=MeasureOptions())


def test_replayed_op_has_a_measurement_and_its_initializer() -> None:
    outcome = attempt(FakeExecutor(), fake_op("fake::10us"), seed=0, options=MeasureOptions())
    assert outcome.status == "replayed"
    assert outcome.reason is None
    assert outcome.initializer == "fake"
    assert outcome.measurement is not None


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RuntimeError("one\ntwo"), "failed", "failed: RuntimeError: one"),
        (ValueError(), "failed", "failed: ValueError"),
        (MemoryError(), "skipped", "budget: memory: an allocation failed (--set max_op_memory)"),
        (PolicyError("takes a file name"), "skipped", "policy: takes a file name"),
        (Malformed("odd"), "failed", "failed: odd"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            "skipped",
            "budget: memory: DefaultCPUAllocator: can't allocate memory: you tried (--set max_op_memory)",
        ),
        (RuntimeError("std::bad_alloc"), "skipped", "budget: memory: std::bad_alloc (--set max_op_memory)"),
    ],
)
def test_errors_become_reasons(error: Exception, status: str, reason: str) -> None:
    outcome = outcome_of(error)
    assert (outcome.status, str(outcome.reason)) == (status, reason)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_the_run_passes_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        outcome_of(error)


def test_refusal_while_preparing_keeps_its_reason() -> None:
    outcome = attempt(FakeExecutor(), fake_op("fake::budget"), seed=0, options=MeasureOptions())
    assert outcome.status == "skipped"
    assert outcome.reason is not None
    assert outcome.reason.kind == "budget"


def test_long_errors_are_cut() -> None:
    assert len(reason_for(RuntimeError("x" * 10_000)).detail) < 400


def test_warnings_of_an_op_are_no_errors() -> None:
    class Warning_(FakeExecutor):
        def prepare(self, op: ReplayOp, *, seed: int) -> FakePrepared:
            warnings.warn("experimental", UserWarning, stacklevel=1)
            return super().prepare(op, seed=seed)

    assert attempt(Warning_(), fake_op("fake::1us"), seed=0, options=MeasureOptions()).status == "replayed"


def test_only_failed_is_failed() -> None:
    assert unable(Reason("failed", "why")).status == "failed"
    assert unable(Reason("collective")).status == "skipped"


def test_an_op_over_its_budget_runs_in_part_and_its_times_are_scaled_up() -> None:
    limit = 4_000_000
    shape = (2_000, 1_000)
    big = msgspec.structs.replace(
        fake_op("aten::neg"),
        args=(ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=shape, dtype="float32"),)),),
        outputs=(TensorMeta(shape=shape, dtype="float32"),),
    )

    class Strict(FakeExecutor):
        """Refuses what the real one refuses; every call takes 10 us."""

        def prepare(self, op: ReplayOp, *, seed: int) -> FakePrepared:
            if (reason := over_budget(op, limit)) is not None:
                raise NotReplayable(reason)
            return super().prepare(msgspec.structs.replace(op, name="fake::10us"), seed=seed)

    whole = attempt(Strict(), big, seed=0, options=MeasureOptions())
    assert str(whole.reason) == "budget: needs 16.0 MB, limit 4.0 MB (--set max_op_memory)"
    part = attempt(Strict(), big, seed=0, options=MeasureOptions(), shrink_to=limit)
    assert part.measurement is not None
    assert part.measurement.part == pytest.approx(0.25)
    assert part.measurement.median_us == pytest.approx(40, rel=0.05)
    assert part.measurement.deciles_us[5] == pytest.approx(part.measurement.median_us)
    assert any(warning.kind == "part of the op" for warning in part.measurement.warnings)
    assert [note.argument for note in part.assumptions] == ["size"]
