# pyright: strict
"""Facts that every report of a run has besides its rows: coverage, totals and notes, as plain text and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec

from opreplay.initializers.amounts import work_text
from opreplay.replay.ascend.simulate.coverage import host_clock, measured_shares, measured_text, share_of_confidence
from opreplay.replay.ir.kernel import Confidence
from opreplay.replay.ir.reasons import ReasonTotal
from opreplay.replay.ops.invented import WEIGHTS
from opreplay.replay.report import collectives
from opreplay.replay.report.coverage import CONFIDENCE, ELSEWHERE, LEAST, coverage_by_share, coverage_text
from opreplay.replay.report.doubts import doubt_notes, marked_notes, value_notes
from opreplay.replay.report.text import end, listed, plural, safe, share_text, time_text
from opreplay.replay.results import stats
from opreplay.replay.results.measurement import Measurement, kind_of
from opreplay.replay.results.records import Fidelity, Header, OpResult, SequenceResult, Simulated, Status, Summary
from opreplay.replay.results.summary import round_to_one
from opreplay.traces.losses import copies_text, without_copies

DIFFERING = 3
"""Maximum number of differing ops listed by name."""
LISTED = 4
"""Maximum number of kinds (of warnings, assumptions, ...) listed in a note."""
MOST_FILES = 10
"""Maximum number of unreadable files listed."""
WORK_CHARS = 400
"""Maximum length of the text of a work counter, in characters. Only a damaged file has longer texts."""
DETAIL_CHARS = 60
"""Maximum length of each detail of a reason, in characters, if several details share a line."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Total times of all calls of a set of ops, in microseconds."""

    label: str
    ops: int
    recorded_us: float | None
    """Recorded time; None if a batch mixes clocks, or if the ops have no time on the displayed clock."""
    measured_us: float | None
    """Measured time; None unless every op was measured."""
    simulated_us: dict[str, float]
    """SoC → simulated time; SoCs that lack a prediction for any op are omitted."""


def socs_of(results: Iterable[OpResult]) -> tuple[str, ...]:
    """Return the simulated SoCs, in the requested order."""
    return tuple(dict.fromkeys(soc for result in results for soc in result.simulated_us))


def has_device_time(header: Header | None, results: Iterable[OpResult]) -> bool:
    """Check whether recorded times and shares are device times; if not, they are host times."""
    total = header.trace.get("device_us_total") if header is not None else None
    if isinstance(total, int | float):
        return total > 0
    return any(result.recorded_device_us for result in results)


def is_untimed(result: OpResult) -> bool:
    """Check whether no time of the op was recorded, as in a captured plan."""
    return result.recorded_host_us is None and result.recorded_device_us is None


def recorded_us(result: OpResult, *, device: bool) -> float | None:
    """Return the recorded time of one call: device time if `device`, otherwise host time."""
    return result.recorded_device_us if device else result.recorded_host_us


def coverage_line(
    header: Header | None,
    results: Sequence[OpResult],
    summary: Summary,
    *,
    verb: str = "replayed",
    processes: int = 1,
    selection: str | None = None,
) -> str:
    """Return the first line of a report: the share of the trace that was replayed, and why the other ops were not.

    "replayed 412 of 430 ops = 97.8 % of device time; 18 skipped: 9 library missing, 6 policy, 3 budget; 2 failed".

    `processes` is the number of processes in a merged file. The line uses `selection` only if there is no header, as
    for a plan.
    """
    clock = "device" if has_device_time(header, results) or (header is None and not results) else "host"
    clocks = clock_counts(header)
    # An ExecutionTrace holds no times; a share of nothing would read as if nothing were covered.
    timed = summary.recorded_us > 0 or not results or clocks.get("device") or clocks.get("host")
    selected = header.trace.get("selection") if header is not None else selection
    of = "device time" if clock == "device" else host_clock(selected)
    share = f" = {share_text(summary.covered_share)} of {of}{split_of_share(results)}"
    parts = [
        f"{verb} {summary.replayed:,} of {plural(summary.ops, 'op')}{share if timed else ', no times recorded'}",
        *(kinds for status in ("skipped", "failed") if (kinds := _reason_kinds(status, results))),
    ]
    outside = elsewhere(results) if timed and summary.recorded_us and not summary.not_reached else 0.0
    if unpredicted := _unpredicted(summary, outside):
        parts.append(f"{unpredicted}{'' if timed and summary.recorded_us else ' of the ops'} not predicted")
    if outside >= LEAST and summary.unpredicted_share:
        parts.append(f"{share_text(outside)} {ELSEWHERE}")
    if processes > 1:
        parts.append(f"{processes:,} processes of the file added up (select one with --process)")
    missing = summary.ops - summary.replayed - summary.skipped - summary.failed
    if summary.interrupted:
        parts.append(f"interrupted, {missing:,} not reached" if missing > 0 else "interrupted")
    return "; ".join(parts)


