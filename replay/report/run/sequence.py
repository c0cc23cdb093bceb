# pyright: strict
"""The report of a whole sequence: the recorded step, its replay, and where the tensors came from."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from opreplay.replay.ir.sizes import readable
from opreplay.replay.ir.step import StepReport
from opreplay.replay.report.doubts import MARK
from opreplay.replay.report.run.ops import RATIO_TITLE
from opreplay.replay.report.step.verdict import step_rows
from opreplay.replay.report.table import RATIO, TIME, Column, Table, facts_grid, notes_lines, terminal
from opreplay.replay.report.text import middle, plural, quotient, ratio_text, safe, share_text, time_text
from opreplay.replay.results.records import SequenceResult, SharedStepResult, Tensors

STEP_CHARS = 40
"""Maximum length of a step name in a line, in characters."""
ALIKE = 0.02
"""If the sum of calls differs from the sum of op medians by at least this fraction, a note explains why."""
PAGE_BYTES = 4096
PAGE_US = (1.3, 1.8)
"""Lowest and highest time of the first access to a memory page, including zeroing the page, in µs.

Both were measured from the minor page faults of a step on 2 shared cores.
"""
FRESH_SHARE = 0.02
"""A note on the cost of fresh memory is shown if the cost is at least this share of the sum of calls."""
ROUNDING = 1e-9
"""Shares below this may be rounding errors."""
Row = tuple[str, float | None, float | None, str]
"""Row of the table: (label, time, recorded time, note)."""


def rows(sequence: SequenceResult) -> list[Row]:
    """Return rows for the recorded step and its calls, then for the replay."""
    lines: list[Row] = []
    if sequence.recorded_step_us > 0:
        lines.append(("recorded step, on the host", sequence.recorded_step_us, None, "wall time"))
    on_device = sequence.recorded_us != sequence.recorded_host_us
    clock = "device time" if on_device else "host time"
    if sequence.recorded_us > 0:
        lines.append(("its calls that were replayed", sequence.recorded_us, None, f"{clock}, recorded"))
    if on_device:
        lines.append(("their host time", sequence.recorded_host_us, None, "host time, recorded"))
    interval = "median of few passes: no interval" if sequence.passes else ""
    if sequence.sum_low_us is not None and sequence.sum_high_us is not None:
        interval = f"median of the passes; 95 %: {time_text(sequence.sum_low_us)} to {time_text(sequence.sum_high_us)}"
    lines.append(("replayed, sum of the calls", sequence.sum_us, sequence.recorded_us, interval))
    lines.append(("replayed, whole pass", sequence.wall_us, sequence.recorded_step_us, "wall time"))
    return lines if sequence.shared is None else lines + _collective_rows(sequence.shared)


def _collective_rows(shared: SharedStepResult) -> list[Row]:
    """Return rows for collectives, for calls that wait for them, and for calls and collectives run separately."""
    hidden = shared.hidden_us / shared.in_flight_us if shared.in_flight_us else 0.0
    hidden_text = f"{100 * hidden:.0f} % of this time hidden behind the calls{_scatter(shared)}"
    lines: list[Row] = []
    if shared.recorded_us > 0:
        lines.append(("its collectives, recorded", shared.recorded_us, None, "sum, including the wait for ranks"))
    return [
        *lines,
        ("collectives in flight", shared.in_flight_us, None, hidden_text),
        ("calls waiting for collectives", shared.waited_us, None, "until this process continued"),
        ("calls without collectives", shared.wall_alone_us, None, "a whole pass"),
        ("collectives without calls", shared.collectives_alone_us, None, "one after the other"),
    ]


FASTER = 0.9
"""If calls take less than this share of their own time without concurrent collectives, the times are unreliable."""
VARIES = 0.2
"""The share of collective time hidden behind calls is marked if its first and ninth decile differ by more than this."""


def _scatter(shared: SharedStepResult) -> str:
    """Return the range of the hidden share of collective time (lowest to highest decile of passes), marked if wide."""
    low, high = shared.hidden_share_low, shared.hidden_share_high
    if low is None or high is None or high - low < 0.01:
        return ""
    return f"{MARK if high - low > VARIES else ''}, {100 * low:.0f} to {100 * high:.0f} % between passes"


def _sum_notes(sequence: SequenceResult) -> list[str]:
    """Return notes on how the sum of calls differs from the sum of op medians, and on omitted memory costs."""
    lines: list[str] = []
    if sequence.sum_us is None:
        return lines
    if sequence.medians_us and abs(more := sequence.sum_us / sequence.medians_us - 1.0) >= ALIKE:
        slow = "interrupted and slow calls" if more > 0 else "slow calls in few passes"
        lines.append(
            "measured: all calls of a pass are added up. With op medians, as in the table of ops, they take "
            f"{time_text(sequence.medians_us)}; the sum differs by {100 * more:+.0f} % because of {slow}"
        )
    pages = sequence.fresh_bytes / PAGE_BYTES
    low_us, high_us = (pages * us for us in PAGE_US)
    if high_us >= FRESH_SHARE * sequence.sum_us:
        lines.append(
            "fresh memory: the replay keeps freed memory. A program that returns it to the system, as glibc does by "
            f"default, also needs {time_text(low_us)} to {time_text(high_us)} per step for page faults in "
            f"{readable(sequence.fresh_bytes)} of results of 128 kB and more"
        )
    return lines


def first_line(sequence: SequenceResult) -> str:
    """Return a line: "sequence of ProfilerStep#16, the median of 3 recorded steps: 430 of 434 calls, 21 passes"."""
    step = middle(safe(sequence.step), STEP_CHARS) if sequence.step else "the whole trace"
    chosen = f", the median of {sequence.steps:,} recorded steps" if sequence.steps > 1 else ""
    calls = f"{sequence.calls_replayed:,} of {plural(sequence.calls, 'call')}"
    if (shared := sequence.shared) is not None:
        calls += f" and {shared.collectives_replayed:,} of {plural(shared.collectives, 'collective')} on "
        calls += f"{plural(shared.ranks, 'rank')} ({safe(shared.backend)})"
    return f"sequence of {step}{chosen}: {calls}, {plural(sequence.passes, 'pass').replace('passs', 'passes')}"


def _tensor_notes(tensors: Tensors) -> list[str]:
    """Return notes on where the calls' arguments came from, and on their memory."""
    arguments = tensors.results + tensors.views + tensors.outside_arguments + tensors.remade
    if not arguments:
        return []
    how = f"{tensors.recorded:,} as recorded, others inferred from shapes" if tensors.recorded else "inferred"
    all_outside = tensors.outside + tensors.recycled
    lines = [
        f"tensors ({how}): of {plural(arguments, 'argument')} {tensors.results:,} were results of earlier calls, "
        f"{tensors.views:,} views of results, {tensors.outside_arguments:,} from outside "
        f"({plural(all_outside, 'tensor')})",
        f"memory: at most {readable(tensors.peak_bytes)} of {readable(tensors.budget_bytes)} at a time",
    ]
    if tensors.recycled:
        lines.append(
            f"recycled: {tensors.recycled:,} of {plural(all_outside, 'tensor')} from outside reuse the memory of other "
            "tensors"
        )
    if tensors.remade:
        lines.append(f"generated again for their call in each pass: {plural(tensors.remade, 'argument')}")
    if tensors.refilled:
        lines.append(
            "refilled outside the timing, because values were not finite or outside the domain of the next op: "
            f"{plural(tensors.refilled, 'tensor')} per pass"
        )
    return lines


