# pyright: strict
"""Measured times of programs: the user's table, and the calibration of a program's predictions on a device."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from opreplay.replay.ascend.cost.predict import LEAST_EXTRAPOLATED
from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.op import state_of
from opreplay.replay.ir.kernel import State
from opreplay.replay.results.records import L2State
from opreplay.replay.tile.cases import MOST_CASES, Case, parse_case
from opreplay.replay.tile.chip import TileTime, estimate
from opreplay.replay.tile.language.places import TileError
from opreplay.replay.tile.program import Bound, Program, bind
from opreplay.traces.errors import Malformed, OpReplayError, TooLarge, UsageError
from opreplay.traces.folders import open_regular
from opreplay.traces.model import contiguous_strides

MAX_FILE_BYTES = 64 << 20
COLUMNS = {
    "program": ("program", "kernel"),
    "soc": ("soc",),
    "case": ("shape", "case"),
    "time_us": ("time_us",),
    "settings": ("tiling", "settings"),
    "cores": ("cores",),
    "l2": ("l2",),
}
"""Quantity in a table → its column names, as in published kernel tables or in output of `tile --format json`."""
REQUIRED = ("program", "soc", "case", "time_us")
STATE_SPREAD: dict[State, float] = {"network": 1.0, "cold": 0.73, "warm": 0.62}
"""L2 state → spread of prediction errors in it, divided by the spread in state "network".

A spread covers 80 % of the errors of held-out kernels.
"""
LEAST_CASES = 3
"""Minimum number of different cases for a calibration. With two, each would be judged by a single other case."""
MIN_BAND_FACTOR = 1.05
"""Minimum factor of an 80 % band, even if a few cases agree better. It is the same as for kernel families."""
MOST_FACTOR = 10.0
"""Maximum ratio of measured to predicted time, or its inverse. Beyond it, something else must have been measured."""
EXTRAPOLATION_FACTOR = 2.0
"""Maximum factor by which a size may exceed the measured range. Kernel families, with more data, allow more."""
OUTLYING = 2.5
"""Number of robust standard deviations from the median at which values are clipped (Huber)."""
T_80 = (1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372)
"""90 % quantiles of Student's t for 2, 3, ... degrees of freedom. The last one is used for all higher degrees.

They give an 80 % band if the spread itself is only estimated from a few cases.
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table of measured times."""

    place: str
    """Location of the row, such as "times.csv:3"."""
    folder: Path
    program: str
    soc: str
    case: str
    settings: str
    cores: int | None
    l2: L2State
    time_us: float


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A measured case with its prediction, for the L2 state and number of cores of the measurement."""

    case: Case
    place: str
    cores: int | None
    l2: L2State
    measured_us: float
    predicted_us: float
    """Time predicted from the program alone, without calibration."""
    held_out_error: float | None = None
    """Relative error (predicted / measured - 1) if calibrated with the other cases only; None without calibration."""

    @property
    def error(self) -> float:
        """Relative error: predicted / measured - 1."""
        return self.predicted_us / self.measured_us - 1


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration of a program's predictions on one device by measured times."""

    program: str
    soc: str
    compared: tuple[Compared, ...]
    cases: int
    """Number of cases with different arguments. Rows that differ only in settings, cores or L2 state count as one."""
    factor: float = 1.0
    """Ratio of measured to predicted time."""
    width: float = 0.0
    """Logarithm of the 80 % band's factor, for the measured L2 state with the smallest spread."""
    refused: str = ""
    """Reason why there is no calibration; "" if there is one."""
    ranges: Mapping[str, tuple[float, float]] = msgspec.field(default_factory=dict[str, tuple[float, float]])
    """Size, integer setting, cores used or predicted time → lowest and highest measured value."""
    kinds: Mapping[str, Collection[str]] = msgspec.field(default_factory=dict[str, Collection[str]])
    """Name of a tensor → measured dtypes and layouts; name of a string or flag → measured values."""


