"""A simulated step on several devices side by side, as a table, JSON and CSV. This module computes only sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.agreement import compare_all
from opreplay.replay.ascend.simulate.coverage import Coverage, clock_of, coverage_of
from opreplay.replay.ascend.simulate.step import Inversion, OpStep, Step, inversions, losing
from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.notation import telling_arguments
from opreplay.replay.ir.sizes import readable
from opreplay.replay.ir.step import StepReport
from opreplay.replay.plan.recorded.where import Where
from opreplay.replay.report import first_screen, suspects
from opreplay.replay.report.coverage import HELD, coverage_facts, coverage_text, rough_text, weak_parts
from opreplay.replay.report.run import npu, ops
from opreplay.replay.report.run.facts import assumption_notes, confidence_notes, telling_notes, unmatched_notes
from opreplay.replay.report.run.ops import ID_CHARS, RATIO_TITLE, join_parts, telling_sizes
from opreplay.replay.report.step.verdict import named, page_facts, soc_text, step_facts, step_rows, verdict
from opreplay.replay.report.table import (
    COUNT,
    FLAG,
    ONE_LINE_WIDTH,
    RATIO,
    SHARE,
    TEXT,
    TIME,
    Column,
    Table,
    decisive,
    facts_grid,
    heaviest,
    names_room,
    notes_lines,
    of_fields,
    terminal,
)
from opreplay.replay.report.text import DASH, fusing, quotient, ratio_text, safe, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.replay.results.of_plan import call_of, result_of
from opreplay.replay.results.outcome import Outcome
from opreplay.replay.results.records import OpResult, Simulated
from opreplay.traces.names import trace_name

if TYPE_CHECKING:
    from opreplay.replay.report.page.model import Answer, Page

SCHEMA_VERSION = 1
"""Version of the JSON format. History: 1 is the first version."""

MOST_FAMILIES = 12
MOST_DOUBTS = 3
"""Maximum number of suspect rows in the summary of a page."""
MOST_OPS = 40
DEVICE_CHARS = 18
SHARES_SHOWN = 5
"""Maximum number of bounds (such as "vector") or kernel families listed per device on the first screen."""
_OfOp = Column[ReplayOp]
WHOLE_STEP = 0.95
"""Minimum predicted share of the recorded time for which a total is called the total of the step."""
MOST_WITH_SHARES = 3
"""Maximum number of devices whose times and shares fit into 80 columns. With more devices, only times are shown."""


_Loss = tuple[ReplayOp, OpStep, float]
"""(op, its prediction, predicted minus recorded time over all calls)."""


def coverage_by_method(plan: ReplayPlan, step: Step) -> Coverage:
    """Return the shares of the recorded time covered by the predictions of a device, by prediction method."""
    return coverage_of(plan, [(op.id, op.simulated) for op in step.ops])


def head_line(plan: ReplayPlan, steps: Sequence[Step]) -> str:
    """Return the line on coverage: how much of the trace is in the totals, by prediction method.

    "simulated 41.0 % of device time by rules, 52.0 % by bytes only, 7.0 % not predicted"
    """
    return f"simulated {coverage_text(coverage_by_method(plan, steps[0]), clock_of(plan))}"


def first_lines(plan: ReplayPlan, steps: Sequence[Step], report: StepReport | None) -> list[str]:
    """Return the step's time on each device, what bounds the recorded step, and how much time is predicted."""
    texts = [_step_text(plan, step, report) for step in steps]
    shown: list[str] = []
    if report is not None and report.marked:
        recorded = msgspec.structs.replace(report, socs={})
        shown = [named(trace_name(plan.source), verdict(recorded))]
    head = "; ".join([*texts, *weak_parts(coverage_by_method(plan, steps[0]))])
    return [f"{safe(trace_name(plan.source))}: {head}", *shown, head_line(plan, steps)]


