# pyright: strict
"""Evaluate cases: values, time on each device, and exceeded limits with reasons. Reports show the result."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from opreplay.initializers.user_code import load_user_code
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.op import simulate_kernels, state_of
from opreplay.replay.ir.kernel import State
from opreplay.replay.ir.notation import tensor_text
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls
from opreplay.replay.results.records import L2State
from opreplay.replay.tile.cases import Case, base_cases, default_set, expand, smaller, to_tune, with_settings
from opreplay.replay.tile.check import Checked, as_meta, check, require_accepted, too_large
from opreplay.replay.tile.chip import TileTime, estimate
from opreplay.replay.tile.language.places import TileError
from opreplay.replay.tile.measured import (
    Calibration,
    Compared,
    Row,
    calibrate,
    calibration_of,
    read_times,
    with_measured,
)
from opreplay.replay.tile.program import Bound, Program, bind, reference_of
from opreplay.replay.tile.registration import programs
from opreplay.replay.tile.running import blocks_of_loops
from opreplay.traces.errors import OpReplayError, UsageError

STAND_INS = (16, 1)
"""Divisors of the size limits, tried in order. If a case is too large, a smaller one within the divided
limits is run.
"""
KEPT_SPANS = 20_000
"""Maximum number of instructions of the busiest core in a timeline."""


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a case exceeds."""

    line: int
    limit: str
    message: str
    file: str
    hint: str = ""


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one case on one device."""

    case: Case
    soc: str
    time: TileTime | None = None
    values: Checked | None = None
    error: Broken | None = None
    note: str = ""
    """Why values were not computed."""
    built_in_us: float | None = None
    """Predicted time of the vendor's own kernels for the same op, from the kernel-level model."""
    measured: Compared | None = None
    """Measured time of the case, next to the prediction from the program alone."""

    @property
    def failed(self) -> bool:
        """Whether the case exceeds a limit."""
        return self.error is not None


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """All cases of a file: requested cases first, then the default set."""

    results: tuple[CaseResult, ...]
    skipped: int = 0
    """Number of default shapes that the reference rejects."""
    tuned: bool = False
    l2: L2State = "sequence"
    """Assumed contents of L2 at the start."""
    calibrations: tuple[Calibration, ...] = ()
    """Calibrations by program and device, for programs with a table of measured times."""
    unused: tuple[str, ...] = ()
    """Notes on which measured times were not used, and why."""


def load_programs(name: str) -> tuple[Program, ...]:
    """Load the programs of a file, module or package. Raises UsageError if it has none, or if loading fails."""
    load_user_code(name, flag="FILE")
    if name.endswith(".py"):
        where = str(Path(name).resolve())
        defined = [p for p in programs() if str(Path(p.place.rpartition(":")[0]).resolve()) == where]
    else:
        module = sys.modules.get(name)
        origin = Path(getattr(module, "__file__", None) or "/").resolve()
        inside = origin.parent if origin.name == "__init__.py" else origin
        defined = [p for p in programs() if _within(Path(p.place.rpartition(":")[0]).resolve(), inside)]
    if not defined:
        raise UsageError(f"{name} defines no kernel", hint='Put @tile.kernel("mylib::op") on a function.')
    return tuple(defined)


