"""`opreplay compare`: forms of the output, flags, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.execute.measure import summarize
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.reasons import Reason
from opreplay.replay.results.compare.judge import compare
from opreplay.replay.results.compare.regressions import parse_condition, untested_conditions, violations, warnings_of
from opreplay.replay.results.reading import read_result_file
from opreplay.replay.results.records import Header, OpResult
from opreplay.replay.results.writing import JsonLinesSink

NAMES = ("aten::mm", "aten::add", "aten::evil[red]\x1b[31m|", "aten::short")


def write(
    path: Path,
    *,
    slower: float = 1.0,
    cpu: str = "made up",
    few: int = 20,
    names: tuple[str, ...] = NAMES,
    first: int = 0,
) -> Path:
    header = Header(
        opreplay_version="0",
        started_at="2026-01-01T00:00:00+00:00",
        trace={"ops": len(NAMES)},
        environment={"cpu": cpu},
        options={},
    )
    with JsonLinesSink.open(path, force=True) as sink:
        sink.write(header)
        for index, name in enumerate(names, first):
            us = 100.0 * (index + 1) * (slower if index == 2 else 1.0)
            count = few if name == "aten::short" else 20
            samples = [us * (1 + 0.001 * i) for i in range(count)]
            found = summarize(samples, calls=1, resolution_us=1e-3, options=MeasureOptions())
            sink.write(
                OpResult(
                    id=f"{index:012x}",
                    name=name,
                    count=3,
                    status="replayed",
                    measurement=found,
                    measured_us=found.median_us,
                )
            )
    return path


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return write(tmp_path / "a.jsonl")


@pytest.fixture
def after(tmp_path: Path) -> Path:
    return write(tmp_path / "b.jsonl", slower=1.2)


def run(*args: object, width: int = 100) -> Result:
    return CliRunner().invoke(opreplay, ["compare", *map(str, args)], env={"COLUMNS": str(width)})


def test_changes_are_listed_and_noise_is_counted(before: Path, after: Path) -> None:
    result = run(before, after)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == "compared 4 ops: 1 slower, 3 same; total 1.060× (1.05 to 1.07)"
    assert "1.200×" in result.stdout
    assert "aten::mm" not in result.stdout
    assert "\x1b" not in result.stdout
    assert "evil[red]\\x1b[31m" in result.stdout


@pytest.mark.parametrize("width", [50, 80, 200])
def test_tables_fit(before: Path, after: Path, width: int) -> None:
    lines = run(before, after, "--all", width=width).stdout.splitlines()
    assert max(map(len, lines[1:])) <= width
    assert any("aten::mm" in line for line in lines)


def test_a_condition_that_is_broken_gives_code_5(before: Path, after: Path) -> None:
    result = run(before, after, "--fail-if", "slower>5%")
    assert result.exit_code == 5
    assert "slower>5%: aten::evil" in result.stderr
    assert run(before, after, "--fail-if", "slower>30%").exit_code == 0
    assert run(before, after, "--fail-if", "slower>30%", "--fail-if", "total>2%").exit_code == 5
    assert run(before, before, "--fail-if", "slower>5%", "--fail-if", "lost>0").exit_code == 0


def test_a_condition_that_many_ops_break_is_a_few_lines(tmp_path: Path) -> None:
    """A change of all products of a step wrote 150 lines, and the total's line came last."""
    before, after = write_many(tmp_path / "a.jsonl", 1.0), write_many(tmp_path / "b.jsonl", 2.0)
    conditions = ("--method", "medians", "--fail-if", "slower>5%", "--fail-if", "total>3%")
    result = run(before, after, *conditions)
    lines = [line for line in result.stderr.splitlines() if "error:" in line]
    assert (result.exit_code, len(lines)) == (5, 12)
    assert "slower>5%: aten::op99" in lines[0], "those with most time come first"
    assert lines[10] == "opreplay: error: slower>5%: 5 more; --format json lists all"
    assert "total>3%" in lines[11]
    found = json.loads(run(before, after, *conditions, "--format", "json").stdout)
    assert len(found["violations"]) == 16


def write_many(path: Path, factor: float) -> Path:
    """A run of 100 ops, of which the last 15 take `factor` times as long."""
    header = Header(opreplay_version="0", started_at="", trace={"ops": 100}, environment={"cpu": "made up"}, options={})
    with JsonLinesSink.open(path, force=True) as sink:
        sink.write(header)
        for index in range(100):
            us = (100.0 + 10.0 * index) * (factor if index >= 85 else 1.0)
            samples = [us * (1 + 0.001 * i) for i in range(20)]
            found = summarize(samples, calls=1, resolution_us=1e-3, options=MeasureOptions())
            sink.write(
                OpResult(
                    id=f"{index:012x}",
                    name=f"aten::op{index}",
                    count=1,
                    status="replayed",
                    measurement=found,
                    measured_us=found.median_us,
                )
            )
    return path


