# pyright: strict
"""Columns of a run's ops, with the same titles, keys and units in all formats, and text that distinguishes ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from opreplay.replay.ir.notation import telling_arguments
from opreplay.replay.report.coverage import predicted_text
from opreplay.replay.report.doubts import mark
from opreplay.replay.report.run.facts import fidelity_cell, is_untimed, recorded_us, socs_of, work_cell
from opreplay.replay.report.table import COUNT, LEAST_NAME, RATIO, SHARE, TIME, Column, op_line
from opreplay.replay.report.text import DASH, quotient, time_text
from opreplay.replay.results.records import OpResult

OpColumn = Column[OpResult]
ID_CHARS = 6
"""Number of id characters shown, enough to distinguish the ops of one trace."""
RATIO_TITLE = "÷ rec."
STYLES = {"skipped": "yellow", "failed": "red"}

ID = OpColumn("id", lambda r: r.id, text=lambda r: r.id[:ID_CHARS], style="dim", drop=1)
NAME = OpColumn("op", lambda r: r.name, key="name", form="code")
INPUTS = OpColumn("inputs", lambda r: r.inputs, form="code")
CALLS = OpColumn("count", lambda r: r.count, COUNT, style="dim", drop=8)
RECORDED_SHARE = OpColumn("share", lambda r: r.recorded_share, SHARE, key="recorded_share")
MEASURED = OpColumn(
    "measured",
    lambda r: r.measured_us,
    TIME,
    key="measured_us",
    text=lambda r: time_text(r.measured_us) + mark([r]) if r.status == "replayed" else r.status,
    style=lambda r: STYLES.get(r.status, ""),
)
BOUND = OpColumn("bound", lambda r: r.bound, text=lambda r: r.bound or DASH, style="dim", drop=6)
VIA = OpColumn("via", lambda r: r.via)
REASON = OpColumn("not replayed because", lambda r: r.reason and str(r.reason), key="reason")
CALL = OpColumn("for opreplay op", lambda r: r.call, key="call", form="paste")
WORK = OpColumn(
    "work", work_cell, form="fold", style=lambda r: "yellow" if r.work and (r.work.idle or r.work.warnings) else ""
)


def recorded(*, device: bool) -> OpColumn:
    """Return the column of the recorded time per call: device time if `device`, otherwise host time."""
    key = "recorded_device_us" if device else "recorded_host_us"
    return OpColumn(recorded_title(device=device), lambda r: recorded_us(r, device=device), TIME, key=key)


def recorded_title(*, device: bool) -> str:
    """Return the title of the column of recorded times. It says whether they are host times."""
    return "recorded" if device else "host time"


def simulated(soc: str, drop: float = 0) -> OpColumn:
    """Return the column of the predicted time per call on a simulated device."""
    return OpColumn(
        soc,
        lambda r: r.simulated_us.get(soc),
        TIME,
        key=f"simulated_us_{soc}",
        text=lambda r: predicted_text(r.simulated.get(soc)),
        style="cyan",
        drop=drop,
    )


def bound_of(soc: str) -> OpColumn:
    """Return a column that says what bounds a call on a simulated device, and the confidence of the prediction."""

    def text(result: OpResult) -> str:
        prediction = result.simulated.get(soc)
        return "" if prediction is None else f"{prediction.bound}, {prediction.confidence}"

    return OpColumn(f"{soc} bound", text)


def confidence(soc: str) -> OpColumn:
    """Return the column with the confidence of the predictions for `soc`."""
    return OpColumn(f"confidence_{soc}", lambda r: r.simulated[soc].confidence if soc in r.simulated else None)


def ratio(column: OpColumn, *, device: bool) -> OpColumn:
    """Return the column of the ratio of a time column to the recorded time."""

    def value(result: OpResult) -> float | None:
        return quotient(column.value(result), recorded_us(result, device=device))

    return OpColumn(RATIO_TITLE, value, RATIO, key=f"{column.key}_ratio", style="dim", drop=9, named=False)


def predictions(socs: Sequence[str], *, ratios: bool = False, device: bool = False) -> list[OpColumn]:
    """Return the columns of predictions: a time column per simulated device, and one column for what bounds the time.

    With `ratios`, each time column is followed by a column with its ratio to the recorded time. The column of the first
    device is never dropped in narrow terminals.
    """
    columns: list[OpColumn] = []
    for index, soc in enumerate(socs):
        columns.append(simulated(soc, 0 if index == 0 else 2 + index / len(socs)))
        columns += [ratio(columns[-1], device=device)] if ratios else []
    return [*columns, BOUND] if socs else []


def recordings(results: Sequence[OpResult], *, device: bool) -> list[OpColumn]:
    """Return the columns id prefix (for --include), share, calls, recorded time; without times, only id and calls."""
    if results and all(map(is_untimed, results)):
        return [ID, CALLS]
    return [ID, RECORDED_SHARE, CALLS, recorded(device=device)]


def file_columns(results: Sequence[OpResult]) -> list[OpColumn]:
    """Return the columns of each op for CSV, Parquet and data frames. Times are in microseconds per call."""
    socs = socs_of(results)
    return [
        ID,
        NAME,
        CALLS,
        OpColumn("status", lambda r: r.status),
        REASON,
        OpColumn("reason_kind", lambda r: None if r.status == "replayed" else r.why_not().kind),
        OpColumn("resolved_by", lambda r: r.resolved_by),
        VIA,
        INPUTS,
        recorded(device=True),
        recorded(device=False),
        RECORDED_SHARE,
        MEASURED,
        OpColumn("measured_ci_low_us", lambda r: r.measurement and r.measurement.ci_low_us, TIME),
        OpColumn("measured_ci_high_us", lambda r: r.measurement and r.measurement.ci_high_us, TIME),
        OpColumn("measured_samples", lambda r: r.measurement and r.measurement.samples, COUNT),
        *map(simulated, socs),
        BOUND,
        *map(confidence, socs),
        OpColumn("initializer", lambda r: r.initializer),
        OpColumn("assumptions", lambda r: "; ".join(f"{a.argument}: {a.what}" for a in r.assumptions)),
        WORK,
        OpColumn("fidelity", fidelity_cell),
        OpColumn("npu_kernels", lambda r: "; ".join(f"{k.type} x{k.count} {k.total_us:g} us" for k in r.npu_kernels)),
        CALL,
    ]


def numbers_of(results: Sequence[OpResult]) -> dict[str, str]:
    """Map each op id to the numeric arguments that distinguish the op from ops with the same name and tensor shapes."""
    return telling_arguments([(r.id, r.name, r.inputs, r.call) for r in results])


def inputs_and_numbers(results: Sequence[OpResult]) -> OpColumn:
    """Return the column of inputs, with the numeric arguments that distinguish calls on tensors of the same shapes."""
    numbers = numbers_of(results)
    return INPUTS.with_text(lambda r: join_parts(r.inputs, numbers[r.id]))


def op_detail(result: OpResult) -> str:
    """Return the arguments of an op, or the reason why it is not replayed."""
    is_replayed = result.status == "replayed" or result.reason is None
    return result.inputs if is_replayed else str(result.reason).removeprefix("failed: ")


def op_column(results: Sequence[OpResult], problems: Mapping[str, tuple[str, str]] = MappingProxyType({})) -> OpColumn:
    """Return the last column in a terminal: the op's name, with the sizes and numbers that distinguish ops of the same
    name.

    `problems` maps an op id to (text shown instead of the arguments, style). The short text for narrow terminals starts
    with the numbers, because ops with numbers have equal sizes.
    """
    sizes, numbers = telling_sizes([(r.id, r.name, r.inputs) for r in results]), numbers_of(results)

    def detail(result: OpResult) -> str:
        text = problems[result.id][0] if result.id in problems else op_detail(result)
        return join_parts(text, numbers[result.id]) if result.status == "replayed" else text

    return OpColumn(
        "op",
        lambda r: r.name,
        style=lambda r: problems[r.id][1] if r.id in problems else STYLES.get(r.status, ""),
        detail=detail,
        short=lambda r: f"{numbers[r.id]} {sizes[r.id]}".strip() if r.status == "replayed" else "",
    )


def join_parts(*texts: str) -> str:
    """Join those of `texts` that are not empty, with a dot between them."""
    return " · ".join(filter(None, texts))


LIVE_OP = OpColumn("op", lambda r: r.name, detail=op_detail, short=lambda r: r.inputs.partition(" · ")[0])


def live_line(result: OpResult, width: int) -> str:
    """Return a line for an op that was just measured: id prefix, measured time or outcome, recorded time, op."""
    us = result.recorded_host_us if result.recorded_device_us is None else result.recorded_device_us
    head = f"{ID.shown(result)}  {MEASURED.shown(result):>9}  recorded {time_text(us):>8}  "
    return head + op_line(LIVE_OP, result, max(width - len(head), LEAST_NAME)).plain


def telling_sizes(ops: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """Map each op id to those inputs that distinguish the op from others of the same name.

    `ops` holds (id, name, inputs). Inputs that are the same for all ops of a name are left out. A dtype that all inputs
    share is left out, too. For an op with a unique name, the text is its first input.
    """
    by_name: dict[str, list[tuple[str, list[str]]]] = {}
    for id_, name, inputs in ops:
        by_name.setdefault(name, []).append((id_, inputs.split(" · ")))
    return {id_: size for alike in by_name.values() for id_, size in _telling_of_name(alike)}


def _telling_of_name(alike: Sequence[tuple[str, list[str]]]) -> Iterator[tuple[str, str]]:
    """Yield (id, text that distinguishes the op from the others) for each of the ops of one name."""
    parts = [inputs for _, inputs in alike]
    if len(alike) == 1:
        yield alike[0][0], parts[0][0]
        return
    same = [len(set(column)) == 1 for column in zip(*parts, strict=False)]
    one_type = len({part.partition("[")[0] for inputs in parts for part in inputs}) == 1
    for id_, inputs in alike:
        telling = [part for i, part in enumerate(inputs) if i >= len(same) or not same[i]]
        yield id_, _sizes(telling or inputs, types=not one_type)


def _sizes(parts: Sequence[str], *, types: bool) -> str:
    """Join sizes, and omit a repeated dtype: "bf16[4,512]", "bf16[512,512]" → "bf16[4,512]·[512,512]".

    Without `types`, the dtype of the first part is omitted, too.
    """
    shown: list[str] = []
    before = "" if types else parts[0].partition("[")[0]
    for part in parts:
        dtype, bracket, sizes = part.partition("[")
        shown.append(f"[{sizes}" if bracket and dtype == before else part)
        before = dtype if bracket else ""
    return "·".join(shown)
