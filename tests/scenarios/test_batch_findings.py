"""What operators of a folder of traces met, each as a test through the console script."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.scenarios.events import owner

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
    given = (trace, "--plugin", plugin, "--total-time", "20s", "--op-time", "5ms", "--threads", 1, "-o", out)
    told = console("batch", *given).stderr
    assert "stuck::forever" in told
    assert "--op-limit gives it up sooner" in told
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
    told = console("batch", trace, "--quick", "--threads", 1, "-o", out, "-o", tmp_path / "r.md").stdout
    said = "times of a trace are those of its ops in this run, 66.7 % of device time"
    assert said in " ".join(told.split())
    assert said in (tmp_path / "r.md").read_text()
    records = [json.loads(line) for line in out.read_text().splitlines()]
    (one,) = [record for record in records if record["record"] == "trace"]
    assert (one["recorded_us"], one["total_us"]) == (200.0, 300.0)
    assert records[0]["options"]["limit_s"] == 10.0, "huge ops took a minute each of a first look"
    assert "times of a trace" not in console("batch", trace, "--op-time", "1ms", "--threads", 1).stdout
    for flag in ("--mode=sequence", "--ranks=2"):
        refused = console("batch", trace, flag, code=2).stderr
        assert f"`opreplay run TRACE {flag.split('=')[0]}" in refused