def _step_text(plan: ReplayPlan, step: Step, report: StepReport | None) -> str:
    """Return a device's time for the step, including gaps. Without a marked step, return the sum of all calls."""
    on_device = report.socs.get(step.device) if report is not None and report.marked else None
    if report is not None and on_device is not None:
        return f"{safe(step.device)} {soc_text(on_device, report)}"
    if not step.ops:
        return f"{safe(step.device)}: {band_text(step)}"
    text = f"{safe(step.device)} would take {time_text(step.total_us)} ({band_text(step)}) for all calls"
    recorded = _recorded_us(plan, step)
    return f"{text}, {ratio_text(step.total_us, recorded)} the recorded time" if recorded else text


_SIMULATED = ("bound", "confidence", "kernels", "by", "source", "l2", "extrapolated", "no_path", "taken_for")


def _op_facts(op: ReplayOp, result: OpResult, *, captured: bool) -> dict[str, Any]:
    return {
        "suspicions": result.suspicions,
        "id": op.id,
        "name": op.name,
        "count": op.count,
        "inputs": result.inputs,
        "recorded_device_us_total": None if captured else op.recorded.device_us_total,
        "recorded_host_us_total": None if captured else op.recorded.host_us_total,
        "simulated": {
            device: {
                **{name: getattr(prediction, name) for name in ("time_us", "low_us", "high_us")},
                "total_us": prediction.time_us * op.count,
                **{name: getattr(prediction, name) for name in _SIMULATED},
            }
            for device, prediction in result.simulated.items()
        },
    }


def facts(
    plan: ReplayPlan,
    steps: Sequence[Step],
    *,
    losers: int,
    where: Where | None = None,
    report: StepReport | None = None,
) -> dict[str, Any]:
    """Return all results as JSON-safe values. Times are in µs, and over all calls unless the name says otherwise."""
    coverage = coverage_by_method(plan, steps[0])
    return {
        "schema_version": SCHEMA_VERSION,
        "step": None if report is None else step_facts(report),
        "source": plan.source,
        "selection": plan.selection,
        "device": plan.device,
        "losses": plan.losses,
        "unmatched": plan.unmatched,
        "capture_notes": [] if plan.capture is None else list(plan.capture.all_notes),
        "ops": len(plan.ops),
        "simulated_ops": coverage.ops,
        "covered_share": coverage.predicted,
        "covered_of": clock_of(plan),
        "recorded_device_us": plan.device_us_total or None,
        "recorded_device_us_of_simulated": _recorded_us(plan, steps[0]) or None,
        "socs": {
            step.device: _step_facts(plan, step, inversions(steps), losing(step, plan.ops, losers)) for step in steps
        },
        "where": msgspec.to_builtins(where),
        "captured": plan.captured,
        "calls_cut": 0 if plan.sequence is None else plan.sequence.cut,
        "l2": steps[0].l2,
        "cache_from": _cache_facts(plan) if steps[0].l2 == "sequence" else None,
        "lowering": _lowering_facts(plan),
        "unique_ops": [
            _op_facts(op, result, captured=plan.captured)
            for op, result in zip(plan.ops, results_of(plan, steps), strict=True)
        ],
    }


def _cache_facts(plan: ReplayPlan) -> dict[str, Any] | None:
    sequence = plan.sequence
    return sequence and {"step": sequence.step, "steps": sequence.steps, "calls": len(sequence.calls)}


def _step_facts(plan: ReplayPlan, step: Step, inverted: Sequence[Inversion], losses: Sequence[_Loss]) -> dict[str, Any]:
    return {
        "version": step.device_version,
        "memory": memory_facts(plan, step),
        **{name: getattr(step, name) if step.ops else None for name in ("total_us", "low_us", "high_us")},
        "uncalibrated_share": step.uncalibrated_share,
        "measured_shares": step.measured,
        "coverage": coverage_facts(coverage_by_method(plan, step)),
        "faster_than_larger": {pair.larger: pair.ops for pair in inverted if pair.smaller == step.device},
        "beyond_hbm_bytes_per_s": step.beyond_hbm,
        "by_bound_us": step.by_bound,
        "by_family_us": step.by_family,
        "losing": [{"id": op.id, "name": op.name, "lost_us": lost} for op, _, lost in losses],
    }


