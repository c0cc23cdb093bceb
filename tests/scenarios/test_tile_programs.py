"""A kernel in tiles as a plugin: the op's cost in every command, what runs an op that nothing else can, in results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from opreplay.replay.ascend.custom.estimators import clear_registrations as clear_estimators
from opreplay.replay.plugins import clear_registrations
from opreplay.replay.tile.registration import forget_programs

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
        console("tile", plugin, "--case", case, "--no-values", "--soc", "910b3", "--format", "json").stdout
    )
    assert alone["cases"][0]["time_us"] == pytest.approx(fused["time_us"])

    planned = json.loads(console("plan", trace, *own, "--format", "json").stdout)["unique_ops"]
    assert {op["by"]["910b3"] for op in planned} == {"tile program", "rule"}
    out = tmp_path / "r.jsonl"
    console("run", trace, *own, "--op-time", "1ms", "-o", out)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    ran = {(op["name"], op["simulated"]["910b3"]["by"]): op for op in records if op["record"] == "op"}
    mine = ran["mylib::fused_scale", "tile program"]
    # Nothing else can run it: the program does.
    assert (mine["status"], mine["resolved_by"]) == ("replayed", "executor")
    assert mine["simulated"]["910b3"]["source"] == "fused_scale (kernels.py:4)"
    assert "tile program fused_scale (kernels.py:4)" in console("plan", trace, *own).stdout
    listed = console("plugins", "--plugin", plugin).stdout
    assert "tile program" in listed


def test_a_call_that_does_not_fit_has_no_prediction_and_says_the_line(
    console: Console, trace: Path, plugin: Path
) -> None:
    plugin.write_text(PROGRAM.format(library=False).replace("rows=8", "rows=512"))
    done = console("simulate", trace, "--plugin", plugin, "--soc", "910b3", "--select", "all")
    text = "".join(done.stdout.split())
    assert "kernels.py:7:UB:" in text
    assert "33.3%notatall" in text


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
    assert "has a user tile program already" in done.stderr
