"""`opreplay trim`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.traces.trim import Wanted, op_spans, trim
from tests.replay.timeline.machine import training


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return training().write(tmp_path / "t.json")


def invoke(*args: str) -> Result:
    return CliRunner().invoke(opreplay, ["trim", *args])


def test_a_step_and_its_timeline(trace: str, tmp_path: Path) -> None:
    target = str(tmp_path / "small.json.gz")
    result = invoke(trace, "--step", "1", "--output", target)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("kept ")
    whole, part = (
        json.loads(CliRunner().invoke(opreplay, ["timeline", path, "--step", "1", "--format", "json"]).stdout)
        for path in (trace, target)
    )
    assert part["recorded_step_us"] == pytest.approx(whole["recorded_step_us"])
    assert part["step"]["steps"] == 1
    again = invoke(trace, "--step", "1", "-o", target)
    assert again.exit_code == 2
    assert invoke(trace, "--step", "1", "-o", target, "--force").exit_code == 0


def test_the_trace_itself_is_not_overwritten(trace: str, tmp_path: Path) -> None:
    """It was emptied before it was read."""
    content = Path(trace).read_bytes()
    link = tmp_path / "link.json"
    link.symlink_to(trace)
    for target in (trace, str(link)):
        result = invoke(trace, "--step", "1", "--output", target, "--force")
        assert result.exit_code == 2
        assert "this command reads" in result.stderr
    result = CliRunner().invoke(
        opreplay, ["timeline", trace, "--output", str(tmp_path / "t.html"), "--timeline", trace]
    )
    assert result.exit_code == 2
    assert Path(trace).read_bytes() == content


def test_between_times(trace: str, tmp_path: Path) -> None:
    counts = []
    for number, span in enumerate(("0..1ms", "1000..2000")):
        target = tmp_path / f"{number}.json"
        result = invoke(trace, "--between", span, "-o", str(target))
        assert result.exit_code == 0, result.stderr
        counts.append(len(json.loads(target.read_text())["traceEvents"]))
    assert counts[0] == counts[1]


def test_ops(trace: str, tmp_path: Path) -> None:
    target = tmp_path / "small.json"
    assert invoke(trace, "--include", "aten::_foreach*", "-o", str(target)).exit_code == 0
    names = {event["name"] for event in json.loads(target.read_text())["traceEvents"]}
    assert names == {"aten::_foreach_add_", "cudaLaunchKernel", "foreach"}


@pytest.mark.parametrize(
    "args",
    [[], ["--step", "1", "--between", "0..1"], ["--between", "5"], ["--between", "2s..1s"], ["--between", "a..b"]],
)
def test_usage(trace: str, tmp_path: Path, args: list[str]) -> None:
    result = invoke(trace, *args, "-o", str(tmp_path / "small.json"))
    assert result.exit_code == 2
    assert not (tmp_path / "small.json").exists()


@pytest.mark.slow
def test_the_time_of_one_event_does_not_grow_with_the_spans(tmp_path: Path) -> None:
    """Ops that match take a span each: twice as many in a file twice as long are no more work an event."""

    def seconds(count: int) -> float:
        events = [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm" if at % 2 else "aten::add", "pid": 1, "tid": 1}
            | {"ts": 10 * at + 1, "dur": 5, "args": {"External id": at}}
            for at in range(count)
        ]
        source = tmp_path / f"{count}.json"
        source.write_text(json.dumps({"traceEvents": events}))
        spans = op_spans(source, ["aten::mm"])
        started = time.process_time()
        made = trim(source, tmp_path / "out.json", Wanted(of_threads=spans), force=True)
        assert made.events == count // 2
        return time.process_time() - started

    seconds(1000)
    assert min(seconds(40_000) for _ in range(3)) < 6 * min(seconds(10_000) for _ in range(3))