def _lowering_facts(plan: ReplayPlan) -> dict[str, Any] | None:
    """Return how well the lowering agrees with the recorded kernels; None if no kernel types were recorded."""
    compared = compare_all(plan.ops)
    if not compared:
        return None
    verdicts = ("same", "close", "differs")
    return {
        "ops": {v: sum(op.verdict == v for op in compared) for v in verdicts},
        "recorded_us": {v: sum(op.recorded_us for op in compared if op.verdict == v) for v in verdicts},
        "compared": [msgspec.to_builtins(op) for op in compared],
    }


def view(
    plan: ReplayPlan,
    steps: Sequence[Step],
    devices: Mapping[str, DeviceProfile],
    *,
    losers: int,
    where: Where | None = None,
    report: StepReport | None = None,
    everything: bool = True,
) -> View:
    """Return a simulation in every output format.

    `report` describes the recorded step. If no step is marked, only the JSON output includes it.
    """
    shown = report if report is not None and report.marked else None
    return View(
        lines=first_lines(plan, steps, report),
        render=lambda width: render(
            plan, steps, losers=losers, width=width, where=where, report=shown, everything=everything
        ),
        facts=lambda: facts(plan, steps, losers=losers, where=where, report=report),
        table=lambda: file_table(plan, steps),
        page=lambda command: page(plan, steps, command, devices=devices, report=shown),
        tables={
            "ops": lambda: file_table(plan, steps),
            "devices": lambda: of_fields(
                "Devices", steps, {"device": TEXT, "total_us": TIME, "low_us": TIME, "high_us": TIME}
            ),
            "bounds": lambda: _sums_table("bound", {step.device: step.by_bound for step in steps}),
            "families": lambda: _sums_table("family", {step.device: step.by_family for step in steps}),
        },
    )


def _sums_table(what: str, sums_us: Mapping[str, Mapping[str, float]]) -> Table[tuple[str, str, float]]:
    """Return one row per device and part of its total time; `what` is the title of the column of parts."""
    rows = [(device, name, us) for device, parts in sums_us.items() for name, us in parts.items()]
    column = Column[tuple[str, str, float]]
    columns = [
        column("device", lambda row: row[0]),
        column(what, lambda row: row[1]),
        column("total_us", lambda row: row[2], TIME),
    ]
    return Table(f"Total by {what}", columns, rows)


def file_table(plan: ReplayPlan, steps: Sequence[Step]) -> Table[ReplayOp]:
    """Return one row per op, with all columns of CSV and data frames. Times are in microseconds per call."""

    def recorded(key: str, total_us: Callable[[ReplayOp], float | None]) -> _OfOp:
        return _OfOp(key, lambda op: None if plan.captured else quotient(total_us(op), op.count), TIME)

    columns = [
        _OfOp("id", lambda op: op.id),
        _OfOp("name", lambda op: op.name),
        _OfOp("count", lambda op: op.count, COUNT),
        _OfOp("inputs", describe_inputs),
        recorded("recorded_device_us", lambda op: op.recorded.device_us_total if op.recorded.on_device else None),
        recorded("recorded_host_us", lambda op: op.recorded.host_us_total),
        *(column for step in steps for column in _predictions(step)),
    ]
    return Table("Ops", columns, plan.ops)


def _predictions(step: Step) -> list[_OfOp]:
    """Return the columns of a call's prediction on a device. Their keys end with the device's name."""
    predictions = {op.id: op.simulated for op in step.ops}
    times, texts = dict.fromkeys(("time_us", "low_us", "high_us"), TIME), ("bound", "confidence", "by", "l2")
    units = {**times, **dict.fromkeys(texts, TEXT), "extrapolated": FLAG}
    return [
        _OfOp(
            f"{'simulated_us' if field == 'time_us' else field}_{step.device}",
            lambda op, field=field: getattr(predictions.get(op.id), field, None),
            unit,
        )
        for field, unit in units.items()
    ]