def _within(file: Path, place: Path) -> bool:
    return file == place or place in file.parents


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Options that say what to evaluate."""

    cases: Sequence[str] = ()
    shapes: Sequence[str] = ()
    settings: Sequence[str] = ()
    tune: bool = False
    values: bool = True
    state: State = "network"
    cores: int | None = None
    keep: int = 0
    every: bool = False
    """Whether all loop iterations are run to compute the time, even those that repeat others."""
    measured: Path | None = None
    """Table of measured times. Its cases are evaluated, too, and it calibrates other predictions."""
    calibrations: Mapping[tuple[str, str], Calibration] = msgspec.field(
        default_factory=dict[tuple[str, str], Calibration]
    )
    """(program, device) → calibration; set by `study`."""
    inputs: Mapping[str, Any] | None = None
    """Argument → tensor for the requested cases; missing inputs are random."""


def study(
    known: Sequence[Program],
    devices: Mapping[str, DeviceProfile],
    wanted: Wanted,
    on_step: Callable[[str], None] = lambda _: None,
) -> Study:
    """Evaluate cases on devices, and check the values of each program at its default shapes.

    The cases are the requested ones or, if there are none, each program's own. If a case exceeds a limit, its result
    says so. Raises UsageError for invalid cases, sizes or settings.
    """
    rows = read_times(wanted.measured) if wanted.measured is not None else ()
    wanted = msgspec.structs.replace(wanted, calibrations=_calibrations(known, devices, wanted.measured, rows))
    measured = _measured(devices, wanted) if rows else []
    asked = _asked_cases(known, wanted, required=not measured)
    looked = [*_look_at_asked(asked, devices, wanted, on_step), *measured]
    defaults: list[CaseResult | None] = []
    if wanted.values and not wanted.tune:
        defaults = _look_at_defaults(asked or [outcome.case for outcome in measured], devices, wanted, on_step)
    return Study(
        results=(*looked, *(outcome for outcome in defaults if outcome is not None)),
        skipped=defaults.count(None),
        tuned=wanted.tune,
        l2="sequence" if wanted.state == "network" else wanted.state,
        calibrations=tuple(wanted.calibrations.values()),
        unused=_unused(known, rows, measured),
    )


def _asked_cases(known: Sequence[Program], wanted: Wanted, *, required: bool) -> tuple[Case, ...]:
    """Return the requested cases. If there are none and cases are `required`, return each program's own cases."""
    if wanted.inputs is not None:
        return _with_inputs(expand(wanted.cases, known, wanted.shapes), known, wanted.inputs)
    if wanted.cases:
        return expand(wanted.cases, known, wanted.shapes)
    if not required:
        return ()
    if wanted.shapes:
        raise UsageError(
            "--shapes is given without --case", hint="Add a case with names for sizes: --case 'NAME x=bf16[n,1024]'."
        )
    return tuple(case for program in known for case in base_cases(program))


def _with_inputs(cases: Sequence[Case], known: Sequence[Program], inputs: Mapping[str, Any]) -> tuple[Case, ...]:
    """Return the cases with the given tensors as arguments.

    Without cases, return one for each program that takes all of these tensors. Raises UsageError if there is no such
    program.
    """
    metas = {name: as_meta(tensor) for name, tensor in inputs.items()}
    programs = [p for p in known if p.required <= metas.keys() <= {i.name for i in p.inputs}]
    bases = cases or [Case(program=p, arguments={}) for p in programs]
    if not bases:
        raise UsageError(
            f"no kernel has the inputs {', '.join(metas)}",
            hint="Pass tensors by argument name; numbers go into --case.",
        )
    return tuple(msgspec.structs.replace(case, arguments=metas | dict(case.arguments)) for case in bases)


def _swept(asked: Sequence[Case], wanted: Wanted) -> tuple[Case, ...]:
    swept = with_settings(asked, wanted.settings)
    return tuple(tuned for case in swept for tuned in to_tune(case)) if wanted.tune else swept


def _look_at_asked(
    asked: Sequence[Case], devices: Mapping[str, DeviceProfile], wanted: Wanted, on_step: Callable[[str], None]
) -> list[CaseResult]:
    """Evaluate the cases with all combinations of their settings on each device, shortest time first."""
    looked: list[CaseResult] = []
    first = next(iter(devices.values()))
    # Values do not depend on sizes of blocks in a right program, but a sweep may break it: each is run.
    for case in _swept(asked, wanted):
        on_step(case.text)
        values = _values_or_nearest(case, first, wanted, STAND_INS) if not wanted.tune else None
        looked += [_look(case, name, device, wanted, values) for name, device in devices.items()]
    if wanted.tune or wanted.settings:
        looked = _best_first(looked, asked)
    return _with_best_values(looked, devices, wanted) if wanted.tune and wanted.values else looked


