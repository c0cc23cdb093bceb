"""A simulated step on several devices side by side, as a table, JSON and CSV; computes sums only."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ascend.simulate.agreement import compare_all
from opreplay.replay.ascend.simulate.coverage import Coverage, clock_of, coverage_of, recorded_shares
from opreplay.replay.ascend.simulate.step import OpStep, Step, inversions, losing
from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.notation import telling_arguments
from opreplay.replay.ir.sizes import readable
from opreplay.replay.plan.recorded.where import Where
from opreplay.replay.report import first_screen
from opreplay.replay.report.columns import ONE_LINE_WIDTH, Column, OpCell, names_room, ops_table, plain_table
from opreplay.replay.report.coverage import coverage_facts, coverage_text
from opreplay.replay.report.run import npu
from opreplay.replay.report.run.csv_ import cell
from opreplay.replay.report.run.facts import no_path_notes
from opreplay.replay.report.run.table import beside_numbers, decisive, notes_lines, telling_sizes
from opreplay.replay.report.suspects import MARK, SHOWN, rendered
from opreplay.replay.report.text import DASH, plural, ratio_text, safe, share_text, time_text
from opreplay.replay.results.of_plan import call_of
from opreplay.replay.results.records import Simulated
from opreplay.replay.results.suspects import suspicions

SCHEMA_VERSION = 1
"""Of the JSON form. Changes of format: 1 first version."""

MOST_FAMILIES = 12
MOST_OPS = 40
SHARES_SHOWN = 5
"""Bounds and families of a device on the first screen."""
KINDS_SHOWN = 4
"""Kinds of assumptions that a note names."""
ID_CHARS = 6
WHOLE_STEP = 0.95
"""Share of the recorded time from which on a total is called that of the step."""
MOST_WITH_SHARES = 3
"""Devices whose times and shares fit side by side into 80 columns; of more, times alone are shown."""


def covered(plan: ReplayPlan, step: Step) -> Coverage:
    """How much of the recorded time the predictions of a device stand for, by what made them."""
    return coverage_of(plan, [(one.id, one.simulated) for one in step.ops])


def head_line(plan: ReplayPlan, steps: Sequence[Step]) -> str:
    """The first line: how much of the trace is in the totals, and how well it is known.

    "simulated 41.0 % of device time by rules, 52.0 % by bytes only, 7.0 % not predicted"
    """
    return f"simulated {coverage_text(covered(plan, steps[0]), clock_of(plan))}"


def _op_facts(op: ReplayOp, steps: Sequence[Step], share: float, *, captured: bool) -> dict[str, Any]:
    simulated = {}
    for step in steps:
        one = next((o for o in step.ops if o.id == op.id), None)
        if one is not None:
            s = one.simulated
            simulated[step.device] = {
                "time_us": s.time_us,
                "low_us": s.low_us,
                "high_us": s.high_us,
                "total_us": s.time_us * op.count,
                "bound": s.bound,
                "confidence": s.confidence,
                "kernels": list(s.kernels),
                "by": s.by,
                "source": s.source,
                "l2": s.l2,
                "extrapolated": s.extrapolated,
                "no_path": s.no_path,
                "taken_for": s.taken_for,
            }
    found = suspicions(
        op,
        share=share,
        recorded_us=op.recorded.device_us_total / op.count,
        measured_us=None,
        simulated=[(step.device, one.simulated) for step in steps for one in step.ops if one.id == op.id],
    )
    return {
        "suspicions": (*unpredicted(op, steps), *found),
        "id": op.id,
        "name": op.name,
        "count": op.count,
        "inputs": describe_inputs(op),
        "recorded_device_us_total": None if captured else op.recorded.device_us_total,
        "recorded_host_us_total": None if captured else op.recorded.host_us_total,
        "simulated": simulated,
    }


def facts(plan: ReplayPlan, steps: Sequence[Step], *, losers: int, where: Where | None = None) -> dict[str, Any]:
    """Everything as JSON-safe values; microseconds, totals over all calls unless the name says otherwise."""
    shares = recorded_shares(plan) if plan.device_us_total > 0 else {}
    found = covered(plan, steps[0])
    done = {one.id for one in steps[0].ops}
    return {
        "schema_version": SCHEMA_VERSION,
        "source": plan.source,
        "selection": plan.selection,
        "device": plan.device,
        "losses": plan.losses,
        "capture_notes": [] if plan.capture is None else list(plan.capture.notes),
        "ops": len(plan.ops),
        "simulated_ops": found.ops,
        "covered_share": found.predicted,
        "covered_of": clock_of(plan),
        "recorded_device_us": plan.device_us_total or None,
        "recorded_device_us_of_simulated": sum(o.recorded.device_us_total for o in plan.ops if o.id in done) or None,
        "socs": {
            step.device: {
                "version": step.device_version,
                "memory": memory_facts(plan, step),
                "total_us": step.total_us if step.ops else None,
                "low_us": step.low_us if step.ops else None,
                "high_us": step.high_us if step.ops else None,
                "uncalibrated_share": step.uncalibrated_share,
                "coverage": coverage_facts(covered(plan, step)),
                "faster_than_larger": {one.larger: one.ops for one in inversions(steps) if one.smaller == step.device},
                "beyond_hbm_bytes_per_s": step.beyond_hbm,
                "by_bound_us": step.by_bound,
                "by_family_us": step.by_family,
                "losing": [
                    {"id": op.id, "name": op.name, "lost_us": lost} for op, _, lost in losing(step, plan.ops, losers)
                ],
            }
            for step in steps
        },
        "where": None if where is None else msgspec.to_builtins(where),
        "captured": plan.captured,
        "l2": steps[0].l2,
        "cache_from": None
        if plan.sequence is None or steps[0].l2 != "sequence"
        else {
            "step": plan.sequence.step,
            "steps": plan.sequence.steps,
            "calls": len(plan.sequence.calls),
        },
        "lowering": _lowering_facts(plan),
        "unique_ops": [_op_facts(op, steps, shares.get(op.id, 0.0), captured=plan.captured) for op in plan.ops],
    }


def _lowering_facts(plan: ReplayPlan) -> dict[str, Any] | None:
    """How far the lowering is what was recorded; None where no kernel types are."""
    compared = compare_all(plan.ops)
    if not compared:
        return None
    verdicts = ("same", "close", "differs")
    return {
        "ops": {v: sum(one.verdict == v for one in compared) for v in verdicts},
        "recorded_us": {v: sum(one.recorded_us for one in compared if one.verdict == v) for v in verdicts},
        "compared": [msgspec.to_builtins(one) for one in compared],
    }


def csv_text(plan: ReplayPlan, steps: Sequence[Step]) -> str:
    """One row an op; times in microseconds a call."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    each = ("simulated_us", "low_us", "high_us", "bound", "confidence", "by", "l2", "extrapolated")
    names = ["id", "name", "count", "inputs", "recorded_device_us", "recorded_host_us"]
    writer.writerow([*names, *(cell(f"{name}_{step.device}") for step in steps for name in each)])
    found = [{one.id: one.simulated for one in step.ops} for step in steps]
    for op in plan.ops:
        row: list[Any] = [cell(op.id), cell(op.name), op.count, cell(describe_inputs(op))]
        if plan.captured:
            row += [None, None]
        else:
            row += [op.recorded.device_us_total / op.count, op.recorded.host_us_total / op.count]
        for by_id in found:
            s = by_id.get(op.id)
            row += (
                [None] * len(each)
                if s is None
                else [s.time_us, s.low_us, s.high_us, s.bound, s.confidence, s.by, s.l2, s.extrapolated]
            )
        writer.writerow(row)
    return out.getvalue()


