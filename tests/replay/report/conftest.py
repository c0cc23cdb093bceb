"""Hand-made results that every report is tested with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from opreplay.replay.ir.model import Assumption
from opreplay.replay.ir.reasons import Reason
from opreplay.replay.results.measurement import Measurement, MeasureWarning
from opreplay.replay.results.records import Header, OpResult, Simulated, Summary


def measurement(us: float, *, warnings: tuple[MeasureWarning, ...] = ()) -> Measurement:
    return Measurement(
        median_us=us,
        iqr_us=us / 50,
        min_us=us * 0.98,
        max_us=us * 1.1,
        samples=20,
        calls_per_sample=3,
        ci_low_us=us * 0.99,
        ci_high_us=us * 1.01,
        warnings=warnings,
    )


def simulated(us: float, *, bound: str = "cube", confidence: str = "calibrated") -> Simulated:
    return Simulated(
        time_us=us,
        bound=bound,
        terms_us={"launch": 2.0, bound: us - 2},
        kernels=("MatMulV3",),
        confidence=confidence,
        low_us=us / 1.2,
        high_us=us * 1.2,
    )


def replayed(name: str = "aten::addmm", us: float = 41.52, **changes: object) -> OpResult:
    values: dict[str, object] = {
        "id": "0123456789ab",
        "name": name,
        "count": 24,
        "status": "replayed",
        "resolved_by": "jit",
        "inputs": "f32[768] · f32[128,768] · f32[768,768]",
        "recorded_device_us": 12.34,
        "recorded_host_us": 30.0,
        "recorded_share": 0.741,
        "measured_us": us,
        "measurement": measurement(us),
        "simulated_us": {"910b3": 9.87},
        "simulated": {"910b3": simulated(9.87)},
        "bound": "cube",
    }
    return OpResult(**{**values, **changes})  # type: ignore[arg-type]


def skipped(name: str = "nccl:all_reduce", reason: Reason | None = None, **changes: object) -> OpResult:
    values: dict[str, object] = {
        "id": "ba9876543210",
        "name": name,
        "count": 3,
        "status": "skipped",
        "reason": reason or Reason("collective", "c10d"),
        "recorded_device_us": 1234.5,
        "recorded_share": 0.1,
    }
    return OpResult(**{**values, **changes})  # type: ignore[arg-type]


RESULTS = [
    replayed(),
    replayed(
        "aten::cudnn_convolution",
        5123.0,
        resolved_by="equivalent",
        via="aten::convolution",
        recorded_share=0.05,
        simulated={"910b3": simulated(9.87, confidence="uncalibrated")},
        measurement=measurement(5123.0, warnings=(MeasureWarning(kind="noisy", data={"iqr_share": 0.12}),)),
        assumptions=(Assumption(argument="self", what="contiguous strides"),),
    ),
    replayed("_C::a_very_long_operator_name_that_never_fits_anywhere_forward", 0.0123, recorded_share=0.00001),
    skipped(),
    skipped("os::system", Reason("policy", "namespace os is not allowed")),
    skipped("aten::bmm", Reason("failed", "RuntimeError: expected\x1b[31m [red]markup[/red]"), status="failed"),
]
"""Three replayed, two skipped, one failed."""

HEADER = Header(
    opreplay_version="0.1.0",
    started_at="2026-01-02T03:04:05Z",
    trace={"losses": {"truncated file": 1}, "device_us_total": 5000.0},
    environment={"cpu": "made up"},
    options={},
)

SUMMARY = Summary(
    ops=6,
    replayed=3,
    skipped=2,
    failed=1,
    reasons={"collective": 1, "policy": 1, "failed": 1},
    covered_share=0.79101,
    recorded_us=4000.0,
    measured_us=124000.0,
    simulated_us={"910b3": 700.0},
    wall_s=1.5,
)


@pytest.fixture
def made() -> SimpleNamespace:
    """Header, results and summary, and the functions that make more."""
    return SimpleNamespace(
        header=HEADER,
        results=RESULTS,
        summary=SUMMARY,
        replayed=replayed,
        skipped=skipped,
        simulated=simulated,
        measurement=measurement,
    )
