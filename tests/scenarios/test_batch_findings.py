"""What operators of a folder of traces met, each as a test through the console script."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.scenarios.events import owner

pytestmark = pytest.mark.slow

Console = Callable[..., Result]
SHAPE = [64, 64]
HANGS = """
import time, torch
if not hasattr(torch.ops.stuck, "forever"):
    lib = torch.library.Library("stuck", "DEF")
    lib.define("forever(Tensor x) -> Tensor")
    lib.impl("forever", lambda x: time.sleep(600) or x, "CPU")
"""


def test_an_op_that_hangs_takes_its_share_of_each_run_and_the_others_run(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    """It took the whole --total-time of the run, and where the run was killed meanwhile of the next one as well."""
    plugin, out = tmp_path / "stuck.py", tmp_path / "r.jsonl"
    plugin.write_text(HANGS)
    trace = trace_of(*owner("stuck::forever", 1, [SHAPE], 900.0), *owner("aten::relu", 2, [SHAPE], 50.0))
    given = (
        trace,
        "--plugin",
        plugin,
        "--set",
        "total_time=20s",
        "--set",
        "op_time=5ms",
        "--set",
        "threads=1",
        "-o",
        out,
    )
    told = console("batch", *given).stderr
    assert "stuck::forever" in told
    assert "--set op_limit stops it earlier" in told
    ops = {one["name"]: one for one in map(json.loads, out.read_text().splitlines()) if one["record"] == "op"}
    assert ops["aten::relu"]["status"] == "replayed"
    assert ops["stuck::forever"]["reason"]["kind"] == "out of time"
    assert ops["stuck::forever"]["reason"]["detail"].startswith("no result after 5 s, its share of the run's time")
    assert ops["stuck::forever"]["measure_s"] == pytest.approx(5.0, abs=1.5)
    again = console("batch", *given, "--resume").stderr
    assert "stuck::forever" in again


def test_a_batch_says_of_what_part_its_times_are_and_where_steps_and_ranks_are(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    events = [event for i in range(30) for event in owner("aten::relu", 1 + i, [[64, 1 + i]], 10.0)]
    trace, out = trace_of(*events), tmp_path / "r.jsonl"
    told = console("batch", trace, "--quick", "--set", "threads=1", "-o", out, "-o", tmp_path / "r.md").stdout
    said = "trace times are sums over the ops in this run (66.7 % of device time)"
    assert said in " ".join(told.split())
    assert said in (tmp_path / "r.md").read_text()
    records = [json.loads(line) for line in out.read_text().splitlines()]
    (one,) = [record for record in records if record["record"] == "trace"]
    assert (one["recorded_us"], one["total_us"]) == (200.0, 300.0)
    assert records[0]["options"]["limit_s"] == 10.0, "huge ops took a minute each of a first look"
    assert "trace times are" not in console("batch", trace, "--set", "op_time=1ms", "--set", "threads=1").stdout
    for flag in ("--mode=sequence", "--ranks=2"):
        refused = console("run", trace, trace, flag, code=2).stderr
        assert f"{flag.split('=')[0]} works with only one trace" in refused


def test_a_file_that_is_cut_short_before_its_device_work_is_no_trace_of_a_cpu(
    console: Console, trace_of: Callable[..., Path]
) -> None:
    events = sorted((e for i in range(9) for e in owner("aten::relu", 1 + i, [SHAPE], 50.0)), key=lambda e: e["ts"])
    trace = trace_of(*(e for e in events if e["cat"] == "cpu_op"), *(e for e in events if e["cat"] != "cpu_op"))
    text = trace.read_text()
    trace.write_text(text[: text.index("cuda_runtime")])
    given = ("--set", "op_time=1ms", "--set", "threads=1")
    told = console("run", trace, *given).stdout
    assert "the file was cut short before any device work" in told
    assert "times may not be comparable: the file was cut short" in told
    trace.write_text(text)
    whole = console("batch", trace, *given).stdout
    other = "times are not comparable: recorded on NVIDIA H100, replayed on a CPU"
    assert other in whole, "a batch says it as well"


def test_a_report_is_written_as_its_file_is_named(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    """A file r.html was a table of text."""
    trace, out = trace_of(*owner("aten::relu", 1, [SHAPE], 50.0)), tmp_path / "r.jsonl"
    console("batch", trace, "--set", "op_time=1ms", "--set", "threads=1", "-o", out)
    begins = {
        "html": "<!doctype html>",
        "csv": "id,name,count",
        "md": "1 trace: 1 of 1 op",
        "json": "{",
        "txt": "1 trace: 1 of 1 op",
    }
    for suffix, begin in begins.items():
        console("show", out, "-o", tmp_path / f"r.{suffix}")
        assert (tmp_path / f"r.{suffix}").read_text().lower().startswith(begin), suffix
    console("show", out, "--format", "csv", "-o", tmp_path / "x.txt")
    assert (tmp_path / "x.txt").read_text().startswith("id,name,count")
    assert "times are not comparable: recorded on NVIDIA H100" in console("show", out).stdout


def test_a_name_that_is_not_utf_8_costs_nothing(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    """It ended the whole batch; a copy or a damaged file of such a name left an empty file of results."""
    trace, folder = trace_of(*owner("aten::relu", 1, [SHAPE], 10.0)), os.fsencode(tmp_path / "in")
    os.mkdir(folder)
    bad = os.path.join(folder, b"bad\xff.json")
    for name, body in (
        (b"bad\xff.json", trace.read_bytes()),
        (b"copy\xfe.json", trace.read_bytes()),
        (b"cut\xfd.json", b'{"a'),
    ):
        Path(os.fsdecode(os.path.join(folder, name))).write_bytes(body)
    out = tmp_path / "r.jsonl"
    pages = ("-o", tmp_path / "r.md", "-o", tmp_path / "r.csv", "-o", tmp_path / "r.html")
    told = console("batch", os.fsdecode(folder), "--set", "op_time=1ms", "-o", out, *pages, code=3)
    assert "cut\\xfd.json" in told.stderr
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["source"] for one in records if one["record"] == "trace"] == ["bad\\xff.json"]
    assert [one["file"] for one in records[0]["trace"]["not_read"]] == ["copy\\xfe.json", "cut\\xfd.json"]
    assert console("batch", os.fsdecode(folder), "--dry-run", "--format", "json", code=3).stdout
    assert json.loads(console("inspect", os.fsdecode(bad), "--format", "json").stdout)["path"].endswith("bad\\xff.json")
    assert json.loads(console("plan", os.fsdecode(bad), "--format", "json").stdout)["source"] == "bad\\xff.json"
    console("simulate", os.fsdecode(bad), "--soc", "910b3", "-o", tmp_path / "s.html")
    assert "bad\\xff" in (tmp_path / "s.html").read_text()


def test_max_failed_is_counted_in_every_way_a_batch_ends(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    """It was lost with --dry-run and beside a refused file, and nothing at all to test was green."""
    trace, cut = trace_of(*owner("nowhere::gone", 1, [SHAPE], 10.0)), tmp_path / "cut.json"
    told = "--max-failed allows 0"
    for command in ("plan", "run", "batch"):
        dry = () if command == "plan" else ("--dry-run",)
        assert told in console(command, trace, *dry, "--max-failed", 0, code=1).stderr
    cut.write_text('{"a')
    assert told in console("batch", trace, cut, "--max-failed", 0, code=3).stderr
    assert told in console("batch", trace, cut, "--max-failed", 0, "--dry-run", code=3).stderr
    kernels = tmp_path / "kernels.json"
    kernels.write_text(
        json.dumps({"traceEvents": [{**owner("aten::relu", 1, [SHAPE], 9.0)[2], "args": {"device": 0}}]})
    )
    for command in ("plan", "run", "batch"):
        assert "no op to replay" in console(command, kernels, "--max-failed", 0, code=2).stderr


def test_a_start_that_takes_all_the_time_says_that_resuming_gets_no_further(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    trace, out = trace_of(*owner("aten::relu", 1, [SHAPE], 50.0)), tmp_path / "r.jsonl"
    for more in ((), ("--resume",)):
        given = ("batch", trace, "--set", "total_time=1ms", "--set", "threads=1", "-o", out, *more)
        assert "no op was run, because startup took all of the" in console(*given).stderr
    summary = json.loads(console("show", out, "--format", "json").stdout)["summary"]
    assert summary["measured_us"] is None
