"""A kernel in tiles as a plugin: the op's cost in every command, what runs an op that nothing else can, in results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from opreplay.initializers.user_code import forget_loaded
from opreplay.replay.ascend.custom.estimators import clear_registrations as clear_estimators
from opreplay.replay.plugins import clear_registrations
from opreplay.replay.tile.registration import forget_programs

pytestmark = pytest.mark.slow

AS_IN_A_STEP = ("--l2", "sequence", "--format", "json")
Console = Callable[..., Result]
PROGRAM = """
from opreplay import tile

@tile.kernel("mylib::fused_scale", reference=lambda x, y, factor: (x + y) * factor, library={library})
def fused_scale(x, y, out: tile.Out, factor=1.0, *, rows=8):
    for r in tile.blocks(x.shape[0], rows):
        t = tile.load(x[r]).float() + tile.load(y[r]).float()
        tile.store(out[r], (t * factor).to(out.dtype))

@tile.kernel("aten::mm", when=lambda a, b: a.shape[0] >= 64)
def product(a, b, c: tile.Out, *, bm=128, bn=128, bk=128):
    for m, n in tile.grid(c.shape, (bm, bn)):
        acc = None
        for k in tile.steps(a.shape[1], bk):
            acc = tile.matmul(tile.load(a[m, k], to=tile.L1), tile.load(b[k, n], to=tile.L1), acc)
        tile.store(c[m, n], acc)
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "kernels.py"
    made.write_text(PROGRAM.format(library=False))
    yield made
    forget_programs()
    clear_registrations()
    clear_estimators()


def call(name: str, shapes: list[list[int]], ts: float, values: tuple[str, ...] = ()) -> dict[str, Any]:
    args = {
        "Input Dims": [*shapes, *([] for _ in values)],
        "Input type": ["c10::BFloat16"] * len(shapes) + ["Double"] * len(values),
        "Concrete Inputs": ["" for _ in shapes] + list(values),
    }
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 20.0, "args": args}


@pytest.fixture
def trace(trace_of: Callable[..., Path]) -> Path:
    return trace_of(
        call("mylib::fused_scale", [[512, 256], [512, 256]], 1.0, ("2.0",)),
        call("aten::mm", [[256, 128], [128, 256]], 50.0),
        call("aten::mm", [[32, 128], [128, 256]], 100.0),
    )


def test_a_program_is_the_cost_of_its_op_in_every_command(
    console: Console, trace: Path, plugin: Path, tmp_path: Path
) -> None:
    own = ("--plugin", plugin, "--soc", "910b3", "--select", "all")
    ops = json.loads(console("simulate", trace, *own, "--format", "json").stdout)["unique_ops"]
    by_name = {(op["name"], op["simulated"]["910b3"]["by"]): op["simulated"]["910b3"] for op in ops}
    fused = by_name["mylib::fused_scale", "tile program"]
    assert fused["source"] == "fused_scale (kernels.py:4)"
    assert fused["confidence"] == "uncalibrated"
    assert by_name["aten::mm", "tile program"]["source"] == "product (kernels.py:10)"
    # `when` leaves the small product to the built-in rule.
    assert by_name["aten::mm", "rule"]["time_us"] > 0

    case = "fused_scale x=bf16[512,256] y=bf16[512,256] factor=2.0"
    alone = json.loads(
        console(
            "tile", plugin, "--case", case, "--no-values", "--soc", "910b3", "--l2", "sequence", "--format", "json"
        ).stdout
    )
    assert alone["cases"][0]["time_us"] == pytest.approx(fused["time_us"])

    planned = json.loads(console("plan", trace, *own, "--format", "json").stdout)["unique_ops"]
    assert {op["by"]["910b3"] for op in planned} == {"tile program", "rule"}
    out = tmp_path / "r.jsonl"
    console("run", trace, *own, "--set", "op_time=1ms", "-o", out)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    ran = {(op["name"], op["simulated"]["910b3"]["by"]): op for op in records if op["record"] == "op"}
    mine = ran["mylib::fused_scale", "tile program"]
    # Nothing else can run it: the program does.
    assert (mine["status"], mine["resolved_by"]) == ("replayed", "executor")
    assert mine["simulated"]["910b3"]["source"] == "fused_scale (kernels.py:4)"
    assert "tile program fused_scale (kernels.py:4)" in console("plan", trace, *own).stdout
    listed = console("list", "plugins", "--plugin", plugin).stdout
    assert "tile program" in listed


