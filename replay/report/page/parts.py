# pyright: strict
"""Parts shared by several pages: the answer, bars by op and class, the waterfall, the roofline, expanded rows."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import cast

from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.step import IDLE_CAUSES, StepReport
from opreplay.replay.ops.recorded.roofline import Roofline as RoofTable
from opreplay.replay.report.page.model import (
    Answer,
    Bar,
    Bars,
    DeviceRoof,
    Node,
    Opened,
    Page,
    Point,
    Roof,
    Roofline,
    Tree,
    Waterfall,
)
from opreplay.replay.report.roofline import page_table
from opreplay.replay.report.step.text import large_modules
from opreplay.replay.report.step.verdict import step_facts, step_rows, verdict
from opreplay.replay.report.table import PAGE_ROWS, AnyTable, Column, cut, facts_grid
from opreplay.replay.report.text import DASH, middle, plural, quotient, ratio_text, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.replay.results.records import OpResult
from opreplay.traces.errors import OpReplayError
from opreplay.traces.sums import summed
from opreplay.traces.times.kernel_classes import class_of_op
from opreplay.traces.times.peaks import peak_of

MOST_BARS = 14
MOST_CHANGES = 12
"""Maximum number of ops in a waterfall; all others are combined in one bar."""
LEAST_CHANGE = 0.002
"""Minimum change with its own bar, as a share of the longer time."""
NAME_CHARS = 64
"""Maximum length of a bar's name, in characters."""


def answer(name: str, us: float, low_us: float | None, high_us: float | None, base_us: float, more: str = "") -> Answer:
    """Return the ratio of a device's time to the recorded time, with its uncertainty band."""
    detail = f"{time_text(us)}, recorded {time_text(base_us)}"
    band = ""
    if low_us is not None and high_us is not None:
        band = f"{ratio_text(low_us, base_us)} to {ratio_text(high_us, base_us)} (80 %)"
    return Answer(name=name, ratio=ratio_text(us, base_us), band=band, detail=f"{detail}{more}")


def times_answer(name: str, times_us: Sequence[float], band: str = "", detail: str = "") -> tuple[Answer, ...]:
    """Return an answer with the time of one call, or with the shortest and longest time of several. ()
    without times.
    """
    if not times_us:
        return ()
    ends = dict.fromkeys(time_text(us) for us in (min(times_us), max(times_us)))
    return (Answer(name=name, ratio=" to ".join(ends), band=band, detail=detail),)


def step_answers(step: StepReport) -> tuple[Answer, ...]:
    """Return one answer per simulated device. Without simulated devices, return the recorded device's busy share."""
    base_us = step.window.step_us
    answers: list[Answer] = []
    for name, soc in step.socs.items():
        lacking = f"; {share_text(1.0 - soc.predicted_share)} of device time not predicted"
        if soc.low_us is None:
            answers.append(Answer(name=name, ratio=DASH, band="not predicted", detail=lacking[2:]))
        else:
            answers.append(answer(name, soc.step_us, soc.low_us, soc.high_us, base_us, lacking))
    if answers:
        return tuple(answers)
    what = "of the step in ops" if step.bound == "host alone" else f"of the step with the {step.accelerator} busy"
    detail = f"{time_text(step.busy_us)} of {time_text(base_us)}"
    return (Answer(name=what, ratio=share_text(quotient(step.busy_us, base_us)), detail=detail),)


def step_bars(step: StepReport) -> Bars:
    """Return bars of the device's activities in the recorded step."""
    return bars_by_name("Where the step goes", {"recorded": step_parts(step)}, "part")


def view_of_step(step: StepReport) -> View:
    """Return a single step in every output format."""
    return View(
        lines=[verdict(step)],
        render=lambda width: facts_grid(step_rows(step)),
        facts=lambda: step_facts(step),
        page=lambda command: _page_of_step(step, command),
    )


def _page_of_step(step: StepReport, command: str) -> Page:
    """Return the page of a single step."""
    return Page(
        title=step.name,
        headline=verdict(step),
        command=command,
        answers=step_answers(step),
        facts=tuple((name, text) for name, text, _ in step_rows(step)),
        bars=(step_bars(step),),
        trees=module_trees(step),
    )