def _shares_table(title: str, steps: Sequence[Step], times: Sequence[dict[str, float]], most: int) -> RenderableType:
    table = plain_table()
    table.add_column(title, no_wrap=True)
    shares = len(steps) <= MOST_WITH_SHARES
    for step in steps:
        table.add_column(Text(safe(step.device)), justify="right", no_wrap=True)
        if shares:
            table.add_column("", justify="right", no_wrap=True)
    order = sorted({name for one in times for name in one}, key=lambda name: -max(t.get(name, 0.0) for t in times))
    for name in order[:most]:
        cells = []
        for step, one in zip(steps, times, strict=True):
            us = one.get(name)
            cells.append(time_text(us))
            if shares:
                cells.append(share_text(us / step.total_us if us is not None and step.total_us else None))
        table.add_row(Text(safe(name)), *cells)
    return table


def _totals_table(plan: ReplayPlan, steps: Sequence[Step], *, names_device: bool) -> RenderableType:
    table = plain_table()
    table.add_column("device", no_wrap=True)
    ratio = () if plan.captured else ("÷ recorded",)
    for title in (covers(plan, steps), "80 % band", *ratio, "uncalibrated"):
        table.add_column(title, justify="right", no_wrap=True)
    done = {one.id for one in steps[0].ops}
    recorded = sum(op.recorded.device_us_total for op in plan.ops if op.id in done)
    if recorded:
        # Where the head names the device, a short word leaves the columns their room.
        table.add_row(
            Text(safe(plan.device or "recorded")) if names_device else "recorded", time_text(recorded), DASH, DASH, DASH
        )
    for step in steps:
        table.add_row(
            Text(safe(step.device), style="bold"),
            time_text(step.total_us if step.ops else None),
            band_text(step),
            *((ratio_text(step.total_us, recorded or None),) if ratio else ()),
            share_text(step.uncalibrated_share),
        )
    return table