def _reason_kinds(status: Status, results: Sequence[OpResult]) -> str:
    """Return text such as "18 skipped: 9 library missing, 6 policy, 3 budget"; "" if no op has the status."""
    kinds = Counter(r.why_not().kind for r in results if r.status == status)
    named = ", ".join(f"{count:,} {safe(kind)}" for kind, count in kinds.most_common() if kind != status)
    return f"{kinds.total():,} {status}{f': {named}' if named else ''}" if kinds else ""


def elsewhere(results: Sequence[OpResult]) -> float:
    """Return the share of the recorded time outside the selected ops; 0 if no op has a share."""
    selected = sum(result.recorded_share for result in results)
    return 1.0 - min(1.0, round_to_one(selected)) if selected > 0 else 0.0


def _unpredicted(summary: Summary, outside: float) -> str:
    """Return the share of recorded time without predictions, as text; "" if all ops are predicted.

    If the share differs between devices, it is given for each: "7.0 % for 910b3, 2.0 % for 910b4". `outside` is the
    share of time outside the selected ops; it is subtracted first.
    """
    lacking = {soc: share - outside for soc, share in summary.unpredicted_share.items()}
    shares = {soc: share_text(share) for soc, share in lacking.items() if share >= LEAST}
    if len(set(shares.values())) > 1 or len(shares) < len(summary.unpredicted_share):
        return ", ".join(f"{share} for {safe(soc)}" for soc, share in shares.items())
    return next(iter(shares.values()), "")


STAND_INS = frozenset({"reference", "equivalent", "executor"})
"""Resolution methods that run a substitute for the recorded op."""


def split_of_share(results: Sequence[OpResult]) -> str:
    """Return how the replayed share of time is divided between torch and substitutes (stand-ins).

    " = 18.0 % torch + 63.6 % stand-ins (52.1 % with invented weights)"; "" if no stand-in ran.
    """
    done = [r for r in results if r.status == "replayed"]
    others = [r for r in done if r.resolved_by in STAND_INS]
    if not others:
        return ""
    torch, instead = (sum(r.recorded_share for r in some) for some in ([r for r in done if r not in others], others))
    made_up = sum(r.recorded_share for r in others if any(a.argument == WEIGHTS for a in r.assumptions))
    weights = f" ({share_text(made_up)} with invented weights)" if made_up else ""
    return f" = {share_text(torch)} torch + {share_text(instead)} stand-ins{weights}"


def detail_text(total: ReasonTotal, room: int = DETAIL_CHARS) -> str:
    """Return the details of a reason with their numbers of ops, most time first: "vllm (5), aiter (4) and 3 others"."""
    if total.kind == "collective" and not total.details:
        return "a single process cannot run them; to start N processes, use `run --ranks N`"
    return listed([f"{end(safe(d.detail), room)} ({d.ops:,})" for d in total.details], LISTED, "other")


def clock_counts(header: Header | None) -> dict[str, int]:
    """Return how many traces of a batch have times on each clock ("device", "host", "none"); {} if not a batch."""
    counts = None if header is None else header.trace.get("clocks")
    return cast("dict[str, int]", counts) if isinstance(counts, dict) else {}


