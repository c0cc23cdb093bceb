# pyright: strict
"""The time of a kernel: its cores' schedules, the launch, and the traffic of all cores to L2 and HBM."""

from __future__ import annotations

from math import prod
from typing import Literal

import msgspec

from opreplay.replay.ascend.cost.vector import resident_share
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import Confidence, State
from opreplay.replay.tile.language.instructions import instructions
from opreplay.replay.tile.language.places import DTYPE_BYTES, Place, TileError, capacity
from opreplay.replay.tile.language.recording import PROBES, Recording
from opreplay.replay.tile.pipes import WRITES, Schedule, Scheduler, Traffic, does_more, moved, work
from opreplay.replay.tile.program import Bound
from opreplay.replay.tile.running import CoreRuns, head_of, run_times
from opreplay.traces.sums import summed

ROUNDS = 3
"""Maximum number of times that transfers are slowed down until they match the bandwidth of L2 and HBM."""
CLEARLY_LESS = 0.95
"""Cores with at least this share of the heaviest core's work are scheduled, too. They may wait more and end last."""
LATENT = 0.6
"""If no pipe is busy for this share of the core's time, none is the bound. The core then mostly waits for data and
flags.
"""

PIPE_NAMES = {
    "MTE2": "mte2",
    "MTE1": "mte1",
    "CUBE": "cube",
    "FIXP": "fixpipe",
    "VEC": "vector",
    "MTE3": "mte3",
    "S": "scalar",
}
"""Pipe → its name in results."""

Bound_ = Literal["launch", "cube", "vector", "mte1", "mte2", "mte3", "fixpipe", "scalar", "hbm", "l2", "waiting"]


class LineTime(msgspec.Struct, frozen=True, kw_only=True):
    """Busy microseconds of one line of the source on one pipe of the busiest core."""

    file: str
    line: int
    pipe: str
    busy_us: float


class PipeSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One instruction of the busiest core with its times."""

    name: str
    pipe: str
    line: int
    start_us: float
    dur_us: float


class TileTime(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted time of one case on one device."""

    time_us: float
    """Scheduled time, including launch."""
    low_us: float
    high_us: float
    """Upper end of the 80 % band. The band is from the program's measured times, or that of an uncalibrated kernel."""
    in_l2: float
    """Share of the bytes accessed by the kernel that are in L2 when it starts."""
    overlapped_us: float
    """Time if no pipe ever waited for another."""
    serial_us: float
    """Time if nothing overlapped."""
    launch_us: float
    bound: Bound_
    cores: int
    mixed: bool
    pipes: dict[str, float]
    """Busy share of the busiest core's time by pipe; "aiv_" marks pipes of vector cores next to a cube core."""
    buffers: dict[Place, tuple[int, int]]
    """Memory → (bytes used, bytes available)."""
    hbm_us: float
    l2_us: float
    notes: tuple[str, ...]
    confidence: Confidence = "uncalibrated"
    factor: float = 1.0
    """Calibration factor, from measured times of the program. The times of this class are already multiplied by it."""
    outside: str = ""
    """How the case differs from the measured cases if it is far from all of them; "" otherwise."""
    lines: tuple[LineTime, ...] = ()
    spans: tuple[PipeSpan, ...] = ()


def launch_us(device: DeviceProfile, runs: CoreRuns) -> float:
    """Return the launch and end overhead of a kernel: a fixed time for one core, plus a time for each further core."""
    return device.pipes.start_us + device.pipes.start_core_us * (runs.cores * (3 if runs.mixed else 1) - 1)


class _Demand(msgspec.Struct, frozen=True):
    """Data moved by all cores together."""

    missing: dict[str, float]
    """Tensor → share of its loads that come from HBM."""
    l2_bytes: float
    hbm_read: float
    hbm_write: float
    in_l2: float


def _demand(bound: Bound, runs: CoreRuns, device: DeviceProfile, state: State) -> _Demand:
    sizes = {name: _bytes(meta.shape, meta.dtype) for name, meta in bound.tensors.items()}
    loaded: dict[str, float] = {}
    stored: dict[str, float] = {}
    through = 0.0
    each = moved([recording.steps for _, recording in runs.classes])
    for (count, _), sizes_moved in zip(runs.classes, each, strict=True):
        for (unit, pipe, memory), size in sizes_moved.items():
            # Of the two vector cores of a group one was run.
            times = count * (2 if unit != "cube" and runs.kind == "cube" else 1)
            through += size * times
            side = stored if pipe in WRITES else loaded
            side[memory] = side.get(memory, 0.0) + size * times
    _check_covered(bound, runs, stored)
    reading = {name: min(size, sizes[name]) for name, size in loaded.items() if name in sizes}
    written = sum(min(size, sizes[name]) for name, size in stored.items() if name in sizes)
    share = 1.0 - resident(sum(reading.values()) + written, device, state)
    missing = {name: share * size / loaded[name] for name, size in reading.items() if loaded[name]}
    return _Demand(missing, through, share * sum(reading.values()), share * written, 1.0 - share)


