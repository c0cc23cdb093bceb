"""`opreplay plan` and `simulate`: predictions follow from what the initializers of a run would give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.plan_file import dump_plan
from opreplay.traces.model import TensorMeta

LAYER = "vllm::outplace_fused_experts"
TOKENS, CHOICES = 512, 4


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan of one layer of experts, whose time depends on the routes."""
    shapes = {"hidden_states": (TOKENS, 512), "w1": (64, 1024, 512), "w2": (64, 512, 512)}
    metas = {name: TensorMeta(shape=shape, dtype="bfloat16") for name, shape in shapes.items()}
    metas["topk_ids"] = TensorMeta(shape=(TOKENS, CHOICES), dtype="int32")
    layer = ReplayOp(
        id="a" * 12,
        name=LAYER,
        count=1,
        recorded=Recorded(host_us_total=9.0, host_us_median=9.0),
        resolved_by="reference",
        args=tuple(ReplayArg(name=n, type="Tensor", tensors=(m,)) for n, m in metas.items()),
        outputs=(None,),
    )
    path = tmp_path / "plan.json"
    path.write_bytes(dump_plan(ReplayPlan(source="t", device_us_total=0.0, host_us_total=9.0, ops=(layer,))))
    return path


def invoke(*args: object) -> Result:
    return CliRunner().invoke(opreplay, [*map(str, args)], env={"COLUMNS": "100"})


def facts(*args: object) -> Any:
    result = invoke(*args, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def predicted_us(plan: Path, *args: object) -> float:
    """What `plan`, `plan --explain` and `simulate` say alike, for caches in one state."""
    (op,) = facts("plan", plan, "--l2", "sequence", *args)["unique_ops"]
    explained = facts("plan", plan, "--l2", "sequence", "--explain", LAYER, *args)
    stepped = facts("simulate", plan, *args)["socs"]["910b3"]["total_us"]
    assert explained["simulated"]["910b3"]["simulated"]["time_us"] == pytest.approx(op["simulated_us"]["910b3"])
    assert stepped == pytest.approx(op["simulated_us"]["910b3"])
    return stepped


def test_routes_follow_from_seed_settings_and_values(plan: Path, tmp_path: Path) -> None:
    module = tmp_path / "mine.py"
    module.write_text("LOADED = True\n")
    even = predicted_us(plan)
    assert predicted_us(plan, "--set", "seed=0") == even
    zipf = ("--set", "init_arg=moe_routing.distribution=zipf", "--plugin", module)
    skewed = {predicted_us(plan, *zipf, "--set", f"seed={seed}") for seed in range(3)}
    assert even not in skewed
    assert len(skewed) > 1
    data = b"".join(bytes([choice, 0, 0, 0]) for _ in range(TOKENS) for choice in range(CHOICES))
    entry = {f"{LAYER}.topk_ids": {"dtype": "I32", "shape": [TOKENS, CHOICES], "data_offsets": [0, len(data)]}}
    header = json.dumps(entry).encode()
    values = tmp_path / "routes.safetensors"
    values.write_bytes(len(header).to_bytes(8, "little") + header + data)
    assert predicted_us(plan, "--set", f"values={values}") not in {even, *skewed}
    values.write_bytes(values.read_bytes().replace(LAYER.encode(), LAYER.upper().encode()))
    assert "is for an op that is not in the plan" in invoke("plan", plan, "--set", f"values={values}").stderr
    assert invoke("plan", plan, "--set", "init_arg=moe_routing.colour=red").exit_code == 2


@pytest.mark.parametrize("l2", ["cold", "warm", "sequence"])
def test_the_state_of_the_caches_is_chosen_told_and_the_same_in_plan_and_simulate(plan: Path, l2: str) -> None:
    (op,) = facts("plan", plan, "--l2", l2)["unique_ops"]
    found = facts("simulate", plan, "--l2", l2)
    (one,) = found["unique_ops"]
    assert one["simulated"]["910b3"]["l2"] == l2
    assert one["simulated"]["910b3"]["time_us"] == pytest.approx(op["simulated_us"]["910b3"])
    if l2 != "sequence":
        assert f"caches ({l2})" in invoke("simulate", plan, "--l2", l2).stdout


def test_without_the_flag_a_plan_is_of_what_run_measures_by_default(plan: Path) -> None:
    (cold,), (default,) = (facts("plan", plan, *args)["unique_ops"] for args in (("--l2", "cold"), ()))
    assert default["simulated_us"] == cold["simulated_us"]
    dry = {state: invoke("run", plan, "--dry-run", "--l2", state).stdout for state in ("cold", "warm")}
    assert invoke("run", plan, "--dry-run").stdout == dry["cold"]
    assert invoke("run", plan, "--dry-run", "--cache", "warm").stdout == dry["warm"]
    assert dry["cold"] != dry["warm"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".html"])
def test_a_plan_is_not_written_under_the_name_of_another_format(plan: Path, suffix: str) -> None:
    path = plan.with_suffix(suffix)
    assert invoke("plan", plan, "--output", path).exit_code == 2
    assert not path.exists()


def test_a_dry_run_names_the_files_that_it_does_not_write(plan: Path) -> None:
    path = plan.with_suffix(".csv")
    done = invoke("run", plan, "--dry-run", "--output", path)
    assert (done.exit_code, path.exists()) == (0, False)
    assert str(path) in done.stderr.replace("\n", "")
