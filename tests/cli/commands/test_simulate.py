"""`opreplay simulate`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.initializers.extensions import clear_registrations as clear_initializers
from opreplay.replay.ascend import load_device, simulate_op
from opreplay.replay.ascend.custom.estimators import clear_registrations
from opreplay.replay.ascend.simulate.step import losing, simulate_step
from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.plan import inputs
from opreplay.replay.plan.selection import Selection
from opreplay.traces.model import TensorMeta

SELECTION: list[Selection] = []


def op(name: str, number: int, device_us: float, *shapes: tuple[int, ...], reason: Reason | None = None) -> ReplayOp:
    args = tuple(
        ReplayArg(name=n, type="Tensor", tensors=(TensorMeta(shape=s, dtype="bfloat16"),))
        for n, s in zip(("self", "mat2" if name == "aten::mm" else "other"), shapes, strict=False)
    )
    recorded = Recorded(host_us_total=9.0, host_us_median=9.0, device_us_total=device_us)
    return ReplayOp(
        id=f"{number:012x}",
        name=name,
        count=number,
        recorded=recorded,
        args=args,
        reason=reason,
        resolved_by="jit" if reason is None else None,
    )


PLAN = ReplayPlan(
    source="t.json",
    device="NVIDIA H100",
    device_us_total=1000.0,
    host_us_total=40.0,
    ops=(
        op("aten::mm", 3, 600.0, (4096, 4096), (4096, 4096)),
        op("aten::add", 2, 5.0, (4096, 1024), (4096, 1024)),
        op("your_op::Odd", 4, 8.0, (4096, 1024)),
        op("nccl:all_reduce", 1, 300.0, reason=Reason("metadata missing", "shapes")),
    ),
)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A readable trace; its plan is made up."""

    def make_plan(trace: object, selection: Selection, *, device: str, in_order: bool) -> ReplayPlan:
        assert in_order
        SELECTION.append(selection)
        return PLAN

    monkeypatch.setattr(inputs, "make_plan", make_plan)
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}))
    return path


def invoke(*args: object) -> Result:
    return CliRunner().invoke(opreplay, ["simulate", *map(str, args)], env={"COLUMNS": "120"})


