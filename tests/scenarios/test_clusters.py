"""`--cluster`: collectives of a trace over the links of a described cluster, in simulate, run and timeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from opreplay.replay.results.reading import read_result_file
from tests.collectives import collective_event
from tests.scenarios.conftest import kernel, launch, op

Console = Callable[..., Result]
Trace = Callable[..., Path]
ELEMENTS = 1 << 24


def distributed_step(group: range = range(16)) -> list[dict[str, Any]]:
    """An all-reduce of 64 MiB in a group beside a copy that reads and writes 512 MiB."""
    told = {"Collective name": "allreduce", "In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS, "dtype": "Float"}
    told |= {"Group size": len(group), "Process Group Ranks": str(list(group))}
    communicating = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 60, 9000, 1, stream=20)
    communicating["args"] |= told
    return [
        *collective_event("c10d::allreduce_", 10, collective="allreduce", elements=ELEMENTS, group=group, dur=30),
        launch(15, 1),
        communicating,
        op("aten::relu", 50, [[1 << 27]], ["float"], dur=20, id_=2),
        launch(55, 2),
        kernel("elementwise", 80, 900, 2),
    ]


def test_more_servers_take_longer(console: Console, trace_of: Trace) -> None:
    trace, times = trace_of(*distributed_step()), {}
    for cluster in ("1x16x910b3", "2x8x910b3"):
        done = console("simulate", trace, "--cluster", cluster, "--include", "c10d*", "--format", "json")
        facts = json.loads(done.stdout)["socs"]
        assert list(facts) == ["910b3"]
        assert cluster in facts["910b3"]["version"]
        times[cluster] = facts["910b3"]["total_us"]
    assert times["2x8x910b3"] > 1.2 * times["1x16x910b3"]
    console("simulate", trace, "--cluster", "2x910", code=2)


@pytest.mark.slow
def test_a_cluster_smaller_than_the_groups_is_told(console: Console, trace_of: Trace, tmp_path: Path) -> None:
    trace, out = trace_of(*distributed_step()), tmp_path / "out.jsonl"
    done = console("simulate", trace, "--cluster", "1x8x910b3", "--include", "c10d*")
    assert "1 of 1 collectives have more ranks than the cluster has dies (up to 16 ranks on 8 dies)" in done.stderr
    done = console("run", trace, "--cluster", "1x1x910b3", "--include", "c10d*", "-o", out)
    assert "up to 16 ranks on 1 die" in done.stderr
    (one,) = read_result_file(out).results
    made = one.simulated["910b3"]
    assert (made.algorithm, made.extrapolated) == ("no link, 16 ranks on 1 die", True)
    told = json.loads(console("timeline", trace, "--cluster", "1x8x910b3", "--format", "json").stdout)
    assert "1 collectives have more ranks than the cluster has dies (16 ranks on 8 dies)" in str(told["socs"])
    assert "smaller" not in console("simulate", trace, "--cluster", "2x8x910b3", "--include", "c10d*").stderr


@pytest.mark.slow
def test_a_run_stores_rates_of_the_cluster(console: Console, trace_of: Trace, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    console("run", trace_of(*distributed_step()), "--cluster", "2x8x910b2", "--include", "c10d*", "-o", out)
    (one,) = read_result_file(out).results
    assert one.reason is not None
    assert one.reason.kind == "collective"
    assert one.simulated["910b2"].algorithm.startswith("reduce-scatter and all-gather: direct over HCCS")
    rates = one.collective.simulated["910b2"]
    assert rates.bus_gb_s == pytest.approx(rates.algorithm_gb_s * 2 * 15 / 16)
    assert one.collective.recorded.time_us == pytest.approx(9000)


def test_in_a_step_collectives_overlap_compute_and_take_hbm_bandwidth(console: Console, trace_of: Trace) -> None:
    trace = trace_of(*distributed_step())
    text = console("timeline", trace, "--cluster", "2x8x910b3", "--format", "json").stdout
    step = json.loads(text)["socs"]["910b3"]
    assert any("take HBM bandwidth" in note for note in step["notes"])
    assert step["categories_us"]["communication_overlapped"] > 0


@pytest.mark.parametrize(("group", "shares"), [(range(16), True), (range(8), True), (range(0, 16, 8), False)])
def test_collectives_beside_each_other_share_links_of_one_kind(
    console: Console, trace_of: Trace, group: range, shares: bool
) -> None:
    """One within a server, on a stream of its own, beside one that is there as well, or between servers alone."""
    second = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 62, 9000, 3, stream=21)
    told = {"Collective name": "allreduce", "In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS, "dtype": "Float"}
    second["args"] |= {**told, "Group size": 8, "Process Group Ranks": str(list(range(8)))}
    more = [op("aten::neg", 42, [[4]], ["float"], dur=6, id_=3), launch(44, 3), second]
    steps = [
        json.loads(console("timeline", trace_of(*events), "--cluster", "2x8x910b3", "--format", "json").stdout)
        for events in (distributed_step(group), [*distributed_step(group), *more])
    ]
    alone, both = (step["socs"]["910b3"] for step in steps)
    assert any("share links" in note for note in both["notes"]) == shares
    assert not any("share links" in note for note in alone["notes"])
    talking = [
        sum(step["categories_us"][f"communication_{which}"] for which in ("overlapped", "not_overlapped"))
        for step in (alone, both)
    ]
    assert talking[1] >= (1.7 if shares else 1.0) * talking[0]