def step_parts(step: StepReport) -> dict[str, float]:
    """Return the times of the device's activities in the recorded step: work, exposed communication, idle by cause."""
    working = step.busy_us - step.communication_us
    times = {"computing and copies" if step.bound != "host alone" else "in ops": working}
    times |= {"communication alone": step.communication_us}
    times |= {f"idle: {IDLE_CAUSES[cause]}": us for cause, us in step.idle_us.items()}
    return {name: us for name, us in times.items() if us > 0}


def bars_by_name(title: str, series: Mapping[str, Mapping[str, float]], what: str = "op", note: str = "") -> Bars:
    """Return grouped bars for `series` (series → name → µs). Names beyond the `MOST_BARS` largest share one bar."""
    total: defaultdict[str, float] = defaultdict(float)
    for values in series.values():
        for name, us in values.items():
            total[name] = max(total[name], us)
    order = sorted(total, key=lambda name: (-total[name], name))
    shown, rest = order[:MOST_BARS], order[MOST_BARS:]
    bars = [
        Bar(name=middle(name, NAME_CHARS), values_us=tuple(times.get(name) for times in series.values()))
        for name in shown
    ]
    if rest:
        sums = tuple(sum(times.get(name, 0.0) for name in rest) for times in series.values())
        bars.append(Bar(name=plural(len(rest), "other"), values_us=sums))
    return Bars(title=title, what=what, series=tuple(series), bars=tuple(bars), note=note)


def times_by_op(results: Sequence[OpResult], columns: Iterable[Column[OpResult]]) -> dict[str, dict[str, float]]:
    """Return column title → op name → total time of all calls, for each of the time columns."""
    return _by_title(results, columns, lambda result: {result.name: 1.0})


def times_by_class(results: Sequence[OpResult], columns: Iterable[Column[OpResult]]) -> dict[str, dict[str, float]]:
    """Return the total time by class of work for each time column, as column title → class → time.

    An op's class is that of its recorded kernels. An op that ran only on the host has no kernels, so its own class is
    used.
    """
    return _by_title(results, columns, lambda result: result.kernel_classes or {class_of_op(result.name): 1.0})


def _by_title(
    results: Sequence[OpResult],
    columns: Iterable[Column[OpResult]],
    shares: Callable[[OpResult], Mapping[str, float]],
) -> dict[str, dict[str, float]]:
    def of(column: Column[OpResult]) -> dict[str, float]:
        return summed(
            (name, us * result.count * share)
            for result in results
            if (us := column.value(result)) is not None
            for name, share in shares(result).items()
        )

    return {column.title: of(column) for column in columns}


def waterfall(
    title: str, before: tuple[str, Mapping[str, float]], after: tuple[str, Mapping[str, float]], note: str = ""
) -> Waterfall:
    """Return a waterfall from one total to another, with one change per name."""
    changes = {name: after[1].get(name, 0.0) - before[1].get(name, 0.0) for name in {**before[1], **after[1]}}
    whole = sum(before[1].values()), sum(after[1].values())
    return waterfall_of(title, (before[0], whole[0]), changes, (after[0], whole[1]), note)


def waterfall_of(
    title: str, begin: tuple[str, float], changes: Mapping[str, float], end: tuple[str, float], note: str = ""
) -> Waterfall:
    """Return a waterfall of the largest changes by name, largest first, with all other changes as one bar."""
    least_us = LEAST_CHANGE * max(begin[1], end[1])
    order = sorted(changes.items(), key=lambda change: -abs(change[1]))
    shown = [change for change in order[:MOST_CHANGES] if abs(change[1]) >= least_us]
    rest = end[1] - begin[1] - sum(us for _, us in shown)
    if abs(rest) > 1e-9 * max(begin[1], end[1], 1.0):
        shown.append(("all others", rest))
    return Waterfall(title=title, begin=begin, changes=tuple(shown), end=end, note=note)


