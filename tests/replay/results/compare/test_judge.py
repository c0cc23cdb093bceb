"""Verdicts of comparisons: what changed is found, what did not is left alone, and machines are not mixed.

Runs are made of samples like those of real ops: log-normal, with a slow tail and a shift from run to run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.execute.measure import summarize
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.reasons import Reason
from opreplay.replay.results.compare.judge import OpComparison, compare, compare_op, judge_op
from opreplay.replay.results.compare.regressions import parse_condition
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import Header, OpResult
from opreplay.traces.errors import EnvironmentRefused, UsageError

ENVIRONMENT: dict[str, object] = {"cpu": "made up", "cpus": 8, "device": "cpu", "torch": "2.13.0", "load_1min": 0.5}


def samples(us: float, draw: random.Random, *, count: int = 60, run_to_run: float = 0.008) -> list[float]:
    """`count` samples around `us`: 1.5 % of scatter, one in ten disturbed, and what a whole run shifts."""
    shifted = us * draw.lognormvariate(0.0, run_to_run)
    made = [shifted * draw.lognormvariate(0.0, 0.015) for _ in range(count)]
    return sorted(one * draw.uniform(1.1, 3.0) if draw.random() < 0.1 else one for one in made)


def measurement(us: float, draw: random.Random, *, count: int = 60, **changes: object) -> Measurement:
    found = summarize(samples(us, draw, count=count), calls=1, resolution_us=1e-3, options=MeasureOptions())
    values = {name: getattr(found, name) for name in found.__struct_fields__}
    return Measurement(**{**values, **changes})  # type: ignore[arg-type]


def result(index: int, found: Measurement | None, **changes: object) -> OpResult:
    values: dict[str, object] = {
        "id": f"{index:012x}",
        "name": f"aten::op{index}",
        "count": 2,
        "resolved_by": "jit",
        "inputs": "f32[4]",
        "status": "failed" if found is None else "replayed",
        "measurement": found,
        "measured_us": None if found is None else found.median_us,
    }
    return OpResult(**{**values, **changes})  # type: ignore[arg-type]


def run(
    seed: int,
    *,
    ops: int = 50,
    slower: Callable[[int], float] = lambda index: 1.0,
    environment: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    count: int = 60,
    **changes: object,
) -> ResultFile:
    """A run of ops of 100 us to 20 ms; `slower` says how many times as long an op takes in it."""
    draw = random.Random(seed)
    results = tuple(
        result(i, measurement(100.0 * 1.11**i * slower(i), draw, count=count, **changes)) for i in range(ops)
    )
    header = Header(
        opreplay_version="0",
        started_at="2026-01-01T00:00:00+00:00",
        trace={"source": "t.json", "ops": ops},
        environment={**ENVIRONMENT, **(environment or {})},
        options={"cache": "cold", **(options or {})},
    )
    return ResultFile(header=header, results=results, summary=None, complete_bytes=0)


def judge(before: OpResult, after: OpResult, threshold: float) -> OpComparison:
    return judge_op(compare_op(before, after), threshold, threshold)


def test_runs_of_the_same_show_at_most_one_false_regression_in_a_hundred_ops() -> None:
    wrong = sum(len(compare(run(2 * i), run(2 * i + 1)).of("slower", "faster")) for i in range(10))
    assert wrong <= 5, "10 repetitions of 50 ops"


@pytest.mark.parametrize("seed", range(6))
def test_ten_percent_in_five_of_fifty_ops_are_all_found(seed: int) -> None:
    slow = set(random.Random(seed).sample(range(50), 5))
    found = compare(run(100 + seed), run(200 + seed, slower=lambda i: 1.1 if i in slow else 1.0))
    assert {int(op.id, 16) for op in found.of("slower")} == slow
    assert all(op.ratio and op.ratio > 1.05 for op in found.of("slower"))


@pytest.mark.parametrize("factor", [1.9, 0.6])
def test_ops_that_change_alike_are_unclear_because_they_change_alike(factor: float) -> None:
    found = compare(run(1), run(2, slower=lambda i: factor), method="medians")
    assert {op.verdict for op in found.ops} == {"unclear"}
    alike = [op for op in found.ops if f"most ops take {factor}" in op.note]
    assert len(alike) >= 45
    varied = compare(run(1), run(2, slower=lambda i: 1.9 if i % 2 else 0.6), method="medians")
    assert not [op for op in varied.ops if "most ops take" in op.note]


def test_ten_percent_less_is_faster() -> None:
    found = compare(run(1), run(2, slower=lambda i: 1 / 1.15 if i >= 47 else 1.0))
    assert {int(op.id, 16) for op in found.of("faster")} == {47, 48, 49}
    assert found.total is not None
    assert found.total.ratio < 1.0


def in_gauges(us: float, gauge_us: float, *, error: float = 0.005) -> OpResult:
    """An op of `us` while the gauge took so long."""
    found = msgspec.structs.replace(
        measurement(us, random.Random(0)),
        median_us=us,
        gauge_us=(gauge_us, gauge_us),
        relative=us / gauge_us**0.5,
        relative_error=error,
    )
    return result(0, found)


def test_a_change_of_all_ops_is_seen_where_the_machine_did_not_change() -> None:
    found = judge(in_gauges(100.0, 50.0), in_gauges(120.0, 50.1), 0.05)
    assert found.verdict == "slower"
    assert found.ratio == pytest.approx(1.2, rel=0.01)
    assert found.low is not None
    assert found.high is not None
    assert found.ratio is not None
    assert 1.17 < found.low < found.ratio < found.high < 1.23


def test_a_slower_machine_makes_no_slower_ops() -> None:
    found = judge(in_gauges(100.0, 50.0), in_gauges(125.0, 75.0), 0.05)
    assert (found.verdict, found.before_us, found.after_us) == ("same", 100.0, 125.0)
    assert found.ratio == pytest.approx(1.25 / 1.5**0.5)
    before, after = (
        msgspec.structs.replace(run(1, ops=1), results=(one,))
        for one in (in_gauges(100.0, 50.0), in_gauges(125.0, 75.0))
    )
    assert compare(before, after).machine == pytest.approx(1.5)
    assert not found_in(before, after, "total>5%"), "the total is free of the machine's speed as well"


def test_a_change_within_the_errors_is_unclear() -> None:
    found = judge(in_gauges(100.0, 50.0, error=0.05), in_gauges(112.0, 50.0, error=0.05), 0.05)
    assert (found.verdict, found.note) == ("unclear", "the change is within the error of the two runs")
    assert judge(in_gauges(100.0, 50.0, error=0.05), in_gauges(150.0, 50.0, error=0.05), 0.05).verdict == "slower"


def test_medians_without_a_gauge_are_judged_by_their_intervals() -> None:
    a = measurement(100.0, random.Random(0))
    times = {name: 1.1 * getattr(a, name) for name in ("median_us", "ci_low_us", "ci_high_us")}
    for deciles in ((), a.deciles_us):
        b = msgspec.structs.replace(a, deciles_us=deciles, **times)
        assert judge(result(0, a), result(0, b), 0.05).verdict == "slower"


def test_changes_within_the_noise_of_the_samples_are_unclear() -> None:
    draw = random.Random(0)
    wide = [
        summarize(
            sorted(draw.uniform(us, 5 * us) for _ in range(12)), calls=1, resolution_us=1e-3, options=MeasureOptions()
        )
        for us in (100.0, 120.0)
    ]
    found = judge(result(0, wide[0]), result(0, wide[1]), 0.05)
    assert (found.verdict, found.note) == ("unclear", "the change is within the error of the two runs")


def test_ops_that_scatter_raise_the_threshold() -> None:
    draw = random.Random(5)
    shifts = [draw.lognormvariate(0, 0.05) for _ in range(50)]
    found = compare(run(1), run(2, slower=lambda i: shifts[i]))
    assert found.applied > 0.1
    assert len(found.of("slower", "faster")) <= 2
    beyond = [op for op in found.of("unclear") if op.note == "other ops of the two runs vary as much"]
    assert len(beyond) > 5, "changes above 5 % that may be noise are not called the same"


def test_few_samples_and_other_parts_are_unclear() -> None:
    draw = random.Random(0)
    few, many = measurement(100.0, draw, count=4), measurement(200.0, draw)
    assert judge(result(0, few), result(0, many), 0.05).note == "4 samples are too few for an interval"
    part = msgspec.structs.replace(many, part=0.5)
    assert judge(result(0, many), result(0, part), 0.05).verdict == "unclear"
    cold = msgspec.structs.replace(many, cache="cold")
    assert judge(result(0, many), result(0, cold), 0.05).note == "warm caches before, cold after"
    other = judge(result(0, many), result(0, many, via="aten::other", resolved_by="equivalent"), 0.05)
    assert (other.verdict, other.note) == ("same", "ran as jit before, aten::other after")


def test_ops_of_one_run_alone() -> None:
    draw = random.Random(0)
    found = measurement(100.0, draw)
    before, after = run(1, ops=3), run(2, ops=3)
    gone = result(1, None, reason=Reason("failed", "RuntimeError"))
    after = msgspec.structs.replace(after, results=(after.results[0], gone, result(9, found)))
    verdicts = {op.name: op.verdict for op in compare(before, after).ops}
    assert verdicts == {"aten::op0": "same", "aten::op1": "lost", "aten::op2": "only before", "aten::op9": "only after"}
    assert compare(before, after).of("lost")[0].note == "failed: RuntimeError"


def test_ops_that_neither_run_replayed_are_not_compared() -> None:
    file = run(1, ops=3)
    file = msgspec.structs.replace(file, results=(*file.results, result(7, None)))
    found = compare(file, file)
    assert len(found.ops) == 3
    assert found.notes == ("not compared: 1 op that neither run replayed",)


@pytest.mark.parametrize(
    "changed",
    [{"environment": {"cpu": "another"}}, {"environment": {"device": "cuda:0"}}, {"options": {"cache": "warm"}}],
)
def test_two_machines_are_not_mixed_without_force(changed: dict[str, dict[str, object]]) -> None:
    before, after = run(1, ops=3), run(2, ops=3, **changed)  # type: ignore[arg-type]
    with pytest.raises(EnvironmentRefused, match="cannot be compared") as caught:
        compare(before, after)
    assert "--force" in caught.value.hint
    assert [d.blocking for d in compare(before, after, force=True).differences] == [True]


def test_a_new_torch_is_noted_only() -> None:
    found = compare(run(1, ops=3), run(2, ops=3, environment={"torch": "2.14.0"}))
    assert [str(d) for d in found.differences] == ["torch: 2.13.0 → 2.14.0"]


@given(st.integers(0, 10**6), st.floats(0.3, 3.0))
def test_a_run_against_itself_is_the_same_and_order_only_inverts(seed: int, factor: float) -> None:
    first, second = run(seed, ops=4), run(seed + 1, ops=4, slower=lambda i: factor)
    assert {op.verdict for op in compare(first, first).ops} == {"same"}
    there, back = compare(first, second), compare(second, first)
    inverse = {"slower": "faster", "faster": "slower"}
    back_by_id = {op.id: op for op in back.ops}
    for op in there.ops:
        assert back_by_id[op.id].verdict == inverse.get(op.verdict, op.verdict)


def found_in(before: ResultFile, after: ResultFile, condition: str) -> list[str]:
    return parse_condition(condition).violations(compare(before, after))


def test_conditions() -> None:
    before, after = run(1, ops=5), run(2, ops=5, slower=lambda i: 1.3 if i == 2 else 1.0)
    assert [line.split()[1] for line in found_in(before, after, "slower>5%")] == ["aten::op2"]
    assert found_in(before, after, "slower>40%") == []
    assert found_in(before, before, "slower>5%") == []
    assert found_in(before, after, "total>1%")
    assert not found_in(before, after, " total > 20% ")
    gone = msgspec.structs.replace(after, results=(result(0, None), *after.results[1:]))
    assert found_in(before, gone, "lost>0") == ["lost>0: no longer replayed: 1 op"]
    assert not found_in(before, gone, "lost>1")


@pytest.mark.parametrize(
    "text", ["", "slower", "slower>", "slower<5%", "slower>5", "lost>5%", "eval>1%", "unclear>3", "slower>-1%"]
)
def test_other_conditions_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError, match="not a condition"):
        parse_condition(text)


def test_one_sample_has_no_interval() -> None:
    """It had one of no width: 1.25 to 1.25, as if nothing were surer."""
    draw = random.Random(1)
    before, after = (result(0, measurement(us, draw, count=1)) for us in (100.0, 125.0))
    found = compare_op(before, after)
    assert found.verdict == "unclear"
    assert (found.low, found.high, found.error) == (None, None, None)


def test_one_visit_to_each_op_of_a_busy_machine_is_said_to_tell_little() -> None:
    busy = {"threads": 1, "threads_of_torch": 8, "threads_asked": True, "idle_cpus": 0.2, "visits": 1}

    def told(**environment: object) -> bool:
        found = compare(run(1, ops=4), run(2, ops=4, environment={**busy, **environment}), force=True)
        return any("measured in one block on a busy machine" in note for note in found.notes)

    assert told()
    assert told(idle_cpus=None, load_1min=30.0)
    assert not told(visits=8)
    assert not told(idle_cpus=8.0)