def clock_notes(header: Header | None) -> list[str]:
    """Return which traces of a batch are left out of all recorded sums, because their times have another clock."""
    counts = clock_counts(header)
    on_device, on_host, untimed = (counts.get(clock, 0) for clock in ("device", "host", "none"))
    lines: list[str] = []
    if on_device and on_host:
        lines.append(
            f"clocks: {plural(on_host, 'trace')} of {sum(counts.values()):,} {'has' if on_host == 1 else 'have'} only "
            "host time, so it is not in shares and recorded sums (device time)"
        )
    if untimed and (on_device or on_host):
        lines.append(f"clocks: {plural(untimed, 'trace')} of {sum(counts.values()):,} without recorded times")
    return lines


def totals(
    results: Sequence[OpResult],
    *,
    device: bool,
    header: Header | None = None,
    sequence: SequenceResult | None = None,
) -> list[Totals]:
    """Return the total times of the replayed ops and, if some ops were not replayed, of all ops.

    The recorded, measured and simulated totals of the replayed ops are comparable. The measured total is the sum over
    ops of median time times number of calls. For a sequence, it is the sum over its calls.

    Some replayed ops may have no recorded time on the displayed clock, e.g. if one trace of a batch has no device time.
    The first total leaves out these ops, because a ratio of sums over different ops is meaningless.
    """
    replayed = [r for r in results if r.measured_us is not None]
    timed = [r for r in replayed if recorded_us(r, device=device)]
    label = plural(len(replayed), "replayed op")
    if timed and len(timed) < len(replayed):
        replayed, label = timed, f"{plural(len(timed), 'op')} recorded and replayed"
    sums = [_sum(label, replayed, device=device)] if replayed else []
    if sums and sequence is not None and sequence.sum_us is not None:
        sums[0] = msgspec.structs.replace(sums[0], measured_us=sequence.sum_us)
    if len(replayed) < len(results):
        everything = _sum(f"all {plural(len(results), 'op')}", results, device=device)
        mixed = sum(map(bool, clock_counts(header).values())) > 1
        sums.append(msgspec.structs.replace(everything, recorded_us=None) if mixed else everything)
    return sums


def _sum(label: str, results: Sequence[OpResult], *, device: bool) -> Totals:
    measured = [r.measured_us * r.count for r in results if r.measured_us is not None]
    known = [us * r.count for r in results if (us := recorded_us(r, device=device)) is not None]
    simulated = {s: [r.simulated_us[s] * r.count for r in results if s in r.simulated_us] for s in socs_of(results)}
    return Totals(
        label=label,
        ops=len(results),
        recorded_us=sum(known) if known or not results else None,
        measured_us=sum(measured) if len(measured) == len(results) else None,
        simulated_us={s: sum(times) for s, times in simulated.items() if len(times) == len(results)},
    )


def notes(header: Header | None, results: Sequence[OpResult], summary: Summary) -> list[str]:
    """Return notes to judge the numbers by: lost data, reference implementations, assumptions, confidence, noise."""
    lines = doubt_notes(header, results, device=has_device_time(header, results))
    lines += [*collectives.notes(results), *_trace_notes(header), *stand_in_notes(results), *assumption_notes(results)]
    lines += initializer_notes(results)
    lines += [note for soc in socs_of(results) for note in confidence_notes(soc, results)]
    lines += [*_measuring_notes([r.measurement for r in results if r.measurement]), *fidelity_notes(results)]
    return [*lines, INTERRUPTED] if summary.interrupted else lines


def _measuring_notes(measurements: Sequence[Measurement]) -> list[str]:
    """Return notes on the kinds of measurement warnings, and on outlier samples."""
    lines: list[str] = []
    if warnings := Counter(kind_of(warning) for m in measurements for warning in m.warnings):
        noisy = sum(bool(m.warnings) for m in measurements)
        lines.append(f"measuring: warnings on {plural(noisy, 'op')}: {_listed(warnings)}")
    if far := [m.outliers for m in measurements if m.outliers]:
        samples = f"{sum(far):,} of {sum(m.samples for m in measurements):,} samples are outliers"
        lines.append(f"measuring: {samples}, on {plural(len(far), 'op')} (outliers are kept)")
    return lines