def facts(*args: object) -> dict[str, Any]:
    result = invoke(*args, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_totals_are_the_sums_of_ops_on_each_device(trace: Path) -> None:
    found = facts(trace, "--soc", "910b3", "--soc", "910b4")
    assert list(found["socs"]) == ["910b3", "910b4"]
    for name, soc in found["socs"].items():
        device = load_device(name)
        expected = sum(simulate_op(one, device).time_us * one.count for one in PLAN.ops)
        assert soc["total_us"] == pytest.approx(expected)
        assert sum(soc["by_bound_us"].values()) == pytest.approx(expected)
        assert sum(soc["by_family_us"].values()) == pytest.approx(expected)
        assert soc["low_us"] < expected < soc["high_us"]
        made = [(simulate_op(one, device), one.count) for one in PLAN.ops]
        predicted = sum(s.time_us * count for s, count in made if s.confidence == "uncalibrated") / expected
        assert soc["uncalibrated_share"] == pytest.approx(predicted), "of predicted time"
    assert found["simulated_ops"] == 3
    assert found["covered_share"] == pytest.approx(0.613)
    assert found["recorded_device_us_of_simulated"] == pytest.approx(613.0)


def test_the_band_of_a_step_is_narrower_than_those_of_its_ops_but_not_by_counting_one_family_often() -> None:
    device = load_device("910b3")
    alone, twice = (simulate_step([PLAN.ops[0]] * n, device) for n in (1, 2))
    assert twice.high_us / twice.total_us == pytest.approx(alone.high_us / alone.total_us)
    mixed = simulate_step([PLAN.ops[0], op("aten::add", 40, 5.0, (4096, 4096), (4096, 4096))], device)
    bands = [device.families[name].band for name in mixed.by_family]
    assert mixed.high_us / mixed.total_us < max(bands)


def test_ops_that_lose_most_come_first(trace: Path) -> None:
    device = load_device("910b4")
    step = simulate_step(PLAN.ops, device)
    lost = losing(step, PLAN.ops, 9)
    assert [us for _, _, us in lost] == sorted((us for _, _, us in lost), reverse=True)
    assert "nccl:all_reduce" not in {one.name for one, _, _ in lost}
    found = facts(trace, "--soc", "910b4", "--losers", 1)["socs"]["910b4"]["losing"]
    assert [one["name"] for one in found] == [lost[0][0].name]
    assert found[0]["lost_us"] == pytest.approx(lost[0][2])


def test_the_table_names_what_is_covered_and_where_time_goes(trace: Path) -> None:
    text = invoke(trace, "--soc", "910b3", "--soc", "910b1").stdout
    assert "0.80 % by bytes only; 30.0 % not predicted" in text.splitlines()[0]
    assert (
        "simulated 60.5 % of device time by rules, 0.80 % by bytes only, 30.0 % not predicted, 8.7 % outside the "
        "selected ops"
    ) in text.splitlines()
    for word in ("NVIDIA H100", "80 % band", "time by bound", "time by kernel family", "MatMul", "loses most on 910b1"):
        assert word in text


def test_five_devices_side_by_side_fit_into_eighty_columns(trace: Path) -> None:
    names = ("910b1", "910b2", "910b3", "910b4", "910c")
    socs = [part for name in names for part in ("--soc", name)]
    args = ["simulate", str(trace), *socs, "--losers", "0"]
    text = CliRunner().invoke(opreplay, args, env={"COLUMNS": "80"}).stdout
    assert "MatMul" in text
    assert "…" not in text
    assert max(map(len, text.splitlines()[3:])) <= 80


def test_files(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "steps.csv"
    assert invoke(trace, "--soc", "910b3", "--output", out).exit_code == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["name"] for row in rows] == [one.name for one in PLAN.ops]
    assert float(rows[0]["simulated_us_910b3"]) > 0
    assert rows[3]["simulated_us_910b3"] == ""
    assert invoke(trace, "-o", out).exit_code == 2
    assert invoke(trace, "-o", out, "--force").exit_code == 0
    assert "no output format" in invoke(trace, "-o", tmp_path / "x.parquet").stderr
    assert invoke(trace, "-o", tmp_path / "x.json", "-o", tmp_path / "y.csv").exit_code == 0
    assert (tmp_path / "y.csv").exists()
    assert json.loads((tmp_path / "x.json").read_text())["socs"]["910b3"]["version"]


def test_selection_and_custom_ops_are_passed_on(trace: Path, tmp_path: Path) -> None:
    clear_registrations()
    (tmp_path / "odd.py").write_text(
        "from opreplay.replay.ascend.custom.estimators import PerformanceModel, register_op_estimator\n"
        "register_op_estimator('your_op::Odd')(lambda info, device: PerformanceModel.Result(info.args[0].numel()))\n"
    )
    args = (
        "--select",
        "all",
        "--include",
        "aten::*",
        "--exclude",
        "x",
        "--top",
        3,
        "--set",
        "min_share=1%",
        "--allow-import",
        "a=b",
        "--set",
        "limit=events=9",
        "--plugin",
        tmp_path,
    )
    try:
        found = facts(trace, *args)
    finally:
        clear_registrations()
    assert found["socs"]["910b3"]["by_family_us"]["custom"] == pytest.approx(4 * 4096 * 1024 * 1e6)
    assert SELECTION[-1] == Selection(
        select="all", include=("aten::*",), exclude=("x",), top=3, min_share=0.01, allow_imports={"a": "b"}
    )


def save_ids(path: Path, name: str, ids: torch.Tensor) -> None:
    """A .safetensors file with one int32 tensor."""
    data = ids.numpy().tobytes()
    header = json.dumps({name: {"dtype": "I32", "shape": list(ids.shape), "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def test_routing_follows_the_initializers_settings(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    layer = op("vllm::outplace_fused_experts", 1, 9.0)
    shapes = {"hidden_states": (8192, 512), "w1": (64, 1024, 512), "w2": (64, 512, 512)}
    metas = {name: TensorMeta(shape=shape, dtype="bfloat16") for name, shape in shapes.items()}
    metas["topk_ids"] = TensorMeta(shape=(8192, 4), dtype="int32")
    args = tuple(ReplayArg(name=name, type="Tensor", tensors=(meta,)) for name, meta in metas.items())
    plan = msgspec.structs.replace(PLAN, ops=(msgspec.structs.replace(layer, args=args),))
    monkeypatch.setattr(inputs, "make_plan", lambda *args, **kwargs: plan)
    module = tmp_path / "mine.py"
    module.write_text("LOADED = True\n")
    even = facts(trace)["socs"]["910b3"]["total_us"]
    skewed = facts(trace, "--set", "init_arg=moe_routing.distribution=zipf", "--plugin", module)
    assert skewed["socs"]["910b3"]["total_us"] > 1.02 * even
    assert invoke(trace, "--set", "init_arg=moe_routing.colour=red").exit_code == 2
    file = tmp_path / "fails.py"
    file.write_text(
        "from opreplay.initializers.base import CustomInit\n"
        "from opreplay.initializers.extensions import register_initializer\n\n\n"
        "@register_initializer\nclass Fails(CustomInit):\n"
        f"    name, op_patterns, priority = 'fails', ({layer.name!r},), 9\n\n"
        "    def initialize(self, context):\n        return 1 / 0\n"
    )
    try:
        said = invoke(trace, "--plugin", file)
    finally:
        clear_initializers()
    assert said.exit_code == 0
    assert "inputs of 1 op could not be generated" in said.stderr
    assert "ZeroDivisionError: division by zero" in said.stderr
    one_group = tmp_path / "routes.safetensors"
    save_ids(one_group, f"{layer.name}.topk_ids", torch.arange(4, dtype=torch.int32).repeat(8192, 1))
    assert (
        facts(trace, "--set", f"values={one_group}")["socs"]["910b3"]["total_us"] > skewed["socs"]["910b3"]["total_us"]
    )
    save_ids(one_group, f"{layer.name}.topk_ids", torch.zeros(4, 4, dtype=torch.int32))
    assert "int32[4, 4]" in invoke(trace, "--set", f"values={one_group}").stderr


def test_a_trace_without_device_time_is_said_to_be_one(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    hosts = msgspec.structs.replace(PLAN, device_us_total=0.0, ops=(op("aten::mm", 1, 0.0, (8, 8), (8, 8)),))
    monkeypatch.setattr(inputs, "make_plan", lambda *args, **kwargs: hosts)
    text = invoke(trace).stdout
    assert "of host time" in text
    assert "no device time" in text
    assert "loses most" not in text


def test_a_bundled_sample_end_to_end() -> None:
    sample = Path(__file__).parents[3] / "traces/samples/moe_block.json.gz"
    found = facts(sample, "--soc", "910b3", "--soc", "910c")
    assert found["simulated_ops"] > 5
    assert 0 < found["socs"]["910c"]["total_us"] < 1.3 * found["socs"]["910b3"]["total_us"]
    assert found["cache_from"]["calls"] > 10
    assert "L2 cache: contents from the order of" in invoke(sample, "--notes").stdout


def test_a_step_of_which_nothing_is_predicted_has_no_time(tmp_path: Path) -> None:
    """It said 0 µs, 0 µs to 0 µs, uncalibrated 0 %, where `timeline` said that nothing was predicted."""
    known = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    ids = {"External id": 1, "correlation": 1}
    host = {"ph": "X", "pid": 1, "tid": 1, "args": ids}
    events = [
        {**host, "cat": "cpu_op", "name": "mine::op", "ts": 1, "dur": 9},
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1},
        {**host, "cat": "kernel", "name": "k", "ts": 20, "dur": 5, "args": {**ids, "device": 0, "stream": 7}},
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": known, "traceEvents": events}))
    told = CliRunner().invoke(opreplay, ["simulate", str(path), "--soc", "910b3"]).output
    assert "no prediction" in told
    assert "0 µs to" not in told
    made = json.loads(
        CliRunner().invoke(opreplay, ["simulate", str(path), "--soc", "910b3", "--format", "json"]).output
    )
    one = made["socs"]["910b3"]
    assert (one["total_us"], one["low_us"], one["high_us"], one["uncalibrated_share"]) == (None, None, None, 1.0)


def test_what_a_step_would_take_is_not_said_of_cold_caches_at_each_op(shared_traces: Path) -> None:
    """The verdict follows the order of the calls; beside a total of cold ops it was another number for one question."""
    path = shared_traces / "h100_bert_small.json.gz"
    heads = [
        CliRunner().invoke(opreplay, ["simulate", str(path), "--soc", "910b2", "--l2", l2]).stdout.splitlines()[0]
        for l2 in ("sequence", "cold")
    ]
    assert ["the recorded step" in head for head in heads] == [True, False]
