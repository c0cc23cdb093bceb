"""What calibration writes of shipped devices: what was checked, by whom."""

from __future__ import annotations

from opreplay.replay.ascend import list_devices, load_device, simulate_op
from opreplay.replay.ascend.calibrate.files import with_checks
from opreplay.replay.resolve.written.sweep import over_sizes, plan_of_calls


def test_a_family_is_calibrated_on_an_soc_that_two_origins_measured_it_on() -> None:
    origins = {("Add", "910b2", "a"), ("Add", "910b2", "b"), ("Mul", "910b2", "a"), ("Mul", "910b4", "b")}
    origins |= {("Div", "910b2", "a"), ("Div", "910b4", "a")}
    devices = with_checks({name: load_device(name) for name in ("910b2", "910b3")}, origins)
    checked = {
        name: [device.families[family].checked for family in ("Add", "Mul", "Div", "Exp")]
        for name, device in devices.items()
    }
    assert checked["910b2"] == ["calibrated", "other SoC", "uncalibrated", "uncalibrated"]
    assert checked["910b3"] == ["other SoC", "other SoC", "uncalibrated", "uncalibrated"]


def test_nothing_is_calibrated_on_an_soc_that_less_than_two_origins_measured() -> None:
    checked = {
        name: sum(family.checked == "calibrated" for family in load_device(name).families.values())
        for name in list_devices()
    }
    assert {name for name, count in checked.items() if not count} == {"910b1", "910b3", "910b4-1", "950pr"}


def test_a_call_alone_is_not_calibrated_by_other_chips_of_its_generation() -> None:
    """A 910B3 was, as a 910B2 and a 910B4 had been measured."""
    (op,) = plan_of_calls(over_sizes(["aten::mm(bf16[4096,1024],bf16[1024,4096])"], []), allow_imports={})[0].ops
    alone = {soc: simulate_op(op, load_device(soc), l2="cold").confidence for soc in ("910b2", "910b3")}
    assert alone == {"910b2": "calibrated", "910b3": "other SoC"}
