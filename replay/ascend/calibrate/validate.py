# pyright: strict
"""Reads measured kernel tables and compares predictions with them, by kernel type, by SoC and overall.

Does the computations of `opreplay validate`; `accuracy` computes the errors, `report.views.validation` the output.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from opreplay.replay.ascend.calibrate.calibrate import Group
from opreplay.replay.ascend.cost.nearby import is_learned
from opreplay.replay.ascend.cost.predict import family_of
from opreplay.replay.ascend.measured.accuracy import (
    Compared,
    Errors,
    Launch,
    alone,
    compare_group,
    errors_by_type,
    errors_of,
    grouped,
    launches,
)
from opreplay.replay.ascend.measured.kernel_tables import read_kernel_table
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.op import state_of
from opreplay.replay.ir.kernel import State
from opreplay.replay.results.records import L2State
from opreplay.traces.errors import Malformed, UsageError


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """One file of measurements."""

    path: str
    workload: str
    """Name of the workload; files of several ranks or runs of one workload share it."""
    kind: str
    """Kind of the rows: kernels in launch order, or means."""
    state: State
    """State of the caches while the rows were measured."""
    launches: tuple[Launch, ...]
    """Launches of the measured kernels and ops, including collectives."""
    rows: int
    """Number of rows read, including rows without a duration."""
    dropped: dict[str, int]
    has_held_out: bool = False
    """Whether a column marks held-out rows."""


def read_measurements(path: str | Path) -> Measurements:
    """Read a kernel table. Raises TraceError, Malformed and TooLarge as `read_kernel_table` does."""
    kernels = read_kernel_table(path)
    return Measurements(
        path=str(path),
        workload=re.sub(r"_?(rank|level)\d+$", "", Path(path).stem),
        kind="kernels in launch order" if kernels.is_sequence else "means of kernels",
        state="network",
        launches=tuple(launches(kernels)),
        rows=len(kernels.rows),
        dropped=kernels.dropped,
        has_held_out=kernels.has_held_out,
    )


def groups_of_tables(tables: Iterable[tuple[Measurements, str]]) -> list[Group]:
    """Return the unique kernels and ops of each workload and SoC, weighted so that no workload dominates a fit.

    Collectives are left out. A workload of n kernels has weight sqrt(n): with 4 times as many kernels it counts twice,
    not 4 times.
    """
    by_workload: dict[tuple[str, str], list[Launch]] = {}
    for table, soc in tables:
        chosen = [launch for launch in table.launches if not launch.row.communication]
        by_workload.setdefault((table.workload, soc), []).extend(chosen)
    groups = [
        Group(soc=soc, launches=tuple(group), table=workload)
        for (workload, soc), measured in by_workload.items()
        for group in grouped(measured)
    ]
    sizes = Counter(group.table for group in groups)
    usual = max(sizes.values(), default=1)
    return [msgspec.structs.replace(g, weight=min(4.0, math.sqrt(usual / sizes[g.table]))) for g in groups]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel table and the device on which it was measured."""

    table: Measurements
    device: DeviceProfile


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Errors overall and by kernel type."""

    overall: Errors
    families: dict[str, Errors]
    """Errors by CANN kernel type, in descending order of measured time."""


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of predictions compared with measurements."""

    figures: Figures
    socs: dict[str, Errors]
    compared: tuple[Compared, ...]
    """Measured and predicted time of every unique kernel."""
    rows: int
    measured_rows: int
    fitted_to: int
    """Number of unique kernels with exactly the sizes of kernels that the device was fitted to. Their errors do not
    show how well other kernels are predicted.
    """
    by_others: int = 0
    """Number of compared calls from which the shipped correction was learned. Each is predicted without the
    measurements of its own source.
    """
    dropped: dict[str, int]
    """Reason → number of rows that could not be read for this reason."""


