"""Constants of the devices that ship: which kernel types were measured on which device, and the file of the fit."""

from __future__ import annotations

from benchmarks.device_model.constants import with_evidence
from opreplay.replay.ascend import load_device, simulate_op
from opreplay.replay.ascend.measured.call_tables import MeasuredCall
from opreplay.replay.resolve.written.sweep import over_sizes, plan_of_calls


def op_of(text: str):
    return plan_of_calls(over_sizes([text], []), allow_imports={})[0].ops[0]


def test_a_measured_call_is_evidence_for_its_kernel_type_on_its_soc_alone() -> None:
    call = MeasuredCall(text="exp", ops=(op_of("aten::exp(f32[64,64])"),), soc="910b2", l2="cold", time_us=3.0)
    devices = with_evidence({name: load_device(name) for name in ("910b2", "910b3")}, [], [call])
    here = {
        name: [kind for family in device.families.values() for kind in family.measured_here]
        for name, device in devices.items()
    }
    assert here == {"910b2": ["Exp"], "910b3": []}


def test_a_call_alone_is_not_calibrated_by_other_chips_of_its_generation() -> None:
    op = op_of("aten::mm(bf16[4096,1024],bf16[1024,4096])")
    alone = {soc: simulate_op(op, load_device(soc), l2="cold") for soc in ("910b2", "910b3")}
    assert [(s.evidence, s.confidence) for s in alone.values()] == [
        ("this SoC", "calibrated"),
        ("another SoC", "other SoC"),
    ]


def test_an_op_that_nobody_measured_is_not_calibrated_by_its_family() -> None:
    """`cummin` was "calibrated" as a scan, and off by 8 times."""
    simulated = simulate_op(op_of("aten::cummin(f32[64,4096],1)"), load_device("910b2"), l2="cold")
    assert (simulated.evidence, simulated.confidence) == ("its family", "uncalibrated")
    assert simulated.work == "irregular"
    assert simulated.high_us / simulated.time_us > 10