def _shares_table(title: str, steps: Sequence[Step], times: Sequence[dict[str, float]], limit: int) -> Table[str]:
    columns = [Column[str](title, lambda name: name)]
    for step, us in zip(steps, times, strict=True):
        columns += _with_share(step, us, share=len(steps) <= MOST_WITH_SHARES)
    order = sorted({name for times in times for name in times}, key=lambda name: -max(t.get(name, 0.0) for t in times))
    return Table(title, columns, order[:limit])


def _with_share(step: Step, us: dict[str, float], *, share: bool) -> list[Column[str]]:
    """Return a column of the times of parts on a device and, if `share` is set, a column of their shares."""
    of = Column[str]("", lambda name: us[name] / step.total_us if name in us and step.total_us else None, SHARE)
    return [Column[str](step.device, us.get, TIME), *([of] if share else [])]


def _recorded_us(plan: ReplayPlan, step: Step) -> float:
    """Return the recorded device time of the simulated ops."""
    simulated = {op.id for op in step.ops}
    return sum(op.recorded.device_us_total for op in plan.ops if op.id in simulated)


def _totals_table(plan: ReplayPlan, steps: Sequence[Step], *, names_device: bool) -> Table[Step | None]:
    """Return one row per device; None stands for the recording."""
    recorded = _recorded_us(plan, steps[0])
    # Where the head names the device, a short word leaves the columns their room.
    name = (plan.device or "recorded") if names_device else "recorded"
    column = Column["Step | None"]

    def total(step: Step | None) -> float | None:
        return recorded if step is None else step.total_us if step.ops else None

    columns = [
        column(
            "device",
            lambda step: name if step is None else step.device,
            style=lambda step: "bold" if step else "",
            chars=DEVICE_CHARS,
        ),
        column(covers(plan, steps), total, TIME),
        column("80 % band", lambda step: DASH if step is None else band_text(step), right=True),
        *([] if plan.captured else [column(RATIO_TITLE, lambda step: step and quotient(total(step), recorded), RATIO)]),
        column("uncalibrated", lambda step: step and step.uncalibrated_share, SHARE),
    ]
    return Table("Totals", columns, [*([None] if recorded else []), *steps])


def band_text(step: Step) -> str:
    """Return the band, "1.2 ms to 2.3 ms", or a note that nothing is predicted."""
    if not step.ops:
        return "no prediction"
    return f"{time_text(step.low_us)} to {time_text(step.high_us)}"


def _losing_table(step: Step, lost: Sequence[_Loss], width: int) -> list[RenderableType]:
    ops = [(op.id, op.name, describe_inputs(op)) for op, _, _ in lost]
    sizes = telling_sizes(ops)
    numbers = telling_arguments([(op.id, op.name, describe_inputs(op), call_of(op)) for op, _, _ in lost])
    columns = [
        Column[_Loss]("id", lambda loss: loss[0].id[:ID_CHARS], style="dim"),
        Column[_Loss]("lost", lambda loss: loss[2], TIME),
        Column[_Loss]("recorded", lambda loss: loss[0].recorded.device_us_total, TIME, drop=2),
        Column[_Loss]("simulated", lambda loss: loss[1].simulated.time_us * loss[1].count, TIME),
        Column[_Loss]("bound", lambda loss: loss[1].simulated.bound, drop=3),
        Column[_Loss](
            f"loses most on {step.device}",
            lambda loss: loss[0].name,
            detail=lambda loss: join_parts(describe_inputs(loss[0]), numbers[loss[0].id]),
            short=lambda loss: f"{numbers[loss[0].id]} {sizes[loss[0].id]}".strip(),
        ),
    ]
    room = max(ONE_LINE_WIDTH, names_room(name for _, name, _ in ops))
    return terminal(Table("Loses most", columns, lost), width, one_line=True, room=room)