def decisive_notes(header: Header | None, results: Sequence[OpResult], summary: Summary) -> list[str]:
    """Return the `notes` that may change a decision: misleading times, missing parts, requested information."""
    lines = [*marked_notes(results), *value_notes(results), *_trace_notes(header), *fidelity_notes(results)]
    lines += [note for soc in socs_of(results) for note in telling_notes(soc, results)]
    return [*lines, INTERRUPTED] if summary.interrupted else lines


LEAST_CLASS = 0.005
"""Smallest share of the device time at which a class of work that has no op is listed."""
CLASSES_SHOWN = 4
INTERRUPTED = "interrupted: the results are partial"


def _trace_notes(header: Header | None) -> list[str]:
    if header is None:
        return []
    where = header.trace.get("where")
    kinds = cast("Mapping[str, Mapping[str, float]]", where).get("unowned") if isinstance(where, Mapping) else None
    lines = unmatched_notes(cast("Sequence[str]", header.trace.get("unmatched") or ()))
    lines += unowned_notes(header.trace.get("unowned_device_us"), header.trace.get("device_us_total"), kinds)
    for field, verb in (("losses", "lost"), ("repairs", "repaired")):
        counts = header.trace.get(field)
        if isinstance(counts, Mapping):
            known = {str(k): int(v) for k, v in cast("Mapping[str, int]", counts).items()}
            named, copies = without_copies(known), copies_text(known)
            lines += [f"reading: {verb} {_listed(Counter(named))}"] if named else []
            lines += [f"reading: {copies}"] if copies else []
    return [*lines, *clock_notes(header), *_files_not_read(header)]


def _files_not_read(header: Header) -> list[str]:
    """Return the files that are missing from a batch, each with its reason. Refused files come first."""
    not_read = header.trace.get("not_read")
    files = cast("list[dict[str, object]]", not_read) if isinstance(not_read, list) else []
    lines: list[str] = []
    for left_out, verb in ((False, "refused"), (True, "left out")):
        some = [file for file in files if bool(file.get("left_out")) == left_out]
        reasons = [f"{verb}: {safe(str(file.get('file')))}: {safe(str(file.get('why')))}" for file in some[:MOST_FILES]]
        rest = len(some) - len(reasons)
        lines += [*reasons, f"{verb}: {plural(rest, 'more file')}; for all, use --format json"] if rest else reasons
    return lines


def unmatched_notes(options: Sequence[str]) -> list[str]:
    """Return a note on options whose pattern matches nothing."""
    return [f"no selected op matches {safe(listed(options, LISTED))}"] if options else []


def unowned_notes(unowned_us: object, total_us: object, kinds: Mapping[str, float] | None = None) -> list[str]:
    """Return notes on device time that belongs to no op and therefore cannot be replayed.

    `unowned_us` is this time and `total_us` the device time, both for the whole trace. `kinds` maps each class of work
    to its share of the device time.
    """
    if not isinstance(unowned_us, int | float) or not isinstance(total_us, int | float):
        return []
    if unowned_us <= 0:
        return []
    if total_us <= 0:
        return [
            f"no op: all device time ({time_text(unowned_us)}) is in kernels without a recorded op, so shares are of "
            "host time"
        ]
    share = share_text(unowned_us / total_us)
    why = "e.g. from captured graphs, communication streams or launches before the recording"
    named = [(name, part) for name, part in (kinds or {}).items() if part >= LEAST_CLASS]
    what = ", ".join(f"{safe(name)} {share_text(part)}" for name, part in named[:CLASSES_SHOWN])
    what = f" ({what})" if what else ""
    return [f"no op: {share} of device time is in kernels without a recorded op{what}, {why}"]