def read_times(path: Path) -> tuple[Row, ...]:
    """Read the rows of a table of measured times.

    Raises UsageError for a file that cannot be read, Malformed for an invalid table (with the line), and TooLarge.
    """
    try:
        with TextIOWrapper(open_regular(path, MAX_FILE_BYTES), encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = _columns(path, reader.fieldnames or ())
            rows: list[Row] = []
            for line in reader:
                if len(rows) >= MOST_CASES:
                    raise TooLarge(f"{path} has more than {MOST_CASES:,} measured times")
                rows.append(_row(path, reader.line_num, cast("dict[Any, Any]", line), columns))
    except OSError as error:
        raise UsageError(f"cannot read measured times from {path}: {error.strerror or error}", hint=_HINT) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise Malformed(f"{path}: not a CSV file: {error}", hint=_HINT) from error
    return tuple(rows)


_HINT = (
    'Write a CSV with the columns program, soc, shape ("x=bf16[4096,1024] w=bf16[1024]", in quotes) and time_us; '
    'tiling ("rows=8"), cores and l2 are optional.'
)


def _columns(path: Path, header: Sequence[str]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for name, words in COLUMNS.items():
        there = [word for word in words if word in header]
        if len(there) > 1:
            raise Malformed(
                f"{path}: columns {there[0]} and {there[1]} have the same meaning", hint="Remove one of them."
            )
        if there:
            columns[name] = there[0]
        elif name in REQUIRED:
            raise Malformed(f"{path}: there is no column {' or '.join(words)}", hint=_HINT)
    return columns


def _time_us(place: str, text: str) -> float:
    """Parse a time in microseconds. Raises Malformed."""
    try:
        time_us = float(text)
    except ValueError:
        time_us = math.nan
    if not (math.isfinite(time_us) and time_us > 0):
        raise Malformed(f"{place}: {text!r} is not a time", hint="time_us must be in microseconds and above 0.")
    return time_us


def _row(path: Path, number: int, line: Mapping[Any, Any], columns: Mapping[str, str]) -> Row:
    place = f"{path.name}:{number}"
    if None in line or None in line.values():
        raise Malformed(
            f"{place}: the number of cells differs from the number of columns",
            hint='Quote cells that contain a comma: "x=f16[8,8]".',
        )
    cells = {name: str(line[column]).strip() for name, column in columns.items()}
    time_us = _time_us(place, cells["time_us"])
    cores = cells.get("cores", "")
    if cores and not (cores.isdecimal() and int(cores) > 0):
        raise Malformed(f"{place}: {cores!r} is not a number of cores", hint="Leave it empty for all cores.")
    l2 = cells.get("l2", "") or "warm"
    if l2 not in get_args(L2State):
        raise Malformed(f"{place}: {l2!r} is not a state of L2", hint=f"Use one of {', '.join(get_args(L2State))}.")
    return Row(
        place=place,
        folder=path.parent,
        program=cells["program"].rpartition("::")[2],
        soc=cells["soc"],
        case=cells["case"],
        settings=cells.get("settings", ""),
        cores=int(cores) if cores else None,
        l2=cast("L2State", l2),
        time_us=time_us,
    )


def calibrate(program: Program, device: DeviceProfile, rows: Sequence[Row]) -> Calibration:
    """Calibrate a program on a device with the rows of a table. Rows of other programs and devices are ignored.

    The factor is the geometric mean of measured / predicted time, with outliers clipped. The band is estimated by
    leaving out one case at a time. Raises UsageError for an unknown device, and for a case that does not fit the
    program. The latter error gives the line of the table.
    """
    matches = [row for row in rows if row.program == program.name and _device_name(row) == device.name]
    compared: list[Compared] = []
    bounds: list[tuple[Bound, TileTime]] = []
    logs_by_case: dict[str, list[float]] = {}
    for row in matches:
        comparison, bound, time = _compare(program, device, row)
        compared.append(comparison)
        bounds.append((bound, time))
        logs = logs_by_case.setdefault(comparison.case.text, [])
        logs.append(math.log(comparison.measured_us / comparison.predicted_us))
    cases = len(logs_by_case)
    calibration = Calibration(program=program.name, soc=device.name, compared=tuple(compared), cases=cases)
    if cases < LEAST_CASES:
        text = f"measured {'once' if cases == 1 else 'twice'}" if cases else "not measured there"
        return msgspec.structs.replace(calibration, refused=f"{text}: {LEAST_CASES} different cases are needed")
    centre, others, width = _leave_one_out(logs_by_case)
    calibration = msgspec.structs.replace(
        calibration,
        compared=tuple(
            msgspec.structs.replace(
                row, held_out_error=math.exp(others[row.case.text]) * row.predicted_us / row.measured_us - 1
            )
            for row in compared
        ),
    )
    if refused := _refusal(centre, width, device.families["Unknown"].band):
        return msgspec.structs.replace(calibration, refused=refused)
    return msgspec.structs.replace(
        calibration, factor=math.exp(centre), width=width, ranges=_ranges(bounds), kinds=_categories_measured(bounds)
    )


def _leave_one_out(logs_by_case: Mapping[str, Sequence[float]]) -> tuple[float, dict[str, float], float]:
    """Return (centre of log(measured / predicted), the centre without each case, logarithm of the 80 % band)."""
    means = {text: statistics.fmean(logs) for text, logs in logs_by_case.items()}
    others = {text: _centre([x for key, x in means.items() if key != text]) for text in means}
    worst = [max(abs(x - others[text]) for x in logs) for text, logs in logs_by_case.items()]
    width = max(
        math.log(MIN_BAND_FACTOR), _student_t(len(worst) - 1) * math.sqrt(statistics.fmean(x * x for x in worst))
    )
    return _centre(list(means.values())), others, width


def _refusal(centre: float, width: float, unmeasured_band: float) -> str:
    """Return why measured times cannot be used for calibration; "" if they can. `centre` and `width` are logarithms."""
    if abs(centre) > math.log(MOST_FACTOR):
        times = f"{math.exp(abs(centre)):,.0f} times {'as long' if centre > 0 else 'as short'} as predicted"
        return f"measured {times}: are the times in microseconds, of this kernel alone?"
    if math.exp(width) > unmeasured_band:
        return (
            f"the measured cases predict each other within a factor of {math.exp(width):.2g}, worse than the factor of "
            f"{unmeasured_band:.2g} without measurements"
        )
    return ""


def _device_name(row: Row) -> str:
    device_file = row.folder / row.soc
    try:
        return load_device(device_file if row.soc.endswith(".toml") else row.soc).name
    except OpReplayError as error:
        raise UsageError(f"{row.place}: {error.problem}", hint=error.hint) from error


def _compare(program: Program, device: DeviceProfile, row: Row) -> tuple[Compared, Bound, TileTime]:
    try:
        case = parse_case(f"{program.name} {row.case}", [program])
        settings = parse_case(f"{program.name} {row.settings}", [program]).arguments
        bound = bind(program, case.arguments, settings)
        time = estimate(bound, device, state=state_of(row.l2), cores=row.cores)
    except TileError as error:
        raise UsageError(
            f"{row.place}: {program.name} {row.case} {row.settings}: {error.problem}", hint=error.hint
        ) from error
    except UsageError as error:
        raise UsageError(f"{row.place}: {error.problem}", hint=error.hint or _HINT) from error
    compared = Compared(
        case=Case(program=program, arguments=case.arguments, settings=settings),
        place=row.place,
        cores=row.cores,
        l2=row.l2,
        measured_us=row.time_us,
        predicted_us=time.time_us,
    )
    return compared, bound, time


def _centre(values: Sequence[float]) -> float:
    """Return the mean of logarithms, with values far from the median clipped."""
    median = statistics.median(values)
    deviation = 1.4826 * statistics.median(abs(x - median) for x in values)
    reach = OUTLYING * max(deviation, math.log(MIN_BAND_FACTOR))
    return statistics.fmean(min(median + reach, max(median - reach, x)) for x in values)


def _student_t(freedom: int) -> float:
    return T_80[min(freedom, len(T_80) + 1) - 2]


def _sizes(bound: Bound, time: TileTime) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for name, meta in bound.tensors.items():
        sizes |= {f"{name}[{i}]": float(size) for i, size in enumerate(meta.shape)}
    numbers = {**bound.scalars, **bound.settings}
    sizes |= {name: float(v) for name, v in numbers.items() if type(v) is int and v > 0}
    return sizes | {"cores": float(time.cores), "time": time.time_us}


def _categories(bound: Bound) -> dict[str, str]:
    words: dict[str, str] = {}
    for name, meta in bound.tensors.items():
        usual = meta.strides is None or meta.strides == contiguous_strides(meta.shape)
        words[name] = meta.dtype if usual else f"{meta.dtype} in strides"
    for name, value in {**bound.scalars, **bound.settings}.items():
        # Numbers such as eps and factors change values, not times.
        if type(value) is not float and not (type(value) is int and value > 0):
            words[name] = str(value)
    return words


def _ranges(bounds: Sequence[tuple[Bound, TileTime]]) -> dict[str, tuple[float, float]]:
    ranges: dict[str, tuple[float, float]] = {}
    for bound, time in bounds:
        for name, value in _sizes(bound, time).items():
            low, high = ranges.get(name, (value, value))
            ranges[name] = min(low, value), max(high, value)
    return ranges


def _categories_measured(bounds: Sequence[tuple[Bound, TileTime]]) -> dict[str, set[str]]:
    kinds: dict[str, set[str]] = {}
    for bound, _ in bounds:
        for name, word in _categories(bound).items():
            kinds.setdefault(name, set()).add(word)
    return kinds


def outside(known: Calibration, bound: Bound, time: TileTime) -> str:
    """Return why a case is too far from the measured cases: "x[0]=65536, measured 512 to 4096"; "" if it is not.

    Sizes, cores and the predicted time may be outside the measured range by a factor of `EXTRAPOLATION_FACTOR`. Integer
    settings must be within the range. Dtypes, layouts, strings and flags must be among the measured ones.
    """
    for name, word in _categories(bound).items():
        if word not in (there := known.kinds.get(name, ())):
            return f"{name}={word}, but measured with {', '.join(sorted(there)) or 'other values'}"
    for name, value in _sizes(bound, time).items():
        if name not in known.ranges:
            return f"{name}={value:.6g}, measured without"
        low, high = known.ranges[name]
        beyond = 1.0 if name in bound.settings else EXTRAPOLATION_FACTOR
        if value > beyond * high or value * beyond < low:
            unit = " us" if name == "time" else ""
            return f"{name}={value:.6g}{unit}, but measured from {low:.6g} to {high:.6g}"
    return ""


def with_measured(
    time: TileTime, bound: Bound, device: DeviceProfile, state: State, known: Calibration | None
) -> TileTime:
    """Return a prediction calibrated by measured times of its program on the device, with scaled times and a new band.

    If the case is far outside the measured cases, the prediction counts as uncalibrated. Its band is then wide enough
    to include both the scaled and the unscaled time.
    """
    if known is None or known.refused:
        return time
    # What was timed in a loop says less of a kernel among others, whose caches and neighbours differ.
    steadiest = min(STATE_SPREAD[state_of(comparison.l2)] for comparison in known.compared)
    band = math.exp(known.width * max(1.0, STATE_SPREAD[state] / steadiest))
    beyond = outside(known, bound, time)
    time_us = time.time_us * known.factor
    low, high = time_us / band, time_us * band
    if beyond:
        wide = max(band, device.families["Unknown"].band, LEAST_EXTRAPOLATED)
        low, high = min(time.time_us, time_us) / wide, max(time.time_us, time_us) * wide
    return msgspec.structs.replace(
        _scaled(time, known.factor),
        low_us=low,
        high_us=high,
        confidence="uncalibrated" if beyond else "calibrated",
        outside=beyond,
    )


def _scaled(time: TileTime, factor: float) -> TileTime:
    """Return the same schedule with all times multiplied by `factor`."""
    return msgspec.structs.replace(
        time,
        time_us=time.time_us * factor,
        overlapped_us=time.overlapped_us * factor,
        serial_us=time.serial_us * factor,
        launch_us=time.launch_us * factor,
        hbm_us=time.hbm_us * factor,
        l2_us=time.l2_us * factor,
        lines=tuple(msgspec.structs.replace(line, busy_us=line.busy_us * factor) for line in time.lines),
        spans=tuple(
            msgspec.structs.replace(span, start_us=span.start_us * factor, dur_us=span.dur_us * factor)
            for span in time.spans
        ),
        factor=factor,
    )


_known: dict[tuple[object, str, str], Calibration] = {}


def calibration_of(program: Program, device: DeviceProfile) -> Calibration | None:
    """Return a program's calibration for a device; None if its decorator names no table of measured times.

    The table is read once. Raises UsageError for a table without rows for the program, and the errors of `read_times`
    and `calibrate`.
    """
    if program.measured is None:
        return None
    key = (program.function, device.name, device.version)
    if key not in _known:
        _known[key] = calibrate(program, device, rows_of(program, read_times(program.measured)))
    return _known[key]


def rows_of(program: Program, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows of one program. Raises UsageError if there are none."""
    matches = tuple(row for row in rows if row.program == program.name)
    if not matches:
        raise UsageError(
            f"{program.shown}: no row of {program.measured} is for {program.name}",
            hint="The column program (or kernel) must have the name of the function.",
        )
    return matches
