"""Bundles: what is in them, that nothing of the model is named, and that the script does what opreplay does, alone."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from opreplay.replay import register_conversion, register_executor
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.export import Bundle, make_bundle, script, write_bundle
from opreplay.replay.export.files import readme
from opreplay.replay.ir.model import Reason, RecordedKernel, ReplayPlan
from opreplay.replay.ir.plan_file import parse_plan
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.selection import OpFilter
from opreplay.replay.plugins import clear_registrations
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.user.conversions import Conversion, RecordedCall
from opreplay.traces import read_trace
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import sample_path
from tests.replay.resolve.user.test_user_code import event, one, plan_of

pytestmark = pytest.mark.slow

GB = 1 << 30
OP = {"id": "0" * 12, "name": "aten::mm", "count": 1, "args": [], "recorded": {"host_us_total": 1.0}}
ALONE = """
import runpy, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"opreplay", "msgspec", "orjson", "click", "rich", "pandas", "numpy"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
X = ([8, 64], "float", [64, 1], "")
SCALAR = ([], "Scalar", [], "1")


def bundle_of(plan: ReplayPlan, **options: Any) -> Bundle:
    return make_bundle(plan, built_in(), policy=Policy(), **{"memory_bytes": GB, **options})


def run_alone(folder: Path, *args: str) -> tuple[int, str]:
    """The script in a Python that can import torch and none of opreplay's other dependencies."""
    command = [sys.executable, "-I", "-W", "ignore", "-c", ALONE, str(folder / "replay.py"), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def moe() -> ReplayPlan:
    return with_outputs(
        build_plan(read_trace(sample_path("moe_block")), filters=OpFilter(exclude=("aten::linear",), top=30))
    )


@pytest.fixture(scope="module")
def folder(moe: ReplayPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "moe"
    write_bundle(bundle_of(moe), path)
    return path


def shapes(result: Any) -> list[list[int]]:
    if isinstance(result, torch.Tensor):
        return [list(result.shape)]
    return [shape for item in result for shape in shapes(item)] if isinstance(result, list | tuple) else []


def test_the_script_alone_replays_every_op_with_the_results_of_a_run(moe: ReplayPlan, folder: Path) -> None:
    code, text = run_alone(folder, "--iterations", "1", "--json")
    assert code == 0, text
    results = {result["id"]: result for result in json.loads(text)["results"]}
    assert list(results) == [op.id for op in moe.ops]
    executor = TorchExecutor("cpu", lambda op: find_overload(op, Policy()), memory_bytes=GB)
    for op in moe.ops:
        prepared = executor.prepare(op, seed=0)
        assert results[op.id]["outputs"] == shapes(prepared.call()), op.name
        assert results[op.id]["median_us"] > 0
    executor.close()


def test_the_script_prints_a_table_and_takes_a_part_of_the_ops(folder: Path) -> None:
    code, text = run_alone(folder, "--op", "aten::topk", "--iterations", "2", "--device", "cpu", "--seed", "3")
    assert code == 0, text
    lines = text.splitlines()
    assert lines[0].split() == ["id", "count", "recorded", "us", "median", "us", "min", "us", "spread", "op"]
    end = next(number for number, line in enumerate(lines) if re.match(r"replayed (\d+) of \1 ops on cpu", line))
    assert all("aten::topk" in line for line in lines[1:end])
    assert all("busy machine" in line or line.startswith("* ") for line in lines[end + 1 :])
    assert run_alone(folder, "--op", "no_such_op")[0] == 2


@pytest.mark.parametrize(
    ("taken", "repeated", "marked"),
    [(lambda n: 0, 0, False), (lambda n: int(n % 4 == 3), 9, False), (lambda n: n, 0, True)],
)
def test_the_script_takes_interrupted_samples_again_and_marks_what_it_cannot(
    monkeypatch: pytest.MonkeyPatch, taken: Callable[[int], int], repeated: int, marked: bool
) -> None:
    calls = itertools.count()
    nothing: dict[str, Any] = dict.fromkeys(("reset", "__call__"), lambda self: None)
    one = {"calls_a_sample": lambda self, fitting: 1, "ready": lambda self, calls: None}
    op = type("Op", (), nothing | one)()
    monkeypatch.setattr(script, "switches", lambda: taken(next(calls)))
    monkeypatch.setattr(script, "waited_s", lambda folder: 0.0)
    found = script.measure(op, 10, lambda: None, True)
    assert (found["repeated"], found["interrupted"]) == (repeated, marked)
    assert found["samples"] == (30 if marked else 10)
    assert 0 < found["min_us"] <= found["median_us"]
    assert script.row(OP, {"status": "replayed", **found}).count("*") == marked


@pytest.mark.parametrize("device", ["nosuch", "npu", "cuda:99", "meta"])
def test_the_script_says_when_a_device_is_missing(folder: Path, device: str) -> None:
    code, text = run_alone(folder, "--device", device)
    assert code == 2
    assert f"error: no device '{device}' here: " in text


def test_ops_json_is_a_plan_of_the_same_calls(moe: ReplayPlan, folder: Path) -> None:
    plan = parse_plan((folder / "ops.json").read_bytes())
    assert plan.source == "bundle"
    calls = [(op.id, op.name, op.overload, op.count, op.outputs) for op in plan.ops]
    assert calls == [(op.id, op.name, op.overload, op.count, op.outputs) for op in moe.ops]


@pytest.mark.parametrize("name", ["transformer_infer", "ddp_step_rank0"])
def test_nothing_in_a_bundle_names_the_model(name: str) -> None:
    trace = read_trace(sample_path(name))
    plan = with_outputs(build_plan(trace, select="all"))
    bundle = bundle_of(plan, memory_bytes=1)
    text = bundle.to_json().decode() + readme(bundle)
    labels = {op.name for op in plan.ops if "::" not in op.name} - {op.name.partition("::")[2] for op in plan.ops}
    secrets = {name, Path(trace.info.path).name, *labels, *trace.kernel_names, *(a.name for a in trace.annotations)}
    found = [secret for secret in secrets if len(secret) > 3 and secret in text]
    assert not found
    assert set(json.loads(bundle.to_json())["bundle"]["instead"]) <= {op.id for op in plan.ops}


def test_kernels_device_and_private_names_are_kept_only_when_asked(tmp_path: Path) -> None:
    @register_conversion("secretlib::norm")
    def convert(call: RecordedCall) -> Conversion:
        return Conversion(op="aten::relu", args=call.args, note="for the secret model")

    try:
        plan = plan_of(tmp_path, event("secretlib::norm", X), event("secretlib::other", X), event("SecretBackward0", X))
    finally:
        clear_registrations()
    kernel = RecordedKernel(name="secret_kernel_v2", count=1, total_us=1.0)
    ops = tuple(
        msgspec.structs.replace(op, recorded=msgspec.structs.replace(op.recorded, kernels=(kernel,)), origin='"secret"')
        for op in plan.ops
    )
    plan = msgspec.structs.replace(plan, ops=ops, source="secret.json", device="Secret GPU")
    silent = bundle_of(plan)
    assert "secret" not in (silent.to_json().decode() + readme(silent)).lower()
    assert [op.name for op in silent.plan.ops] == ["aten::relu"]
    assert "* 1 × ops of other names: policy" in readme(silent)
    telling = bundle_of(plan, keep_names=True)
    text = telling.to_json().decode() + readme(telling)
    for secret in (
        "secret.json",
        "Secret GPU",
        "secret_kernel_v2",
        "secretlib::norm",
        "secretlib::other",
        "secret model",
    ):
        assert secret in text
    write_bundle(telling, tmp_path / "b")
    assert run_alone(tmp_path / "b", "--iterations", "1")[0] == 0


def test_what_a_script_cannot_replay_is_left_out_with_its_reason(tmp_path: Path) -> None:
    @register_executor("mylib::own")
    def own(x: torch.Tensor) -> torch.Tensor:
        return x

    try:
        plan = plan_of(tmp_path, event("mylib::own", X), event("_C::silu_and_mul", X, X), event("aten::relu", X))
        bundle = bundle_of(plan)
    finally:
        clear_registrations()
    assert [op.name for op in bundle.plan.ops] == ["aten::relu"]
    reasons = {one.name: one.reason for one in bundle.left_out}
    assert "executor of a plugin" in reasons["mylib::own"]
    assert "reference implementation" in reasons["_C::silu_and_mul"]
    assert "_C::silu\\_and" not in readme(bundle)
    assert "_C::silu_and_mul: library missing" in readme(bundle)
    assert "mylib" not in readme(bundle)


def test_a_device_only_op_has_the_call_that_stands_in_for_it(tmp_path: Path) -> None:
    sizes = ([], "ScalarList", [], "[1, 1]")
    image, weight = ([2, 4, 8, 8], "float", [256, 64, 8, 1], ""), ([8, 4, 3, 3], "float", [36, 9, 3, 1], "")
    flag = ([], "Scalar", [], "False")
    q = ([1, 16, 4, 32], "float", [2048, 128, 32, 1], "")
    plan = plan_of(
        tmp_path,
        event("aten::cudnn_convolution", image, weight, sizes, sizes, sizes, SCALAR, flag, flag, flag),
        event("aten::_scaled_dot_product_flash_attention", q, q, q, ([], "Scalar", [], "0."), flag, flag),
    )
    bundle = bundle_of(plan)
    by_name = {op.name: bundle.instead[op.id]["op"] for op in bundle.plan.ops}
    assert by_name["aten::cudnn_convolution"]["name"] == "aten::convolution"
    assert by_name["aten::_scaled_dot_product_flash_attention"]["name"] == "aten::scaled_dot_product_attention"
    write_bundle(bundle, tmp_path / "b")
    code, text = run_alone(tmp_path / "b", "--json", "--iterations", "1")
    assert code == 0, text
    found = {result["name"]: result for result in json.loads(text)["results"]}
    assert found["aten::cudnn_convolution"]["via"] == "aten::convolution"
    assert found["aten::cudnn_convolution"]["outputs"] == [[2, 8, 8, 8]]


def test_an_op_that_fails_is_reported_and_the_others_run(tmp_path: Path) -> None:
    names = ("aten::relu", "aten::abs", "aten::neg", "aten::exp", "aten::sign")
    write_bundle(bundle_of(plan_of(tmp_path, *(event(name, X) for name in names))), tmp_path / "b")
    bad = {
        "aten::relu": ("aten::from_file", "not an operator that this script may call"),
        "aten::abs": ("os::system", "not an operator that this script may call"),
        "aten::neg": ("aten::no_such_op", "has no aten::no_such_op"),
        "aten::exp": ("aten::mm.__class__", "not an operator that this script may call"),
    }
    file = tmp_path / "b" / "ops.json"
    text = file.read_text()
    for name, (other, _) in bad.items():
        text = text.replace(json.dumps(name), json.dumps(other))
    file.write_text(text)
    code, text = run_alone(tmp_path / "b", "--iterations", "1", "--json")
    assert code == 1
    found = {result["name"]: result for result in json.loads(text)["results"]}
    for other, reason in bad.values():
        assert reason in found[other]["reason"]
    assert found["aten::sign"]["status"] == "replayed"


def broken(folder: Path, name: str, instead: str) -> None:
    """Make the script run a statement in place of one op."""
    script = folder / "replay.py"
    text = script.read_text()
    assert text.count("    call = Call(candidate, inputs, device, seed)\n") == 1
    script.write_text(
        text.replace(
            "            call = Call(candidate, inputs, device, seed)\n",
            f"            if candidate['name'] == {name!r}:\n                {instead}\n"
            "            call = Call(candidate, inputs, device, seed)\n",
        )
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no timer of the system ends a process there")
@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        ("any(iter(int, 1))", "no result after 2 s"),
        ("os.abort()", "its process ended with exit code -6"),
        ("print('not a reply')", None),
    ],
)
def test_an_op_that_hangs_or_crashes_costs_itself(tmp_path: Path, instead: str, reason: str | None) -> None:
    names = ("aten::relu", "aten::abs", "aten::neg")
    write_bundle(bundle_of(plan_of(tmp_path, *(event(name, X) for name in names))), tmp_path / "b")
    broken(tmp_path / "b", "aten::abs", instead)
    code, text = run_alone(tmp_path / "b", "--iterations", "1", "--json", "--time-limit", "2")
    found = {result["name"]: result for result in json.JSONDecoder().raw_decode(text)[0]["results"]}
    assert set(found) == set(names)
    assert [found[name]["status"] for name in ("aten::relu", "aten::neg")] == ["replayed"] * 2
    assert found["aten::abs"].get("reason") == reason
    assert code == (1 if reason else 0)


def test_an_op_can_run_in_the_process_itself(folder: Path) -> None:
    code, text = run_alone(folder, "--op", "aten::topk", "--iterations", "1", "--time-limit", "0")
    assert code == 0, text


def test_folders_and_archives_are_overwritten_only_by_force(tmp_path: Path) -> None:
    bundle = bundle_of(plan_of(tmp_path, event("aten::relu", X)))
    for target in (tmp_path / "b", tmp_path / "b.zip"):
        write_bundle(bundle, target)
        with pytest.raises(UsageError, match=r"is not empty|exists"):
            write_bundle(bundle, target)
        write_bundle(bundle, target, force=True)
    (tmp_path / "b" / "mine.txt").write_text("kept")
    write_bundle(bundle, tmp_path / "b", force=True)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "README.md",
        "mine.txt",
        "ops.json",
        "replay.py",
    ]
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert sorted(archive.namelist()) == ["b/README.md", "b/ops.json", "b/replay.py"]
        assert archive.read("b/ops.json") == (tmp_path / "b" / "ops.json").read_bytes()
    with pytest.raises(UsageError, match="is a file"):
        write_bundle(bundle, tmp_path / "t.json")
    with pytest.raises(UsageError, match="cannot write"):
        write_bundle(bundle, tmp_path / "no" / "folder")


def test_a_reason_found_after_planning_is_kept(tmp_path: Path) -> None:
    op = one(tmp_path, "aten::relu", X)
    late = msgspec.structs.replace(op, reason=Reason("budget", "memory: no"))
    plan = ReplayPlan(source="t", device_us_total=0.0, host_us_total=1.0, ops=(late,))
    bundle = bundle_of(plan)
    assert bundle.plan.ops == ()
    assert bundle.left_out[0].reason == "budget: memory: no"


@pytest.mark.parametrize(("host_us", "text"), [(0.0, "-"), (25.0, "12.5")])
def test_a_time_that_was_not_recorded_is_none(host_us: float, text: str) -> None:
    assert script.recorded_text({"recorded": {"host_us_total": host_us}, "count": 2}) == text
