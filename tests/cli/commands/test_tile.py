"""`opreplay tile`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.ascend.custom.estimators import clear_registrations as clear_estimators
from opreplay.replay.plugins import clear_registrations
from opreplay.replay.tile.registration import forget_programs

pytestmark = pytest.mark.slow

PROGRAM = """
import torch
from opreplay import tile

@tile.kernel("mylib::rms_norm", reference=lambda x, w, eps: torch.nn.functional.rms_norm(x, w.shape, w, eps))
def rms_norm(x, w, y: tile.Out, eps=1e-6, *, rows=8):
    g = tile.load(w).float()
    for r in tile.blocks(x.shape[0], rows):
        h = tile.load(x[r]).float()
        s = tile.rsqrt(tile.row_sum(h * h) / x.shape[1] + eps)
        tile.store(y[r], (h * s * g).to(y.dtype))
"""
CASE = ("--case", "rms_norm x=bf16[4096,1024] w=bf16[1024]")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "mine.py"
    made.write_text(PROGRAM)
    yield made
    forget_programs()
    clear_registrations()
    clear_estimators()


def run(*args: object) -> Result:
    return CliRunner().invoke(opreplay, ["tile", *map(str, args)], env={"COLUMNS": "160"})


def facts(*args: object) -> dict:
    done = run(*args, "--format", "json")
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)


def test_the_json_of_a_case(file: Path) -> None:
    first, *others = facts(file, *CASE, "--soc", "910b4")["cases"]
    assert (first["kernel"], first["case"], first["soc"]) == ("rms_norm", "x=bf16[4096,1024] w=bf16[1024]", "910b4")
    assert first["overlapped_us"] <= first["time_us"] <= first["serial_us"]
    assert first["bound"] in {*first["pipes"], "hbm"}
    assert 0 < first["buffers"]["UB"]["used"] < first["buffers"]["UB"]["there"] == 196608
    assert first["values"] == "same" or first["values"] < 0.1
    assert first["error"] is None
    texts = [case["case"] for case in others]
    assert {"x=f32[1,1] w=f32[1]", "x=f16[47,10] w=f16[10]", "x=bf16[128,128] w=bf16[128]"} <= set(texts)
    assert all(case["values"] is not None for case in others)


def test_a_table_with_lines_says_what_bounds_the_kernel(file: Path) -> None:
    done = run(file, *CASE, "--lines", "--soc", "910b4", "--soc", "910c")
    assert done.exit_code == 0, done.output
    assert "vector" in done.stdout
    assert "910c" in done.stdout
    assert done.stdout.count("s = tile.rsqrt(") >= 2, "lines on each device"
    for soc in ("910b4", "910c"):
        assert f"on {soc}, busiest core, by line" in done.stdout
    assert "uncalibrated" in done.stdout


def test_sizes_are_swept(file: Path) -> None:
    found = facts(
        file, "--case", "rms_norm x=bf16[n,1024] w=bf16[1024]", "--shapes", "n=40,4000", "--no-values", "--cores", "20"
    )["cases"]
    assert [case["case"][:10] for case in found] == ["x=bf16[40,", "x=bf16[400"]
    assert found[0]["time_us"] < found[1]["time_us"]
    assert found[1]["cores"] == 20
    assert found[0]["values"] is None
    assert "no case uses the size m" in run(file, *CASE, "--shapes", "m=1").stderr


def test_settings_are_swept_best_first_and_say_why_they_do_not_fit(file: Path) -> None:
    done = run(file, *CASE, "--set", "rows=1,8,64", "--no-values")
    assert done.exit_code == 0
    assert "available (rows=64)" in done.stdout
    found = facts(file, *CASE, "--set", "rows=1,8,64", "--no-values")["cases"]
    assert [case["settings"]["rows"] for case in found] == [8, 1, 64]
    assert found[-1]["error"]["limit"] == "UB"
    assert found[-1]["error"]["line"] in (9, 10, 11)
    assert "lines is not a setting" in run(file, *CASE, "--set", "lines=1").stderr


def test_tuning_finds_the_best(file: Path) -> None:
    found = facts(file, *CASE, "--tune")
    times = [case["time_us"] for case in found["cases"] if case["error"] is None]
    assert found["tuned"]
    assert times == sorted(times)
    assert len(times) > 1
    assert found["cases"][0]["values"] is not None


def test_what_tuning_finds_is_right_at_other_shapes(file: Path) -> None:
    # Right for 4,096 rows, wrong in the last block where rows are left over.
    file.write_text(PROGRAM.replace("(h * s * g)", "(h * s * g * (2.0 if rows != 2 and len(r) < rows else 1.0))"))
    found = facts(file, "--case", "rms_norm x=bf16[4096,1024] w=bf16[1024]", "--tune")["cases"]
    (best,) = [case for case in found if case["values"] is not None]
    assert best["settings"]["rows"] == 2
    quicker = [case for case in found if case["time_us"] is not None and case["time_us"] < best["time_us"]]
    assert quicker
    assert all(case["error"]["limit"] == "values" for case in quicker)
    assert "(at x=f32[1,1]" in quicker[0]["error"]["message"]


def test_what_tuning_finds_for_a_large_case_is_checked_near_its_sizes(file: Path) -> None:
    large = ("--case", "rms_norm x=bf16[65536,1024] w=bf16[1024]", "--tune")
    best = facts(file, *large)["cases"][0]
    assert best["error"] is None
    assert best["values_note"].endswith(
        "values are checked only up to 16,777,216; values are right at x=bf16[4096,1024] w=bf16[1024]"
    )


RACY = """
from opreplay import tile