def stand_in_notes(results: Sequence[OpResult]) -> list[str]:
    """Return notes on what ran in place of the recorded ops."""
    lines: list[str] = []
    words = {
        "equivalent": "through a portable equivalent",
        "reference": "by opreplay's reference implementation of a vendor op",
        "executor": "by users' executors",
    }
    for how, text in words.items():
        used = Counter(r.via or r.name for r in results if r.resolved_by == how and r.status == "replayed")
        if used:
            lines.append(f"stand-ins: {plural(used.total(), 'op')} {text}: {_listed(used)}")
    return lines


def assumption_notes(results: Sequence[OpResult]) -> list[str]:
    """Return the assumptions, most frequent first."""
    counts = Counter(a.what for r in results for a in r.assumptions)
    if not counts:
        return []
    ops = sum(bool(r.assumptions) for r in results)
    return [f"assumptions: {counts.total():,} on {plural(ops, 'op')}: {_listed(counts)}"]


def initializer_notes(results: Sequence[OpResult]) -> list[str]:
    """Return the initializers' notes on the values they created, most frequent first."""
    said = Counter(
        f"{r.initializer}: {r.filling.summary}" for r in results if r.filling is not None and r.filling.summary
    )
    return [f"initializers: {_listed(said)}"] if said else []


def confidence_notes(soc: str, results: Sequence[OpResult]) -> list[str]:
    """Return how much of the recorded time was predicted for the SoC, by method, and how much is uncalibrated."""
    shares, covered, clock = coverage_by_share(soc, results)
    parts = [f"{covered.ops:,} of {plural(len(results), 'op')} simulated = {coverage_text(covered, clock)}"]
    predicted = [(r, r.simulated[soc]) for r in results if soc in r.simulated]
    times_us: list[tuple[Confidence, float]] = [(made.confidence, made.time_us * r.count) for r, made in predicted]
    for confidence, text in CONFIDENCE.items():
        if count := sum(prediction.confidence == confidence for _, prediction in predicted):
            share = share_of_confidence(times_us, confidence)
            parts.append(f"{plural(count, 'op')} = {share_text(share)} of predicted time {text}")
    if far := [shares[r.id] for r, prediction in predicted if prediction.extrapolated]:
        parts.append(
            f"{plural(len(far), 'op')} = {share_text(sum(far))} of {clock} extrapolated far from measured sizes"
        )
    if len(parts) == 1 and covered.ops == len(results) and not covered.bytes and not covered.users:
        return []
    return [f"{safe(soc)}: {'; '.join(parts)}", *telling_notes(soc, results)]


def telling_notes(soc: str, results: Sequence[OpResult]) -> list[str]:
    """Return those notes on a device's predictions that may change a decision.

    They name the user's own code and measurements that predictions are based on, and operations that the device does
    not support.
    """
    used = Counter(
        f"{prediction.by} {prediction.source}" + (f" ({prediction.taken_for})" if prediction.taken_for else "")
        for r in results
        if (prediction := r.simulated.get(soc)) is not None
        and prediction.by is not None
        and prediction.by.startswith(("user ", "tile "))
    )
    lines = [f"{safe(soc)}: predicted by {_listed(used)}"] if used else []
    times_us = [(made.measured, made.time_us * r.count) for r in results if (made := r.simulated.get(soc)) is not None]
    if measured := measured_text(measured_shares(times_us)):
        lines.append(f"{safe(soc)}: {measured}")
    return [*lines, *no_path_notes(soc, [(r.simulated[soc], r.recorded_share) for r in results if soc in r.simulated])]


def no_path_notes(soc: str, predictions: Iterable[tuple[Simulated, float]]) -> list[str]:
    """Return notes on matrix products whose dtype no unit of the device can multiply.

    `predictions` holds (prediction, share of the recorded time).
    """
    without = [(prediction.no_path, share) for prediction, share in predictions if prediction.no_path]
    if not without:
        return []
    kinds = ", ".join(safe(dtype) for dtype in dict.fromkeys(dtype for dtype, _ in without))
    share = sum(share for _, share in without)
    part = f" = {share_text(share)} of the recorded time" if share else ""
    return [f"{safe(soc)}: no unit multiplies {kinds}: {plural(len(without), 'op')}{part} predicted as another dtype"]


