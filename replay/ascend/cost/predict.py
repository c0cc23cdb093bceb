# pyright: strict
"""Predicts one kernel on one device: cost terms, total, bottleneck and confidence; pure functions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt

from opreplay.replay.ascend.cost.attention import attention_terms
from opreplay.replay.ascend.cost.cells import CONFIDENCE, RANK, Cell, band_of, evidence_of, work_of
from opreplay.replay.ascend.cost.collective import choose_algorithm, collective_terms, is_beyond, link_evidence
from opreplay.replay.ascend.cost.cube import FLOATS, Gemm, conv_terms, gemm_of, mac_rate, matmul_terms
from opreplay.replay.ascend.cost.nearby import is_outside, neighbour_factor
from opreplay.replay.ascend.cost.residency import resident_of
from opreplay.replay.ascend.cost.sizes import Tally, first, tally_of, tensor_bytes, total_bytes
from opreplay.replay.ascend.cost.slow_paths import is_far, path_of, slow_cycles
from opreplay.replay.ascend.cost.vector import CORE_LOAD, work_terms
from opreplay.replay.ascend.cost.vector_work import (
    COUNTERS,
    SUMS,
    VECTOR_FLOATS,
    dtype_factor,
    operations_of,
    summed_alone,
)
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost, Rates, SlowPath
from opreplay.replay.ir.kernel import Bound, Evidence, KernelCall, State
from opreplay.replay.results.records import Simulated

Terms = Callable[..., dict[str, float]]
"""Function that takes (call, family, device, resident) and returns a dict: cost term → microseconds."""


AICPU_OPERATIONS_PER_US = 4000.0
"""Operations per microsecond of one control processor: two per cycle at 2 GHz. Assumed, because no measurement is
public.
"""


def _aicpu_terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    counted_us = operations_of(call) / AICPU_OPERATIONS_PER_US
    return {"launch": device.rates.aicpu_us + family.fixed_us, "aicpu": counted_us}


HOST_BYTES_PER_US = 64e3
"""Bytes per microsecond of PCIe 5.0 x16 in one direction, from the product profiles."""
PAGEABLE_BYTES_PER_US = 8e3
"""Rate in bytes per microsecond of copies from or to pageable host memory, which the host copies a second time.

Public traces of H100 and A100 hosts show 5 to 12 GB/s.
"""
HOST_COPY = FamilyCost(name="HostCopy", form="host", band=3.0)
"""Family of copies between host and device. They are not kernels and depend on no SoC; the band is assumed."""


def _host_terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    size = max(total_bytes(call.inputs), total_bytes(call.outputs))
    pace = PAGEABLE_BYTES_PER_US if call.attrs.get("pageable") else HOST_BYTES_PER_US
    return {"launch": device.rates.launch_one_us, "link": size / pace}


def _free_terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    return {}


FORMS: dict[str, Terms] = {
    "conv": conv_terms,
    "attention": attention_terms,
    "collective": collective_terms,
    "aicpu": _aicpu_terms,
    "free": _free_terms,
    "host": _host_terms,
}
"""Form → function for its cost terms; other forms are matrix products, or vector kernels counted by `COUNTERS`."""

BOUNDS: dict[str, Bound] = {
    "launch": "launch",
    "cube": "cube",
    "fixpipe": "cube",
    "vector": "vector",
    "moving": "vector",
    "hbm": "hbm",
    CORE_LOAD: "core load",
    "l2": "l2",
    "link": "link",
    "aicpu": "aicpu",
    "slow path": "slow path",
}
"""Cost term → bound that is reported if this term is the longest."""

MOVING = "moving"
"""Name of the vector term of kernels that only move data (copies, transposes, layout conversions).

