"""Predicts one kernel on one device: terms, total, what bounds it, how sure that is; pure functions."""

from __future__ import annotations

from collections.abc import Callable

from opreplay.replay.ascend.cost.attention import attention_terms
from opreplay.replay.ascend.cost.collective import collective_terms
from opreplay.replay.ascend.cost.cube import conv_terms, gemm_of, matmul_terms
from opreplay.replay.ascend.cost.nearby import correction
from opreplay.replay.ascend.cost.sizes import total_bytes
from opreplay.replay.ascend.cost.vector import vector_terms
from opreplay.replay.ascend.kernel import Bound, Confidence, KernelCall, KernelPrediction
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost

Terms = Callable[..., dict[str, float]]
"""(call, family, device, resident) -> microseconds by term."""


AICPU_OPERATIONS_PER_US = 4000.0
"""Operations of one control processor in a microsecond: two a cycle at 2 GHz, assumed, as no measurement is public."""


def _aicpu_terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    operations = call.attrs.get("operations")
    counted = operations if isinstance(operations, int | float) else 0.0
    return {"launch": device.rates.aicpu_us + family.fixed_us + counted / AICPU_OPERATIONS_PER_US}


HOST_BYTES_PER_US = 64e3
"""PCIe 5.0 of 16 lanes, one direction, as in the product profiles."""
PAGEABLE_BYTES_PER_US = 8e3
"""From or to pageable memory, which the host copies once more: 5 to 12 GB/s in public traces of H100 and A100 hosts."""
HOST_COPY = FamilyCost(name="HostCopy", form="host", band=3.0)
"""Copies between host and device: no kernel, and of no SoC; the band is assumed."""


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
"""Form → cost terms; every form that is not here, but for "matmul", is a vector kernel's."""

BOUNDS: dict[str, Bound] = {
    "launch": "launch", "cube": "cube", "fixpipe": "cube", "vector": "vector", "hbm": "hbm", "l2": "l2", "link": "link",
}  # fmt: skip
"""Term → what bounds a kernel in which that term is the longest."""


FLOAT32_PRODUCTS = frozenset({"MatMul", "MatMulV2", "MatMulV3"})


PLACES: dict[object, str] = {"AI_CPU": "AiCpu", "HOST": "HostCopy"}
"""Where a call runs, if not on the AI cores → what it is costed as."""


def variant(call: KernelCall) -> str:
    """The kernel type; "AiCpu" for what runs on the control processors, "HostCopy" for copies over the bus; with the
    direction for TransData, whose cost depends on the two formats, and with the dtype for float32 products, whose
    operands are loaded at another pace.
    """
    if call.attrs and (core := call.attrs.get("core")) in PLACES:
        return PLACES[core]
    if call.type in FLOAT32_PRODUCTS and call.inputs and call.inputs[0] is not None:
        return "MatMul:float32" if call.inputs[0].dtype == "float32" else call.type
    if call.type != "TransData":
        return call.type
    source = call.inputs[0].format if call.inputs and call.inputs[0] is not None else "ND"
    target = call.outputs[0].format if call.outputs and call.outputs[0] is not None else "ND"
    for mark, word in (("NC1HWC0", "5HD"), ("FRACTAL_Z", "FZ"), ("FRACTAL_NZ", "NZ")):
        if target.startswith(mark):
            return f"TransData:to{word}"
        if source.startswith(mark):
            return f"TransData:from{word}"
    return "TransData"


def family_of(call: KernelCall, device: DeviceProfile) -> FamilyCost:
    """The cost constants that apply to a call."""
    kind = variant(call)
    return HOST_COPY if kind == "HostCopy" else device.family(kind)


def confidence_of(family: FamilyCost) -> Confidence:
    """Whether the family was measured on this SoC, on another one, or never."""
    if family.samples:
        return "calibrated"
    return "other SoC" if family.samples_elsewhere else "uncalibrated"


def predict_time_us(
    call: KernelCall, device: DeviceProfile, resident: float | None = None, family: FamilyCost | None = None
) -> float:
    """The time alone, in microseconds; see `predict_kernel`."""
    family = family or family_of(call, device)
    terms, near = _terms(call, family, device, resident)
    return sum(terms.values()) * family.scale * near


def _terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None
) -> tuple[dict[str, float], float]:
    """Terms, and the factor on all of them that measured neighbours make."""
    if family.form == "matmul":
        gemm = gemm_of(call)
        terms = matmul_terms(call, family, device, resident, gemm)
        return terms, correction(call, family, gemm) if family.nearby else 1.0
    terms = FORMS.get(family.form, vector_terms)(call, family, device, resident)
    return terms, correction(call, family) if family.nearby else 1.0


MOST_US = 1e15
"""Thirty years: no kernel takes longer."""


def _beyond_measure(call: KernelCall, device: DeviceProfile) -> KernelPrediction:
    """Sizes that no memory holds, of which formulas make no number: the time of their bytes, up to the most."""
    time_us = float(min(total_bytes(call.inputs) + total_bytes(call.outputs), 10**30)) / device.hbm_bytes_per_s * 1e6
    time_us = min(max(time_us, device.rates.launch_one_us), MOST_US)
    band = device.families["Unknown"].band
    return KernelPrediction(
        time_us=time_us, bound="hbm", terms_us={"hbm": time_us}, confidence="uncalibrated", low_us=time_us / band,
        high_us=time_us * band,
    )  # fmt: skip


def predict_kernel(call: KernelCall, device: DeviceProfile, resident: float | None = None) -> KernelPrediction:
    """Cost of one launch of `call` on `device`, in microseconds; `call.count` is not multiplied in.

    `resident` is the share of the kernel's bytes found in L2, where the caller knows it from what ran before; None
    takes the expected share for the working set. Never raises for a well-formed call: a kernel type that is not
    registered, and sizes that no memory holds, are costed by their bytes and marked uncalibrated.
    """
    family = family_of(call, device)
    try:
        terms, near = _terms(call, family, device, resident)
    except ArithmeticError:
        return _beyond_measure(call, device)
    scale = family.scale * near
    time_us = longest = 0.0
    bound: Bound = "none"
    scaled: dict[str, float] = {}
    for name, term in terms.items():
        if term > 0:
            us = scaled[name] = term * scale
            time_us += us
            if us > longest:
                longest, bound = us, BOUNDS[name]
    if not time_us <= MOST_US:
        return _beyond_measure(call, device)
    return KernelPrediction(
        time_us=time_us,
        bound=bound,
        terms_us=scaled,
        confidence=confidence_of(family),
        low_us=time_us / family.band,
        high_us=time_us * family.band,
        nearby_factor=near,
    )