def _listed(counts: Counter[str]) -> str:
    return listed([f"{safe(what)} ({count:,})" for what, count in counts.most_common()], LISTED, "other kind")


def _ratios_text(ratios: Sequence[float]) -> str:
    """Return the quartiles of sorted time ratios as text."""
    low, middle, high = (stats.quantile(ratios, q) for q in (0.25, 0.5, 0.75))
    return f"times {middle:.2f}× the recorded times (quartiles {low:.2f}× to {high:.2f}×)"


def fidelity_notes(results: Sequence[OpResult]) -> list[str]:
    """Return a line comparing kernels, child ops and times with the recorded ones, and a line naming ops that
    differ.
    """
    checked = [(r, r.fidelity) for r in results if r.fidelity is not None]
    if not checked:
        return []
    kernels, children = _compared(f.kernels for _, f in checked), _compared(f.children for _, f in checked)
    parts = [f"{what}: {text}" for what, text in (("kernels", kernels), ("child ops", children)) if text]
    if ratios := sorted(f.time_ratio for _, f in checked if f.time_ratio is not None):
        parts.append(_ratios_text(ratios))
    lines = [f"fidelity of {plural(len(checked), 'op')}: {'; '.join(parts) or 'nothing recorded to compare with'}"]
    differing = [_difference(r, f) for r, f in checked if "differ" in (f.kernels, f.children)]
    return lines + ([f"fidelity: ops that differ, by time: {'; '.join(differing[:DIFFERING])}"] if differing else [])


def fidelity_cell(result: OpResult) -> str:
    """Return text such as "kernels match" or "child ops differ: -aten::t"; "" if nothing was compared."""
    fidelity = result.fidelity
    if fidelity is None:
        return ""
    said = [
        f"{what} {verdict}"
        for what, verdict in (("kernels", fidelity.kernels), ("child ops", fidelity.children))
        if verdict in ("match", "differ")
    ]
    if fidelity.time_ratio is not None:
        said.append(f"time {fidelity.time_ratio:.3g}×")
    return ", ".join([*said, *([fidelity.note] if fidelity.note else [])])


def _compared(verdicts: Iterable[str]) -> str:
    """Return text such as "3 match, 1 differ"; "" if there was nothing to compare."""
    counts = Counter(verdicts)
    return ", ".join(f"{counts[v]:,} {v}" for v in ("match", "differ") if counts[v])


def _difference(result: OpResult, fidelity: Fidelity) -> str:
    changes = [*(f"-{safe(name)}" for name in fidelity.missing), *(f"+{safe(name)}" for name in fidelity.extra)]
    return f"{safe(result.name)} ({listed(changes, DIFFERING) or 'other order'})"


def work_cell(result: OpResult) -> str:
    """Return the counted work of an op as text: "8,192 of 65,536 context tokens (12.5 %); ...".

    Return "" if the work was not counted. If the op does no work, the text starts with the warning "no work: ".
    """
    if result.work is None or not work_text(result.work):
        return ""
    text = end(safe(work_text(result.work)), WORK_CHARS)
    return f"no work: {text}" if result.work.idle else text


def with_counted_work(results: Sequence[OpResult]) -> list[OpResult]:
    """Return the results whose work was counted."""
    return [result for result in results if work_cell(result)]


def work_notes(results: Sequence[OpResult]) -> list[str]:
    """Return warnings on ops that do no work, and on argument values that break a convention."""
    idle = [result.name for result in with_counted_work(results) if result.work is not None and result.work.idle]
    lines = [f"warning: no work done by {plural(len(idle), 'op')}: {_distinct(idle)}"] if idle else []
    odd = [(result.name, result.work.warnings) for result in results if result.work and result.work.warnings]
    wrong = [f"{name}: {warning}" for name, warnings in odd for warning in warnings]
    return lines + ([f"warning: {plural(len(odd), 'op')} with unusual values: {_distinct(wrong)}"] if wrong else [])


def _distinct(texts: Sequence[str]) -> str:
    return listed([end(safe(text), WORK_CHARS) for text in dict.fromkeys(texts)], LISTED, "other")
