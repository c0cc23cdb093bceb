"""`opreplay calibrate`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.ascend import DeviceProfile, KernelCall, TensorSpec, load_device
from opreplay.replay.ascend.cost.predict import predict_kernel, predict_time_us
from opreplay.replay.ascend.profile import Rates

HEADER = "Type,Duration(us),Input Shapes,Input Data Types,Output Shapes,Output Data Types,Count"
DEVICE = load_device("910b3")


def call(kind: str, n: int) -> KernelCall:
    spec = TensorSpec(shape=(n,), dtype="float32")
    return KernelCall(type=kind, inputs=(spec,), outputs=(spec,))


def profile(path: Path, times: dict[tuple[str, int], float]) -> Path:
    rows = [f'{kind},{us},"""{n}""",FLOAT,"""{n}""",FLOAT,3' for (kind, n), us in times.items()]
    path.write_text("\n".join((HEADER, *rows)) + "\n")
    return path


def invoke(*args: object) -> Result:
    return CliRunner().invoke(opreplay, ["calibrate", *map(str, args)], env={"COLUMNS": "100"})


def slower(factor: float) -> DeviceProfile:
    rates = {name: getattr(DEVICE.rates, name) for name in Rates.__struct_fields__}
    for name in ("launch_one_us", "launch_full_us"):
        rates[name] *= factor
    return msgspec.structs.replace(DEVICE, rates=Rates(**rates))


def test_a_slower_device_is_learned_and_its_file_is_used(tmp_path: Path) -> None:
    other = slower(1.4)
    random.seed(1)
    kernels = [(kind, 1 << k) for kind in ("Relu", "Exp", "Cast", "Neg") for k in (8, 12, 16, 20)]
    times = {k: predict_time_us(call(*k), other) * random.uniform(0.97, 1.03) for k in kernels}
    path = profile(tmp_path / "kernels.csv", times)
    out = tmp_path / "my.toml"
    result = invoke(path, "--soc", "910b3", "-o", out, "--name", "mine", "--format", "json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["after_held_out"]["overall"]["mape"] < 0.5 * facts["before"]["overall"]["mape"]
    mine = load_device(out)
    assert mine.name == "mine"
    assert mine.datasheet["aic_cores"].value == DEVICE.aic_cores
    assert "opreplay calibrate" in out.read_text()
    unseen = call("Relu", 1 << 10)
    assert abs(predict_time_us(unseen, mine) / predict_time_us(unseen, other) - 1) < 0.1
    validated = CliRunner().invoke(opreplay, ["validate", str(path), "--soc", str(out), "--format", "json"])
    assert json.loads(validated.stdout)["overall"]["median_ape"] < 0.1
    assert mine.families["Activation"].samples == 4
    assert mine.families["Activation"].measured_here, "the kernel types of the profile"


@pytest.mark.parametrize("factor", [0.02, 50.0])
def test_one_absurd_measurement_does_little(tmp_path: Path, factor: float) -> None:
    path = profile(tmp_path / "k.csv", {("Relu", 1 << 16): predict_time_us(call("Relu", 1 << 16), DEVICE) * factor})
    result = invoke(path, "--soc", "910b3", "--output", tmp_path / "my.toml")
    assert result.exit_code == 0, result.stderr
    assert "too few kernels" in result.stdout
    mine = load_device(tmp_path / "my.toml")
    for probe in (call("Add", 1 << 20), call("Cast", 64), call("Relu", 1 << 22)):
        assert 0.8 < predict_time_us(probe, mine) / predict_time_us(probe, DEVICE) < 1.25


def test_noise_moves_nothing(tmp_path: Path) -> None:
    random.seed(3)
    kernels = [("Relu", 1 << k) for k in range(8, 20)]
    times = {k: predict_time_us(call(*k), DEVICE) * random.choice((0.5, 2.0)) for k in kernels}
    result = invoke(profile(tmp_path / "k.csv", times), "--soc", "910b3", "-o", tmp_path / "my.toml")
    probe = call("SwiGlu", 1 << 20)
    ratio = predict_time_us(probe, load_device(tmp_path / "my.toml")) / predict_time_us(probe, DEVICE)
    assert 0.85 < ratio < 1.18, result.stdout


def test_what_cannot_be_written_is_refused_before_work(tmp_path: Path) -> None:
    path = profile(tmp_path / "k.csv", {("Relu", 64): 3.0})
    (tmp_path / "old.toml").write_text("")
    assert "exists" in invoke(path, "--soc", "910b3", "-o", tmp_path / "old.toml").stderr
    assert ".toml" in invoke(path, "--soc", "910b3", "-o", tmp_path / "x.json").stderr
    assert "several devices" in invoke(path, path, "--soc", "910b3", "--soc", "910b4", "-o", tmp_path / "y.toml").stderr
    assert invoke(path, "--soc", "910b3", "-o", tmp_path / "old.toml", "--force").exit_code == 0


def test_no_kernels_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    path.write_text(HEADER + "\n")
    result = invoke(path, "--soc", "910b3", "-o", tmp_path / "my.toml")
    assert result.exit_code == 3
    assert "no measured kernels" in result.stderr
    assert not (tmp_path / "my.toml").exists()


def test_what_stays_far_too_slow_becomes_a_slow_path_of_the_device(tmp_path: Path) -> None:
    random.seed(2)
    kernels = [(kind, 1 << k) for kind in ("Relu", "Exp", "Cast", "Neg") for k in (8, 12, 16, 20)]
    times = {k: predict_time_us(call(*k), DEVICE) * random.uniform(0.97, 1.03) for k in kernels}
    odd = ("SwiGlu", 1 << 22)
    times[odd] = predict_time_us(call(*odd), DEVICE) * 40
    out = tmp_path / "my.toml"
    result = invoke(profile(tmp_path / "k.csv", times), "--soc", "910b3", "-o", out)
    assert result.exit_code == 0, result.stderr
    mine = load_device(out)
    assert [path.types for path in mine.own_slow_paths] == [("SwiGlu",)]
    found = predict_kernel(call(*odd), mine)
    assert found.bound == "slow path"
    assert found.time_us == pytest.approx(times[odd], rel=0.1)
    assert not predict_kernel(call("SwiGlu", 1 << 16), mine).slow_path


CALLS = 'op,torch_us,soc,l2\n"aten::mm(bf16[4096,4096], bf16[4096,4096])",900,910b3,cold\n'


def test_a_table_of_calls_makes_a_device_of_measured_calls(tmp_path: Path) -> None:
    path, out = tmp_path / "measured.csv", tmp_path / "mine.toml"
    path.write_text(CALLS)
    result = invoke(path, "--soc", "910b3", "-o", out, "--name", "ours")
    assert result.exit_code == 0, result.stderr
    assert "1 measured time " in " ".join(result.stdout.split())
    mine = load_device(out)
    assert (mine.name, mine.rates) == ("ours", DEVICE.rates)
    assert [row.measured_us for row in mine.measured] == [900.0]


def test_calls_are_of_one_device_and_no_kernels(tmp_path: Path) -> None:
    path, out = tmp_path / "measured.csv", tmp_path / "mine.toml"
    path.write_text(CALLS)
    assert "Give --soc once" in invoke(path, "-o", out).stderr
    kernels = profile(tmp_path / "k.csv", {("Relu", 64): 3.0})
    assert "must be calibrated separately" in invoke(path, kernels, "--soc", "910b3", "-o", out).stderr
    path.write_text(CALLS.replace("910b3", "910b2"))
    refused = invoke(path, "--soc", "910b3", "-o", out)
    assert refused.exit_code == 3
    assert "measured on a 910b2" in refused.stderr
    assert not out.exists()