def _look_at_defaults(
    asked: Sequence[Case],
    devices: Mapping[str, DeviceProfile],
    wanted: Wanted,
    on_step: Callable[[str], None],
) -> list[CaseResult | None]:
    """Check the values of each program with its default set of cases, on the first device.

    If the reference rejects a case, its result is None.
    """
    name, device = next(iter(devices.items()))
    bases: dict[int, Case] = {}
    for case in asked:
        bases.setdefault(id(case.program), case)
    looked: list[CaseResult | None] = []
    for base in bases.values():
        for case in default_set(base.program, base):
            on_step(case.text)
            looked.append(_look_at_default(case, name, device, wanted))
    return looked


def _calibrations(
    known: Sequence[Program], devices: Mapping[str, DeviceProfile], path: Path | None, rows: Sequence[Row]
) -> dict[tuple[str, str], Calibration]:
    """Return calibrations by program and device: from the given rows, or from the program's own table."""
    named = {row.program for row in rows}
    if path is not None and not named & {program.name for program in known}:
        raise UsageError(
            f"no row of {path} is for {' or '.join(program.name for program in known)}",
            hint="The column program (or kernel) must have the name of the function.",
        )
    calibrations: dict[tuple[str, str], Calibration] = {}
    for program in known:
        for soc, device in devices.items():
            calibration = calibrate(program, device, rows) if program.name in named else calibration_of(program, device)
            if calibration is not None:
                calibrations[program.name, soc] = calibration
    return calibrations


def _measured(devices: Mapping[str, DeviceProfile], wanted: Wanted) -> list[CaseResult]:
    """Predict the times of the measured cases, with the cores and L2 state of the measurement. Computes no values."""
    return [
        msgspec.structs.replace(
            _look(
                comparison.case,
                soc,
                devices[soc],
                msgspec.structs.replace(wanted, state=state_of(comparison.l2), cores=comparison.cores),
                "a measured case, for its time",
            ),
            measured=comparison,
        )
        for (_, soc), known in wanted.calibrations.items()
        for comparison in known.compared
    ]


def _unused(known: Sequence[Program], rows: Sequence[Row], measured: Sequence[CaseResult]) -> tuple[str, ...]:
    names = {program.name for program in known}
    places = {outcome.measured.place for outcome in measured if outcome.measured is not None}
    others = Counter(row.program for row in rows if row.program not in names)
    elsewhere = Counter(row.soc for row in rows if row.program in names and row.place not in places)
    return (
        *(f"{count} of {name}, which is not a kernel of this file" for name, count in others.items()),
        *(f"{count} on {soc}: add --soc {soc}" for soc, count in elsewhere.items()),
    )


def _broken(error: TileError) -> Broken:
    return Broken(
        line=error.line, limit=error.limit, message=error.message, file=Path(error.file).name, hint=error.hint
    )


def _values(case: Case, device: DeviceProfile, wanted: Wanted) -> Checked | Broken | str:
    """Return how values compare with the reference, the limit that they exceed, or why they were not computed."""
    if not wanted.values:
        return "not asked for"
    bound = bind(case.program, case.arguments, case.settings)
    if reference_of(case.program) is None:
        return "no reference"
    if large := too_large(bound):
        return large
    try:
        return check(bound, device, inputs=None if case.checked_only else wanted.inputs)
    except TileError as error:
        if case.checked_only:
            require_accepted(bound)
        return _broken(error)


