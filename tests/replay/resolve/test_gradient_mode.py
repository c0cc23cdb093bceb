"""Ops that choose their way by gradients are replayed with the mode in which they were recorded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.ir.model import Recorded, ReplayOp
from opreplay.replay.plan.inputs import open_input, plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.replay.report.snippet import snippet
from opreplay.replay.resolve.gradient_mode import with_gradient_mode
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.session.single import op_of_call


def made(name: str, *args: object, with_gradients: int = 2, assumed: int = 0, **kwargs: object) -> ReplayOp:
    op = op_of_call(name, *args, **kwargs).ir
    recorded = Recorded(
        host_us_total=2.0, host_us_median=1.0, gradient_calls=with_gradients, gradient_calls_assumed=assumed
    )
    return with_gradient_mode(msgspec.structs.replace(op, count=2, recorded=recorded))


def executor() -> TorchExecutor:
    return TorchExecutor("cpu", lambda op: find_overload(op, Policy()), memory_bytes=1 << 28, threads=1)


A, B = torch.empty(64, 4, 256), torch.empty(256, 256)


def test_only_composites_are_run_with_gradients() -> None:
    assert made("aten::linear", A, B).gradients
    assert made("aten::matmul", A, B).gradients
    assert made("aten::matmul", A, B, with_gradients=1).gradients, "half of the calls"
    assert not made("aten::matmul", A, B, with_gradients=0).gradients
    assert not made("aten::mm", B, B).gradients, "a leaf does the same work either way"
    assert not made("aten::add", A, A).gradients
    assert not made("aten::floor_divide", torch.empty(3, dtype=torch.int64), 2).gradients, "nothing floating"
    note = made("aten::linear", A, B, with_gradients=1).assumptions[-1]
    assert note.what == "gradients on, as recorded in 1 of 2 calls; every floating-point argument requires grad"


def test_without_evidence_gradients_are_off_and_that_is_an_assumption() -> None:
    op = made("aten::matmul", A, B, with_gradients=0, assumed=2)
    assert not op.gradients
    assert op.assumptions[-1].what.startswith("gradients assumed off: ")
    part = made("aten::matmul", A, B, with_gradients=0, assumed=1)
    assert part.assumptions[-1].what.startswith("gradients assumed off for 1 of 2 calls: ")
    assert made("aten::matmul", A, B, with_gradients=1, assumed=1).gradients
    assert made("aten::mm", B, B, with_gradients=0, assumed=2).assumptions == (), "a leaf does the same work either way"
    assert made("aten::matmul", A, B, with_gradients=0).assumptions == (), "known to be off"


def test_a_trace_of_one_call_is_replayed_without_gradients(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    rows = torch.ones(4, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        torch.matmul(rows, rows)
    profile.export_chrome_trace(str(path))
    plan = plan_of(open_input(str(path)), Selection(select="all"), device="cpu")
    matmul = next(op for op in plan.ops if op.name == "aten::matmul")
    assert not matmul.gradients
    assert [note.what[:21] for note in matmul.assumptions if note.argument == "*"] == ["gradients assumed off"]


def test_a_linear_of_a_batch_takes_the_recorded_way() -> None:
    """With gradients the batch is folded into rows: a product of matrices, and no bmm of an expanded weight."""
    plain, recorded = made("aten::linear", A, B, with_gradients=0), made("aten::linear", A, B)
    runner = executor()
    try:
        ways = []
        for op in (plain, recorded):
            prepared = runner.prepare(op, seed=0)
            result = runner.run(prepared)
            ways.append((runner.profile(prepared, op).below, result.requires_grad))
            assert not torch.is_grad_enabled()
            copies = [call() for call in prepared.copies(3)]
            assert [copy.requires_grad for copy in copies] == [op.gradients] * 3
    finally:
        runner.close()
    (without, off), (with_them, on) = ways
    assert (off, on) == (False, True)
    assert without is not None
    assert with_them is not None
    assert {"aten::mm", "aten::bmm"}.intersection(with_them) == {"aten::mm"}


def test_the_snippet_asks_for_gradients() -> None:
    lines = snippet(made("aten::linear", A, B)).splitlines()
    assert [line.partition(" ")[0] for line in lines[2:4]] == ["input", "input.requires_grad_()"]
    assert "requires_grad" not in snippet(made("aten::linear", A, B, with_gradients=0))


def test_running_means_have_no_gradient() -> None:
    """torch refuses a batch_norm whose buffers require one."""
    x, rows = torch.empty(2, 8, 4, 4), torch.empty(8)
    op, runner = made("aten::batch_norm", x, rows, rows, rows, rows, True, 0.1, 1e-5, False), executor()
    try:
        prepared = runner.prepare(op, seed=0)
        assert runner.run(prepared).requires_grad
    finally:
        runner.close()
    assert {note.argument for note in prepared.assumptions} >= {"running_mean", "running_var"}


@pytest.mark.parametrize("name", ["aten::embedding_bag", "aten::scaled_dot_product_attention"])
def test_other_composites_run(name: str) -> None:
    args: tuple[object, ...] = (torch.empty(2, 4, 16, 32),) * 3
    if name == "aten::embedding_bag":
        args = (torch.empty(100, 16), torch.zeros(8, dtype=torch.int64), torch.zeros(4, dtype=torch.int64))
    op, runner = made(name, *args), executor()
    assert op.gradients
    try:
        result = runner.run(runner.prepare(op, seed=0))
        assert (result[0] if isinstance(result, tuple) else result).requires_grad
    finally:
        runner.close()