def memory_facts(plan: ReplayPlan, step: Step) -> dict[str, Any] | None:
    """Return whether the peak memory of a captured step fits on the device; None for a plan made from a trace."""
    if plan.capture is None or step.hbm_bytes is None:
        return None
    peak = plan.capture.peak_bytes
    return {"peak_bytes": peak, "hbm_bytes": step.hbm_bytes, "fits": peak <= step.hbm_bytes}


def memory_lines(plan: ReplayPlan, steps: Sequence[Step]) -> list[RenderableType]:
    """Return one line per device that says whether a captured step fits in the device's memory."""
    lines: list[RenderableType] = []
    for step in steps:
        if (memory := memory_facts(plan, step)) is not None:
            verdict = "fits" if memory["fits"] else "does NOT fit"
            sizes = f"{readable(memory['peak_bytes'])} of {readable(int(memory['hbm_bytes']))}"
            text = f"memory: {verdict} {safe(step.device)}: tensors need {sizes}; workspaces are not counted"
            lines.append(Text(text, style="" if memory["fits"] else "yellow"))
    return lines


def _warnings(lines: Iterable[str]) -> list[RenderableType]:
    return [Text(line, style="yellow", overflow="fold") for line in lines]


def _cut_lines(plan: ReplayPlan) -> list[str]:
    """Return a note if a captured plan contains only the first calls of its step."""
    if not plan.captured or plan.sequence is None or not plan.sequence.cut:
        return []
    calls = len(plan.sequence.calls)
    return [
        f"the plan contains only the first {calls:,} of {calls + plan.sequence.cut:,} calls: times and memory are for "
        "these; to include all calls, capture fewer tokens or layers"
    ]


def _streaming_line(step: Step) -> str:
    """Return a warning that a prediction is wrong, because the step would exceed the peak memory bandwidth."""
    return (
        f"! {safe(step.device)}: the prediction is too short: a pass of the step reads {readable(step.pass_bytes)} of "
        f"distinct tensors in {time_text(step.pass_us)}, i.e. {(step.beyond_hbm or 0.0) / 1e12:.3g} TB/s beyond L2, "
        f"but the memory peak is {step.peaks[3] / 1e12:.3g} TB/s; please report this"
    )


def _shares_line(step: Step, what: str, times: dict[str, float]) -> Text:
    """Return the largest shares of the time: "910b3, time by bound: vector 23.8 %, l2 23.4 %"; the tables list all."""
    shown = [(name, us / step.total_us) for name, us in times.items()][:SHARES_SHOWN] if step.total_us else []
    rest = f" and {len(times) - len(shown)} more" if len(times) > len(shown) else ""
    shares = ", ".join(f"{safe(name)} {share_text(share)}" for name, share in shown)
    return Text(f"{safe(step.device)}, time by {what}: {shares}{rest}", overflow="fold")


def results_of(plan: ReplayPlan, steps: Sequence[Step]) -> list[OpResult]:
    """Return the ops of the plan with their predictions, and without measurements."""
    predicted: dict[str, dict[str, Simulated]] = {}
    failed: dict[str, list[str]] = {}
    for step in steps:
        for op in step.ops:
            predicted.setdefault(op.id, {})[step.device] = op.simulated
        for id_, why in step.failed.items():
            failed.setdefault(id_, []).append(why)
    ran = Outcome(status="replayed")
    return [result_of(plan, op, ran, predicted.get(op.id, {}), unpredicted=failed.get(op.id, ())) for op in plan.ops]


def notes(results: Sequence[OpResult], steps: Sequence[Step]) -> list[str]:
    """Return those notes on predictions that do not affect decisions, and the assumptions."""
    lines = [line for step in steps for line in confidence_notes(step.device, results)]
    decisive = {line for step in steps for line in telling_notes(step.device, results)}
    return [*(line for line in lines if line not in decisive), *assumption_notes(results)]