def _check_covered(bound: Bound, runs: CoreRuns, stored: dict[str, float]) -> None:
    """Raise TileError if all cores together store fewer elements than a result has.

    A missing element is not noticed here if another element is stored twice. `check.unwritten` detects that, too,
    because it has the values.
    """
    if any(recording.position_dependent for _, recording in runs.classes):
        return  # What was left out may have stored more.
    for p in bound.program.parameters:
        meta = bound.tensors.get(p.name)
        if p.role != "out" or meta is None:
            continue
        there = prod(meta.shape)
        elements = stored.get(p.name, 0.0) / DTYPE_BYTES.get(meta.dtype, 4)
        if elements < there:
            raise TileError(
                "unwritten",
                f"{p.name}: {there - int(elements):,} of {there:,} elements are never written",
                _stored_by(runs, p.name) or head_of(bound.program),
                hint="Blocks must cover the whole result.",
            )


def _stored_by(runs: CoreRuns, name: str) -> tuple[str, int] | None:
    """Return the file and the line of the last instruction that stores to a tensor."""
    for _, recording in runs.classes:
        for step in reversed(list(instructions(recording.steps))):
            if step.pipe in WRITES and step.memory == name:
                return recording.lines[step.place]
    return None


def resident(touched: float, device: DeviceProfile, state: State) -> float:
    """Return the share of a kernel's bytes that is in L2 when the kernel starts.

    For state "cold", it is 0. For "network", it is the share to expect inside a network. For "warm", where the same
    kernel ran just before, it is at least that share.
    """
    if state == "cold":
        return 0.0
    unknown = resident_share(touched, device)
    if state == "network":
        return unknown
    rates = device.rates
    return max(unknown, 1 / (1 + (touched / (rates.sequence_reach * device.l2_bytes)) ** rates.sequence_sharpness))


def _bytes(shape: tuple[int, ...], dtype: str) -> float:
    out = float(DTYPE_BYTES.get(dtype, 4))
    for n in shape:
        out *= n
    return out


def hbm_us(demand: _Demand, device: DeviceProfile) -> float:
    """Return the time of all transfers to and from HBM in microseconds, using the rates of the kernel model."""
    rates = device.rates
    both = demand.hbm_read + demand.hbm_write
    share = demand.hbm_read / both if both > 0 else 0.0
    reached = rates.hbm_efficiency / (1 + rates.hbm_mixed_cost * 4 * share * (1 - share))
    return both / (device.hbm_bytes_per_s * reached) * 1e6


def estimate(
    bound: Bound,
    device: DeviceProfile,
    *,
    state: State = "network",
    cores: int | None = None,
    keep: int = 0,
    every: bool = False,
) -> TileTime:
    """Return the time of a program on a device, in microseconds.

    `state` is the cache state at the start. `keep` is the number of instructions of the busiest core that the result
    lists. With `every`, all loop iterations are run, including repetitive ones. Raises TileError if the program exceeds
    a limit, or stores fewer elements than a result has.
    """
    runs = run_times(bound, device, cores, every=every)
    demand = _demand(bound, runs, device, state)
    floor_hbm = hbm_us(demand, device)
    floor_l2 = demand.l2_bytes / (device.pipes.l2_bytes_per_cycle * device.freq_hz) * 1e6
    us = 1e6 / device.freq_hz
    first, recording = _busiest_core(runs, device, Traffic(demand.missing))
    # Cores that wait for memory wait longer the nearer L2 and HBM are to what they can give: a norm, as between the
    # pipes of a product in the kernel model.
    p = device.rates.overlap_p
    scheduled = sum(part**p for part in (first.end * us, floor_hbm, floor_l2)) ** (1 / p)
    slowest = _slowed(device, Traffic(demand.missing), scheduled / us, first, recording, keep)
    launch = launch_us(device, runs)
    occupied = max(first.occupied.values(), default=0.0) * us
    overlapped = min(scheduled, sum(part**p for part in (occupied, floor_hbm, floor_l2)) ** (1 / p))
    serial = max(scheduled, sum(value for key, value in slowest.busy.items() if key[1] != "S") * us)
    shares = {_pipe_name(key, runs): value * us / scheduled for key, value in slowest.busy.items()} if scheduled else {}
    buffers = _buffers(runs, device)
    band = device.families["Unknown"].band
    return TileTime(
        time_us=launch + scheduled,
        low_us=(launch + scheduled) / band,
        high_us=(launch + scheduled) * band,
        in_l2=demand.in_l2,
        overlapped_us=launch + overlapped,
        serial_us=launch + serial,
        launch_us=launch,
        bound=_bound(shares, launch, scheduled, floor_hbm, floor_l2),
        cores=runs.cores,
        mixed=runs.mixed,
        pipes={name: min(1.0, share) for name, share in sorted(shares.items())},
        buffers=buffers,
        hbm_us=floor_hbm,
        l2_us=floor_l2,
        notes=_notes(runs, slowest),
        lines=_lines(recording, slowest, us, runs),
        spans=tuple(
            PipeSpan(
                name=span.instruction.name,
                pipe=_pipe_name((span.instruction.unit, span.instruction.pipe), runs),
                line=recording.lines[span.instruction.place][1],
                start_us=span.start * us,
                dur_us=(span.end - span.start) * us,
            )
            for span in slowest.spans
        ),
    )


