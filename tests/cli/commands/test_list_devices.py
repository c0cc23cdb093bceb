"""`opreplay list devices`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.ascend import list_devices, load_device
from opreplay.replay.session.single import op as op_of


def run(*args: str) -> str:
    result = CliRunner().invoke(opreplay, ["list", "devices", *args], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_every_device_is_listed() -> None:
    listed = [line.split()[0] for line in run().splitlines()[2:] if line.strip()]
    assert listed[: len(list_devices())] == list_devices()
    assert [device["name"] for device in json.loads(run("--format", "json"))] == list_devices()


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_list_fits_and_names_what_it_leaves_out(width: int) -> None:
    lines = CliRunner().invoke(opreplay, ["list", "devices"], env={"COLUMNS": str(width)}).stdout.splitlines()
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= width
    assert ("hidden at a width" in "".join(lines)) == (width < 80)


def test_one_device_has_sources_for_all_numbers() -> None:
    text = run("--show", "Ascend910B3")
    device = load_device("910b3")
    for name, quantity in device.datasheet.items():
        assert name in text
        assert quantity.source[:30] in text
    assert "launch_full_us" in text
    facts = json.loads(run("--show", "910b3", "--format", "json"))
    assert facts["datasheet"]["aic_cores"]["unit"] == "core"
    assert set(facts["rates"]) == set(type(device.rates).__struct_fields__)


def test_the_file_of_a_device_is_a_start_for_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(run("--show", "910b3", "--format", "toml"), encoding="utf-8")
    assert load_device(path).aic_cores == load_device("910b3").aic_cores
    assert run("--show", str(path), "--format", "toml") == path.read_text(encoding="utf-8")
    assert "aic_cores" in run("--show", str(path))


@pytest.mark.parametrize("name", ["910b3", "950pr"])
def test_a_renamed_copy_predicts_as_the_device_until_a_constant_changes(name: str, tmp_path: Path) -> None:
    copy, changed = tmp_path / "copy.toml", tmp_path / "changed.toml"
    text = run("--show", name, "--format", "toml").replace(f'name = "{name}"', 'name = "mine"', 1)
    copy.write_text(text, encoding="utf-8")
    changed.write_text(re.sub(r"(?m)^(launch_one_us = \{ value = )[\d.]+", r"\g<1>3.25", text), encoding="utf-8")
    for call in ("aten::layer_norm(f16[1024,1024], [1024], f16[1024], f16[1024])", "aten::relu(f32[64,64])"):
        op = op_of(call)
        assert op.simulate(str(copy)).time_us == op.simulate(name).time_us
        assert op.simulate(str(changed)).time_us != op.simulate(name).time_us
    assert [load_device(file).is_own_fit for file in (copy, changed)] == [False, True]
    assert [load_device(file).shipped_name for file in (copy, changed)] == [name, ""]
    assert load_device(copy).pipes == load_device(name).pipes


def test_a_renamed_copy_is_as_certain_as_the_device(tmp_path: Path) -> None:
    """Measured calls of the 910B4 narrow its bands, and the rate of its links is its own."""
    copy = tmp_path / "copy.toml"
    text = run("--show", "910b4", "--format", "toml").replace('name = "910b4"', 'name = "mine"', 1)
    copy.write_text(text, encoding="utf-8")
    for call in ("aten::mm(f16[1024,1024], f16[1024,1024])", "c10d::allreduce_(f16[1024,1024])"):
        op = op_of(call)
        mine, shipped = op.simulate(str(copy)), op.simulate("910b4")
        assert (mine.time_us, mine.low_us, mine.confidence) == (shipped.time_us, shipped.low_us, shipped.confidence)


@pytest.mark.parametrize("args", [["--show", "h100"], ["--format", "toml"], ["--show", "/nowhere.toml"]])
def test_unknown_devices_are_usage_errors(args: list[str]) -> None:
    result = CliRunner().invoke(opreplay, ["list", "devices", *args])
    assert result.exit_code == 2
    assert result.stderr.startswith("opreplay: ")


def test_listing_devices_needs_no_torch() -> None:
    code = (
        "import sys; from opreplay.cli.main import opreplay; opreplay(['devices'], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
