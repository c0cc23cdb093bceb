"""Runs pooled: what all of them say counts, how far they differ is the error, and two machines are not pooled."""

from __future__ import annotations

import random
import statistics

import msgspec
import pytest

from opreplay.replay.execute.measure import summarize
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.results.compare.judge import compare
from opreplay.replay.results.compare.pooling import pool
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import Header, OpResult
from opreplay.traces.errors import EnvironmentRefused

HEADER = Header(opreplay_version="0", started_at="", trace={}, environment={"cpu": "made up"}, options={})


def measured(us: float, gauge_us: float = 50.0, error: float = 0.002) -> Measurement:
    found = summarize([us] * 40, calls=1, resolution_us=1e-3, options=MeasureOptions())
    return msgspec.structs.replace(found, gauge_us=(gauge_us, gauge_us), relative=us / gauge_us, relative_error=error)


def run(*measurements: Measurement | None, cpu: str = "made up") -> ResultFile:
    results = tuple(
        OpResult(
            id=f"{i:012x}",
            name=f"aten::op{i}",
            count=1,
            measurement=found,
            status="failed" if found is None else "replayed",
            measured_us=None if found is None else found.median_us,
        )
        for i, found in enumerate(measurements)
    )
    header = msgspec.structs.replace(HEADER, environment={"cpu": cpu})
    return ResultFile(header=header, results=results, summary=None, complete_bytes=0)


def test_one_run_is_itself() -> None:
    one = run(measured(100.0))
    assert pool([one]) is one


def test_an_op_takes_what_the_middle_run_says_and_errs_by_how_far_they_differ() -> None:
    (result,) = pool([run(measured(us)) for us in (90.0, 100.0, 130.0)]).results
    found = result.measurement
    assert found is not None
    assert (result.measured_us, found.median_us, found.samples) == (100.0, 100.0, 120)
    assert (found.min_us, found.max_us) == (90.0, 130.0)
    assert found.relative == pytest.approx(statistics.geometric_mean([1.8, 2.0, 2.6]))
    assert found.relative_error is not None
    assert 0.1 < found.relative_error < 0.12
    again = pool([run(measured(100.0, error=0.03))] * 3).results[0].measurement
    assert again is not None
    assert again.relative_error == pytest.approx(0.03 / 3**0.5)


def test_ops_of_some_runs_only() -> None:
    found = pool([run(None, measured(10.0)), run(measured(20.0), None), run(measured(20.0))])
    assert [result.measured_us for result in found.results] == [20.0, 10.0]
    assert [result.status for result in found.results] == ["replayed", "replayed"]
    assert pool([run(None), run(None)]).results[0].status == "failed"


def test_a_part_of_an_op_is_not_pooled_with_the_whole() -> None:
    part = msgspec.structs.replace(measured(500.0), part=0.5)
    assert pool([run(measured(100.0)), run(part)]).results[0].measured_us == 100.0


def test_two_machines_are_not_pooled() -> None:
    runs = [run(measured(100.0)), run(measured(100.0), cpu="another")]
    with pytest.raises(EnvironmentRefused, match="runs of one side differ"):
        pool(runs)
    assert pool(runs, force=True).results[0].measured_us == 100.0


def test_pooled_runs_show_what_single_ones_do_not() -> None:
    """Ops that scatter by 4 % from run to run; two of sixty are 8 % slower."""
    draw = random.Random(3)

    def noisy(slower: float) -> ResultFile:
        times = [100.0 * draw.lognormvariate(0, 0.04) * (slower if i < 2 else 1.0) for i in range(60)]
        return run(*(measured(us, error=0.04) for us in times))

    before, after = [noisy(1.0) for _ in range(24)], [noisy(1.08) for _ in range(24)]
    assert compare(before[0], after[0]).applied > 0.1, "a change of 8 % cannot show"
    found = compare(pool(before), pool(after))
    assert found.applied == 0.05
    assert [op.name for op in sorted(found.of("slower", "faster"), key=lambda op: op.name)] == [
        "aten::op0",
        "aten::op1",
    ]
