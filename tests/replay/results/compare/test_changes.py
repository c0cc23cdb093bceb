"""Changes planted in noise are found at their run, and noise alone has none."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

from opreplay.replay.results.compare import changes
from opreplay.replay.results.compare.changes import changes_of
from opreplay.replay.results.history import Point, Series
from opreplay.traces.errors import EnvironmentRefused


def series(values: Any, relative: Any = None, id_: str = "0" * 12) -> Series:
    points = tuple(
        Point(
            started_at=f"night {i:03d}",
            label=f"c{i}",
            measured_us=float(us),
            relative=None if relative is None else float(relative[i]),
        )
        for i, us in enumerate(values)
    )
    return Series(id=id_, name="aten::mm", inputs="", machine="m", machine_name="made up", points=points)


def noise(seed: int, runs: int = 30, scatter: float = 0.03) -> np.ndarray[Any, Any]:
    return 100.0 * np.exp(scatter * np.random.default_rng(seed).standard_normal(runs))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("factor", "at"), [(1.2, 20), (0.8, 12), (1.2, 26)])
def test_a_change_of_a_fifth_is_found_at_its_run(seed: int, factor: float, at: int) -> None:
    values = noise(seed, scatter=0.02)
    values[at:] *= factor
    (op,) = changes_of([series(values)])
    (change,) = op.changes
    assert (change.at, change.label, change.runs_before, change.runs_after) == (at, f"c{at}", at, 30 - at)
    assert change.ratio == pytest.approx(factor, rel=0.03)
    assert change.after_us / change.before_us == pytest.approx(factor, rel=0.04)
    assert change.p < 1e-3


def test_noise_has_at_most_one_false_alarm_in_twenty_histories() -> None:
    alarms = [seed for seed in range(20) if any(op.changes for op in changes_of([series(noise(seed, 40))]))]
    assert len(alarms) <= 1


def test_many_ops_of_noise_count_as_one_history() -> None:
    alarms = 0
    for night in range(20):
        ops = [series(noise(100 * night + i), id_=f"{i:012x}") for i in range(50)]
        alarms += any(op.changes for op in changes_of(ops))
    assert alarms <= 1


def test_both_of_a_change_and_its_repair_are_found_and_the_largest_latest_comes_first() -> None:
    repaired, slower = noise(1), noise(2)
    repaired[10:18] *= 1.2
    slower[15:] *= 1.5
    first, second, third = changes_of([series(noise(3), id_="3"), series(repaired, id_="1"), series(slower, id_="2")])
    assert (first.id, [change.at for change in first.changes]) == ("2", [15])
    assert (second.id, [change.at for change in second.changes]) == ("1", [10, 18])
    assert (third.id, third.changes) == ("3", ())


def test_one_slow_night_is_no_change() -> None:
    values = noise(4)
    values[12] *= 2
    assert changes_of([series(values)])[0].changes == ()


def test_relative_times_decide_where_all_runs_have_them() -> None:
    flat, stepped = noise(5), noise(5)
    stepped[15:] *= 1.3
    (by_machine,) = changes_of([series(stepped, relative=flat)])
    assert by_machine.changes == ()
    (own,) = changes_of([series(flat, relative=stepped)])
    assert own.changes[0].ratio == pytest.approx(1.3, rel=0.03)


@pytest.mark.parametrize("values", [[100.0], [100.0] * 5, [100.0] * 20])
def test_few_or_equal_times_have_no_change(values: list[float]) -> None:
    (op,) = changes_of([series(values)])
    assert (op.changes, op.tested, op.runs) == ((), len(values) >= 6, len(values))


def test_exact_times_have_exact_changes() -> None:
    (op,) = changes_of([series([100.0] * 10 + [120.0] * 10)])
    assert [(change.at, change.ratio, change.p) for change in op.changes] == [(10, pytest.approx(1.2), 0.0)]


def test_no_history_has_no_ops_and_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changes_of([]) == ()

    def none(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(changes, "import_module", none)
    with pytest.raises(EnvironmentRefused, match="ruptures") as error:
        changes_of([])
    assert "opreplay[history]" in error.value.hint
    assert builtins.__import__ is not none