def test_a_call_that_does_not_fit_has_no_prediction_and_says_the_line(
    console: Console, trace: Path, plugin: Path
) -> None:
    plugin.write_text(PROGRAM.format(library=False).replace("rows=8", "rows=512"))
    done = console("simulate", trace, "--plugin", plugin, "--soc", "910b3", "--select", "all")
    text = "".join(done.stdout.split())
    assert "kernels.py:7:UB:" in text
    assert "33.3%notpredicted" in text


ADD = """
from opreplay import tile

@tile.kernel("{op}", reference=lambda x, y: x + y{more})
def total(x, y, out: tile.Out, *, rows=8):
    for r in tile.blocks(x.shape[0], rows):
        tile.store(out[r], tile.load(x[r]) + tile.load(y[r]))
"""


def test_a_program_is_of_an_overload_or_of_all_and_of_no_unknown_one(console: Console, plugin: Path) -> None:
    def by(op: str, call: str, code: int = 0, more: str = "") -> str:
        plugin.write_text(ADD.format(op=op, more=more))
        for clear in (forget_programs, clear_registrations, clear_estimators, forget_loaded):
            clear()
        own = ("--plugin", plugin, "--soc", "910b3", "--no-measure")
        done = console("op", call, *own, "--format", "json", code=code)
        return " ".join((done.stdout + done.stderr).split())

    tensors = "aten::add.Tensor(f32[16,64], f32[16,64])"
    for op in ("aten::add.Tensor", "aten::add"):
        assert "total (kernels.py:4)" in by(op, tensors)
    assert "total (kernels.py:4)" not in by("aten::add.Scalar", tensors)
    assert "aten::add has no overload Typo" in by("aten::add.Typo", tensors, code=2)
    scaled = by("aten::add", tensors.replace(")", ", alpha=2)"), code=1)
    assert "the program has no alpha, which is 2 in the call" in scaled
    listed = by("aten::add", tensors, code=1, more=", arguments=lambda self, other, alpha=1: (self, other)")
    assert "returned a tuple instead of a dict" in listed


def test_a_library_op_runs_on_tensors_and_has_shapes(tmp_path: Path, plugin: Path) -> None:
    from opreplay.replay.tile.study import load_programs

    file = tmp_path / "library.py"
    file.write_text(PROGRAM.format(library=True).replace("mylib::fused_scale", "tilelib::fused_scale"))
    program, _ = load_programs(str(file))
    x, y = torch.randn(20, 8), torch.randn(20, 8)
    assert torch.equal(torch.ops.tilelib.fused_scale(x, y, 3.0), (x + y) * 3.0)
    assert torch.equal(program(x, y, 3.0), (x + y) * 3.0)
    fake = torch.ops.tilelib.fused_scale(x.to("meta"), y.to("meta"))
    assert (fake.shape, fake.dtype, fake.device.type) == ((20, 8), torch.float32, "meta")


