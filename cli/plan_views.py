# pyright: strict
"""Write and print plans, and compute the exit code of `plan`. `run --dry-run` uses the same functions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from opreplay.cli.terminal import console
from opreplay.traces.names import plural

if TYPE_CHECKING:
    from opreplay.cli.exit_codes import ExitCode
    from opreplay.cli.reporting import Showing
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.ir.verdicts import MetaCheck
    from opreplay.replay.job.job import Job

TRACELENS_NAMES = (".tracelens.json", "event_replay_ir.json")
"""Ends of the file names for which a plan is written as TraceLens's IR. That has no counts, times or reasons."""


def save(plan: ReplayPlan, output: str, *, force: bool) -> None:
    """Write the plan as JSON to a file or to stdout. Names in `TRACELENS_NAMES` select TraceLens's format."""
    from opreplay.cli.outputs import write_file

    if output.lower().endswith(TRACELENS_NAMES):
        from opreplay.replay.plan.tracelens import write_tracelens_ir

        left_out = write_tracelens_ir(plan, output, force=force)
        if left_out:
            console.narrate(f"{output} lacks {left_out} of {len(plan.ops)} ops, which cannot be called")
        return
    text = console.json_text(plan)
    if output == "-":
        console.write(text)
    else:
        write_file(Path(output), text, force=force)


def show_plan(
    job: Job,
    *,
    format_: str = "table",
    checks: Mapping[str, MetaCheck] | None = None,
    everything: bool = False,
    all_rows: bool = False,
) -> None:
    """Print the coverage that a run would have, the results of calls on meta tensors, and the ops.

    After printing, raises InternalError if opreplay's own code failed.
    """
    from opreplay.replay.job.predicting import Faults
    from opreplay.replay.plan.recorded.where import where_of
    from opreplay.replay.report.views import plan as views

    results, predictions = job.expected_results(checks)
    where, l2 = where_of(job.read), job.settings.cache_state()
    view = views.view(job.plan, results, where=where, l2=l2, everything=everything, all_rows=all_rows)
    console.show_view(view, format_)
    faults = Faults()
    faults.add(predictions)
    faults.conclude()


def narrate_checks(plan: ReplayPlan, checks: Mapping[str, MetaCheck]) -> None:
    """Report the results of calls on meta tensors on stderr. This is used when the plan itself goes to stdout."""
    from opreplay.replay.job.planned import planned_results
    from opreplay.replay.report.views import meta

    console.narrate(meta.line(planned_results(plan, checks=checks)))


def show_explanation(job: Job, wanted: str, *, format_: str, checks: Mapping[str, MetaCheck] | None = None) -> None:
    """Print a full explanation of the matching op with the most time. Raises UsageError if no op matches."""
    import msgspec

    from opreplay.replay.ascend import explain_op
    from opreplay.replay.job.planned import planned_results
    from opreplay.replay.job.predicting import raise_errors
    from opreplay.replay.plan.make import find_ops
    from opreplay.replay.report.views import explain as view

    plan, settings = job.plan, job.settings
    matches = find_ops(plan, wanted)
    op = matches[0]
    alone = msgspec.structs.replace(plan, ops=(op,))
    op_contents = job.contents(op)
    (result,) = planned_results(
        alone,
        raise_errors(job.predict_op),
        max_op_bytes=settings.max_op_bytes,
        checks=checks,
        over=settings.over_budget,
    )
    explanations = {
        name: explain_op(op, device, op_contents, settings.cache_state()) for name, device in job.devices.items()
    }
    if format_ == "json":
        console.write(console.json_text(view.facts(op, result, explanations)))
        return
    console.show(view.render(op, result, explanations))
    for line in view.code_lines(op, explanations):
        console.show_line(line)
    if len(matches) > 1:
        others = ", ".join(op.id for op in matches[1:6])
        console.narrate(
            f"{wanted} also matches {plural(len(matches) - 1, 'other op')}, to explain by id: "
            f"{others}{' ...' if len(matches) > 6 else ''}"
        )


def plan_code(job: Job, checks: Mapping[str, MetaCheck] | None, *, max_failed: int | None) -> ExitCode:
    """Return exit code 1 if more than `max_failed` ops would not be replayed, or are wrong on meta tensors."""
    from opreplay.cli.reporting import code_for
    from opreplay.replay.ir.verdicts import META_WRONG
    from opreplay.replay.job.planned import why_not

    plan, settings = job.plan, job.settings
    wrong = {id_ for id_, check in (checks or {}).items() if check.status in META_WRONG}
    missed = sum(
        op.id in wrong or why_not(op, settings.max_op_bytes, settings.over_budget) is not None for op in plan.ops
    )
    what = "not replayed or wrong on meta tensors" if wrong else "not replayed"
    return code_for(missed, max_failed, what, of=len(plan.ops))


def show_dry_run(job: Job, showing: Showing) -> ExitCode:
    """Show what a run would do; return the exit code of the plan (`plan_code`).

    Raises UsageError or FormatError for supplied values that fit no op.
    """
    if job.settings.values is not None:
        from opreplay.replay.arguments.supplied import check_values_file

        check_values_file(job.plan, job.settings.values)
    if showing.output:
        console.narrate(f"opreplay: --dry-run measures nothing and writes no results: {', '.join(showing.output)}")
    show_plan(job, format_=showing.format_, everything=showing.notes, all_rows=showing.all_rows)
    return plan_code(job, None, max_failed=showing.max_failed)


def plan_file(text: str) -> ReplayPlan | None:
    """Return the plan in a file; None for a trace or anything else."""
    from opreplay.replay.ir.plan_file import load_plan
    from opreplay.replay.plan.inputs import PLAN, plan_dialect

    return load_plan(text) if plan_dialect(text) is PLAN else None


def captured_file(text: str) -> ReplayPlan | None:
    """Return the captured plan in a file; None for a trace or anything else.

    Raises UsageError for the plan of a trace: `inspect` would show nothing that `plan` does not show.
    """
    from opreplay.traces.errors import UsageError

    plan = plan_file(text)
    if plan is not None and not plan.captured:
        raise UsageError(
            f"{text} is the plan of a trace, not a captured plan",
            hint=f"`opreplay plan {text}` shows it; `inspect` needs its trace.",
        )
    return plan


def show_captured(plan: ReplayPlan, *, by: str | None, format_: str) -> None:
    """Print what a captured plan contains. Raises UsageError for a table of times, because a captured plan has none."""
    from opreplay.replay.report.step import captured
    from opreplay.traces.errors import UsageError

    if by is not None or format_ == "csv":
        raise UsageError(
            f"{plan.source} was captured, so no times were recorded", hint="Remove --by; `simulate` predicts times."
        )
    console.show_view(captured.view(plan), format_)
