"""The list of reasons is closed, each is said in full, and what they account for adds up."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.ir.reasons import DETAILED, KINDS, MEANINGS, Reason, refuses_arguments, total_reasons

ROOT = Path(__file__).parents[3]


def test_the_list_is_what_is_documented() -> None:
    assert (
        set(KINDS)
        == set(MEANINGS)
        == {
            "collective",
            "triton kernel",
            "label, not an op",
            "metadata missing",
            "layout not recorded",
            "policy",
            "budget",
            "out of time",
            "rank lost",
            "worker lost",
            "library missing",
            "failed",
            "internal error",
        }
    )


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 9x3)", True),
        ("ValueError: n has to be a multiple of 16", True),
        ("IndexError: Dimension out of range", True),
        ("NotImplementedError: \"max_all\" not implemented for 'ComplexFloat'", False),
        ("NotImplementedError: Could not run 'aten::x' with arguments from the 'CPU' backend", False),
        ("RuntimeError: mixed dtype (CPU): expect parameter to have scalar type of Float", False),
        ("RuntimeError: CUDA error: no kernel image is available", False),
        ("ModuleNotFoundError: No module named 'triton'", False),
        ("the worker ended with SIGSEGV", False),
    ],
)
def test_errors_of_arguments_are_told_from_those_of_the_machine(said: str, refused: bool) -> None:
    assert refuses_arguments(Reason("failed", said)) is refused
    assert not refuses_arguments(Reason("budget", said))


def test_nothing_outside_the_list_is_a_reason() -> None:
    with pytest.raises(ValueError, match="'bad luck' is not a reason"):
        Reason("bad luck")  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"kind": "bad luck"}', type=Reason)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_that_say_nothing_alone_need_a_detail(kind: str) -> None:
    if kind in DETAILED:
        with pytest.raises(ValueError, match="needs a detail"):
            Reason(kind)  # type: ignore[arg-type]
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode({"kind": kind}), type=Reason)
    else:
        assert str(Reason(kind)) == kind  # type: ignore[arg-type]


def test_only_what_was_tried_and_broke_is_failed() -> None:
    assert {kind for kind in KINDS if Reason(kind, "x").status == "failed"} == {"failed", "internal error"}


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["collective", "policy", "metadata missing"]),
        st.sampled_from(["a", "b"]),
        st.integers(1, 10**6),
        st.floats(0, 1),
    )
)


@given(ENTRIES)
def test_totals_lose_no_op_no_call_and_no_time(entries: list[tuple[str, str, int, float]]) -> None:
    totals = total_reasons(entries)
    assert sum(t.ops for t in totals) == len(entries)
    assert sum(t.calls for t in totals) == sum(calls for *_, calls, _ in entries)
    assert sum(t.share for t in totals) == pytest.approx(sum(share for *_, share in entries))
    assert len({t.kind for t in totals}) == len(totals)
    for total in totals:
        assert sum(d.ops for d in total.details) == total.ops
        assert sum(d.share for d in total.details) == pytest.approx(total.share)


def test_the_heaviest_reason_and_detail_come_first() -> None:
    first, second = total_reasons([("policy", "a", 1, 0.1), ("policy", "b", 2, 0.2), ("collective", "", 9, 0.25)])
    assert (first.kind, first.ops, first.calls, first.share) == ("policy", 2, 3, pytest.approx(0.3))
    assert [d.detail for d in first.details] == ["b", "a"]
    assert (second.kind, second.details) == ("collective", ())


@pytest.mark.slow
def test_every_reason_that_the_code_gives_is_on_the_list_and_says_enough() -> None:
    given_kinds = set()
    for folder in ("initializers", "replay", "cli"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reason":
                    where = f"{path}:{node.lineno}"
                    kind = node.args[0] if node.args else None
                    assert isinstance(kind, ast.Constant), f"{where}: the kind is no literal"
                    assert kind.value in KINDS, where
                    assert len(node.args) == 2 or kind.value not in DETAILED, f"{where}: a detail is missing"
                    given_kinds.add(kind.value)
    assert given_kinds == set(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mi300_torch_compile_triton", "npu_alexnet_trace_view", "nvidia_nccl_parser", "param_dlrm_worker0_kineto"]
)
@pytest.mark.parametrize("select", ["owner", "leaf"])
def test_no_op_of_a_public_trace_stays_unexplained(shared_traces: Path, name: str, select: str) -> None:
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.plan.build import build_plan
    from opreplay.replay.results.reading import MemorySink
    from opreplay.traces import read_trace
    from tests.running import run_plan

    plan = build_plan(read_trace(shared_traces / f"{name}.json.gz"), select=select)
    sink = MemorySink()
    summary = run_plan(plan, RunOptions(executor="fake", isolation="none", max_op_bytes=10**9), sink=sink)
    missed = [result for result in sink.results if result.status != "replayed"]
    assert all(result.reason is not None for result in missed)
    assert sum(total.ops for total in summary.not_replayed) == len(missed) == summary.ops - summary.replayed
    assert sum(total.calls for total in summary.not_replayed) == sum(result.count for result in missed)
    shares = summary.covered_share + sum(total.share for total in summary.not_replayed)
    assert shares == pytest.approx(sum(result.recorded_share for result in sink.results))
