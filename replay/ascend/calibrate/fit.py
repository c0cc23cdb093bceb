# pyright: strict
"""Fits the cost model's constants to measured kernels; needs numpy.

The fit works on the logarithms of constants. Each constant has a prior, so that a few measurements cannot move it too
far: the prior is centred on the value before the fit, and its width limits the move. Residuals are log(predicted /
measured), with a robust (nearly absolute) loss. All SoCs in the fit share the constants. Floors and bandwidth shares
may deviate a little by SoC, and each family has a small correction by SoC.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from opreplay.replay.ascend.cost.predict import family_of, predict_time_us
from opreplay.replay.ascend.cost.residency import Touch, resident_of
from opreplay.replay.ascend.measured.accuracy import Part
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost, Rates
from opreplay.replay.ir.kernel import KernelCall, State

if TYPE_CHECKING:
    from opreplay.traces.arrays import Floats

NOISE = 0.12
"""Standard deviation of the part of log(kernel time) that shapes cannot explain."""

RATE_WIDTHS: dict[str, float] = {
    "launch_one_us": 0.2,
    "launch_full_us": 0.4,
    "launch_exponent": 0.3,
    "cube_launch_us": 0.4,
    "mix_launch_us": 0.3,
    "hbm_efficiency": 0.1,
    "hbm_cube_efficiency": 0.15,
    "core_hbm_bytes_per_cycle": 0.3,
    "cube_core_hbm_bytes_per_cycle": 0.2,
    "l2_bytes_per_cycle": 0.1,
    "vector_overlap": 0.25,
    "resident_share": 0.15,
    "resident_reach": 0.5,
    "resident_sharpness": 0.3,
    "weight_resident_share": 0.4,
    "sequence_reach": 0.4,
    "sequence_sharpness": 0.4,
    "mac_efficiency": 0.05,
    "l1_fill_bytes_per_cycle": 0.25,
    "l1_fill_hbm_bytes_per_cycle": 0.25,
    "loop_vector_share": 0.5,
    "kept_vector_share": 0.5,
    "loop_cube_share": 0.5,
    "hbm_mixed_cost": 0.5,
    "l1_narrow_exponent": 0.4,
    "overlap_p": 0.4,
    "fixpipe_bytes_per_cycle": 0.5,
    "wave_us": 0.8,
    "split_depth": 0.2,
}
"""Prior widths of the constants in Rates, by field name, in log units.

They apply to the values that all generations share.
"""

GENERATION_WIDTHS: dict[str, float] = {
    "launch_one_us": 0.1,
    "launch_full_us": 0.35,
    "cube_launch_us": 0.2,
    "hbm_efficiency": 0.08,
    "hbm_cube_efficiency": 0.08,
    "resident_share": 0.1,
}
"""Prior widths of a generation's deviations from the values that all generations share, by field name of Rates.

SoCs within a generation do not deviate from each other. Otherwise a larger SoC that was measured on another day could
be predicted slower than a smaller one.
"""

FAMILY_WIDTHS: dict[str, float] = {
    "cycles": 0.5,
    "half_ratio": 0.3,
    "wide_ratio": 0.5,
    "row_cycles": 0.5,
    "fixed_us": 0.6,
    "launch_factor": 0.3,
    "memory_factor": 0.05,
}
"""Name of a field of FamilyCost → width of the prior of this field."""

FORMS_WITHOUT_VECTOR = frozenset({"matmul", "collective", "aicpu", "free"})
VECTOR_ONLY = frozenset({"half_ratio", "wide_ratio", "launch_factor", "row_cycles", "cycles"})
"""Constants that the cost of matrix products does not use."""

SCALE_WIDTH = 0.06
"""Width of the prior for the factor that corrects a kernel family on one hardware generation."""

MAX_TRIES = 12
"""Maximum number of step lengths tried per iteration.