def read_measured(paths: Sequence[str], devices: Sequence[DeviceProfile]) -> list[Measured]:
    """Read kernel tables and pair them with devices: one device for all tables, or one per table in order.

    Raises UsageError if the number of devices does not match the tables, TraceError and Malformed for files that are
    not kernel tables.
    """
    if len(devices) not in (1, len(paths)):
        raise UsageError(
            f"the number of --soc options ({len(devices)}) differs from the number of kernel tables ({len(paths)})",
            hint="Give --soc once for all tables, or once per table in the same order.",
        )
    chosen = list(devices) * len(paths) if len(devices) == 1 else list(devices)
    return [Measured(table=read_measurements(path), device=device) for path, device in zip(paths, chosen, strict=True)]


def by_device(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Group tables by device name, in order of first appearance."""
    out: dict[str, list[Measured]] = {}
    for run in measured:
        out.setdefault(run.device.name, []).append(run)
    return out


def groups_of(measured: Sequence[Measured]) -> list[Group]:
    """Return the unique measured kernels and ops of each SoC and workload for a fit. Collectives are left out."""
    return groups_of_tables([(run.table, run.device.name) for run in measured])


def figures_of(compared: Sequence[Compared]) -> Figures:
    """Return the errors overall and by kernel type."""
    return Figures(overall=errors_of(compared), families=errors_by_type(compared))


def validate(
    measured: Sequence[Measured],
    *,
    communication: bool = True,
    only_held_out: bool = False,
    l2: L2State | None = None,
) -> Validation:
    """Compare predictions with measurements.

    The L2 state at the start of each kernel of a network is derived from the launch order. `l2` replaces it.
    `only_held_out` keeps only the rows with 1 in the column HeldOut. Raises UsageError if `only_held_out` is given and
    no table has that column, and Malformed if no row is left to compare.
    """
    measured = [_in_state(run, l2) for run in measured]
    if only_held_out and not any(run.table.has_held_out for run in measured):
        raise UsageError("no table has a column HeldOut", hint="Leave out --only-held-out, or add the column (0 or 1).")
    everything: list[Compared] = []
    fitted_to = 0
    socs: dict[str, Errors] = {}
    for name, tables in by_device(measured).items():
        chosen = [
            launch
            for run in tables
            for launch in run.table.launches
            if (communication or not launch.row.communication) and (launch.row.held_out or not only_held_out)
        ]
        device, groups = tables[0].device, grouped(chosen)
        compared = [compare_group(group, device) for group in groups]
        everything += compared
        fitted_to += sum(_is_learned(group[0], device) for group in groups)
        if compared:
            socs[name] = errors_of(compared)
    rows = sum(run.table.rows for run in measured)
    if not everything:
        raise Malformed(
            f"none of the {rows} rows has a duration: {', '.join(run.table.path for run in measured)}",
            hint=("The column must be Duration(us) or Task Duration(us). If it is, options may exclude all rows."),
        )
    return Validation(
        figures=figures_of(everything),
        socs=socs,
        compared=tuple(everything),
        rows=rows,
        measured_rows=sum(len(run.table.launches) for run in measured),
        fitted_to=fitted_to,
        dropped=total_counts([run.table.dropped for run in measured]),
    )


def _in_state(run: Measured, l2: L2State | None) -> Measured:
    """Return a kernel table whose launches all start with the L2 in state `l2`, as if each kernel ran alone.

    If `l2` is None or "sequence", the table is returned unchanged.
    """
    if l2 is None or l2 == "sequence":
        return run
    launches = tuple(alone(launch, state_of(l2)) for launch in run.table.launches)
    return msgspec.structs.replace(run, table=msgspec.structs.replace(run.table, launches=launches))


def _is_learned(launch: Launch, device: DeviceProfile) -> bool:
    """Check whether the device was fitted to kernels with exactly the sizes of this launch's kernels."""
    return all(is_learned(part.call, family_of(part.call, device), launch.state) for part in launch.parts)


def total_counts(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Add up counts by key."""
    return dict(sum(map(Counter, counts), Counter[str]()))