def _cache_line(plan: ReplayPlan, l2: str) -> list[RenderableType]:
    """Return what caches are assumed to contain, and why; nothing if the plan has no order of calls."""
    if l2 != "sequence":
        contents = HELD[l2]
        return [Text(f"caches ({l2}): when an op starts, they contain {contents} (--l2)", style="dim")]
    if plan.sequence is None:
        return []
    step, calls = plan.sequence.step, len(plan.sequence.calls)
    steps = f", the step of median duration among {plan.sequence.steps:,}" if plan.sequence.steps > 1 else ""
    whole = "the captured step" if plan.captured else "the whole trace"
    where = f"{safe(step)}{steps}" if step else whole
    return [Text(f"L2 cache: contents from the order of {calls:,} calls of {where} (--l2)", style="dim")]


def covers(plan: ReplayPlan, steps: Sequence[Step]) -> str:
    """Return what the totals sum up: "the step" only if they cover nearly all of its recorded time."""
    if plan.captured and plan.sequence is not None and plan.sequence.cut:
        calls = len(plan.sequence.calls)
        return f"sum of the first\n{share_text(quotient(calls, calls + plan.sequence.cut))} of the calls"
    predicted = coverage_by_method(plan, steps[0]).predicted
    count = 1 if plan.sequence is None else plan.sequence.steps
    whole = "step" if count <= 1 else f"{count} steps"
    if predicted >= WHOLE_STEP:
        capture = plan.capture
        return f"sum of {whole}{'' if capture is None else fusing(capture.fused, capture.unfused)}"
    return f"sum of {share_text(predicted)}\nof recorded time"


def render(
    plan: ReplayPlan,
    steps: Sequence[Step],
    *,
    losers: int,
    width: int = 160,
    where: Where | None = None,
    report: StepReport | None = None,
    everything: bool = True,
) -> RenderableType:
    """Render the recording, totals with bands, time by bound and by kernel family, and the largest losses per device.

    Without `everything`, show only the largest parts, and the number of notes.
    """
    results = results_of(plan, steps)
    counted = Text(f"{len(steps[0].ops):,} of {len(plan.ops):,} ops; nothing was executed", style="dim")
    recording = [] if where is None else first_screen.where_lines(where, plan.device)
    parts: list[RenderableType] = [
        *([counted] if everything else []),
        *([facts_grid(step_rows(report))] if everything and report is not None else []),
        *first_screen.rendered(recording if everything else first_screen.warning_lines(where)),
        *suspects.rendered(suspects.lines(results)),
        *terminal(_totals_table(plan, steps, names_device=not everything or where is None or where.clock != "device")),
        *_warnings(unmatched_notes(plan.unmatched)),
        *_warnings(first_screen.capture_lines(plan)),
        *_warnings(_cut_lines(plan)),
        *memory_lines(plan, steps),
        *_warnings(f"! {safe(step.device)}: {rough}" for step in steps if (rough := _rough_text(plan, step))),
        *_warnings(map(_streaming_line, (step for step in steps if step.beyond_hbm is not None))),
        *_warnings(safe(str(pair)) for pair in inversions(steps)),
        *_warnings(line for step in steps for line in telling_notes(step.device, results)),
        *(_cache_line(plan, steps[0].l2) if everything or steps[0].l2 != "sequence" else []),
    ]
    predicted = [step for step in steps if step.ops]
    if everything and predicted:
        parts += terminal(_shares_table("time by bound", steps, [s.by_bound for s in steps], MOST_OPS))
        parts += terminal(_shares_table("time by kernel family", steps, [s.by_family for s in steps], MOST_FAMILIES))
    else:
        for step in predicted:
            parts += [_shares_line(step, "bound", step.by_bound), _shares_line(step, "kernel family", step.by_family)]
    for step in steps:
        parts += _losing_table(step, losing(step, plan.ops, losers), width)
    parts += npu.agreement_lines(compare_all(plan.ops))
    if plan.device_us_total <= 0 and not plan.captured:
        parts += [Text(), Text("the trace recorded no device time: nothing to compare with", style="dim")]
    lines = notes(results, steps)
    parts += notes_lines(lines if everything else decisive(lines, ()))
    return Group(*parts)