An op reports this time separately from "vector", so that a roofline does not count it as arithmetic.
"""
_MOVES = frozenset({"copy", "transpose", "transdata", "fill"})


def only_moves(family: FamilyCost) -> bool:
    """Check whether kernels of a family only copy their input."""
    return family.form in _MOVES or family.name == "TensorMove"


FLOAT32_PRODUCTS = frozenset({"MatMul", "MatMulV2", "MatMulV3"})


VARIED = FLOAT32_PRODUCTS | SUMS | {"TransData"}
"""Kernel types whose family depends on more than the type."""

PLACES: dict[object, str] = {"AI_CPU": "AiCpu", "HOST": "HostCopy"}
"""Kernel types used for the cost of calls that do not run on an AI core, by the value of the attr "core"."""


def variant(call: KernelCall, device: DeviceProfile) -> str:
    """Return the kernel type, refined if kernels of one type have different costs.

    Kernels on the control processors become "AiCpu", copies over the bus "HostCopy". TransData gets its direction,
    because its cost depends on the two formats. It becomes "View" if the cube needs no conversion. float32 products get
    the dtype, because their operands are loaded at another speed. A reduction in which several cores compute parts of
    each result becomes "Reduce:across".
    """
    if call.attrs and (core := call.attrs.get("core")) in PLACES:
        return PLACES[core]
    if call.type in FLOAT32_PRODUCTS and call.inputs and call.inputs[0] is not None:
        return "MatMul:float32" if call.inputs[0].dtype in FLOATS else call.type
    if call.type in SUMS:
        return "Reduce:across" if _is_across(call, device) else call.type
    if call.attrs.get("forward") and device.plain_convolution is not None:
        return "View"
    return _transdata(call) if call.type == "TransData" else call.type


def _transdata(call: KernelCall) -> str:
    source, target = (specs[0].format if specs and specs[0] else "ND" for specs in (call.inputs, call.outputs))
    for mark, word in (("NC1HWC0", "5HD"), ("FRACTAL_Z", "FZ"), ("FRACTAL_NZ", "NZ")):
        if target.startswith(mark):
            return f"TransData:to{word}"
        if source.startswith(mark):
            return f"TransData:from{word}"
    return "TransData"


def _is_across(call: KernelCall, device: DeviceProfile) -> bool:
    """Check whether several cores compute parts of one sum.

    They do in two cases. In the first, a kept dimension is inside a summed one; the attr `across` says so or, if it is
    missing, the shapes do. In the second, there are fewer rows than cores and each row is longer than what one core
    reduces alone.
    """
    source, out = first(call.inputs), first(call.outputs)
    if source is None or out is None:
        return False
    result_sizes = [size for size in out.shape if size != 1]
    rows = prod(result_sizes)
    if rows < device.aiv_cores and tensor_bytes(source) > rows * summed_alone(source.dtype):
        return True
    across = call.attrs.get("across")
    if isinstance(across, bool):
        return across
    return result_sizes != [size for size in source.shape if size != 1][: len(result_sizes)]


def family_of(call: KernelCall, device: DeviceProfile) -> FamilyCost:
    """Return the cost constants that apply to a call."""
    kind = call.type
    if kind in VARIED or call.attrs:
        kind = variant(call, device)
        if kind == "HostCopy":
            return HOST_COPY
    return device.families[device.types.get(kind, "Unknown")]


def least_us(
    family: FamilyCost, device: DeviceProfile, tally: Tally, gemm: Gemm | None = None, operations: float = 0.0
) -> float:
    """Return a lower bound on the kernel's time in microseconds.

    The bound is the longest of five times: a bare launch; the products at the peak rate of all cube cores;
    `operations` at the rate of all vector cores; the bytes at the peak rate of L2; and, at the peak rate of HBM, the
    bytes that L2 can hold neither before nor after the kernel.
    """
    form = family.form
    if form == "matmul":
        if gemm is None:
            return BARE_START_US
        macs = mac_rate(gemm.dtype, device, family.hf32) * device.aic_cores * device.freq_hz
        floor_us = gemm.batch * gemm.m * gemm.n * gemm.k / macs * 1e6
        moved = tally.read + tally.write
        if moved > 2 * device.l2_bytes:
            # Of four times its size L2 holds nothing until it is used again.
            floor_us = max(floor_us, min(moved, 2 * (moved - 2 * device.l2_bytes)) / device.hbm_bytes_per_s * 1e6)
        return floor_us if floor_us > BARE_START_US else BARE_START_US
    if form not in MOVES_ALL:
        return BARE_START_US
    # Part of what is named may not be touched: slices, broadcasts, lookups.
    moved = 2 * tally.write if form == "copy" or form == "elementwise" else tally.read + tally.write
    floor_us = moved / (device.aiv_cores * L2_PEAK_BYTES * device.freq_hz) * 1e6
    if moved > 2 * device.l2_bytes:
        floor_us = max(floor_us, (moved - 2 * device.l2_bytes) / device.hbm_bytes_per_s * 1e6)
    if operations:
        lanes = device.aiv_cores * VECTOR_FLOATS * device.vector_width
        floor_us = max(floor_us, operations / (lanes * device.freq_hz) * 1e6)
    return floor_us if floor_us > BARE_START_US else BARE_START_US


NO_INSTRUCTIONS = frozenset({"float64", "complex128", "complex64", "complex32"})
"""Dtypes for which vector and cube cores have no instructions. Measurements of a family with other dtypes say little
about its time with these.
"""
BARE_START_US = 0.9
"""Lower bound on the time of any kernel in microseconds. The shortest measured time is 1.1 us (MemSet of one block)."""
L2_PEAK_BYTES = 128.0
"""Maximum bytes per cycle that a vector core moves: the width of its instructions. The platform configuration of the
910B1 gives 110 for reads and 86 for writes.
"""
MOVES_ALL = frozenset({"elementwise", "copy", "rowwise", "reduce", "transpose", "optimizer", "fill"})
"""Forms whose kernels access every byte of their operands."""


def predict_time_us(
    call: KernelCall,
    device: DeviceProfile,
    resident: float | None = None,
    family: FamilyCost | None = None,
    state: State = "network",
    loaded: float = 0.0,
) -> float:
    """Return the time of one launch in microseconds, computed as in `predict_kernel`."""
    family = family or family_of(call, device)
    gemm = gemm_of(call) if family.form == "matmul" else None
    terms, near, _ = _terms(call, family, device, resident, state, tally_of(call), gemm, loaded)
    return sum(terms.values()) * family.scale * near


CUBE_FORMS = frozenset({"matmul", "conv", "attention"})
"""Forms of cost that use the cube."""


def _terms(
    call: KernelCall,
    family: FamilyCost,
    device: DeviceProfile,
    resident: float | None,
    state: State,
    tally: Tally,
    gemm: Gemm | None,
    loaded: float,
) -> tuple[dict[str, float], float, SlowPath | None]:
    """Return three values: the cost terms, the factor by which measured neighbours correct them, and the slow path that
    the kernel takes.
    """
    form = family.form
    if resident is None and state != "network":
        resident = _resident_in(state, tally, device)
    if (counter := COUNTERS.get(form)) is not None:
        work = counter(call, family, device, tally)
        factor, by_itself = dtype_factor(call, family), state != "network"
        terms = work_terms(work, factor, family, device, resident, by_itself=by_itself)
        if loaded and state == "network":
            share = 1.0 - (1.0 - device.rates.kept_vector_share) * loaded
            terms["launch"] = _shortened(terms["launch"], share, family, device.rates)
    elif form == "matmul":
        terms = matmul_terms(call, family, device, resident, gemm)
    else:
        terms = FORMS[form](call, family, device, resident)
    if state != "network" and form not in UNLIKE_CORES:
        rates = device.rates
        share = rates.loop_cube_share if form in CUBE_FORMS else rates.loop_vector_share
        terms["launch"] = _shortened(terms["launch"], sqrt(share) if state == "cold" else share, family, rates)
    if (paths := device.slow_paths.get(call.type)) is not None and (path := path_of(call, paths, gemm)) is not None:
        return _slowed(terms, call, path, family, device), 1.0, path
    if family.nearby:
        return terms, neighbour_factor(call, family, gemm, state, tally), None
    return terms, 1.0, None


def _shortened(launch: float, share: float, family: FamilyCost, rates: Rates) -> float:
    """Return a shorter launch time: the part beyond a launch on one core is multiplied by `share`.

    The kernel's fixed time is multiplied by the fourth root of `share`, because only a part of it depends on the
    caches. Passes and synchronisation do not depend on them. Fetching the code does, and a kernel that does more has
    more code.
    """
    one_core_us, bare = rates.launch_one_us, launch - family.fixed_us
    if bare > one_core_us:
        bare = one_core_us + (bare - one_core_us) * share
    return bare + family.fixed_us * sqrt(sqrt(share)) if family.fixed_us else bare


def _slowed(
    terms: dict[str, float], call: KernelCall, path: SlowPath, family: FamilyCost, device: DeviceProfile
) -> dict[str, float]:
    """Return the cost terms of a kernel on a slow path. The time that the path adds is a separate term."""
    if path.how == "factor":
        return {**terms, "slow path": (path.factor - 1) * sum(terms.values())}
    cores = device.aiv_cores
    taken = (slow_cycles(call, path, cores) / device.freq_hz * 1e6 + path.start_us) / family.scale
    return {"launch": terms.get("launch", 0.0), "slow path": max(taken, sum(terms.values()) - terms.get("launch", 0.0))}


UNLIKE_CORES = frozenset({"collective", "aicpu", "free", "host"})
"""Forms that do not run as programs on the AI cores."""


def _resident_in(state: State, tally: Tally, device: DeviceProfile) -> float:
    """Return the share of a kernel's bytes found in L2.

    In the state "cold", L2 was cleared. In other states, the same kernel ran just before.
    """
    if state == "cold":
        return 0.0
    return resident_of(((1.0, float(tally.read + tally.write)),), device) or 0.0


LEAST_EXTRAPOLATED = 2.0
"""Minimum band factor of a kernel that is unlike all measured kernels; assumed."""
EXTRAPOLATED_WIDTH = 1.5
"""Factor on the logarithm of the band, for a kernel that is unlike all measured kernels. The value is assumed."""


def widen_band(band: float) -> float:
    """Return the band factor widened for a kernel that is unlike all measured kernels."""
    return max(band**EXTRAPOLATED_WIDTH, LEAST_EXTRAPOLATED)


UNKNOWN = "Unknown"
"""Family of unknown kernels, whose cost is based on their bytes."""
MOST_BY_BYTES = 7.7
"""Upper factor of the 80 % band of a cost based on bytes alone. Such a cost ignores arithmetic, passes and access
patterns.