@tile.kernel("mylib::total", reference=lambda x: x.sum(0, keepdim=True), checks=["x=f32[32,64]"], dtypes=["float32"])
def total(x, y: tile.Out, *, rows=64):
    for r in tile.blocks(x.shape[0], rows):
        tile.store(y, tile.col_sum(tile.load(x[r])))

@tile.kernel("mylib::wide", reference=lambda x: x * 1, checks=["x=f32[4,64]"], dtypes=["float32"])
def wide(x, y: tile.Out, *, columns=8192):
    for r, c in tile.grid(x.shape, (1, columns)):
        tile.store(y[r, c], tile.load(x[r, c]) * 1.0)
"""


def test_a_race_of_a_case_too_large_to_run_shows_at_smaller_sizes(file: Path) -> None:
    """Its own checks are of one block, which races with none."""
    file.write_text(RACY)
    result = run(file, "--case", "total x=f32[1048576,64]", "--format", "json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["cases"][0]["error"]
    assert error["limit"] == "race"
    assert error["message"].endswith("(at x=f32[8192,64])")


def test_where_smaller_sizes_have_one_block_races_are_undecided(file: Path) -> None:
    """Equal sizes shrink together, so rows cannot make up for columns."""
    file.write_text(RACY)
    square = facts(file, "--case", "wide x=f32[16384,16384]")["cases"][0]
    assert square["values"] is None
    assert square["values_note"].endswith("are not checked")
    for case, smaller in (("", "x=f32[32,16384]"), ("128", "x=f32[1024,512]")):
        settings = ["--set", f"columns={case}"] if case else []
        wide = facts(file, "--case", "wide x=f32[8192,16384]", *settings)["cases"][0]
        assert wide["values_note"].endswith(f"right at {smaller}")


@pytest.mark.parametrize(
    "doubled",
    [
        "torch.where(torch.ones(x.shape[0], x.shape[1], dtype=torch.bool), x * 2, torch.tensor(0.0))",
        "x * torch.tensor(4.0).sqrt().item()",
    ],
)
def test_a_reference_may_create_tensors_without_a_device(file: Path, doubled: str) -> None:
    file.write_text(
        "import torch\nfrom opreplay import tile\n\n\n"
        "def masked(x):\n"
        f"    return {doubled}\n\n\n"
        "@tile.kernel('mylib::masked', reference=masked, dtypes=['float32'], checks=['x=f32[4,64]'])\n"
        "def kernel(x, y: tile.Out, *, rows=4):\n"
        "    for r in tile.blocks(x.shape[0], rows):\n"
        "        tile.store(y[r], tile.load(x[r]) * 2.0)\n"
    )
    assert facts(file, "--case", "kernel x=f32[64,64]")["cases"][0]["error"] is None


def test_smaller_sizes_keep_a_loop_over_columns(file: Path) -> None:
    """A kernel that forgets earlier columns is wrong only where its loop has several iterations."""
    file.write_text(
        "from opreplay import tile\n\n\n"
        "@tile.kernel('mylib::last', reference=lambda x: x.sum(1, True), dtypes=['float32'], checks=['x=f32[4,64]'])\n"
        "def last(x, y: tile.Out, *, rows=4, columns=4096):\n"
        "    for r in tile.blocks(x.shape[0], rows):\n"
        "        for c in tile.steps(x.shape[1], columns):\n"
        "            total = tile.row_sum(tile.load(x[r, c]))\n"
        "        tile.store(y[r], total)\n"
    )
    result = run(file, "--case", "last x=f32[65536,16384]", "--format", "json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["cases"][0]["error"]
    assert error["limit"] == "values"
    assert error["message"].endswith("(at x=f32[64,8192])")


def test_what_is_wrong_at_large_sizes_alone_is_not_the_best(file: Path) -> None:
    file.write_text(PROGRAM.replace("(h * s * g)", "(h * s * g * (2.0 if rows != 2 and x.shape[0] > 2048 else 1.0))"))
    found = facts(file, "--case", "rms_norm x=bf16[65536,1024] w=bf16[1024]", "--tune")["cases"]
    good = [case for case in found if case["error"] is None and case["values_note"]]
    assert [case["settings"]["rows"] for case in good] == [2]
    assert "(at x=bf16[4096,1024] w=bf16[1024])" in found[0]["error"]["message"]


def test_what_is_needed_is_what_the_whole_program_needs(file: Path) -> None:
    """The first line that does not fit needs less than one after it, and all buffers are counted."""
    file.write_text(
        "from opreplay import tile\n\n\n"
        "@tile.kernel('mylib::grows', results=lambda x: [x])\n"
        "def grows(x, y: tile.Out, *, rows=8):\n"
        "    for r in tile.blocks(x.shape[0], rows):\n"
        "        a = tile.load(x[r])\n"
        "        b = tile.load(x[r])\n"
        "        c = a * b\n"
        "        d = c + a\n"
        "        e = d + c\n"
        "        tile.store(y[r], e + d + c)\n"
    )
    (first,) = (one for one in facts(file, "--case", "grows x=f32[64,4096]", "--no-values")["cases"])
    error = first["error"]
    assert (error["line"], error["limit"]) == (8, "UB")
    # Of a core's one block of 128 KiB: a, b, c, d, e and e + d.
    assert error["message"] == "UB: 768 KiB needed, 192 KiB available (rows=8), most at line 12"


def test_a_function_that_there_is_not_is_answered_with_those_like_it(file: Path) -> None:
    file.write_text(PROGRAM.replace("tile.row_sum", "tile.sum"))
    (first,) = facts(file, *CASE, "--no-values")["cases"]
    assert (first["error"]["line"], first["error"]["limit"]) == (10, "program")
    assert {"col_sum", "row_sum"} <= set(first["error"]["hint"].replace("?", "").replace(",", "").split())


def test_times_have_a_band_and_say_what_lies_in_l2(file: Path) -> None:
    cold, warm = (facts(file, *CASE, "--no-values", "--l2", l2) for l2 in ("cold", "warm"))
    assert (cold["l2"], warm["l2"]) == ("cold", "warm")
    (one, other) = cold["cases"][0], warm["cases"][0]
    assert one["in_l2"] == 0.0 < other["in_l2"] <= 1.0
    assert one["low_us"] < one["time_us"] < one["high_us"]
    shown = run(file, *CASE, "--no-values").stdout
    assert "times the measured time" in shown
    assert "(--l2 cold; sequence: as in a step)" in " ".join(shown.split())


def test_every_iteration_is_run_on_request(file: Path) -> None:
    large = ("--case", "rms_norm x=bf16[40000,64] w=bf16[64]", "--no-values")
    some, every = (facts(file, *large, *more)["cases"][0] for more in ((), ("--every",)))
    assert some["notes"]
    assert not every["notes"]
    assert every["time_us"] == pytest.approx(some["time_us"], rel=1e-3)


def test_a_broken_limit_is_told_with_its_line(file: Path) -> None:
    file.write_text(PROGRAM.replace("h = tile.load(x[r]).float()", "h = tile.load(x[r])"))
    done = run(file, *CASE)
    assert done.exit_code == 1
    assert "mine.py:10: no mul of bfloat16 on the vector cores" in done.stdout
    error = facts(file, *CASE)["cases"][0]["error"]
    assert (error["line"], error["limit"]) == (10, "dtype")


def test_a_timeline_and_a_page_are_written(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "core.json"
    assert run(file, *CASE, "--no-values", "--timeline", out).exit_code == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event.get("name") == "thread_name"} == {
        "mte2",
        "mte3",
        "vector",
    }
    assert sum(event["ph"] == "X" for event in events) > 20
    assert "exists" in run(file, *CASE, "--timeline", out).stderr
    assert run(file, *CASE, "--no-values", "--timeline", out, "--force", "--l2", "warm").exit_code == 0
    page = run(file, *CASE, "--no-values", "--format", "html").stdout
    assert "Busy shares of pipes" in page
    assert "<script src" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--case", "norm x=bf16[8,8]"), "'norm' is not a kernel of this file"),
        (("--case", "rms_norm x=bf16[8,8]"), "rms_norm needs the tensor w"),
        (("--case", "rms_norm x=bf16[8,8] w=bf16[8] v=1"), "rms_norm has no argument v"),
        (("--case", "rms_norm x=bf16[8,8] w=bf16[9]"), "the reference of rms_norm rejects these shapes"),
        (("--shapes", "n=3"), "--shapes is given without --case"),
        (("--timeline", "core.txt"), "no timeline format"),
    ],
)
def test_bad_input_is_told(file: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(file, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_file_without_kernels_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    done = run(empty)
    assert done.exit_code == 2
    assert "defines no kernel" in done.stderr


def test_a_registered_program_is_the_cost_of_its_op_in_a_timeline(tmp_path: Path) -> None:
    mine = tmp_path / "mm.py"
    mine.write_text(
        """
from opreplay import tile

@tile.kernel("aten::mm")
def mm(a, b, c: tile.Out, *, bm=32, bn=32, bk=128):
    for m, n in tile.grid(c.shape, (bm, bn)):
        acc = None
        for k in tile.steps(a.shape[1], bk):
            acc = tile.matmul(tile.load(a[m, k], to=tile.L1), tile.load(b[k, n], to=tile.L1), acc)
        tile.store(c[m, n], acc)
"""
    )
    sizes = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 9000, "args": sizes}
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps({"traceEvents": [event]}))
    command = ["timeline", str(trace), "--soc", "910b3", "--format", "json"]
    try:
        without = CliRunner().invoke(opreplay, command)
        with_it = CliRunner().invoke(opreplay, [*command, "--plugin", str(mine)])
    finally:
        forget_programs()
        clear_registrations()
        clear_estimators()
    assert (without.exit_code, with_it.exit_code) == (0, 0), with_it.output
    plain, own = (json.loads(one.stdout)["socs"]["910b3"]["by_family_us"] for one in (without, with_it))
    assert "custom" not in plain
    assert list(own) == ["custom"]
    assert own["custom"] > 2 * sum(plain.values()), "its tiles are far too small, and the timeline says so"