def roof_of_device(device: DeviceProfile) -> Roof:
    """Return a device's roof from its device file: memory bandwidth, and the peak of all cube cores for each dtype."""
    rates = {dtype: 2.0 * macs * device.aic_cores * device.freq_hz for dtype, macs in device.macs_per_cycle.items()}
    chosen = {dtype: rate for dtype, rate in rates.items() if dtype in ("float16", "float32")} or rates
    return Roof(flops_per_s=chosen, bytes_per_s=device.hbm_bytes_per_s)


def roofs_of(names: Iterable[str], versions: Container[str]) -> dict[str, Roof | None]:
    """Return the roof (peak FLOP rates and bandwidth) of each named device, or None.

    A device has a roof if it is shipped and its current version made the predictions. `versions` holds the versions
    that made predictions, such as "910b3 2026.11.25". Other devices have none, because results lack their files.
    """
    roofs: dict[str, Roof | None] = {}
    for name in names:
        try:
            device = load_device(name)
        except OpReplayError:
            roofs[name] = None
        else:
            roofs[name] = roof_of_device(device) if f"{device.name} {device.version}" in versions else None
    return roofs


def roof_of_recorded(name: str | None) -> Roof | None:
    """Return the datasheet peaks of a recorded device; None for an unknown device."""
    peak = None if name is None else peak_of((name,))
    if peak is None:
        return None
    rates = {dtype: rate * 1e12 for dtype, rate in peak.tflops.items()}
    return Roof(flops_per_s=rates, bytes_per_s=peak.gb_per_s * 1e9)


def roofline(
    results: Sequence[OpResult], clock: Column[OpResult], recorded: str | None, devices: Mapping[str, Roof | None]
) -> Roofline | None:
    """Return a roofline with a mark per op at its recorded time and at its time on each simulated device.

    Return None if the number of operations is unknown for every op.
    """
    known = [(r, r.product) for r in results if r.product is not None and r.product.moved_bytes]
    drawn: list[DeviceRoof] = []

    def add(device: str, roof: Roof | None, column: Column[OpResult], bound: Callable[[OpResult], str]) -> None:
        total = sum((column.value(r) or 0.0) * r.count for r in results) or 1.0
        timed = [(r, product, column.value(r)) for r, product in known]
        points = tuple(
            Point(
                key=r.id,
                name=r.name,
                detail=r.inputs,
                bound=bound(r),
                time_us=us,
                flops=product.flops or 0.0,
                moved_bytes=float(product.moved_bytes or 0),
                share=us * r.count / total,
            )
            for r, product, us in timed
            if us
        )
        if points:
            drawn.append(DeviceRoof(device=device, roof=roof, points=points))

    add(recorded or clock.title, roof_of_recorded(recorded), clock, lambda r: clock.title)
    for name, roof in devices.items():
        us = Column[OpResult](name, lambda r, name=name: r.simulated_us.get(name))
        add(name, roof, us, lambda r, name=name: f"bound by {r.simulated[name].bound}, {r.simulated[name].confidence}")
    left_out = len(results) - len(known)
    return Roofline(devices=tuple(drawn), left_out=left_out) if drawn else None


def roofline_of(table: RoofTable) -> Roofline | None:
    """Return the rows of a roofline table as a figure; None if no row has both operations and bytes."""
    points = tuple(
        Point(
            key=row.id or row.name,
            name=row.name,
            detail=row.inputs,
            bound=f"{row.bound}-bound, {share_text(row.peak_share)} of peak" if row.bound else row.why,
            time_us=row.time_us,
            flops=row.flops or 0.0,
            moved_bytes=row.bytes,
            share=row.share,
        )
        for row in table.rows
        if row.bytes and row.time_us > 0
    )
    if not points:
        return None
    device = table.peak.device if table.peak is not None else f"{table.clock} time"
    drawn = DeviceRoof(device=device, roof=roof_of_recorded(table.peak and table.peak.device), points=points)
    return Roofline(devices=(drawn,), left_out=len(table.rows) - len(points))


def opened_roofline(table: RoofTable) -> Opened:
    """Return the roofline table for a page."""
    return Opened(
        table=cut(page_table(table), PAGE_ROWS), key=lambda row: row.id or row.name, name=lambda row: row.name
    )


