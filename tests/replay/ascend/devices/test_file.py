"""Device files: schema, units, names, and what ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.replay.ascend import list_devices, load_device
from opreplay.replay.ascend.devices.file import load_file, load_model, read_device_file
from opreplay.traces.errors import FormatError, UsageError

SHIPPED = ["910b1", "910b2", "910b3", "910b4", "910b4-1", "910c", "950pr"]


def test_shipped_devices() -> None:
    assert list_devices() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_has_unit_source_and_confidence(name: str) -> None:
    file = load_file(name)
    for quantity in [*file.datasheet.values(), *file.rates.values()]:
        assert quantity.unit
        assert quantity.source
    assert all(entry.source and entry.confidence for entry in file.families.values())


def test_golden_totals() -> None:
    """Peak rates from the datasheet: bf16 TFLOP/s = 2 * MAC/cycle * cores * MHz."""
    peaks = {}
    for name in SHIPPED:
        device = load_device(name)
        peaks[name] = round(2 * device.macs_per_cycle["bfloat16"] * device.aic_cores * device.freq_hz / 1e12, 1)
    assert [peaks[name] for name in SHIPPED] == [363.7, 353.9, 294.9, 270.3, 270.3, 353.9, 432.5]
    assert load_device("910b4").l2_bytes == 96 * 2**20
    assert load_device("910b4").hbm_bytes_per_s == 0.8e12


@pytest.mark.parametrize(
    "name", ["Ascend910B3", "ASCEND910b3", "910B3", " 910b3 ", "ATLAS_800_A2_313T", "atlas-800-a2-313t"]
)
def test_names_and_aliases_in_any_case(name: str) -> None:
    assert load_device(name).name == "910b3"


@pytest.mark.parametrize("name", ["910b4-1", "Ascend910B4-1", "910B4_1"])
def test_the_chip_of_64_gb_has_twice_the_bandwidth(name: str) -> None:
    device, small = load_device(name), load_device("910b4")
    assert (device.name, device.hbm_bytes / small.hbm_bytes, device.hbm_bytes_per_s / small.hbm_bytes_per_s) == (
        "910b4-1",
        2.0,
        2.0,
    )
    assert not any(family.samples for family in device.families.values())


@pytest.mark.parametrize("name", ["910b", "Ascend910B"])
def test_a_name_without_its_number_asks_which(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_device(name)
    assert "910b1, 910b2, 910b3, 910b4, 910b4-1" in str(caught.value)


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="910z") as caught:
        load_device("910z")
    assert all(name in caught.value.hint for name in SHIPPED)


def test_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load_device(tmp_path / "none.toml")


MINIMAL = """
schema_version = 1
name = "mine"
base = "910b3"
[datasheet.aic_cores]
value = 10
unit = "core"
source = "my own machine"
confidence = "measured"
"""


def test_a_file_may_start_from_a_shipped_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL)
    mine, base = load_device(path), load_device("910b3")
    assert (mine.name, mine.aic_cores) == ("mine", 10)
    assert mine.rates == base.rates
    assert mine.families == base.families


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("schema_version = 1", "schema_version = 9"), "schema_version is 9"),
        (("schema_version = 1", ""), "schema_version is None"),
        (("[datasheet.aic_cores]", "[datasheet.aic_core]"), "unknown name in .datasheet.: aic_core"),
        (('unit = "core"', 'unit = "Hz"'), "datasheet.aic_cores has unit 'Hz', expected 'core'"),
        (("value = 10", "value = -1"), "must be above 0"),
        (("value = 10", "value = nan"), "finite"),
        (("value = 10", 'value = "ten"'), r"datasheet.aic_cores: Expected `float`, got `str`"),
        (('confidence = "measured"', 'confidence = "sure"'), "confidence"),
        (('source = "my own machine"', ""), r"datasheet.aic_cores: .*missing required field `source`"),
        (("value = 10", "value = "), "line 6"),
        (('base = "910b3"', ""), "is missing"),
        (('base = "910b3"', 'colour = "red"'), "colour"),
    ],
)
def test_broken_files_name_the_key_or_line(change: tuple[str, str], message: str) -> None:
    assert change[0] in MINIMAL
    with pytest.raises(FormatError, match=message):
        read_device_file(MINIMAL.replace(*change).encode(), "mine.toml")


MEASURED = """
[[measured]]
call = "aten::mm(f32[8,8], f32[8,8])"
op = "MatMulV3"
family = "MatMul"
l2 = "cold"
measured_us = 12.0
spread = 0.02
predicted_us = 10.0
network_us = 11.0
band = 1.5
"""


def test_measured_calls_are_read_and_are_no_constants_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL + MEASURED)
    mine = load_device(path)
    assert [(row.measured_us, row.l2) for row in mine.measured] == [(12.0, "cold")]
    assert not mine.is_own_fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("measured_us = 12.0", "measured_us = 0.0"), r"0\.001 to 1e\+12"),
        (("measured_us = 12.0", "measured_us = inf"), r"0\.001 to 1e\+12"),
        (("band = 1.5", "band = 0.5"), "band"),
        (('l2 = "cold"', 'l2 = "tepid"'), "tepid"),
        (("spread = 0.02", "colour = 1"), "colour"),
    ],
)
def test_broken_measured_calls(change: tuple[str, str], message: str) -> None:
    assert change[0] in MEASURED
    with pytest.raises(FormatError, match=message):
        read_device_file((MINIMAL + MEASURED.replace(*change)).encode(), "mine.toml")


def test_more_measured_calls_than_predictions_can_be_compared_with_are_refused() -> None:
    with pytest.raises(FormatError, match="over the limit of 2,000"):
        read_device_file((MINIMAL + MEASURED * 2001).encode(), "mine.toml")


def test_calls_that_were_compared_with_other_constants_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL.replace("base =", 'base_version = "1999.1"\nbase =') + MEASURED)
    with pytest.raises(FormatError, match=r"version 1999\.1 of 910b3") as caught:
        load_device(path)
    assert "opreplay calibrate" in caught.value.hint
    path.write_text(path.read_text().replace("1999.1", load_device("910b3").version))
    assert load_device(path).measured


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("[rates.warp_speed]\nvalue = 1\nunit = 'us'\nsource = 'x'\nconfidence = 'fitted'", "warp_speed"),
        ("[rates.launch_one_us]\nvalue = 1\nunit = 'ms'\nsource = 'x'\nconfidence = 'fitted'", "expected 'us'"),
        ("[families.Nonsense]\nsource = 'x'\nconfidence = 'fitted'", "Nonsense"),
        ("[families.Add]\ncycles = -1\nsource = 'x'\nconfidence = 'fitted'", "families.Add.cycles"),
        ("[families.Add]\ntypes = ['Add']\nsource = 'x'\nconfidence = 'fitted'", "shared model"),
    ],
)
def test_broken_sections(section: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_device_file(f"{MINIMAL}\n{section}\n".encode(), "mine.toml")


def test_unknown_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL.replace('"910b3"', '"910z"'))
    with pytest.raises(FormatError, match="not a shipped device"):
        load_device(path)


def test_model_is_sound() -> None:
    model = load_model()
    assert "Unknown" in model.families
    assert all(entry.form for entry in model.families.values())


def test_what_the_cube_multiplies_is_told_by_the_device() -> None:
    for name in ("910b1", "910b2", "910b3", "910b4", "910c"):
        known = load_device(name).macs_per_cycle
        assert {"float16", "bfloat16", "int8", "float32"} <= set(known)
        assert not {"float64", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2"} & set(known)
    newer = load_device("950pr").macs_per_cycle
    assert newer["float4_e2m1fn_x2"] == 2 * newer["float8_e4m3fn"] == 2 * newer["int8"]
    assert "float64" not in newer