Each is shorter than the one before. The first one that lowers the objective is used. With half as many tries, fits
stopped at kinks of the objective, where the best tile changes. Median errors of held-out kernels then moved by 1 %.
"""

LIMIT = math.log(5.0)
"""Logarithm of the maximum factor by which a fit may change a constant."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement used for fitting: one kernel, or all kernels of one op that was measured as a whole."""

    call: KernelCall
    soc: str
    duration_us: float
    weight: float = 1.0
    touches: tuple[Touch, ...] = ()
    loaded: bool = False
    """Whether the kernel's code is in the instruction caches."""
    state: State = "network"
    several: tuple[Part, ...] = ()
    """Kernels that were measured together, as one total time; empty if a single kernel was measured."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the kernels whose total time was measured."""
        return self.several or (Part(self.call, self.touches, self.loaded),)


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One constant that the fit may change."""

    name: str
    """Field of Rates or FamilyCost."""
    width: float
    family: str | None = None
    """Kernel family of a constant in FamilyCost; None for a constant in Rates."""
    generation: str | None = None
    """Hardware generation that the constant belongs to; None if all generations share the constant."""


def parameters_for(samples: Sequence[Sample], devices: dict[str, DeviceProfile]) -> list[Parameter]:
    """Return the constants that can be fitted to these samples."""
    generations = sorted({devices[s.soc].generation for s in samples})
    out = [Parameter(name=name, width=width) for name, width in RATE_WIDTHS.items()]
    if len(generations) > 1:
        out += [Parameter(name=n, width=w, generation=g) for g in generations for n, w in GENERATION_WIDTHS.items()]
    pairs = {
        (family_of(part.call, d).name, d.generation) for s in samples for d in [devices[s.soc]] for part in s.parts
    }
    for family in sorted({f for f, _ in pairs}):
        constants = devices[samples[0].soc].families[family]
        for name, width in FAMILY_WIDTHS.items():
            if getattr(constants, name) > 0 and not (constants.form in FORMS_WITHOUT_VECTOR and name in VECTOR_ONLY):
                out.append(Parameter(name=name, width=width, family=family))
    out += [Parameter(name="scale", width=SCALE_WIDTH, family=f, generation=g) for f, g in sorted(pairs)]
    return out


def moved(
    devices: dict[str, DeviceProfile], parameters: Sequence[Parameter], theta: Sequence[float]
) -> dict[str, DeviceProfile]:
    """Return the devices, each constant multiplied by exp() of the entry of `theta` that belongs to it."""
    out: dict[str, DeviceProfile] = {}
    for soc, device in devices.items():
        rates = {f: getattr(device.rates, f) for f in Rates.__struct_fields__}
        changes: dict[str, dict[str, float]] = {}
        for parameter, step in zip(parameters, theta, strict=True):
            if parameter.generation not in (None, device.generation):
                continue
            factor = math.exp(step)
            if parameter.family is None:
                rates[parameter.name] *= factor
            elif parameter.family in device.families:
                field = changes.setdefault(parameter.family, {})
                if parameter.name not in field:
                    field[parameter.name] = getattr(device.families[parameter.family], parameter.name)
                field[parameter.name] *= factor
        rates["resident_share"] = min(0.97, rates["resident_share"])
        families = dict(device.families)
        for name, values in changes.items():
            families[name] = msgspec.structs.replace(families[name], **values)
        out[soc] = msgspec.structs.replace(device, rates=Rates(**rates), families=families)
    return out


def _times(samples: Sequence[Sample], devices: dict[str, DeviceProfile]) -> list[float]:
    return [_time(s, devices[s.soc]) for s in samples]


def _time(sample: Sample, device: DeviceProfile) -> float:
    return sum(
        part.call.count
        * predict_time_us(part.call, device, resident_of(part.touches, device), state=sample.state, loaded=part.loaded)
        for part in sample.parts
    )


def _scaled(device: DeviceProfile, parameter: Parameter, factor: float) -> DeviceProfile:
    """Return the device with one constant multiplied by a factor."""
    holder = device.rates if parameter.family is None else device.families[parameter.family]
    changed = msgspec.structs.replace(holder, **{parameter.name: getattr(holder, parameter.name) * factor})
    if isinstance(changed, Rates):
        return msgspec.structs.replace(device, rates=changed)
    assert isinstance(changed, FamilyCost)
    return msgspec.structs.replace(device, families={**device.families, changed.name: changed})


def _jacobian(
    samples: Sequence[Sample],
    devices: dict[str, DeviceProfile],
    parameters: Sequence[Parameter],
    families: Sequence[frozenset[str]],
    logs: Floats,
) -> Floats:
    """Return the derivatives d log(time) / d log(constant), computed by finite differences.

    Rows are samples, columns are constants. Only samples that use the constant are predicted again. `logs` are the
    samples' log times with unchanged constants.
    """
    import numpy as np

    step = 1e-3
    out = np.zeros((len(samples), len(parameters)))
    for j, parameter in enumerate(parameters):
        cache: dict[str, DeviceProfile] = {}
        for i, sample in enumerate(samples):
            if parameter.generation not in (None, devices[sample.soc].generation):
                continue
            if parameter.family is not None and parameter.family not in families[i]:
                continue
            if parameter.name == "scale" and len(families[i]) == 1:
                out[i, j] = 1.0
                continue
            if sample.soc not in cache:
                cache[sample.soc] = _scaled(devices[sample.soc], parameter, math.exp(step))
            time_us = _time(sample, cache[sample.soc])
            out[i, j] = (math.log(max(time_us, 1e-9)) - logs[i]) / step
    return out


def fit(
    samples: Sequence[Sample],
    devices: dict[str, DeviceProfile],
    *,
    iterations: int = 12,
    prior_width: float = 1.0,
) -> tuple[dict[str, DeviceProfile], list[Parameter], list[float]]:
    """Fit constants to samples.

    Returns the fitted devices, the parameters, and for each parameter the logarithm of the factor by which its constant
    moved. `prior_width` multiplies the widths of all priors; use a value below 1 for devices that are already
    calibrated. The fit takes damped Gauss-Newton steps with robust weights (iteratively reweighted). It accepts a step
    only if the objective falls.
    """
    import numpy as np

    parameters = parameters_for(samples, devices)
    families = [frozenset(family_of(part.call, devices[s.soc]).name for part in s.parts) for s in samples]
    target = np.log([s.duration_us for s in samples])
    weights = np.array([s.weight for s in samples])
    widths = np.array([p.width * prior_width for p in parameters])
    theta = np.zeros(len(parameters))
    current = devices
    logs = np.log(np.maximum(_times(samples, current), 1e-9))

    def objective(residual: Floats, at: Floats) -> float:
        robust = np.sqrt(1 + (residual / NOISE) ** 2) - 1
        return float(np.sum(weights * robust) + 0.5 * np.sum((at / widths) ** 2))

    best, damping = objective(logs - target, theta), 1e-3
    for _ in range(iterations):
        residual = logs - target
        jacobian = _jacobian(samples, current, parameters, families, logs)
        robust = weights / (NOISE**2 * np.sqrt(1 + (residual / NOISE) ** 2))
        gradient = jacobian.T @ (robust * residual) + theta / widths**2
        hessian = (jacobian.T * robust) @ jacobian + np.diag(1 / widths**2)
        improved = False
        for _ in range(MAX_TRIES):
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -gradient)
            trial = np.clip(theta + np.clip(step, -0.7, 0.7), -LIMIT, LIMIT)
            devices_trial = moved(devices, parameters, trial.tolist())
            logs_trial = np.log(np.maximum(_times(samples, devices_trial), 1e-9))
            value = objective(logs_trial - target, trial)
            if value < best:
                improved = best - value > 1e-3
                theta, current, logs, best = trial, devices_trial, logs_trial, value
                damping = max(1e-5, damping / 4)
                break
            damping *= 6
        if not improved:
            break
    return current, parameters, theta.tolist()