def opened_ops(table: AnyTable, source: str, options: Mapping[str, object] | None = None) -> Opened:
    """Return a table of ops whose rows expand to kernels, assumptions, and commands to reproduce the op.

    `source` is empty where several traces were read. `options` are those of the run: the commands name its plugins,
    imports and initializers' options.
    """
    flags = _flags(options or {})

    def details(result: OpResult) -> list[tuple[str, str]]:
        command = ["opreplay", "run", source, "--include", result.id, *flags]
        return op_details(result, shlex.join(command) if source else "")

    return Opened(table=table, key=lambda r: r.id, name=lambda r: r.name, details=details)


def _flags(options: Mapping[str, object]) -> list[str]:
    """Return the flags of a run without which some of its ops do not run, or run on other values."""

    def listed(name: str) -> list[str]:
        return [str(value) for value in cast("Sequence[object]", options.get(name) or ())]

    imports = cast("Mapping[str, str]", options.get("allow_imports") or {})
    pairs = [("--plugin", file) for file in [*listed("plugins"), *listed("init_modules")]]
    pairs += [("--allow-import", f"{namespace}={module}") for namespace, module in imports.items()]
    pairs += [("--set", f"init_arg={text}") for text in listed("init_args")]
    return [text for pair in pairs for text in pair]


def op_details(result: OpResult, reproduce: str) -> list[tuple[str, str]]:
    """Return (name, text) for the facts of an op that have no table column."""
    rows = [("id", result.id), ("inputs", result.inputs)]
    rows += [("kernels", f"{k.type} ×{k.count}, {time_text(k.total_us)}") for k in result.npu_kernels]
    rows += [("kernel classes", ", ".join(f"{n} {share_text(s)}" for n, s in result.kernel_classes.items()))]
    if (product := result.product) is not None:
        flops = f"{product.flops / 1e9:,.3g} GFLOP" if product.flops else ""
        moved = f"{product.moved_bytes / 1e6:,.3g} MB of arguments and results" if product.moved_bytes else ""
        rows.append(("of a call", ", ".join(filter(None, (flops, moved)))))
        rows.append(("its work is unknown", product.why))
    for name, predicted in result.simulated.items():
        band = f"{time_text(predicted.low_us)} to {time_text(predicted.high_us)}"
        rows.append(
            (
                f"on {name}",
                f"{time_text(predicted.time_us)} ({band}), bound by {predicted.bound}, {predicted.confidence}",
            )
        )
        rows += [(f"kernels on {name}", ", ".join(predicted.kernels)), (f"costed on {name} as", predicted.taken_for)]
        rows += [(f"dtype that {name} cannot multiply", predicted.no_path), (f"source of {name}", predicted.source)]
    rows += [("assumed", f"{note.argument}: {note.what}") for note in result.assumptions]
    rows += [("filled by", result.initializer or ""), ("not replayed because", str(result.reason or ""))]
    rows += [("doubtful", text) for text in result.suspicions]
    rows += [("reproduce", reproduce), ("the call alone", result.call)]
    return [(name, text) for name, text in rows if text]


def module_trees(step: StepReport | None) -> tuple[Tree, ...]:
    """Return nested modules, with layers of the same class combined; none if the step has no module names."""
    if step is None or not step.modules:
        return ()
    device_us, step_us = step.device_sum_us, step.window.step_us
    modules = large_modules(step.modules, device_us, step_us)

    def inside(at: int, depth: int) -> tuple[list[Node], int]:
        nodes: list[Node] = []
        while at < len(modules) and modules[at].depth >= depth:
            module = modules[at]
            inner, at = inside(at + 1, module.depth + 1)
            values = (module.device_us, module.path_us) if device_us else (module.path_us,)
            nodes.append(Node(name=module.label, values_us=values, inner=tuple(inner)))
        return nodes, at

    series = {"device": device_us, "critical path": step_us} if device_us else {"critical path": step_us}
    roots = tuple(inside(0, 0)[0])
    return (Tree(title="Modules", series=tuple(series), totals_us=tuple(series.values()), roots=roots),)
