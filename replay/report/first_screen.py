# pyright: strict
"""First lines of a report, without tables: recording and device, utilization, classes of work, labels, predictions and
their quality.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from rich.console import RenderableType
from rich.text import Text

from opreplay.replay.ascend.simulate.coverage import share_of_confidence
from opreplay.replay.ir.kernel import Confidence
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.recorded.where import LabelWork, Where
from opreplay.replay.report.coverage import CONFIDENCE, coverage_by_share, coverage_text, rough_text, weak_parts
from opreplay.replay.report.coverage import LEAST as LEAST_COVERED
from opreplay.replay.report.table import rows_that_matter
from opreplay.replay.report.text import coarse_text, middle, plural, quotient, ratio_text, safe, share_text, time_text
from opreplay.replay.results.records import L2State, OpResult

CLASSES_SHOWN = 6
LEAST, LARGE = 0.01, 0.1
"""Minimum share at which a class of work or a label is listed, and at which a label is a warning."""
LABELS_SHOWN = 3
LABEL_CHARS = 48
SOCS_SHOWN = 3
HOLDING: dict[L2State, str] = {
    "cold": "each op predicted alone with cold caches",
    "loop": "each op predicted alone, in a benchmark loop",
    "warm": "each op predicted alone with warm caches",
    "sequence": "caches as left by earlier ops (--l2 sequence)",
}
"""`--l2` state → short text that says which cache contents a prediction assumes.

`simulate` uses other text, because it follows the calls of a step.
"""


def where_in(trace: Mapping[str, object]) -> Where | None:
    """Return the recording's description from a result file; None for files of older versions and for plans."""
    try:
        return msgspec.convert(trace["where"], Where) if "where" in trace else None
    except msgspec.ValidationError:
        return None


def rendered(lines: Sequence[str]) -> list[RenderableType]:
    """Return each line as text that wraps in a terminal."""
    return [Text(line, overflow="fold") for line in lines]


def capture_lines(plan: ReplayPlan) -> list[str]:
    """Return the limitations that the capture noted for a captured plan; [] for other plans."""
    if plan.capture is None:
        return []
    notes = (*plan.capture.all_notes, "predictions are for kernels only, without host launch time")
    return [f"captured: {safe(note)}" for note in notes]


def heavy_text(where: Where | None, results: Sequence[OpResult]) -> str:
    """Return which ops matter: "20 of 89 ops are 93 % of the time; GEMM 68 %"; "" if no time is recorded."""
    shares = sorted((r.recorded_share for r in results), reverse=True)
    if not sum(shares):
        return ""
    count = rows_that_matter(shares)
    verb = "is" if count == 1 else "are"
    text = f"{count:,} of {plural(len(results), 'op')} {verb} {share_text(sum(shares[:count]))} of the time"
    name, share = next(iter(where.classes.items()), ("", 0.0)) if where is not None else ("", 0.0)
    return f"{text}; {safe(name)} {share_text(share)}" if LEAST <= share <= sum(shares) else text


def predicted_line(soc: str, results: Sequence[OpResult], recorded_us: float | None) -> str:
    """Return "910b3 would take 1.35 ms (1.06 ms to 1.95 ms) for all calls, 0.05× the recorded time; ..."."""
    total, low, high = predicted_total(soc, results)
    predicted = [r for r in results if soc in r.simulated]
    if not predicted:
        return f"{safe(soc)}: nothing could be predicted"
    text = f"{safe(soc)} would take {time_text(total)} ({time_text(low)} to {time_text(high)}) for all calls"
    states = {r.simulated[soc].l2 for r in predicted}
    text = ", ".join([text, *(holding for state, holding in HOLDING.items() if state in states)])
    if recorded_us and len(predicted) == len(results):
        text += f", {ratio_text(total, recorded_us)} the recorded time"
    parts = [text, *([] if len(predicted) == len(results) else [f"{len(predicted):,} of {len(results):,} ops"])]
    weights: list[tuple[Confidence, float]] = [
        (r.simulated[soc].confidence, r.simulated[soc].time_us * r.count) for r in predicted
    ]
    _, covered, _ = coverage_by_share(soc, results)
    for confidence, what in CONFIDENCE.items():
        if (share := share_of_confidence(weights, confidence)) >= LEAST_COVERED:
            parts.append(f"{share_text(share)} {what}")
    # Beside shares of the prediction, which is of the selected ops alone.
    parts += weak_parts(covered, " of the recorded time" if covered.elsewhere >= LEAST else "")
    parts.append(rough_text((r.name, r.simulated[soc], r.count) for r in predicted))
    return "; ".join(filter(None, parts))


def warning_lines(where: Where | None) -> list[str]:
    """Return those first lines of a report that warn against trusting the recorded times."""
    if where is None:
        return []
    coarse = [] if where.coarse_unit_us is None else [f"! {coarse_text(where.coarse_unit_us)}"]
    lacking = _host_lines(where)[:1] if where.clock != "device" and (where.cut or where.launches) else []
    return [*coarse, *lacking, *_beside_lines(where, LARGE), *_outside_lines(where, LARGE)]


def _outside_lines(where: Where, least: float) -> list[str]:
    """Return lines on work launched before the recording and on time in labels, for shares of at least `least`."""
    before = quotient(where.launched_before_us, where.total_us) or 0.0
    labels = quotient(where.labels_us, where.total_us) or 0.0
    early = f"launched before the recording: {share_text(before)} of device time (ops not recorded)"
    return [*([early] if before >= least else []), *([_labels(where, labels)] if labels >= least else [])]


