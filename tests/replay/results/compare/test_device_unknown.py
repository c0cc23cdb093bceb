"""Recordings whose device times are wrong: no op is judged by them, nor by host times in their place; no total."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.main import opreplay
from opreplay.replay.plan.inputs import plan_of
from opreplay.replay.plan.recorded.comparing import compare_operands
from opreplay.replay.plan.recorded.times import times_of_plan
from opreplay.replay.plan.selection import Selection
from opreplay.replay.results.compare.judge import Comparison
from opreplay.traces import Trace, read_trace
from tests.traces.events import DIMS, document, kernel, launch, note, op, write


def recording(folder: Path, durs: list[float], name: str = "trace.json", *, overlap: bool = False) -> Path:
    """A product each 100 us, with kernels of these durations; they overlap their like, where that is asked for."""
    events: list[dict[str, Any]] = [note("ProfilerStep#1", 0, 100 * len(durs))]
    for call, dur in enumerate(durs):
        ids, at = {"External id": call + 1, "correlation": call + 1}, 100 * call
        events += [op("aten::mm", at, 30, call + 1, **DIMS), launch(at + 5, call + 1)]
        events.append(kernel("gemm", at + 15, dur + 300 * overlap, **ids))
    return write(folder, document(events), name)


def compared(before: Path, after: Path) -> Comparison:
    first, second = (read_trace(path, activity=True) for path in (before, after))
    return compare_operands([first], [second])


@pytest.mark.parametrize(
    ("durs", "overlap"), [([0.0] * 12, False), ([0.0] * 9 + [20.0] * 3, False), ([20.0] * 12, True)]
)
@pytest.mark.parametrize("first", [True, False])
def test_no_op_is_judged(tmp_path: Path, durs: list[float], overlap: bool, first: bool) -> None:
    wrong = recording(tmp_path, durs, "wrong.json", overlap=overlap)
    sound = recording(tmp_path, [20.0] * 12, "sound.json")
    comparison = compared(*((wrong, sound) if first else (sound, wrong)))
    assert [(each.verdict, each.ratio) for each in comparison.ops] == [("unclear", None)]
    assert (comparison.total, comparison.whole, comparison.classes, comparison.replaced) == (None, None, (), ())
    assert comparison.why_total_unknown
    assert comparison.sides is not None
    assert [side.is_total_known for side in comparison.sides] == ([False, True] if first else [True, False])
    assert {side.clock for side in comparison.sides} == {"device"}


def test_sound_recordings_are_judged(tmp_path: Path) -> None:
    comparison = compared(recording(tmp_path, [20.0] * 12, "a.json"), recording(tmp_path, [40.0] * 12, "b.json"))
    assert [(each.verdict, each.ratio) for each in comparison.ops] == [("slower", 2.0)]
    assert comparison.whole == 2.0


def test_what_was_lost_leaves_ops_and_takes_the_total(tmp_path: Path) -> None:
    path = recording(tmp_path, [20.0] * 40, "a.json")
    text = path.read_bytes()
    hole = tmp_path / "hole.json"
    hole.write_bytes(text[:3000] + b"\0" * 512 + text[3512:])
    comparison = compared(path, hole)
    assert [each.verdict for each in comparison.ops] == ["same"]
    assert (comparison.total, comparison.whole) == (None, None)


def test_the_first_lines_say_it_and_no_condition_passes(tmp_path: Path) -> None:
    zero = recording(tmp_path, [0.0] * 12)
    result = CliRunner().invoke(opreplay, ["compare", str(zero), str(zero), "--fail-if", "total>5%"])
    assert result.exit_code == ExitCode.UNTESTED
    lines = result.stdout.splitlines()[:5]
    assert not any("×" in line for line in lines)
    assert sum("device time is unknown" in line for line in lines) == 3


@pytest.mark.slow
def test_plans_and_results_do_not_pass_host_times_for_device_times(tmp_path: Path) -> None:
    trace = read_trace(recording(tmp_path, [0.0] * 12))
    times = times_of_plan(plan_of(trace, Selection(), device="cpu"))
    assert (times.clock, times.doubts.zero_durations) == ("device", 12)
    results = tmp_path / "results.jsonl"
    run = ["run", str(tmp_path / "trace.json"), "--quick", "--no-check", "--output", str(results)]
    ran = CliRunner().invoke(opreplay, [part for part in run if part != "--no-check"])
    assert ran.exit_code == 0, ran.output
    assert "of device time" not in ran.stdout.splitlines()[0]
    shown = CliRunner().invoke(
        opreplay, ["compare", str(results), str(results), "--times", "recorded", "--format", "json"]
    )
    assert json.loads(shown.stdout)["total"] is None


def test_traces_of_the_host_are_compared_as_before(tmp_path: Path) -> None:
    events = [op("aten::mm", 100 * call, 30, call + 1, **DIMS) for call in range(12)]
    trace: Trace = read_trace(write(tmp_path, document(events)))
    comparison = compare_operands([trace], [trace])
    assert comparison.sides is not None
    assert [side.clock for side in comparison.sides] == ["host", "host"]
    assert [each.verdict for each in comparison.ops] == ["same"]
