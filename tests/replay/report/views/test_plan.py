"""The views of `plan` and `plan --explain`."""

from __future__ import annotations

import io
import json
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from opreplay.replay.ascend import explain_op, load_device, simulate_op
from opreplay.replay.ir.model import Assumption, Reason, Recorded, RecordedKernel, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import need_of
from opreplay.replay.ir.verdicts import MetaCheck
from opreplay.replay.job.events import Predicted
from opreplay.replay.job.planned import planned_results
from opreplay.replay.report.text import share_text, time_text
from opreplay.replay.report.views import explain, meta
from opreplay.replay.report.views import plan as view
from opreplay.traces.model import TensorMeta
from tests.factories import tensor as any_tensor

DEVICE = load_device("910b3")


tensor = partial(any_tensor, dtype="float16")


MM = ReplayOp(
    id="aaaaaaaaaaaa",
    name="aten::addmm",
    count=3,
    recorded=Recorded(
        host_us_total=90.0,
        host_us_median=30.0,
        device_us_total=60.0,
        device_us_median=20.0,
        kernels=(RecordedKernel(name="gemm\x1b", count=3, total_us=60.0),),
    ),
    resolved_by="equivalent",
    via="aten::mm",
    overload="",
    schema="aten::addmm(Tensor self, ...) -> Tensor",
    args=(
        tensor("self", 512),
        tensor("mat1", 256, 512, strides=(1, 256)),
        tensor("mat2", 512, 512),
        ReplayArg(name="beta", type="Scalar", value=1, keyword_only=True),
    ),
    outputs=(TensorMeta(shape=(256, 512), dtype="float16"),),
    assumptions=(
        Assumption(argument="mat2", what="contiguous strides"),
        Assumption(argument="alpha", what="default 1"),
    ),
)
LABEL = ReplayOp(
    id="bbbbbbbbbbbb",
    name="record_param_comms",
    count=1,
    recorded=Recorded(host_us_total=10.0, host_us_median=10.0, device_us_total=40.0, device_us_median=40.0),
    reason=Reason("collective", "all_reduce"),
)
VIEW = ReplayOp(
    id="cccccccccccc",
    name="aten::view",
    count=1,
    recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
    resolved_by="jit",
    args=(tensor("self", 4, 4),),
)
PLAN = ReplayPlan(source="t.json", device_us_total=100.0, host_us_total=101.0, ops=(MM, LABEL, VIEW))


def results(limit: int | None = None) -> list:
    return planned_results(
        PLAN, lambda op: Predicted(op=op, simulated={"910b3": simulate_op(op, DEVICE)}), max_op_bytes=limit
    )


def shown(renderable: object, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, markup=False, emoji=False, highlight=False).print(renderable)
    return stream.getvalue()


def test_what_would_run_and_what_not() -> None:
    assert [(r.status, r.reason and str(r.reason)) for r in results()] == [
        ("replayed", None),
        ("skipped", "collective: all_reduce"),
        ("replayed", None),
    ]
    summary = view.planned_summary(PLAN, results())
    assert (summary.ops, summary.replayed, summary.skipped, summary.covered_share) == (3, 2, 1, pytest.approx(0.6))


def test_the_memory_budget_counts() -> None:
    first = results(1000)[0]
    assert first.status == "skipped"
    assert first.reason is not None
    assert str(first.reason).startswith("budget: needs ")


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_table_fits(width: int) -> None:
    text = shown(view.render(PLAN, results(), width=width), width)
    assert max(map(len, text.splitlines())) <= width
    assert "aten::addmm" in text
    assert "assumptions: 2 on 1 op" in text


def test_options_that_match_nothing_are_noted() -> None:
    plan = msgspec.structs.replace(PLAN, unmatched=("--exclude aten::none",))
    assert "--exclude aten::none" in shown(view.render(plan, results(), width=80, everything=False), 80)
    assert view.facts(plan, results(), view.planned_summary(plan, results()))["unmatched"] == ("--exclude aten::none",)


@pytest.mark.parametrize("width", [60, 160])
def test_the_table_of_a_plan_totals_the_reasons(width: int) -> None:
    lines = shown(view.render(PLAN, results(), width=width), width).splitlines()
    (row,) = [line.split() for line in lines if line.startswith("collective")]
    assert row == ["collective", "1", "1", "40.0", "%", "all_reduce", "(1)"]


def test_an_op_that_was_refused_when_resolved_counts_as_failed() -> None:
    broken = msgspec.structs.replace(LABEL, reason=Reason("failed", "no overload of aten::x takes (float32)"))
    plan = msgspec.structs.replace(PLAN, ops=(broken,))
    (result,) = planned_results(plan)
    assert (result.status, view.planned_summary(plan, [result]).failed) == ("failed", 1)


def test_time_that_no_op_answers_for_is_a_note_and_a_number() -> None:
    plan = msgspec.structs.replace(PLAN, unowned_device_us=25.0)
    made = planned_results(plan)
    assert "no op: 25.0 % of device time" in shown(view.render(plan, made, width=200), 200)
    assert view.facts(plan, made, view.planned_summary(plan, made))["unowned_device_us"] == 25.0


def test_an_op_over_the_budget_would_run_in_part_unless_it_is_to_be_skipped() -> None:
    big = msgspec.structs.replace(VIEW, name="aten::neg", args=(tensor("self", 1000, 1000),))
    plan = msgspec.structs.replace(PLAN, ops=(big,))
    limit = need_of(big).total // 2
    (smaller,) = planned_results(plan, max_op_bytes=limit)
    assert smaller.status == "replayed"
    assert "500 of 1000 slices" in smaller.assumptions[0].what
    (skipped,) = planned_results(plan, max_op_bytes=limit, over="skip")
    assert str(skipped.reason).startswith("budget: needs about")