def _look(
    case: Case, soc: str, device: DeviceProfile, wanted: Wanted, values: Checked | Broken | str | None
) -> CaseResult:
    outcome = CaseResult(
        case=case,
        soc=soc,
        values=values if isinstance(values, Checked) else None,
        error=values if isinstance(values, Broken) else None,
        note=values if isinstance(values, str) else "",
    )
    bound = bind(case.program, case.arguments, case.settings)
    try:
        time = estimate(bound, device, state=wanted.state, cores=wanted.cores, keep=wanted.keep, every=wanted.every)
    except TileError as error:
        return msgspec.structs.replace(outcome, error=outcome.error or _broken(error))
    time = with_measured(time, bound, device, wanted.state, wanted.calibrations.get((case.program.name, soc)))
    return msgspec.structs.replace(outcome, time=time, built_in_us=built_in(bound, device, wanted.state))


def _look_at_default(case: Case, soc: str, device: DeviceProfile, wanted: Wanted) -> CaseResult | None:
    try:
        bind(case.program, case.arguments, case.settings)
        values = _values(case, device, wanted)
    except TileError as error:
        values = _broken(error)
    except UsageError:
        return None
    return _look(case, soc, device, wanted, values)


def _best_first(looked: list[CaseResult], asked: Sequence[Case]) -> list[CaseResult]:
    """Sort results by case, then by device, then by time, shortest first. Cases that exceed a limit come last."""
    order = {(case.program.name, case.text): i for i, case in enumerate(asked)}
    return sorted(
        looked,
        key=lambda outcome: (
            order.get((outcome.case.program.name, outcome.case.text), 0),
            outcome.soc,
            outcome.time.time_us if outcome.time is not None and outcome.error is None else float("inf"),
        ),
    )


def _with_best_values(
    looked: list[CaseResult], devices: Mapping[str, DeviceProfile], wanted: Wanted
) -> list[CaseResult]:
    """Check the values of the best settings of each case, and return the results.

    Settings with wrong values are excluded, and the next best ones are checked. A large case is checked at the largest
    sizes that can be run, and at the default shapes.
    """
    out: list[CaseResult] = []
    done: set[tuple[str, str, str]] = set()
    for outcome in looked:
        key = (outcome.case.program.name, outcome.case.text, outcome.soc)
        if key not in done and outcome.error is None:
            values = _values_or_nearest(outcome.case, devices[outcome.soc], wanted)
            wrong = (
                values if isinstance(values, Broken) else _wrong_elsewhere(outcome.case, devices[outcome.soc], wanted)
            )
            if wrong is not None:
                outcome = msgspec.structs.replace(outcome, error=wrong)
            else:
                done.add(key)
                outcome = msgspec.structs.replace(
                    outcome,
                    values=values if isinstance(values, Checked) else None,
                    note=values if isinstance(values, str) else "",
                )
        out.append(outcome)
    return out


def _values_or_nearest(
    case: Case, device: DeviceProfile, wanted: Wanted, parts: Sequence[int] = (1,)
) -> Checked | Broken | str:
    """Return the result of `_values`. If the case is too large, return that of the same settings at smaller sizes.

    The smaller sizes are the largest within the limits divided by a number in `parts`. It is the first with which each
    loop of several iterations still has several. If the smaller case exceeds no limit, return a note with its sizes.
    """
    large = _values(case, device, wanted)
    if not isinstance(large, str) or not too_large(_bound(case)):
        return large
    loses = partial(_loses_blocks, case, device=device)
    near, lost = smaller(case, partial(_is_small, part=parts[0])), False
    if near is not None and loses(near):
        kept = (smaller(case, partial(_is_small, part=part), lambda half: not loses(half)) for part in parts)
        whole = next((small for small in kept if small is not None), None)
        near, lost = whole or smaller(case, partial(_is_small, part=parts[-1])), whole is None
    try:
        nearest = large if near is None else _values(near, device, wanted)
    except UsageError:  # a shape that the program or its reference refuses
        near, nearest = None, large
    if near is None or isinstance(nearest, str):
        return f"{large}; values were checked only at the default shapes, not at these sizes"
    if isinstance(nearest, Checked):
        several = (
            "; a loop of several iterations has only one at those sizes, so its races and running sums are not checked"
            if lost
            else ""
        )
        return f"{large}; values are right at {near.text}{several}"
    if nearest.limit in OF_ANY_SIZE:
        return msgspec.structs.replace(nearest, message=f"{nearest.message} (at {near.text})")
    return f"{large}; not checked: {nearest.message} ({nearest.limit}, in line {nearest.line}, at {near.text})"