def band_text(step: Step) -> str:
    """ "1.2 ms to 2.3 ms", or that there is nothing to have a band."""
    if not step.ops:
        return "nothing of it is predicted"
    return f"{time_text(step.low_us)} to {time_text(step.high_us)}"


def _losing_table(step: Step, lost: Sequence[tuple[ReplayOp, OpStep, float]], width: int) -> list[RenderableType]:
    columns = [
        Column(title="id", cells=tuple(op.id[:ID_CHARS] for op, _, _ in lost), style="dim"),
        Column(title="lost", cells=tuple(time_text(us) for _, _, us in lost)),
        Column(title="recorded", cells=tuple(time_text(op.recorded.device_us_total) for op, _, _ in lost), gives_way=2),
        Column(title="simulated", cells=tuple(time_text(one.simulated.time_us * one.count) for _, one, _ in lost)),
        Column(title="bound", cells=tuple(one.simulated.bound for _, one, _ in lost), left=True, gives_way=3),
    ]
    short = telling_sizes([(op.id, op.name, describe_inputs(op)) for op, _, _ in lost])
    room = max(ONE_LINE_WIDTH, names_room([safe(op.name) for op, _, _ in lost]))
    numbers = telling_arguments([(op.id, op.name, describe_inputs(op), call_of(op)) for op, _, _ in lost])
    cells = [
        beside_numbers(OpCell(name=op.name, detail=describe_inputs(op)), short[op.id], numbers[op.id])
        for op, _, _ in lost
    ]
    return ops_table(columns, cells, width=width, title=f"loses most on {safe(step.device)}", one_line=True, room=room)


def memory_facts(plan: ReplayPlan, step: Step) -> dict[str, Any] | None:
    """Whether what a captured step holds at a time fits the device's memory; None for a plan of a trace."""
    if plan.capture is None or step.hbm_bytes is None:
        return None
    peak = plan.capture.peak_bytes
    return {"peak_bytes": peak, "hbm_bytes": step.hbm_bytes, "fits": peak <= step.hbm_bytes}


def memory_lines(plan: ReplayPlan, steps: Sequence[Step]) -> list[RenderableType]:
    """A line a device: does a captured step fit its memory?"""
    lines: list[RenderableType] = []
    for step in steps:
        found = memory_facts(plan, step)
        if found is not None:
            verdict = "fits" if found["fits"] else "does NOT fit"
            sizes = f"{readable(found['peak_bytes'])} at most of {readable(int(found['hbm_bytes']))}"
            text = f"memory: {verdict} {safe(step.device)}: tensors take {sizes}; workspaces are not counted"
            lines.append(Text(text, style="" if found["fits"] else "yellow"))
    return lines


def _inversion_lines(steps: Sequence[Step]) -> list[RenderableType]:
    """Where a smaller device is predicted faster than a larger one, and why."""
    return [
        Text(
            f"{safe(one.smaller)} is predicted faster than {safe(one.larger)} for {one.ops:,} of {one.compared:,} ops,"
            f" though no part of it is: calibration, as launches or kernels were measured on one of them only",
            style="yellow",
        )
        for one in inversions(steps)
    ]