CHECKS = {
    MM.id: MetaCheck(status="differs", detail="result 0 is float16[1], recorded was float16[2]", results_compared=1),
    VIEW.id: MetaCheck(status="ok", results_compared=1),
}


def checked() -> list:
    return planned_results(PLAN, checks=CHECKS)


def test_meta_tensors_have_a_line_a_column_and_a_table_of_problems() -> None:
    assert meta.line(checked()) == "on meta tensors: 1 ok (1 with the recorded sizes), 1 differs; 1 op not called"
    lines = shown(view.render(PLAN, checked(), width=200), 200).splitlines()
    assert "meta" in lines[1].split()
    assert "aten::addmm  result 0 is float16[1], recorded was float16[2]" in lines[3]
    (row,) = [line.split() for line in lines if line.startswith("differs")]
    assert row[:5] == ["differs", "1", "3", "60.0", "%"]
    assert "aten::addmm: result 0 is float16[1]" in " ".join(row)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_table_fits_with_meta_too(width: int) -> None:
    text = shown(view.render(PLAN, checked(), width=width), width)
    assert max(map(len, text.splitlines())) <= width


def test_without_meta_nothing_of_it_is_shown() -> None:
    assert "meta" not in shown(view.render(PLAN, results(), width=200), 200)
    assert meta.facts(results()) is None


def test_json_has_counts_and_verdicts() -> None:
    summary = view.planned_summary(PLAN, checked())
    facts = json.loads(msgspec.json.encode(view.facts(PLAN, checked(), summary)))
    assert facts["meta"]["counts"] == {"ok": 1, "differs": 1, "no meta kernel": 0, "data-dependent": 0, "failed": 0}
    assert (facts["meta"]["compared"], facts["meta"]["not_called"]) == (2, 1)
    assert [op["meta"] and op["meta"]["status"] for op in facts["unique_ops"]] == ["differs", None, "ok"]


def test_an_explanation_has_the_verdict() -> None:
    text = shown(explain.render(MM, checked()[0], {}), 120)
    assert "differs: result 0 is float16[1], recorded was float16[2]" in text


def test_wide_tables_tell_how_and_how_much() -> None:
    text = shown(view.render(PLAN, results(), width=160), 160)
    assert "equivalent" in text
    assert "1.0 MB" in text


def test_json_holds_the_same() -> None:
    facts = json.loads(msgspec.json.encode(view.facts(PLAN, results(), view.planned_summary(PLAN, results()))))
    assert facts["replayable"] == 2
    assert facts["reasons"] == {"collective": 1}
    (total,) = facts["not_replayed"]
    assert (total["kind"], total["ops"], total["calls"], total["share"]) == ("collective", 1, 1, 0.4)
    assert [(d["detail"], d["ops"]) for d in total["details"]] == [("all_reduce", 1)]
    first = facts["unique_ops"][0]
    assert first["bytes"] == 2 * (512 + 256 * 512 + 512 * 512 + 256 * 512)
    assert first["recorded_device_us"] == 20.0
    assert first["simulated_us"]["910b3"] > 0


@pytest.mark.parametrize("width", [80, 160])
def test_an_explanation_has_arguments_resolution_and_kernels(width: int) -> None:
    explanations = {"910b3": explain_op(MM, DEVICE)}
    text = shown(explain.render(MM, results()[0], explanations), width)
    assert max(map(len, text.splitlines())) <= width
    for part in (
        "mat1",
        "float16[256,512] strides [1,256]",
        "contiguous strides",
        "default 1",
        "portable equivalent: aten::mm",
        "gemm\\x1b",
        "bound by",
        "910b3",
        "launch",
    ):
        assert part in text, part


def test_terms_are_shown_as_shares_of_the_time() -> None:
    """Pipes overlap: a share in microseconds read as if a pipe were faster than its peak."""
    explanation = explain_op(MM, DEVICE)
    text = " ".join(shown(explain.render(MM, results()[0], {"910b3": explanation}), 160).split())
    one = explanation.kernels[0].prediction
    shares = {name: us / one.time_us for name, us in one.terms_us.items()}
    assert sum(shares.values()) == pytest.approx(1.0)
    for name, share in shares.items():
        assert f"{name} {share_text(share)}" in text
        assert f"{name} {time_text(one.terms_us[name])}" not in text
    assert "not its busy time" in text


def test_explanations_of_views_and_labels() -> None:
    text = shown(explain.render(VIEW, results()[2], {"910b3": explain_op(VIEW, DEVICE)}), 80)
    assert "no kernel, because the op is a view" in text
    text = shown(explain.render(LABEL, results()[1], {"910b3": explain_op(LABEL, DEVICE)}), 80)
    assert "collective: all_reduce" in text


def test_explanations_as_json() -> None:
    facts = json.loads(msgspec.json.encode(explain.facts(MM, results()[0], {"910b3": explain_op(MM, DEVICE)})))
    assert facts["op"]["name"] == "aten::addmm"
    assert facts["simulated"]["910b3"]["kernels"][0]["prediction"]["terms_us"]


def test_reports_of_a_plan_say_would(made: SimpleNamespace) -> None:
    from opreplay.replay.report.run.facts import coverage_line

    summary = view.planned_summary(PLAN, results())
    assert coverage_line(None, results(), summary, verb="would replay") == (
        "would replay 2 of 3 ops = 60.0 % of device time = 0 % torch + 60.0 % stand-ins; 1 skipped: 1 collective"
    )