def test_further_runs_of_a_side_count_with_the_first(before: Path, after: Path, tmp_path: Path) -> None:
    more = [write(tmp_path / f"{i}.jsonl") for i in range(2)]
    found = json.loads(run(before, after, "--also-after", more[0], "--also-after", more[1], "--format", "json").stdout)
    assert found["counts"]["slower"] == 0, "two of three runs were not slower"
    found = json.loads(run(before, after, "--also-before", more[0], "--format", "json").stdout)
    assert found["counts"]["slower"] == 1
    other = write(tmp_path / "other.jsonl", cpu="another")
    refused = run(before, after, "--also-before", other)
    assert refused.exit_code == 4
    assert "runs of one side differ" in refused.stderr
    assert run(before, after, "--also-before", other, "--force").exit_code == 0
    assert run(before, after, "--also-after", tmp_path / "none.jsonl").exit_code == 3


def test_a_strict_condition_lowers_the_threshold(before: Path, tmp_path: Path) -> None:
    small = write(tmp_path / "c.jsonl", slower=1.03)
    assert run(before, small, "--fail-if", "slower>5%").exit_code == 0
    assert run(before, small, "--fail-if", "slower>1%").exit_code == 5


def test_threshold_hides_smaller_changes(before: Path, after: Path) -> None:
    assert "1 slower" in run(before, after, "--threshold", "10%").stdout
    assert "slower" not in run(before, after, "--threshold", "30%").stdout.splitlines()[0]


def test_other_machines_need_force(before: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "c.jsonl", cpu="another")
    result = run(before, other)
    assert result.exit_code == 4
    assert "cpu: made up → another" in result.stderr
    assert "--force" in result.stderr
    forced = run(before, other, "--force")
    assert forced.exit_code == 0
    assert "forced: cpu: made up → another" in " ".join(forced.stdout.split())


def test_json_has_everything(before: Path, after: Path) -> None:
    found = json.loads(run(before, after, "--format", "json", "--fail-if", "slower>5%").stdout)
    assert found["counts"]["slower"] == 1
    assert found["threshold"] == found["applied"] == 0.05
    assert found["violations"]
    assert {op["verdict"] for op in found["ops"]} == {"slower", "same"}
    assert {"id", "name", "ratio", "low", "high", "before_us", "after_us", "count"} <= set(found["ops"][0])


def test_markdown_is_a_table_whatever_names_hold(before: Path, after: Path) -> None:
    lines = run(before, after, "--format", "markdown").stdout.splitlines()
    assert lines[0].startswith("### opreplay: compared 4 ops: 1 slower")
    rows = [line for line in lines if line.startswith("| 🔴")]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 9


def test_few_samples_are_unclear(before: Path, tmp_path: Path) -> None:
    few = write(tmp_path / "c.jsonl", few=3)
    lines = run(before, few).stdout.splitlines()
    assert lines[0].startswith("compared 4 ops: 3 same, 1 unclear")
    assert any("3 samples are too few" in line for line in lines)


def test_unclear_ops_that_are_listed_are_no_fewer_than_none(tmp_path: Path) -> None:
    """A doubled op of too few samples is listed, and was counted as -1 ops that are not."""
    before, after = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    names = ("aten::mm", "aten::add", "aten::short")
    write(before, names=names, few=3)
    write(after, names=names, few=3, slower=2.2)
    result = run(before, after)
    assert "aten::short" in result.stdout
    assert "not listed" not in result.stdout


def test_unclear_ops_can_fail_a_build(before: Path, tmp_path: Path) -> None:
    few = write(tmp_path / "c.jsonl", few=3)
    assert run(before, few, "--fail-if", "unclear>25%").exit_code == 0
    result = run(before, few, "--fail-if", "unclear>20%")
    assert result.exit_code == 5
    assert "unclear>20%: 25 % of the ops cannot be judged" in result.stderr


def with_gauge(source: Path, target: Path, *, gauge: float, times: float = 1.0, error: float = 0.005, **of_op: object):
    """The results as a machine has them on which the gauge takes `gauge` microseconds and all else `times` as long."""
    lines = []
    for line in source.read_text().splitlines():
        record = json.loads(line)
        if record["record"] == "op":
            found = record["measurement"]
            for key in ("median_us", "min_us", "max_us", "iqr_us", "ci_low_us", "ci_high_us"):
                found[key] *= times
            record["measured_us"] = found["median_us"]
            found |= {"gauge_us": [gauge, gauge], "relative": found["median_us"] / gauge**0.5}
            found |= {"relative_error": error, "median_error": error}
            record |= of_op
        lines.append(json.dumps(record))
    target.write_text("\n".join(lines) + "\n")
    return target