def _busiest_core(runs: CoreRuns, device: DeviceProfile, traffic: Traffic) -> tuple[Schedule, Recording]:
    # Cores with clearly less to do end earlier: they are not scheduled.
    weights = work([recording.steps for _, recording in runs.classes], device, traffic)
    heaviest = max(weights)
    scheduler = Scheduler(device, traffic)
    pairs = zip(runs.classes, weights, strict=True)
    busy = [(recording, weight) for (_, recording), weight in pairs if weight >= CLEARLY_LESS * heaviest]
    scheduled = [
        (scheduler.schedule(recording.steps), recording, weight)
        for recording, weight in busy
        if not any(other > weight and does_more(more.steps, recording.steps) for more, other in busy)
    ]
    last, recording, _ = max(scheduled, key=lambda each: (round(each[0].end, 3), each[2]))
    return last, recording


def _slowed(
    device: DeviceProfile, traffic: Traffic, wanted: float, first: Schedule, recording: Recording, keep: int
) -> Schedule:
    """Return the busiest core's schedule with transfers slowed down to what the traffic of all cores allows."""
    slowed = first
    for _ in range(ROUNDS):
        if slowed.end >= wanted * 0.98:
            break
        factor = wanted / slowed.end
        traffic.slow_l2 *= factor
        traffic.slow_hbm *= factor
        slowed = Scheduler(device, traffic).schedule(recording.steps)
    return Scheduler(device, traffic).schedule(recording.steps, keep=keep) if keep else slowed


def _pipe_name(key: tuple[str, str], runs: CoreRuns) -> str:
    name = PIPE_NAMES[key[1]]
    return f"aiv_{name}" if runs.kind == "cube" and key[0] != "cube" and name != "vector" else name


def _bound(shares: dict[str, float], launch: float, scheduled: float, hbm: float, l2: float) -> Bound_:
    if launch > scheduled:
        return "launch"
    if max(hbm, l2) > 0.97 * scheduled:
        return "hbm" if hbm >= l2 else "l2"
    name = max(shares, key=shares.__getitem__, default="waiting")
    if shares.get(name, 0.0) < LATENT:
        return "waiting"
    plain: Bound_ = name.removeprefix("aiv_")  # pyright: ignore[reportAssignmentType]
    return plain


def _buffers(runs: CoreRuns, device: DeviceProfile) -> dict[Place, tuple[int, int]]:
    used: dict[Place, int] = {}
    for _, recording in runs.classes:
        for place, size in recording.peaks.items():
            used[place] = max(size, used.get(place, 0))
    return {place: (size, capacity(place, device)) for place, size in sorted(used.items())}


def _notes(runs: CoreRuns, slowest: Schedule) -> tuple[str, ...]:
    notes: list[str] = []
    if skipped := max(recording.left_out for _, recording in runs.classes):
        notes.append(f"{skipped:,} iterations repeat other iterations: they were counted, not run")
    if looked := max(recording.position_dependent for _, recording in runs.classes):
        notes.append(
            f"{looked:,} of those not run are in loops whose body uses positions: {PROBES} were compared, others may "
            f"differ (--every runs all)"
        )
    if slowest.averaged:
        notes.append(f"{slowest.averaged:,} loop iterations have no steady schedule: each counts with the mean time")
    return tuple(notes)


def _lines(recording: Recording, slowest: Schedule, us: float, runs: CoreRuns) -> tuple[LineTime, ...]:
    pipe_of = {step.place: _pipe_name((step.unit, step.pipe), runs) for step in instructions(recording.steps)}
    sums = summed(
        ((*recording.lines[place], pipe_of[place]), cycles * us) for place, cycles in slowest.by_place.items()
    )
    return tuple(
        LineTime(file=file, line=line, pipe=pipe, busy_us=value) for (file, line, pipe), value in sorted(sums.items())
    )