def test_two_programs_for_one_op_are_refused(console: Console, trace: Path, plugin: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(PROGRAM.format(library=False))
    done = console("plan", trace, "--plugin", plugin, "--plugin", other, code=2)
    assert "already has a user's tile program" in done.stderr


TIMES = "program,soc,shape,time_us\n" + "".join(
    f'fused_scale,{soc},"x=bf16[{n},256] y=bf16[{n},256]",{us}\n'
    for soc, row in {"910b3": ((256, 7.5), (512, 8.1), (1024, 10.5), (2048, 14.0)), "910b4": ((512, 9.0),)}.items()
    for n, us in row
)


def test_measured_times_are_shown_beside_the_predicted_and_calibrate_them(
    console: Console, plugin: Path, tmp_path: Path
) -> None:
    times = tmp_path / "times.csv"
    times.write_text(TIMES)
    own = ("--measured", times, "--soc", "910b3", "--no-values")
    found = json.loads(console("tile", plugin, *own, "--format", "json").stdout)
    assert [(one["kernel"], one["measured_us"]) for one in found["cases"]] == [
        ("fused_scale", us) for us in (7.5, 8.1, 10.5, 14.0)
    ]
    (known,) = found["calibrations"]
    assert (known["kernel"], known["soc"], known["cases"], known["refused"]) == ("fused_scale", "910b3", 4, "")
    for one in found["cases"]:
        assert one["measured_error"] == pytest.approx(one["predicted_us"] / one["measured_us"] - 1)
        assert one["time_us"] == pytest.approx(one["predicted_us"] * known["factor"])
        # Of a case nothing but the others says how far off its prediction is.
        assert one["held_out_error"] != pytest.approx(one["time_us"] / one["measured_us"] - 1)
        assert (one["confidence"], one["extrapolated"], one["error"]) == ("calibrated", False, None)
    assert found["confidence"] == "calibrated"
    assert found["measured_left_out"] == ["1 on 910b4: add --soc 910b4"]

    case = "fused_scale x=bf16[n,256] y=bf16[n,256]"
    beside = ("tile", plugin, *own, "--case", case, "--shapes", "n=700,70000")
    near, far, *_ = json.loads(console(*beside, "--format", "json").stdout)["cases"]
    assert (near["confidence"], near["extrapolated"]) == ("calibrated", False)
    assert (far["confidence"], far["extrapolated"]) == ("uncalibrated", True)
    assert far["outside"] == "x[0]=70000, but measured from 256 to 2048"
    assert far["high_us"] / far["time_us"] > near["high_us"] / near["time_us"]
    text = " ".join(console(*beside).stdout.split())
    assert "fused_scale on 910b3 is calibrated: 4 measured cases take" in text
    assert "x[0]=70000, but measured from 256 to 2048" in text
    assert "held out" in text
    assert "measured times left out: 1 on 910b4" in text
    page = console(*beside, "--format", "html").stdout
    assert "Measured and predicted times" in page
    # Too few on this device: said, and left as it was.
    few = console("tile", plugin, "--measured", times, "--soc", "910b4", "--no-values").stdout
    assert "fused_scale on 910b4 is uncalibrated: measured once: 3 different cases" in " ".join(few.split())


def test_a_program_that_names_its_measured_times_is_calibrated_in_every_command(
    console: Console, trace: Path, plugin: Path, tmp_path: Path
) -> None:
    plugin.write_text(PROGRAM.format(library=False).replace("library=False", 'measured="times.csv"'))
    own = ("--plugin", plugin, "--soc", "910b3", "--soc", "910b4", "--select", "all")
    refused = console("simulate", trace, *own, code=2)
    assert "times.csv: No such file" in refused.stderr
    (tmp_path / "times.csv").write_text(TIMES)
    ops = json.loads(console("simulate", trace, *own, "--format", "json").stdout)["unique_ops"]
    fused = next(op["simulated"] for op in ops if op["name"] == "mylib::fused_scale")
    assert (fused["910b3"]["confidence"], fused["910b4"]["confidence"]) == ("calibrated", "uncalibrated")
    assert not fused["910b3"].get("extrapolated")

    case = "fused_scale x=bf16[512,256] y=bf16[512,256] factor=2.0"
    alone = console(
        "tile", plugin, "--case", case, "--no-values", "--soc", "910b3", "--l2", "sequence", "--format", "json"
    ).stdout
    (tiled,) = json.loads(alone)["cases"]
    for key in ("time_us", "low_us", "high_us"):
        assert fused["910b3"][key] == pytest.approx(tiled[key]), key

    call_text = "mylib::fused_scale(bf16[{n},256], bf16[{n},256], 2.0)"
    one = ("op", call_text.format(n=512), call_text.format(n=90000), *own[:4], "--no-measure", "--format", "json")
    near, far = json.loads(console(*one).stdout)["cases"]
    assert near["simulated"]["910b3"]["confidence"] == "calibrated"
    assert (far["simulated"]["910b3"]["confidence"], far["simulated"]["910b3"]["extrapolated"]) == (
        "uncalibrated",
        True,
    )
    out = tmp_path / "r.jsonl"
    console("run", trace, *own, "--set", "op_time=1ms", "-o", out)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    ran = next(one for one in records if one.get("name") == "mylib::fused_scale")
    assert ran["simulated"]["910b3"]["confidence"] == "calibrated"