def test_the_printed_ratio_is_the_one_of_its_interval_and_medians_are_the_plain_way(
    before: Path, tmp_path: Path
) -> None:
    slow = with_gauge(before, tmp_path / "slow.jsonl", gauge=100.0, times=1.5)
    fast = with_gauge(before, tmp_path / "fast.jsonl", gauge=50.0)
    for method, ratio in (("gauges", 1.5 / 2**0.5), ("medians", 1.5)):
        found = json.loads(run(fast, slow, "--method", method, "--format", "json").stdout)
        assert found["method"] == method
        for one in (*found["ops"], found["total"]):
            assert one["ratio"] == pytest.approx(ratio)
            assert one["low"] < ratio < one["high"]
        lines = run(fast, slow, "--method", method, "--all").stdout.splitlines()
        assert f"total {ratio:.3f}×" in lines[0]
        assert f"{ratio:.3f}×" in next(line for line in lines if "aten::mm" in line)


def test_the_total_breaks_its_condition_only_beyond_its_interval(before: Path, tmp_path: Path) -> None:
    sure = with_gauge(before, tmp_path / "sure.jsonl", gauge=50.0, times=1.1)
    unsure = with_gauge(before, tmp_path / "unsure.jsonl", gauge=50.0, times=1.1, error=0.12)
    first = with_gauge(before, tmp_path / "first.jsonl", gauge=50.0)
    broken = run(first, sure, "--fail-if", "total>3%")
    assert broken.exit_code == 5
    assert "total>3%: 1.100× (1.0" in broken.stderr
    held = run(first, unsure, "--fail-if", "total>3%")
    assert "total 1.100× (0.9" in held.stdout
    assert held.exit_code == 0


def test_what_a_pair_could_have_seen_is_said(before: Path, tmp_path: Path) -> None:
    first = with_gauge(before, tmp_path / "first.jsonl", gauge=50.0)
    for error, least in ((0.005, 0.055), (0.05, 0.16)):
        second = with_gauge(before, tmp_path / "second.jsonl", gauge=50.0, error=error)
        found = json.loads(run(first, second, "--format", "json").stdout)
        assert found["power"] == pytest.approx(least, abs=0.1 * least)
        text = " ".join(run(first, second).stdout.split())
        assert f"these runs can detect changes above {100 * found['power']:.1f}" in text


def test_another_implementation_gets_its_verdict_with_a_note(before: Path, tmp_path: Path) -> None:
    first = with_gauge(before, tmp_path / "first.jsonl", gauge=50.0, resolved_by="jit")
    ran = {"resolved_by": "executor", "via": "mine.fast_mm", "inputs": "f32[4,512]"}
    own = with_gauge(before, tmp_path / "own.jsonl", gauge=50.0, times=0.5, **ran)
    found = json.loads(run(first, own, "--format", "json").stdout)
    assert found["counts"]["faster"] == 4
    assert {op["note"] for op in found["ops"]} == {"ran as jit before, mine.fast_mm after"}
    wide = run(first, own, width=200).stdout
    assert "4 ops: ran as jit before, mine.fast_mm after" in wide
    rows = [line for line in wide.splitlines() if line.startswith("faster")]
    assert all("f32[4,512]; ran as jit before, mine.fast_mm after" in row for row in rows), "sizes first"
    slow = with_gauge(before, tmp_path / "slow.jsonl", gauge=50.0, times=2.0, **ran)
    found = json.loads(run(first, slow, "--fail-if", "slower>5%", "--format", "json").stdout)
    one = found["ops"][0]
    assert f"slower>5%: {one['name']} ({one['id'][:8]}) f32[4,512] {one['ratio']:.3f}×" in found["violations"]


def test_times_that_say_the_opposite_of_the_ratio_are_told_apart(before: Path, tmp_path: Path) -> None:
    first = with_gauge(before, tmp_path / "first.jsonl", gauge=50.0)
    second = with_gauge(before, tmp_path / "second.jsonl", gauge=100.0, times=1.053)
    text = run(first, second, width=200).stdout
    rows = [line for line in text.splitlines() if line.startswith("faster")]
    assert rows
    assert all("relative to a fixed workload; the plain ratio is 1.053×" in row for row in rows)
    assert (
        "relative to a fixed workload; the plain ratio is 1.053×" in run(first, second, "--format", "markdown").stdout
    )


