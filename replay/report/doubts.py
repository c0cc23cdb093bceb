# pyright: strict
"""Notes on times that may mislead: marked rows, the number of threads, what recorded times include."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from opreplay.replay.host.idle import is_busy
from opreplay.replay.ir.verdicts import ValueStatus
from opreplay.replay.report.text import plural, safe, share_text
from opreplay.replay.results.measurement import kind_of
from opreplay.replay.results.records import Header, OpResult

MARK = "*"
VALUES = "values"
ONE_SAMPLE = "one sample"
MARKED: dict[str, str] = {
    "first call": "only the first call, including setup",
    "not settled": "times did not become stable",
    "interrupted": "other programs used the processor in most samples",
    VALUES: "results differ from the op's own implementation",
    ONE_SAMPLE: "only 1 sample, so the variance is unknown",
    "one thread": "measured with one thread, because several threads waited for processors",
    "threads waited": "measured with several threads that waited for processors",
}
"""Kind of warning that marks a time as possibly far off → its text in notes."""


STATUSES: dict[ValueStatus, str] = {
    "differs": "differ from the op's own implementation",
    "agrees": "agree with the op's own implementation",
    "own": "ran the op's own implementation",
    "not compared": "cannot be compared",
}
NAMED = 8
"""Maximum number of ops that notes list by name."""


def marks(result: OpResult) -> list[str]:
    """Return the kinds of warnings that mark the result's measured time."""
    kinds = [VALUES] if result.values is not None and result.values.status == "differs" else []
    measured = result.measurement
    if measured is not None and measured.samples == 1 and measured.cache != "sequence":
        kinds.append(ONE_SAMPLE)
    warnings = () if measured is None else measured.warnings
    return [*kinds, *(kind for kind in map(kind_of, warnings) if kind in MARKED)]


def mark(results: Sequence[OpResult]) -> str:
    """Return the mark to print after the measured total of these ops: a star if any op is marked, otherwise ""."""
    return MARK if any(map(marks, results)) else ""


def doubt_notes(header: Header | None, results: Sequence[OpResult], *, device: bool) -> list[str]:
    """Return notes on marked rows with their share of the measured time, on threads, and on recorded times."""
    return [
        *marked_notes(results),
        *value_notes(results),
        *thread_notes({} if header is None else header.environment),
        *_recorded(header, device),
    ]


def marked_notes(results: Sequence[OpResult]) -> list[str]:
    """Return a note on the number of rows with a star, their share of the measured time and the reasons."""
    marked = [result for result in results if marks(result)]
    if not marked:
        return []
    marked_us, total_us = (sum((r.measured_us or 0.0) * r.count for r in rows) for rows in (marked, results))
    share = marked_us / total_us if total_us > 0 else 0.0
    kinds = Counter(kind for result in marked for kind in marks(result))
    why = ", ".join(f"{MARKED[kind]} ({count:,})" for kind, count in kinds.most_common())
    return [f"{MARK} {plural(len(marked), 'op')} = {share_text(share)} of the measured time may be wrong: {why}"]


def value_notes(results: Sequence[OpResult]) -> list[str]:
    """Return notes on how replayed results compare with results of the ops' own implementations.

    There is one line per op that differs, and one line for all other ops.
    """
    checked = [(result, result.values) for result in results if result.values is not None]
    if not checked:
        return []
    lines = [
        f"values: {safe(result.name)} differs from its own implementation ({check.against}): {safe(check.detail)}"
        for result, check in checked
        if check.status == "differs"
    ]
    if len(lines) > NAMED:
        lines = [*lines[:NAMED], f"values: {plural(len(lines) - NAMED, 'more op')} that differ"]
    counts = Counter(check.status for _, check in checked)
    parts = [f"{counts[status]:,} {text}" for status, text in STATUSES.items() if counts[status]]
    why = Counter(check.detail for _, check in checked if check.status == "not compared")
    if why:
        parts[-1] += f": {', '.join(f'{safe(text)} ({count:,})' for text, count in why.most_common(NAMED))}"
    return [*lines, f"values of {plural(len(checked), 'op')}: {'; '.join(parts)}"]


def thread_notes(environment: Mapping[str, object]) -> list[str]:
    """Return notes on the threads that ops used and on idle processors. Return [] if idle processors were not
    counted.
    """
    threads, wanted = environment.get("threads"), environment.get("threads_of_torch")
    idle, cpus = environment.get("idle_cpus"), environment.get("cpus")
    if not isinstance(threads, int) or not isinstance(idle, int | float):
        return []
    looked = f"{idle:g} of {plural(cpus, 'processor') if isinstance(cpus, int) else 'the processors'} idle at the start"
    visits = environment.get("visits")
    often = (
        f"; each op measured in {visits} interleaved rounds (--set repeats=1 for one)"
        if isinstance(visits, int) and visits > 1
        else ""
    )
    if environment.get("threads_asked"):
        return [f"threads: {threads} as requested; {looked}{often}"]
    if threads == wanted:
        return [f"threads: {threads}; {looked}{often}"]
    return [
        f"threads: {threads} instead of torch's {wanted}, because only {looked} (to change this, use --set "
        f"threads=N){often}"
    ]


def busy_notes(environment: Mapping[str, object]) -> list[str]:
    """Return `thread_notes` if the machine had other load, or if each op is measured several times."""
    visits = environment.get("visits")
    often = isinstance(visits, int) and visits > 1
    return thread_notes(environment) if often or is_busy(environment) else []


def _recorded(header: Header | None, device: bool) -> list[str]:
    count = 0 if header is None or device else header.trace.get("large_results")
    if not isinstance(count, int) or not count:
        return []
    return [
        f"recorded: on a CPU, times of {plural(count, 'op')} with results of 128 kB and more may include page faults "
        "(1.3 to 1.8 µs per 4 kB), which a replay does not have"
    ]
