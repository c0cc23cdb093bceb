"""Users' conversions and executors from a trace to results: the tutorial, priorities, failures, plans, processes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from opreplay.initializers import user_code
from opreplay.initializers.user_code import load_user_code
from opreplay.replay import Conversion, RecordedCall, TensorMeta, plugins, register_conversion, register_executor
from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.plan_file import dump_plan, parse_plan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.by_argument_name import resolve_named
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.results.reading import MemorySink
from opreplay.replay.results.records import OpResult
from opreplay.traces import read_trace
from opreplay.traces.errors import UsageError
from tests.running import run_plan

pytestmark = pytest.mark.usefixtures("forked_children")

PAGE = Path(__file__).parents[4] / "docs" / "extending.md"
X = ([8, 64], "float", [64, 1], "")


@pytest.fixture
def tutorial(tmp_path: Path) -> str:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "my_ops.py"
    file.write_text("\n".join(code))
    return str(file)


def event(name: str, *args: tuple[Any, str, Any, str]) -> dict[str, Any]:
    dims, types, strides, concrete = ([arg[i] for arg in args] for i in range(4))
    columns = {"Input Dims": dims, "Input type": types, "Input Strides": strides, "Concrete Inputs": concrete}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "dur": 50, "args": columns}


def plan_of(folder: Path, *events: dict[str, Any]) -> ReplayPlan:
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": [{**e, "ts": 100 * i} for i, e in enumerate(events)]}))
    plan = with_outputs(build_plan(read_trace(path)))
    assert parse_plan(dump_plan(plan)) == plan
    return plan


def one(folder: Path, name: str, *args: tuple[Any, str, Any, str]) -> ReplayOp:
    (op,) = plan_of(folder, event(name, *args)).ops
    return op


def results(plan: ReplayPlan, **options: Any) -> dict[str, OpResult]:
    sink = MemorySink()
    run_plan(plan, RunOptions(**{"isolation": "none", "op_time_s": 0.002, **options}), sink=sink)
    return {result.name: result for result in sink.results}


def whats(op: ReplayOp | OpResult) -> str:
    return "; ".join(assumption.what for assumption in op.assumptions)


def tutorial_plan(folder: Path) -> ReplayPlan:
    scalar = ([], "Scalar", [], "7.5")
    return plan_of(
        folder,
        event("mylib::fused_norm", X, ([64], "float", [1], ""), ([], "Scalar", [], "1e-05"), ([], "Scalar", [], "3")),
        event("mylib::swiglu", X, scalar),
        event("mylib::scale_rows_17", X, X, scalar),
    )


@pytest.mark.slow
def test_the_tutorial_replays_all_its_ops(tmp_path: Path, tutorial: str) -> None:
    unknown = tutorial_plan(tmp_path)
    assert {op.reason and op.reason.kind for op in unknown.ops} == {"policy"}
    load_user_code(tutorial, flag="--plugin")
    plan = tutorial_plan(tmp_path)
    norm, swiglu, scale = (next(op for op in plan.ops if text in op.name) for text in ("norm", "swiglu", "scale"))
    assert (norm.via, norm.resolved_by) == ("aten::rms_norm", "jit")
    assert "version left out" in whats(norm)
    assert [(arg.name, arg.value) for arg in swiglu.args] == [("x", None), ("limit", 7.5)]
    assert [arg.mutated for arg in scale.args] == [True, False, False]
    assert scale.outputs == ()
    found = results(plan, isolation="process", plugins=(tutorial,))
    assert {result.status for result in found.values()} == {"replayed"}
    assert found["mylib::swiglu"].resolved_by == "executor"
    assert "swiglu (my_ops.py:" in whats(found["mylib::swiglu"])


def test_a_converted_plan_runs_without_the_plugin_and_an_executor_needs_it(tmp_path: Path, tutorial: str) -> None:
    load_user_code(tutorial, flag="--plugin")
    plan = tutorial_plan(tmp_path)
    plugins.clear_registrations()
    found = results(plan)
    assert found["mylib::fused_norm"].status == "replayed"
    assert str(found["mylib::swiglu"].reason) == "library missing: no executor for mylib::swiglu (--plugin)"


def test_what_is_built_in_comes_first_unless_overridden(tmp_path: Path) -> None:
    @register_executor("aten::relu")
    def unused(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    op = one(tmp_path, "aten::relu", X)
    assert op.resolved_by == "jit"
    assert "unused (test_user_code.py" in whats(op)
    assert "is not used" in whats(op)
    plugins.clear_registrations()

    @register_executor("aten::relu", override=True)
    def mine(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0)

    plan = plan_of(tmp_path, event("aten::relu", X))
    assert plan.ops[0].resolved_by == "executor"
    assert results(plan)["aten::relu"].status == "replayed"


def test_a_conversion_that_overrides_goes_before_torch(tmp_path: Path) -> None:
    @register_conversion("aten::add", override=True)
    def as_mul(call: RecordedCall) -> Conversion | None:
        if len(call.args) == 3:
            return None
        return Conversion(op="aten::mul.Scalar", args=[call.args[0], 2.0], note="times two")

    assert one(tmp_path, "aten::add", X, X, ([], "Scalar", [], "1")).via is None
    made = one(tmp_path, "aten::add", X, X)
    assert (made.via, made.overload, made.name) == ("aten::mul", "Scalar", "aten::add")


def test_a_conversion_may_lead_to_an_executor(tmp_path: Path) -> None:
    @register_conversion("mylib::old")
    def renamed(call: RecordedCall) -> Conversion:
        meta = TensorMeta(shape=(2, 2), dtype="float32")
        return Conversion(op="mylib::new", args=[call.args[0], [meta, meta], [1, 2], None, True], note="renamed")

    seen = []

    @register_executor("mylib::new")
    def run(x: torch.Tensor, *rest: Any) -> None:
        seen.append(rest)

    plan = plan_of(tmp_path, event("mylib::old", X))
    assert results(plan)["mylib::old"].status == "replayed"
    tensors, numbers, none, flag = seen[0]
    assert ([t.shape for t in tensors], numbers, none, flag) == ([(2, 2), (2, 2)], [1, 2], None, True)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (ZeroDivisionError("boom"), "ZeroDivisionError: boom (test_user_code.py:"),
        ("aten::relu", "returned str instead of a Conversion"),
        (Conversion(op="aten::relu", args=[object()], note=""), "cannot be an argument"),
        (Conversion(op="aten::no_such_op", args=[], note=""), "has no aten::no_such_op"),
        (Conversion(op="os.system", args=[], note=""), "is not an op"),
        (Conversion(op="prim::x", args=[], note=""), "policy: namespace prim"),
        (Conversion(op="aten::mm", args=[1], note=""), "aten::mm takes (scalar)"),
        (Conversion(op="aten::cudnn_convolution_relu", args=[], note=""), "aten::cudnn_convolution_relu"),
    ],
)
def test_a_conversion_that_fails_fails_its_op_alone(tmp_path: Path, made: Any, reason: str) -> None:
    @register_conversion("mylib::bad")
    def bad(call: RecordedCall) -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    plan = plan_of(tmp_path, event("mylib::bad", X), event("aten::relu", X))
    by_name = {op.name: op for op in plan.ops}
    assert reason in str(by_name["mylib::bad"].reason)
    assert by_name["aten::relu"].reason is None


def test_an_executor_that_fails_fails_its_op_alone(tmp_path: Path) -> None:
    @register_executor("mylib::bad")
    def bad(x: torch.Tensor) -> None:
        raise KeyError("gone")

    found = results(plan_of(tmp_path, event("mylib::bad", X), event("aten::relu", X)))
    assert (found["mylib::bad"].status, str(found["mylib::bad"].reason)) == ("failed", "failed: KeyError: 'gone'")
    assert found["aten::relu"].status == "replayed"


def test_arguments_that_an_executor_cannot_get_are_reasons(tmp_path: Path) -> None:
    @register_executor("mylib::one")
    def takes_one(x: torch.Tensor) -> None: ...

    assert "takes 1" in str(one(tmp_path, "mylib::one", X, X).reason)
    assert str(one(tmp_path, "mylib::one", ([], "Scalar", [], "")).reason) == "metadata missing: value of x"
    assert str(one(tmp_path, "mylib::one", ([], "TensorList", [], "")).reason) == (
        "metadata missing: shapes of tensor list x"
    )

    @register_executor("mylib::typed", schema="(Tensor x, *, int n=2) -> Tensor")
    def typed(x: torch.Tensor, *, n: int) -> torch.Tensor:
        return x * n

    assert "do not match" in str(one(tmp_path, "mylib::typed", ([], "Scalar", [], "1.5")).reason)
    made = one(tmp_path, "mylib::typed", X)
    assert [(arg.name, arg.value, arg.keyword_only) for arg in made.args] == [("x", None, False), ("n", 2, True)]


def test_what_an_executor_writes_to_is_reset_between_calls(tmp_path: Path) -> None:
    highest = []

    @register_executor("mylib::grow", mutates=("x",))
    def grow(x: torch.Tensor) -> None:
        highest.append(x.mul_(1e3).abs().max().item())

    plan = plan_of(tmp_path, event("mylib::grow", X))
    assert results(plan)["mylib::grow"].status == "replayed"
    assert highest.count(highest[0]) > 1  # how many calls there are depends on the machine


def test_ops_of_a_plan_with_named_arguments_find_their_executor() -> None:
    @register_executor("mylib::named", mutates=("x",))
    def named(x: torch.Tensor, n: int) -> None: ...

    args = (
        ReplayArg(name="x", type="Tensor", tensors=(TensorMeta(shape=(2,), dtype="float32"),)),
        ReplayArg(name="n", type="int", value=3),
    )
    op = ReplayOp(
        id="0" * 12, name="mylib::named", count=1, args=args, recorded=Recorded(host_us_total=1.0, host_us_median=1.0)
    )
    plan = ReplayPlan(source="t", device_us_total=0.0, host_us_total=1.0, ops=(op,))
    (made,) = resolve_named(plan, Policy()).ops
    assert (made.resolved_by, [arg.mutated for arg in made.args]) == ("executor", [True, False])


def test_a_fake_that_fails_leaves_the_outputs_unknown(tmp_path: Path) -> None:
    def fake(x: torch.Tensor) -> torch.Tensor:
        raise OSError

    @register_executor("mylib::faked", fake=fake)
    def run(x: torch.Tensor) -> torch.Tensor:
        assert not x.is_meta
        return x

    assert one(tmp_path, "mylib::faked", X).outputs is None


def test_registrations_are_checked() -> None:
    def f(x: torch.Tensor) -> None: ...

    for register, what in ((register_conversion, "conversion"), (register_executor, "executor")):
        register("mylib::f", "mylib::g_*")(f)
        for taken in ("mylib::f", "mylib::g_*"):
            with pytest.raises(UsageError, match=f"already has a user's {what} from .*test_user_code"):
                register(taken)(lambda call: None)
        for bad in ("f", "my*::f", "mylib::f.Tensor", "mylib::", "os.system"):
            with pytest.raises(UsageError, match="is not an op"):
                register(bad)(f)
        with pytest.raises(UsageError, match="at least one op"):
            register()(f)
    with pytest.raises(UsageError, match="is not a schema"):
        register_executor("mylib::h", schema="nonsense(")(f)
    with pytest.raises(UsageError, match="does not name an argument"):
        register_executor("mylib::h", mutates=("y",))(f)


def test_an_exact_name_goes_before_a_pattern_and_two_patterns_are_ambiguous(tmp_path: Path) -> None:
    @register_executor("mylib::a_*")
    def all_a(x: torch.Tensor) -> None: ...

    @register_executor("mylib::a_1")
    def a_1(x: torch.Tensor) -> None: ...

    @register_executor("mylib::*_2")
    def all_2(x: torch.Tensor) -> None: ...

    assert "a_1 (" in whats(one(tmp_path, "mylib::a_1", X))
    assert "all_a (" in whats(one(tmp_path, "mylib::a_9", X))
    assert "matches two user executors: mylib::a_* and mylib::*_2" in str(one(tmp_path, "mylib::a_2", X).reason)


def test_plugins_of_packages_are_loaded_and_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name, value = "mine", "package.ops"

        @staticmethod
        def load() -> None:
            register_executor("mylib::f")(lambda x: x)

    class Broken(Entry):
        @staticmethod
        def load() -> None:
            raise ImportError("no such thing")

    monkeypatch.setattr(user_code, "entry_points", lambda group: [Entry] if group == "opreplay.plugins" else [])
    before = plugins.registrations()
    plugins.load_plugins(installed=False)
    assert plugins.registrations() == before
    plugins.load_plugins()
    (found,) = [one for one in plugins.registrations() if one not in before]
    assert (found.kind, found.ops, found.source) == ("executor", ("mylib::f",), "entry point mine = package.ops")
    assert "test_user_code.py" in found.place
    monkeypatch.setattr(user_code, "entry_points", lambda group: [Broken])
    with pytest.raises(UsageError, match=r"plugin mine = package.ops fails: ImportError"):
        plugins.load_plugins()


@pytest.mark.parametrize("ops", [(None,), (len,)])
def test_an_executor_is_for_named_ops(ops: Any) -> None:
    """`@register_executor` without parentheses gets the function itself."""
    with pytest.raises(UsageError, match="needs the names of the ops"):
        register_executor(*ops)


def event_with_optional_list(at: int, *inside: list[int]) -> list[dict[str, Any]]:
    """A call of mylib::pick(Tensor x, Tensor?[] parts, int n) with calls inside; torch records the list like None."""
    strides = {8: [8, 1], 3: [3, 1], 2: [1]}
    args = {"Input Dims": [[8, 8], [], []], "Input type": ["float", "", "Scalar"], "Input Strides": [[8, 1], [], []]}
    base: dict[str, Any] = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    outer = {**base, "name": "mylib::pick", "ts": at, "dur": 90, "args": {**args, "Concrete Inputs": ["", "", "3"]}}
    children: list[dict[str, Any]] = []
    for place, dims in enumerate(inside):
        given = {"Input Dims": [dims, []], "Input type": ["double", ""], "Input Strides": [strides[dims[0]], []]}
        child = {**base, "name": "aten::sum", "ts": at + 10 + 10 * place, "dur": 5}
        children.append({**child, "args": {**given, "Concrete Inputs": ["", ""]}})
    return [outer, *children]


def pick(x: torch.Tensor, parts: list[torch.Tensor | None], n: int) -> torch.Tensor:
    return x + n + len([part for part in parts if part is not None])


@pytest.mark.slow
@pytest.mark.parametrize("schema", [None, "(Tensor x, Tensor?[] parts, int n) -> Tensor"])
@pytest.mark.parametrize("inside", [([3, 3], [8, 8], [2]), ([8, 8],), ()])
def test_a_list_of_optional_tensors_is_what_calls_inside_read_else_empty(
    tmp_path: Path, schema: str | None, inside: tuple[list[int], ...]
) -> None:
    register_executor("mylib::pick", schema=schema)(pick)
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": event_with_optional_list(100, *inside)}))
    plan = with_outputs(build_plan(read_trace(path)))
    (op,) = [op for op in plan.ops if op.name == "mylib::pick"]
    assert op.reason is None
    (parts,) = [arg for arg in op.args if arg.name == "parts"]
    expected = [(tuple(dims), "float64") for dims in inside if dims != [8, 8]]
    assert [(meta.shape, meta.dtype) for meta in parts.tensors if meta is not None] == expected
    assert [note.argument for note in op.assumptions if note.argument == "parts"] == ["parts"]
    assert results(plan)["mylib::pick"].status == "replayed"


def test_an_unrecorded_argument_that_is_no_list_is_none(tmp_path: Path) -> None:
    def with_optional(x: torch.Tensor, bias: torch.Tensor | None, n: int) -> torch.Tensor:
        return x + n if bias is None else x + bias

    register_executor("mylib::pick")(with_optional)
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": event_with_optional_list(100, [3, 3])}))
    (op,) = [op for op in build_plan(read_trace(path)).ops if op.name == "mylib::pick"]
    assert op.reason is None
    assert [arg.tensors for arg in op.args if arg.name == "bias"] == [()]