def lines(where: Where | None, device: str | None, results: Sequence[OpResult]) -> list[str]:
    """Return the head of a report on `results`; `device` is the name of the recorded device in the trace."""
    head = [] if where is None else where_lines(where, device)
    socs = list(dict.fromkeys(soc for result in results for soc in result.simulated_us))
    return head + [prediction_line(soc, results) for soc in socs[:SOCS_SHOWN]]


def _device_lines(where: Where, device: str | None) -> list[str]:
    line = f"recorded on {safe(device or 'an unnamed device')}: {time_text(where.total_us)} of device work"
    if where.busy_share is not None:
        line += f", busy {share_text(where.busy_share)} of {time_text(where.span_us)}"
    return [line, *([] if where.coarse_unit_us is None else [f"! {coarse_text(where.coarse_unit_us)}"])]


def _host_lines(where: Where) -> list[str]:
    what = "the file was cut short before any device work" if where.cut else "recorded on a CPU without device work"
    if where.launches:
        count = f"{where.launches:,}"
        what = f"no device work recorded ({count} of {count} launches without a kernel), so times are host times"
    return [f"{what}: {time_text(where.total_us)} in outermost calls", *_beside_lines(where, LEAST)]


def _beside_lines(where: Where, least: float) -> list[str]:
    """Return a line on collectives that ran on gloo's own threads, if their share of the time is at least `least`."""
    if where.clock == "device" or where.beside_us <= 0.0 or where.beside_us < least * where.total_us:
        return []
    return [
        f"not included: {time_text(where.beside_us)} of collectives on gloo's own threads; with --ranks, the table "
        f"has rows for them, so its sum exceeds the time above"
    ]


def where_lines(where: Where, device: str | None) -> list[str]:
    """Return lines about the recording, its classes of work, and the time that belongs to labels."""
    head = _device_lines(where, device) if where.clock == "device" else _host_lines(where)
    shown = [(name, share) for name, share in where.classes.items() if share >= LEAST][:CLASSES_SHOWN]
    if shown:
        head.append("time: " + ", ".join(f"{safe(name)} {share_text(share)}" for name, share in shown))
    return [*head, *_outside_lines(where, LEAST)]


def _labels(where: Where, share: float) -> str:
    how = "belongs to a label but to no op" if where.clock == "device" else "is inside labels but outside ops"
    shown = [label for label in where.labels if label.share >= LEAST][:LABELS_SHOWN]
    named = ", ".join(_label(label) for label in shown)
    return f"labels: {share_text(share)} of {where.clock} time {how}" + (f": {named}" if named else "")


def _label(label: LabelWork) -> str:
    kinds = ", ".join(f"{safe(name)} {share_text(part)}" for name, part in label.classes.items() if part >= LEAST)
    return f"{middle(safe(label.name), LABEL_CHARS)} {share_text(label.share)}" + (f" ({kinds})" if kinds else "")


def prediction_line(soc: str, results: Sequence[OpResult]) -> str:
    """Return "910b3: 480 µs, all calls added up, 80 % band 399 µs to 578 µs; 97.0 % of recorded time by rules, ..."."""
    _, covered, clock = coverage_by_share(soc, results)
    total, low, high = predicted_total(soc, results)
    predicted = [(r, r.simulated[soc]) for r in results if soc in r.simulated]
    parts = [
        f"{time_text(total)}, all calls added up, 80 % band {time_text(low)} to {time_text(high)}",
        coverage_text(covered, clock),
    ]
    for confidence, text in CONFIDENCE.items():
        if any(p.confidence == confidence for _, p in predicted):
            share = share_of_confidence([(p.confidence, p.time_us * r.count) for r, p in predicted], confidence)
            parts.append(f"{share_text(share)} {text}")
    if rough := rough_text((r.name, p, r.count) for r, p in predicted):
        parts.append(rough)
    if far := sum(p.extrapolated for _, p in predicted):
        parts.append(f"{plural(far, 'op')} extrapolated")
    states = {p.l2 for _, p in predicted}
    parts += [text for state, text in HOLDING.items() if state in states]
    return f"{safe(soc)}: {'; '.join(parts)}"


def predicted_total(soc: str, results: Sequence[OpResult]) -> tuple[float, float, float]:
    """Return the total time of all calls of all predicted ops in microseconds, and its 80 % band (low, high).

    As in a simulated step, errors of ops in one kernel family add up, and errors of different families are independent.
    """
    total, up, down = 0.0, dict[str, float](), dict[str, float]()
    for result in results:
        prediction = result.simulated.get(soc)
        if prediction is None or prediction.time_us <= 0:
            continue
        call_us, us = prediction.time_us, prediction.time_us * result.count
        family = prediction.kernels[0] if prediction.kernels else prediction.bound
        total += us
        up[family] = up.get(family, 0.0) + us * (max(prediction.high_us / call_us, 1.0) - 1.0)
        below = max(call_us / prediction.low_us, 1.0) if prediction.low_us else 1.0
        down[family] = down.get(family, 0.0) + us * math.log(below)
    factor = math.exp(math.hypot(*down.values()) / total) if total > 0 else 1.0
    return total, total / factor, total + math.hypot(*up.values())