Of 430 public kernels and ops, each costed as if it were unknown, 10 % took more than this factor times the prediction
(7.0 if each family counts once). The median factor is 1.5. Few kernels take less time than their bytes. Lookups do,
because they read only a part of a table. The lower bound of the band is therefore as low as for a kernel unlike all
measured kernels.
"""

MOST_US = 1e15
"""Maximum time of a kernel in microseconds: thirty years."""


def _beyond_measure(call: KernelCall, device: DeviceProfile) -> Simulated:
    """Return a prediction for sizes that exceed any memory, for which the formulas overflow.

    The predicted time is the time to move the bytes, at most `MOST_US`.
    """
    time_us = float(min(total_bytes(call.inputs) + total_bytes(call.outputs), 10**30)) / device.hbm_bytes_per_s * 1e6
    time_us = min(max(time_us, device.rates.launch_one_us), MOST_US)
    band = device.families["Unknown"].band
    return Simulated(
        time_us=time_us,
        bound="hbm",
        terms_us={"hbm": time_us},
        kernels=(call.type,),
        confidence="uncalibrated",
        low_us=time_us / band,
        high_us=time_us * band,
        evidence="its form",
        work="streaming",
        nearby_factor=1.0,
    )


BANDS_OF_THEIR_OWN = frozenset({UNKNOWN, "HostCopy", "Collective", "Free"})
"""Families whose bands are not derived from measurements of kernels on the AI cores."""


def _evidence(call: KernelCall, family: FamilyCost, tally: Tally) -> Evidence:
    """Return where a kernel type was measured. An unmeasured dtype in `NO_INSTRUCTIONS` gives "its form"."""
    if (dtype := tally.dtype) in NO_INSTRUCTIONS and dtype not in family.dtypes:
        return "its form"
    return evidence_of(call.type, family)


def _scaled(terms: dict[str, float], scale: float) -> tuple[dict[str, float], float, str]:
    """Return three values: the terms times `scale` without zero terms, their sum, and the name of the longest term."""
    total = longest_us = 0.0
    longest = ""
    scaled: dict[str, float] = {}
    for name, term in terms.items():
        if term > 0:
            us = scaled[name] = term * scale
            total += us
            if us > longest_us:
                longest_us, longest = us, name
    return scaled, total, longest


def predict_kernel(
    call: KernelCall,
    device: DeviceProfile,
    resident: float | None = None,
    state: State = "network",
    loaded: float = 0.0,
) -> Simulated:
    """Return the cost of one launch of `call` on `device`, in microseconds, without multiplying by `call.count`.

    `resident` is the share of the kernel's bytes found in L2, if the caller knows it from the preceding kernels. If it
    is None, it is derived from `state`; in a network, it is the expected share for the working set. `loaded` is used
    for a vector kernel in a network. It is the share of its launches for which its code is in the instruction caches.

    Never raises for a well-formed call. Unknown kernel types and sizes that exceed any memory are costed by their bytes
    and marked uncalibrated.
    """
    family = family_of(call, device)
    form = family.form
    try:
        tally = tally_of(call)
        gemm = gemm_of(call) if form == "matmul" else None
        terms, near, path = _terms(call, family, device, resident, state, tally, gemm, loaded)
    except ArithmeticError:
        return _beyond_measure(call, device)
    scale = family.scale * near
    scaled, time_us, longest = _scaled(terms, scale)
    # Elsewhere efficiencies and peaks in the terms themselves keep the time above the least.
    lowered = resident is not None or scale < 1 or family.memory_factor < 1 or gemm is not None
    if (
        lowered
        and form not in UNLIKE_CORES
        and 0 < time_us < (floor := least_us(family, device, tally, gemm, operations_of(call)))
    ):
        scaled, time_us, longest = _scaled(terms, scale * (floor / (sum(terms.values()) * scale)))
    if not time_us <= MOST_US:
        return _beyond_measure(call, device)
    if form == "collective":
        evidence, algorithm = link_evidence(device), choose_algorithm(call, device).algorithm
        extrapolated = is_beyond(call, device)
    else:
        evidence, algorithm = _evidence(call, family, tally), ""
        extrapolated = form not in UNLIKE_CORES and is_outside(family, tally)
    if path is not None and is_far(call, path):
        extrapolated = True
    cell = Cell(evidence, work_of(family, path, call.type))
    band = family.band if family.name in BANDS_OF_THEIR_OWN else band_of(cell)
    if extrapolated and RANK[evidence] <= RANK["another SoC"]:
        band = widen_band(band)  # that of a kernel type which was never measured is as wide as it gets
    above = max(band, MOST_BY_BYTES) if family.name == UNKNOWN else band
    return Simulated(
        time_us=time_us,
        bound="slow path" if path is not None else BOUNDS.get(longest, "none"),
        terms_us=scaled,
        kernels=(call.type,),
        confidence=CONFIDENCE[evidence],
        low_us=time_us / band,
        high_us=time_us * above,
        evidence=evidence,
        work=cell.work,
        nearby_factor=near,
        extrapolated=extrapolated,
        slow_path=path.name if path is not None else "",
        l2="sequence" if state == "network" else state,
        algorithm=algorithm,
    )