def test_what_is_no_result_is_refused(before: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "t.json"
    wrong.write_text('{"traceEvents": []}\n')
    assert run(before, wrong).exit_code == 3, "a trace without any time"
    wrong.write_text("[1, 2]")
    assert run(before, wrong).exit_code == 3
    assert run(before, tmp_path / "none.jsonl").exit_code == 3
    assert run(before, before, "--fail-if", "speed>3%").exit_code == 2


def test_runs_with_nothing_in_common_hold_no_condition(before: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", first=10)
    assert run(before, other).exit_code == 0
    result = run(before, other, "--fail-if", "slower>5%")
    assert result.exit_code == 6
    assert "no op was measured in both runs" in result.stderr


@pytest.mark.parametrize(
    ("condition", "code"), [("slower>5%", 6), ("total>3%", 6), ("power>20%", 6), ("unclear>99%", 5), ("lost>0", 0)]
)
def test_a_condition_that_could_not_be_tested_has_one_exit_code(tmp_path: Path, condition: str, code: int) -> None:
    """Of ops that are all unclear `slower>5%` was passed, and `total>3%` broken with a warning."""
    few = write(tmp_path / "few.jsonl", names=("aten::short",) * len(NAMES), few=1)
    result = run(few, few, "--fail-if", condition, "--format", "json")
    facts = json.loads(result.stdout)
    assert {op["verdict"] for op in facts["ops"]} == {"unclear"}
    assert (result.exit_code, len(facts["unchecked"])) == (code, int(code == 6))
    assert result.stderr.count("error: ") == int(code != 0)
    both = run(few, few, "--fail-if", condition, "--fail-if", "unclear>50%")
    assert both.exit_code == 5, "what holds comes before what could not be tested"


def test_ops_that_a_run_did_not_come_to_are_lost(before: Path, tmp_path: Path) -> None:
    short = write(tmp_path / "short.jsonl", names=NAMES[:2])
    result = run(before, short, "--fail-if", "lost>0", width=200)
    assert result.exit_code == 5
    assert "the second run was cut short: 2 of its ops were not reached" in result.stdout
    assert "2 lost" in result.stdout
    assert run(short, before, "--fail-if", "lost>0").exit_code == 0
    assert "the first run was cut short" in run(short, before).stdout


def test_runs_of_other_ops_say_so_and_their_time_counts(before: Path, tmp_path: Path) -> None:
    """The last two ops of the first run and two more: what is on both sides did not change, all together did."""
    after = write(tmp_path / "c.jsonl", first=2)
    result = run(before, after, "--fail-if", "total>3%")
    line = result.stdout.splitlines()[0]
    assert "2 only before, 2 only after" in line
    assert " of the ops on both sides, 1.8" in line, "100 + 200 + 300 + 400 before, 300 + 400 + 500 + 600 after"
    assert result.exit_code == 5
    assert "with the ops on one side only (2 only after)" in result.stderr
    note = "of the ops are on one side only: --quick, --top and time budgets may select"
    assert note in " ".join(result.stdout.split())
    assert note not in " ".join(run(before, before).stdout.split())
    assert run(after, before, "--fail-if", "total>3%").exit_code == 0


def test_a_build_can_fail_on_what_it_could_not_have_seen(before: Path) -> None:
    """`slower>5%` passed where changes below 45 % do not show."""
    found = run(before, before, "--fail-if", "slower>5%", "--fail-if", "power>0%", "--format", "json")
    power = json.loads(found.stdout)["power"]
    assert found.exit_code == (5 if power is None or power > 0 else 0)
    base = compare(read_result_file(before), read_result_file(before))
    wide = msgspec.structs.replace(base, applied=0.45, power=0.4)
    conditions = [parse_condition("slower>5%"), parse_condition("power>20%")]
    assert violations(conditions[:1], wide) == []
    assert violations(conditions, wide) == ["power>20%: in most ops, only changes of 40 % or more could be detected"]
    assert warnings_of(conditions, wide)[0].startswith("changes below 45 % cannot be detected")
    assert warnings_of([], wide) == []
    unknown = msgspec.structs.replace(base, power=None)
    assert violations(conditions, unknown) == []
    assert len(untested_conditions(conditions, unknown)) == 1


def test_what_was_not_reached_passes_no_condition(before: Path, tmp_path: Path) -> None:
    """A run that its time budget ended passed `slower>5%` by the ops that it came to."""
    late = write(tmp_path / "late.jsonl", names=NAMES[:3])
    reason = Reason("out of time", "the run's 1 s were used up (--set total_time)")
    with late.open("ab") as stream:
        told = OpResult(id=f"{3:012x}", name=NAMES[3], count=3, status="skipped", reason=reason)
        stream.write(msgspec.json.encode(told) + b"\n")
    for pair in ((before, late), (late, before), (late, late)):
        found = run(*pair, "--fail-if", "slower>5%", "--format", "json")
        assert found.exit_code == 6
        assert json.loads(found.stdout)["unreached"] == [int(one == late) for one in pair]
        assert "did not reach 1 of its ops, so no condition was checked on them" in found.stderr
        assert run(*pair).exit_code == 0
    assert run(before, before, "--fail-if", "slower>5%").exit_code == 0