def first_wrong(cases: Sequence[Case], device: DeviceProfile, *, every: bool = False) -> Broken | None:
    """Return the first error in the values of a program's cases; None if there is no error, or nothing can be run.

    Cases that are too large are run at smaller sizes. Without `every`, only the limits in `OF_ANY_SIZE` count as
    errors: if they are violated at small sizes, they are also violated at large ones. Raises UsageError if the first
    case does not fit its program.
    """
    for number, case in enumerate(cases):
        try:
            outcome = _values_or_nearest(case, device, Wanted(), STAND_INS)
        except UsageError:  # a shape that the reference refuses
            if not number:
                raise
            continue
        if isinstance(outcome, Broken) and (every or outcome.limit in OF_ANY_SIZE):
            return outcome
    return None


def _bound(case: Case) -> Bound:
    return bind(case.program, case.arguments, case.settings)


def _is_small(case: Case, part: int) -> bool:
    """Check whether a case's values can be run within 1/`part` of the limits. Raises UsageError like `bind`."""
    return not too_large(_bound(case), part)


OF_ANY_SIZE = ("race", "stale", "unwritten", "values", "mask")
"""If a program violates one of these limits at some sizes, it also violates the limit at multiples of these sizes."""


def _loses_blocks(case: Case, near: Case, device: DeviceProfile) -> bool:
    """Check whether a loop with several iterations along a dimension has only one iteration in the smaller case."""
    try:
        blocks, fewer = (blocks_of_loops(_bound(each), device) for each in (case, near))
    except (TileError, UsageError):  # told where the case is looked at
        return True
    if len(blocks) != len(fewer):
        return True
    pairs = (pair for loop, less in zip(blocks, fewer, strict=True) for pair in zip(loop, less, strict=False))
    return any(count > 1 and count_near <= 1 for count, count_near in pairs)


def _wrong_elsewhere(case: Case, device: DeviceProfile, wanted: Wanted) -> Broken | None:
    """Return the first limit that the settings of a case exceed at the default shapes; None if they exceed none."""
    for variant in default_set(case.program, case):
        try:
            broken = _values(variant, device, wanted)
        except UsageError:  # a shape that the reference refuses
            continue
        if isinstance(broken, Broken):
            return msgspec.structs.replace(broken, message=f"{broken.message} (at {variant.text})")
    return None


def built_in(bound: Bound, device: DeviceProfile, state: State = "network") -> float | None:
    """Return the predicted time of the vendor's kernels for the program's op, in microseconds; None if unknown.

    `state` is the cache state when the kernels start.
    """
    program = bound.program
    if program.op.startswith("tile::"):
        return None
    parts = [
        tensor_text(bound.tensors[p.name]) if p.role != "scalar" else None
        for p in program.inputs
        if p.role != "scalar" or bound.scalars[p.name] != p.default
    ]
    return kernels_us(f"{program.op}({', '.join(part for part in parts if part)})", device, state)


def kernels_us(call: str, device: DeviceProfile, state: State = "network") -> float | None:
    """Return the predicted time of the kernels of a call such as "aten::mm(f16[64,32], f16[32,8])", in microseconds.

    Registered programs are ignored. Return None if no rule covers the op, or if the call is invalid.
    """
    try:
        plan, _ = plan_of_calls([Written(text=call)])
    except OpReplayError:
        return None
    if plan.ops[0].reason is not None:
        return None
    found = simulate_kernels(plan.ops[0], device, "sequence" if state == "network" else state)
    return found.time_us if found.by in ("rule", "user rule") and found.kernels else None