def notes(sequence: SequenceResult) -> list[str]:
    """Return notes on what was left out of the sequence, and on assumptions about the tensors."""
    lines: list[str] = []
    if sequence.left_out_share > ROUNDING:
        lines.append(f"not in the sequence: {share_text(sequence.left_out_share)} of the recorded time")
    if sequence.calls_nested:
        lines.append(f"left out, because they run inside other calls: {plural(sequence.calls_nested, 'call')}")
    if sequence.calls_cut:
        lines.append(f"left out, because the sequence reached its limit: {plural(sequence.calls_cut, 'call')}")
    lines += _sum_notes(sequence)
    lines += _tensor_notes(sequence.tensors)
    if sequence.shared is not None:
        lines += _of_ranks(sequence.shared, sequence.sum_us, sequence.wall_us)
    if sequence.restarts:
        lines.append(f"restarted in a new process: {plural(sequence.restarts, 'time')}")
    return lines


def _of_ranks(shared: SharedStepResult, sum_us: float | None, wall_us: float | None) -> list[str]:
    """Return notes on where calls waited for collectives, and on how collectives and calls slow each other down."""
    ways = [
        (shared.waits_recorded, "where the wait is recorded"),
        (shared.waits_inferred, "before the first call that started after their recorded end (inferred)"),
        (
            shared.waits_unknown,
            "immediately, because the place of the wait is unknown: in the recording, more may have been hidden",
        ),
    ]
    lines = [f"collectives that were waited for {where}: {count:,}" for count, where in ways if count]
    if sum_us and shared.calls_alone_us:
        lines.append(
            f"calls take {ratio_text(sum_us, shared.calls_alone_us)} their time without concurrent collectives; each "
            f"of the {plural(shared.ranks, 'rank')} runs the step of this trace at the same time"
        )
        if sum_us < FASTER * shared.calls_alone_us:
            lines.append(
                f"{MARK} calls were measured faster with concurrent collectives than without, which is impossible. "
                "Other programs probably slowed down the passes without collectives, and perhaps these passes too. "
                "Measure again on idle processors"
            )
    if sum_us and wall_us:
        rest_us = wall_us - sum_us - shared.waited_us
        between = f"{time_text(rest_us)} between calls" if rest_us > 0 else "no time between calls"
        lines.append(
            f"a whole pass is {time_text(sum_us)} in calls, {time_text(shared.waited_us)} waiting and {between} "
            "(starting collectives, freeing tensors). Each is a separate median over passes, of the rank slowest in "
            "it, so the three need not add up. Hidden collectives are in none of them"
        )
    low, high = shared.hidden_share_low, shared.hidden_share_high
    if low is not None and high is not None and high - low > VARIES:
        lines.append(
            f"{MARK} the hidden share varies from pass to pass because ranks share the processors, so it is not a "
            "property of the step"
        )
    lines.append("collectives use their own tensors: no call reads their results")
    if shared.unseen:
        lines.append(
            f"actual time in flight is shorter for {plural(shared.unseen, 'collective')}, because the end was only "
            "seen when waiting"
        )
    if shared.restarts:
        lines.append(f"restarted with new ranks: {plural(shared.restarts, 'time')}")
    return lines


def table(sequence: SequenceResult) -> Table[Row]:
    """Return a table that compares the recorded step and its calls with the replay."""
    ratio = Column[Row](
        RATIO_TITLE,
        lambda row: quotient(row[1], row[2]),
        RATIO,
        text=lambda row: "" if row[2] is None else ratio_text(row[1], row[2]),
        style="dim",
    )
    shown = rows(sequence)
    columns = [
        Column[Row]("sequence", lambda row: row[0]),
        Column[Row]("time", lambda row: row[1], TIME, key="time_us"),
        *([ratio] if any(ratio.value(row) is not None for row in shown) else []),
        Column[Row]("", lambda row: row[3], form="fold", style="dim", key="note"),
    ]
    return Table("Sequence", columns, shown)


def rendered(sequence: SequenceResult | None, step: StepReport | None = None) -> list[RenderableType]:
    """Render the sequence for a terminal; return nothing if the run had no sequence."""
    if sequence is None:
        return []
    return [
        *([] if step is None else [facts_grid(step_rows(step))]),
        Text(first_line(sequence), overflow="fold"),
        *terminal(table(sequence)),
        *notes_lines(notes(sequence)),
    ]