def _streaming_lines(steps: Sequence[Step]) -> list[RenderableType]:
    """Devices on which the step is predicted to stream more than memory can: a fault of the prediction."""
    return [
        Text(
            f"! {safe(step.device)}: predicted too short: a pass of the step reads {readable(step.pass_bytes)} of "
            f"distinct tensors in {time_text(step.pass_us)}: {speed / 1e12:.3g} TB/s beyond L2, while the peak of "
            f"memory is {step.peaks[3] / 1e12:.3g}; please report it",
            style="yellow",
        )
        for step in steps
        if (speed := step.beyond_hbm) is not None
    ]


def _shares_line(step: Step, what: str, times: dict[str, float]) -> Text:
    """ "910b3, time by bound: vector 23.8 %, l2 23.4 %"; the largest ones, the tables have all."""
    shown = [(name, us / step.total_us) for name, us in times.items()][:SHARES_SHOWN] if step.total_us else []
    rest = f" and {len(times) - len(shown)} more" if len(times) > len(shown) else ""
    told = ", ".join(f"{safe(name)} {share_text(share)}" for name, share in shown)
    return Text(f"{safe(step.device)}, time by {what}: {told}{rest}", overflow="fold")


def notes(plan: ReplayPlan, steps: Sequence[Step]) -> list[str]:
    """What may be known of predictions beside what the tables say, no decision by itself."""
    shares = recorded_shares(plan)
    made: list[str] = []
    for step in steps:
        told = {
            "calibrated on another SoC only": [one for one in step.ops if one.simulated.confidence == "other SoC"],
            "extrapolated, far from what was measured": [one for one in step.ops if one.simulated.extrapolated],
        }
        for what, ops in told.items():
            if ops:
                share = share_text(sum(shares[one.id] for one in ops))
                made.append(f"{safe(step.device)}: {plural(len(ops), 'op')} = {share} {what}")
    assumed = Counter(one.what for op in plan.ops for one in op.assumptions)
    if assumed:
        ops = sum(bool(op.assumptions) for op in plan.ops)
        kinds = ", ".join(f"{safe(what)} ({count:,})" for what, count in assumed.most_common(KINDS_SHOWN))
        more = f" and {len(assumed) - KINDS_SHOWN} more kinds" if len(assumed) > KINDS_SHOWN else ""
        made.append(f"assumptions: {assumed.total():,} on {plural(ops, 'op')}: {kinds}{more}")
    return made


def _no_paths(plan: ReplayPlan, steps: Sequence[Step]) -> list[str]:
    shares = recorded_shares(plan)
    return [
        line
        for step in steps
        for line in no_path_notes(step.device, [(one.simulated, shares[one.id]) for one in step.ops])
    ]


def _cache_line(plan: ReplayPlan, l2: str) -> list[RenderableType]:
    """Where the state of the cache is from; nothing to say of a plan without an order of calls."""
    if l2 != "sequence":
        held = "nothing of its data" if l2 == "cold" else "its own data and code, as in a loop"
        return [Text(f"caches ({l2}): when an op starts they hold {held} (--l2)", style="dim")]
    if plan.sequence is None:
        return []
    step, calls = plan.sequence.step, len(plan.sequence.calls)
    steps = f", of median duration among {plan.sequence.steps:,}" if plan.sequence.steps > 1 else ""
    whole = "the captured step" if plan.captured else "the whole trace"
    where = f"{safe(step)}{steps}" if step else whole
    return [Text(f"L2 cache: what lies in it follows from the order of {calls:,} calls of {where} (--l2)", style="dim")]


