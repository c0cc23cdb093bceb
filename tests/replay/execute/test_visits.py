"""Ops that are visited several times: in turns, with all samples together, and what `compare` makes of them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.processes.lanes import APART, OneByOne
from opreplay.replay.execute.visits import BUSY, WHOLE, Visit, Visits, VisitSamples
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.results.compare.visits import by_visits
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.results.outcome import Outcome
from opreplay.traces.samples import sample_path
from tests.factories import fake_op
from tests.running import outcomes_of

pytestmark = pytest.mark.usefixtures("forked_children")

MADE = Measurement(
    median_us=10.0,
    iqr_us=1.0,
    min_us=9.0,
    max_us=11.0,
    samples=8,
    calls_per_sample=1,
    ci_low_us=9.0,
    ci_high_us=11.0,
    visits=((10.0, 1.0),),
)


class Noting:
    """A runner that notes what it was asked for; one name is slow, one breaks at its second visit, one ends the run."""

    def __init__(self, stop: str = "", facts: dict[str, object] | None = None) -> None:
        self.asked: list[tuple[str, int]] = []
        self.stop, self.facts = stop, facts or {}

    def start(self) -> dict[str, object]:
        return self.facts

    def measure(self, op: ReplayOp, visit: Visit = WHOLE) -> Outcome:
        self.asked.append((op.name, visit.number))
        if op.name == self.stop and visit.number:
            raise KeyboardInterrupt
        slow = op.name == "fake::slow"
        return Outcome(
            status="replayed", measurement=msgspec.structs.replace(MADE, samples=10**9 if slow else 8), measure_s=0.0
        )

    def close(self) -> None: ...


def test_visits_lie_apart_and_results_keep_their_order() -> None:
    ops = [fake_op(f"{i}us") for i in range(1, 41)]
    ops[3] = fake_op("slow")
    runner = Noting()
    told = [op.name for op, _ in outcomes_of(OneByOne(runner, visits=3, op_time_s=60.0), ops)]
    assert told == [op.name for op in ops]
    assert runner.asked.count(("fake::slow", 0)) == 1
    assert ("fake::slow", 1) not in runner.asked, "it took the time of all visits"
    first, second = runner.asked.index(("fake::10us", 0)), runner.asked.index(("fake::10us", 1))
    assert second - first >= APART
    assert sum(name == "fake::10us" for name, _ in runner.asked) == 3
    assert len(runner.asked) == 3 * 39 + 1


def test_an_interrupted_run_keeps_what_was_visited() -> None:
    ops = [fake_op(f"{i}us") for i in range(1, 6)]
    told: list[str] = []

    def run() -> None:
        for step in OneByOne(Noting("fake::2us"), visits=2, op_time_s=60.0).outcomes(ops, lambda op: None):
            if isinstance(step, tuple):
                told.append(step[0].name)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert told == [op.name for op in ops]


@pytest.mark.parametrize(
    ("facts", "visits"),
    [
        ({"threads": 2, "threads_of_torch": 2, "idle_cpus": 1.9}, 1),
        ({"threads": 1, "threads_of_torch": 2, "idle_cpus": 1.2}, BUSY),
        ({"threads": 1, "threads_of_torch": 1, "idle_cpus": 0.4}, BUSY),
        ({"threads": 1, "threads_of_torch": 2, "idle_cpus": 2.0, "threads_asked": True}, 1),
        ({"threads": 1, "threads_of_torch": 2, "idle_cpus": 0.0, "threads_asked": True}, BUSY),
        ({"threads": 1, "threads_of_torch": 2, "idle_cpus": 1.8}, BUSY),
        ({"threads": 1}, 1),
    ],
)
def test_a_busy_machine_gets_more_visits_where_nobody_says_how_many(facts: dict[str, object], visits: int) -> None:
    runner = Noting(facts=facts)
    engine = OneByOne(runner, visits=None, op_time_s=60.0)
    assert engine.start()["visits"] == visits
    assert len(outcomes_of(engine, [fake_op("1us")])) == 1
    assert runner.asked == [("fake::1us", number) for number in range(visits)]
    assert OneByOne(Noting(), visits=1).start()["visits"] == 1


def test_a_visit_takes_its_share() -> None:
    visits = Visits(3)
    assert visits.share(MeasureOptions()).min_samples == MeasureOptions().min_samples  # there may be no other
    visits.add(VisitSamples(samples=(), threads=1, cache="warm", first_call_us=1.0, repeated=0, warnings=()))
    share = visits.share(MeasureOptions())
    assert (share.min_samples, share.max_samples) == (3, 134)
    assert share.op_time_s == pytest.approx(0.2 / 3)
    assert share.hard_limit_s() == MeasureOptions().hard_limit_s()
    assert Visits().share(MeasureOptions()) == MeasureOptions()


@pytest.mark.slow
def test_all_samples_count_together(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    flags = ("--top", 3, "--set", "op_time=30ms", "--set", "threads=1")
    arguments = ["run", sample_path("transformer_infer"), *flags, "--set", "visits=3", "-o", file]
    done = CliRunner().invoke(opreplay, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert records[0]["options"]["visits"] == 3
    measured = [one["measurement"] for one in records if one["record"] == "op"]
    assert measured
    for one in measured:
        assert len(one["visits"]) in (0, 1, 2, 3)
        assert all(len(visit) == 3 for visit in one["visits"]), "a time and two gauges"


def measurement(rng: random.Random, power: float, factor: float) -> Measurement:
    """Three visits to an op that follows the second gauge to that power."""
    visits: list[tuple[float, ...]] = []
    for _ in range(3):
        load = rng.gauss(0.0, 0.3)
        took = 100.0 * factor * math.exp(power * load + rng.gauss(0.0, 0.01))
        visits.append((took, math.exp(rng.gauss(0.0, 0.02)), math.exp(load)))
    return msgspec.structs.replace(MADE, visits=tuple(visits))


def test_how_far_an_op_follows_a_gauge_is_told_by_its_visits() -> None:
    """Of 40 ops that follow the memory gauge fully, a little or not at all a machine that is 1.35 times slower at times
    leaves the slowdown of one, 20 %, and no other."""
    rng = random.Random(7)
    powers = {"aten::exp": 1.3, "aten::_softmax": 0.6, "aten::mm": 0.0, "aten::gelu": 1.0}
    ops = {f"{i}": list(powers)[i % 4] for i in range(40)}
    pairs = {
        id_: (name, measurement(rng, powers[name], 1.0), measurement(rng, powers[name], 1.2 if id_ == "5" else 1.0))
        for id_, name in ops.items()
    }
    found = by_visits(pairs)
    assert found["5"].ratio == pytest.approx(1.2, rel=0.06)
    assert all(abs(math.log(one.ratio)) < 0.08 for id_, one in found.items() if id_ != "5")
    assert all(0.0 < one.error < 0.1 for one in found.values())


def visited(rng: random.Random, load: float) -> Measurement:
    """Eight visits to an op that follows the second gauge fully, under a load that hardly changes within a run."""
    visits: list[tuple[float, ...]] = []
    for _ in range(8):
        now = load + rng.gauss(0.0, 0.02)
        visits.append((100.0 * math.exp(now + rng.gauss(0.0, 0.05)), 1.0, math.exp(now)))
    return msgspec.structs.replace(MADE, visits=tuple(visits))


def test_another_load_in_the_second_run_adds_what_is_not_known_of_the_answer_to_it() -> None:
    """The visits of a run under a steady load do not tell how far ops follow the gauges: of ten ops none is beyond 2.6
    times its error, while the same load in both runs leaves the errors as small as visits tell."""
    errors: list[float] = []
    for after in (0.0, 0.4):
        rng = random.Random(3)
        found = by_visits({f"{i}": ("aten::add", visited(rng, 0.0), visited(rng, after)) for i in range(10)})
        assert all(abs(math.log(one.ratio)) < 2.6 * one.error for one in found.values()), after
        errors.append(max(one.error for one in found.values()))
    assert errors[0] < 0.08
    assert errors[1] > 1.5 * errors[0]


def test_a_few_ops_do_not_tell_how_far_ratios_lie() -> None:
    rng = random.Random(5)
    pairs = {f"{i}": ("aten::mm", measurement(rng, 0.0, 1.0), measurement(rng, 0.0, 1.0)) for i in range(40)}
    many, few = by_visits(pairs), by_visits({id_: pair for id_, pair in pairs.items() if int(id_) < 10})
    assert few["3"].error > 1.3 * many["3"].error


def test_runs_without_visits_are_compared_as_before() -> None:
    once = msgspec.structs.replace(MADE, visits=())
    assert by_visits({"a": ("aten::mm", once, once), "b": ("aten::mm", MADE, MADE)}) == {}
    assert by_visits({}) == {}


def test_visits_that_would_have_no_effect_are_refused(tmp_path: Path) -> None:
    trace, out = str(sample_path("transformer_infer")), str(tmp_path / "r.jsonl")
    result = CliRunner().invoke(opreplay, ["run", trace, "--mode", "sequence", "--set", "visits=3", "-o", out])
    assert result.exit_code == 2
    assert "--set repeats=3 has no effect in a sequence" in result.stderr
