# pyright: strict
"""Time of a kernel on the vector cores; overlapping terms are shortened so that all terms add up to the time."""

from __future__ import annotations

from opreplay.replay.ascend.cost.vector_work import REPEATED, Work
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost, Rates

ONE_BY_ONE = 1.0
"""Maximum number of cycles per element that a vector core takes to move single scattered elements. Its instructions
support such moves.
"""
BURST = 12.0
"""Cycles per run if one instruction copies several runs. Measured: 0.1 us for 16 runs on a 910C die."""
FULL_CORES = 40
"""Number of vector cores for which `launch_full_us` is the launch time.

Starting takes longer on more cores: by 0.06 us per core in one table of copies on 1 to 40 cores.
"""
FURTHER = 0.25
"""Launch time that each core beyond `FULL_CORES` adds, relative to what each core up to `FULL_CORES` adds.

Kernels in networks start in 7.8 us on the 40 cores of a 910B4 and in 8.3 us on the 48 cores of a 910B2.
"""
ACCESS = 200.0
"""Cycles for which a core waits for memory if the next address depends on data: 0.1 us."""
COPIES = frozenset({"copy", "elementwise", "fill"})
"""Forms of kernels whose contiguous runs in memory can be derived from the shapes."""
CORE_LOAD = "core load"
"""Name of the term for data beyond L2 if the cores in use request them more slowly than HBM delivers. It replaces
"hbm".
"""
ONE_CORE_BYTES = 19.0
"""Bytes per cycle that one vector core reads from HBM. Measured: 34 to 36 GB/s on a 910C die (copies in a ring of 64
MiB).
"""


def resident_share(bytes_touched: float, device: DeviceProfile) -> float:
    """Return the expected share of a kernel's bytes found in L2 if nothing is known about the preceding kernels.

    It falls smoothly with the bytes: `resident_share` / (1 + (bytes / (`resident_reach` * L2)) **
    `resident_sharpness`).
    """
    rates = device.rates
    relative = bytes_touched / (rates.resident_reach * device.l2_bytes)
    return rates.resident_share / (1.0 + relative**rates.resident_sharpness)


def memory_us(
    read: float, write: float, blocks: float, resident: float, device: DeviceProfile, *, by_itself: bool = False
) -> tuple[str, float, float]:
    """Return (term, its time, L2 time) for moving bytes through `blocks` vector cores, in microseconds.

    The term is "hbm" or `CORE_LOAD`. `resident` is the share of the bytes in L2. For an isolated kernel (`by_itself`),
    L2 is assumed to hold written bytes before read ones.
    """
    rates, freq, cores = device.rates, device.freq_hz, float(blocks)
    moved = float(read + write)
    share = read / moved if moved > 0.0 else 0.0
    if by_itself and 0.0 < resident < 1.0:
        share = min(1.0, share / (1.0 - resident))
    mixed = 4.0 * share * (1.0 - share)
    hbm = device.hbm_bytes_per_s * (rates.hbm_efficiency / (1.0 + rates.hbm_mixed_cost * mixed))
    term = "hbm"
    if (drawn := cores * rates.core_hbm_bytes_per_cycle * freq) < hbm:
        term, hbm = CORE_LOAD, drawn
    cache = cores * rates.l2_bytes_per_cycle * freq
    return term, moved * (1.0 - resident) / hbm * 1e6, moved * resident / cache * 1e6


def launch_between(one_us: float, full_us: float, blocks: float, rates: Rates) -> float:
    """Return the launch time in microseconds on `blocks` vector cores, interpolated from the times on one core and on
    all cores.
    """
    if blocks > FULL_CORES:
        blocks = FULL_CORES + FURTHER * (blocks - FULL_CORES)
    if blocks > 1:
        return one_us + (full_us - one_us) * ((blocks - 1) / (FULL_CORES - 1)) ** rates.launch_exponent
    return one_us


def work_terms(
    work: Work,
    factor: float,
    family: FamilyCost,
    device: DeviceProfile,
    resident: float | None,
    *,
    by_itself: bool = False,
) -> dict[str, float]:
    """Return the terms of a vector kernel's work in microseconds: launch, vector, hbm (or core load) and l2.

    `factor` multiplies the cycles per element.
    """
    elements, rows, blocks, moved = work.elements, work.rows, work.blocks, work.read + work.write
    rates = device.rates
    if resident is None:
        resident = resident_share(moved, device)
    term, hbm, cache = memory_us(work.read, work.write, blocks, resident, device, by_itself=by_itself)
    each = family.cycles * factor / device.vector_width
    cycles = elements * each
    if rows:
        cycles += rows * family.row_cycles
    if work.repeated:
        cycles += work.repeated * REPEATED / device.vector_width
    cycles += work.further
    if cycles > elements * ONE_BY_ONE:
        # However rows are counted, all cores together need no longer than one of them would alone, element by element.
        alone = elements * blocks * (each if each > ONE_BY_ONE else ONE_BY_ONE) + moved / ONE_CORE_BYTES
        if rows:
            alone += rows * blocks * (BURST if family.form in COPIES else ACCESS)
        if alone < cycles:
            cycles = alone
    far = hbm * (work.memory or family.memory_factor)
    vector, moving = cycles / device.freq_hz * 1e6, far + cache
    one_us = rates.launch_one_us
    launch = launch_between(one_us, one_us + (rates.launch_full_us - one_us) * family.launch_factor, blocks, rates)
    p = rates.vector_overlap
    # Terms are reported so that they add up: overlapping shortens both alike.
    both = vector + moving
    overlap = (vector**p + moving**p) ** (1.0 / p) / both if both > 0.0 else 1.0
    return {
        "launch": launch + family.fixed_us,
        "vector": vector * overlap,
        term: far * overlap,
        "l2": cache * overlap,
    }