def page(
    plan: ReplayPlan,
    steps: Sequence[Step],
    command: str,
    *,
    devices: Mapping[str, DeviceProfile],
    report: StepReport | None = None,
) -> Page:
    """Return the page of a simulation."""
    from opreplay.replay.report.page.model import Page
    from opreplay.replay.report.page.parts import (
        bars_by_name,
        module_trees,
        opened_ops,
        opened_roofline,
        roof_of_device,
        roofline,
        step_answers,
        step_bars,
        times_by_class,
        times_by_op,
        waterfall,
    )
    from opreplay.replay.report.roofline import of_results

    results, clock = results_of(plan, steps), ops.recorded(device=plan.device_us_total > 0)
    simulated = [ops.simulated(step.device) for step in steps]
    columns = [ops.NAME, ops.INPUTS, ops.CALLS, ops.RECORDED_SHARE, clock]
    columns += [column for time in simulated for column in (time, ops.bound_of(time.title))]
    by_op, by_class = times_by_op(results, [clock, *simulated]), times_by_class(results, [clock, *simulated])
    base_us = sum(by_op[clock.title].values())
    return Page(
        title=f"Simulated: {plan.source}",
        headline=head_line(plan, steps) if report is None else verdict(report),
        command=command,
        answers=step_answers(report) if report is not None and report.socs else _answers(plan, steps),
        facts=(
            *(("in doubt", line.removeprefix(suspects.MARK).strip()) for line in suspects.lines(results)[:MOST_DOUBTS]),
            *([("coverage", head_line(plan, steps))] if report is None else page_facts(report, head_line(plan, steps))),
            *((f"{step.device} {step.device_version}".strip(), _total_text(plan, step)) for step in steps),
        ),
        bars=(
            *([] if report is None else [step_bars(report)]),
            bars_by_name("Time by class of work", by_class, "class"),
            bars_by_name("Time by op, all calls", by_op),
            bars_by_name("Time by kernel family", {step.device: step.by_family for step in steps}, "kernel family"),
            bars_by_name("Time by what bounds it", {step.device: step.by_bound for step in steps}, "bound"),
        ),
        trees=module_trees(report),
        waterfalls=tuple(
            waterfall(
                f"From the recorded time to {step.device}",
                (clock.title, by_op[clock.title]),
                (step.device, by_op[step.device]),
                "all calls added up",
            )
            for step in steps
            if step.ops and base_us
        ),
        roofline=roofline(
            results, clock, plan.device, {name: roof_of_device(device) for name, device in devices.items()}
        ),
        tables=(
            opened_ops(heaviest("Ops, one call", columns, results, lambda r: r.recorded_share), plan.source),
            opened_roofline(of_results(results, plan.device, clock.value)),
        ),
        notes=(
            *first_screen.capture_lines(plan),
            *notes(results, steps),
            "Sums over ops. For the length of the step, use `opreplay timeline --soc`.",
        ),
    )


def _total_text(plan: ReplayPlan, step: Step) -> str:
    """Return a device's time for the step, with its band and confidence."""
    if not step.ops:
        return band_text(step)
    total = f"{time_text(step.total_us)}, all calls added up, {band_text(step)} (80 %)"
    parts = [total, f"{share_text(step.uncalibrated_share)} uncalibrated", _rough_text(plan, step)]
    return "; ".join(filter(None, parts))


def _rough_text(plan: ReplayPlan, step: Step) -> str:
    names = {op.id: op.name for op in plan.ops}
    return rough_text((names[op.id], op.simulated, op.count) for op in step.ops)


def _answers(plan: ReplayPlan, steps: Sequence[Step]) -> tuple[Answer, ...]:
    """Return the total of all calls on each device, compared with the recorded time of the predicted ops."""
    from opreplay.replay.report.page.parts import answer

    recorded = {op.id: op.recorded.device_us_total or op.recorded.host_us_total for op in plan.ops}
    return tuple(
        answer(step.device, step.total_us, step.low_us, step.high_us, sum(recorded[op.id] for op in step.ops))
        for step in steps
        if step.ops
    )
