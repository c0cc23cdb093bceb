"""The table of constants fitted for shipped devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.device_model.constants import fitted_text
from opreplay.replay.ascend import list_devices, load_device
from opreplay.replay.ascend.devices.file import load_file
from opreplay.replay.ascend.devices.fitted import FILE, counts_of, rows_of, sections_of, shipped_rows
from opreplay.replay.ascend.devices.text import shipped_text

TABLE = """family,soc,constant,sizes,value
,,version,,7
,,source,,fitted to something
,,launch_one_us,,1.5
,910b2,launch_one_us,,1.25
Add,,cycles,,0.5
Add,,dtypes,,float32 half
Add,910b,scale,,1.125
Add,910b2,samples,,3
Add,910c,samples,,2
Add,910b2,measured,,Add Adds
Add,910c,measured,,AddN
Add,910b2,"float32 ND, half ND",16 8 1,-0.25
"""


def test_rows_without_an_soc_hold_where_no_other_row_does() -> None:
    units = {"launch_one_us": "us"}
    measured = sections_of(("910b", "910b2"), rows_of(TABLE), units)
    other = sections_of(("910b", "910b1"), rows_of(TABLE), units)
    assert measured["version"] == other["version"] == "7"
    assert [of["rates"]["launch_one_us"]["value"] for of in (measured, other)] == [1.25, 1.5]
    assert measured["families"]["Add"] == {
        "samples": 3,
        "samples_elsewhere": 2,
        "measured_here": ["Add", "Adds"],
        "measured_elsewhere": ["AddN"],
        "cycles": 0.5,
        "dtypes": ["float32", "half"],
        "scale": 1.125,
        "nearby": {"float32 ND, half ND": [{"sizes": (16, 8, 1), "pull": -0.25}]},
        "source": "fitted to something",
        "confidence": "fitted",
    }
    assert other["families"]["Add"]["samples_elsewhere"] == 5
    assert other["families"]["Add"]["measured_elsewhere"] == ["Add", "Adds", "AddN"]
    assert "nearby" not in other["families"]["Add"]
    assert other["families"]["Add"]["scale"] == 1.125


def test_the_table_that_ships_is_as_it_is_written() -> None:
    devices = {name: load_device(name) for name in list_devices()}
    (version,) = {device.version for device in devices.values()}
    source = next(value for _, _, constant, _, value in shipped_rows() if constant == "source")
    text = fitted_text(devices, source=source, version=version)
    assert text == (Path(__file__).parents[4] / "replay/ascend/devices" / FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list_devices())
def test_a_shipped_device_written_as_a_file_is_the_same_device(name: str, tmp_path: Path) -> None:
    path = tmp_path / "again.toml"
    path.write_text(shipped_text(name), encoding="utf-8")
    assert load_device(path) == load_device(name)


def test_no_constant_is_given_twice_and_no_row_only_repeats() -> None:
    alone = [row[:3] for row in shipped_rows() if not row[3]]
    assert len(alone) == len(set(alone))
    usual = {(family, constant): value for family, soc, constant, _, value in shipped_rows() if not soc}
    assert not [row for row in shipped_rows() if row[1] and not row[3] and usual.get((row[0], row[2])) == row[4]]
    assert all(load_file(name).version for name in list_devices())


def test_constants_are_counted() -> None:
    assert counts_of(rows_of(TABLE)) == {"shared": 2, "of_single_devices": 2, "pulls": 1}