def suspect_lines(plan: ReplayPlan, steps: Sequence[Step]) -> list[str]:
    """A line for each op whose prediction contradicts its recorded time by far, most time first."""
    shares = recorded_shares(plan)
    predicted: dict[str, list[tuple[str, Simulated]]] = {}
    for step in steps:
        for one in step.ops:
            predicted.setdefault(one.id, []).append((step.device, one.simulated))
    made = []
    for op in sorted(plan.ops, key=lambda op: -shares[op.id]):
        recorded_us = op.recorded.device_us_total / op.count
        known = predicted.get(op.id, ()) if plan.device_us_total > 0 else ()
        found = (
            *unpredicted(op, steps),
            *suspicions(
                op,
                share=max(shares[op.id], *(_share(one, op, plan) for _, one in known), 0.0),
                recorded_us=recorded_us,
                measured_us=None,
                simulated=known,
            ),
        )
        if found:
            made.append(
                f"{MARK} {safe(op.name)} ({op.id[:8]}){_recorded(op, plan, shares[op.id])}: {safe('; '.join(found))}"
            )
    return made[:SHOWN] + ([f"{MARK} and {len(made) - SHOWN} more like that"] if len(made) > SHOWN else [])


def _recorded(op: ReplayOp, plan: ReplayPlan, share: float) -> str:
    """What was recorded of an op, for one call; nothing where the plan was captured."""
    if plan.captured:
        return ""
    device = plan.device_us_total > 0
    us = op.recorded.device_us_total if device else op.recorded.host_us_total
    return f", {share_text(share)} of the time, recorded {time_text(us / op.count)}{'' if device else ' on the host'}"


def unpredicted(op: ReplayOp, steps: Sequence[Step]) -> list[str]:
    """Why an op has no prediction, where a user's function failed."""
    return [step.failed[op.id] for step in steps if op.id in step.failed]


def _share(one: Simulated, op: ReplayOp, plan: ReplayPlan) -> float:
    """Of the recorded time that a prediction comes to, all calls."""
    return one.time_us * op.count / plan.device_us_total if plan.device_us_total > 0 else 0.0


def covers(plan: ReplayPlan, steps: Sequence[Step]) -> str:
    """What the totals are sums of: the step only where they stand for nearly all of its recorded time."""
    predicted = covered(plan, steps[0]).predicted
    count = 1 if plan.sequence is None else plan.sequence.steps
    whole = "step" if count <= 1 else f"{count} steps"
    if predicted >= WHOLE_STEP:
        return f"sum of {whole}"
    return f"sum of\n{share_text(predicted)} of {'the step' if count <= 1 else whole}"


def render(
    plan: ReplayPlan,
    steps: Sequence[Step],
    *,
    losers: int,
    width: int = 160,
    where: Where | None = None,
    everything: bool = True,
) -> RenderableType:
    """What was recorded, totals with bands, time by bound and by kernel family, and what loses most on each device.

    Without `everything` the largest parts alone, and how many notes there are.
    """
    counted = Text(f"{len(steps[0].ops):,} of {len(plan.ops):,} ops; nothing was executed", style="dim")
    parts: list[RenderableType] = [
        counted,
        *first_screen.rendered([] if where is None else first_screen.where_lines(where, plan.device)),
        *rendered(suspect_lines(plan, steps)),
        _totals_table(plan, steps, names_device=where is None or where.clock != "device"),
        *[Text(line, style="yellow", overflow="fold") for line in first_screen.capture_lines(plan)],
        *memory_lines(plan, steps),
        *_streaming_lines(steps),
        *_inversion_lines(steps),
        *[Text(line, style="yellow", overflow="fold") for line in _no_paths(plan, steps)],
        *_cache_line(plan, steps[0].l2),
    ]
    predicted = [step for step in steps if step.ops]
    if everything and predicted:
        parts += [Text(), _shares_table("time by bound", steps, [s.by_bound for s in steps], MOST_OPS), Text()]
        parts += [_shares_table("time by kernel family", steps, [s.by_family for s in steps], MOST_FAMILIES)]
    else:
        for step in predicted:
            parts += [_shares_line(step, "bound", step.by_bound), _shares_line(step, "kernel family", step.by_family)]
    for step in steps:
        lost = losing(step, plan.ops, losers)
        if lost:
            parts += [Text(), *_losing_table(step, lost, width)]
    parts += npu.agreement_lines(compare_all(plan.ops))
    if plan.device_us_total <= 0 and not plan.captured:
        parts += [Text(), Text("the trace recorded no device time: nothing to compare with", style="dim")]
    parts += notes_lines(notes(plan, steps) if everything else decisive(notes(plan, steps), ()))
    return Group(*parts)
