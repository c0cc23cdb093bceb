"""Functions without a schema of a module that the user names: which attributes count, and how they are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import opreplay
from opreplay.cli.main import opreplay as command
from opreplay.initializers.user_code import load_user_code
from opreplay.replay import register_executor
from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.plan_file import dump_plan, parse_plan
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.defining_files import registered_by
from opreplay.replay.resolve.names import candidates, find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.results.reading import MemorySink
from opreplay.traces import read_trace
from tests.running import run_plan

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

X = ([8, 64], "float", [64, 1], "")
THREE = ([], "Scalar", [], "3")
MODULE = """
from functools import wraps
from os import system
from os.path import join
from shutil import rmtree
import torch

__all__ = ["join", "system", "exported"]
CALLED = []

def foo(x, y, n, mode="plain"):
    CALLED.append((x, y, n, mode))
    return x * n + y

def exec_text(command):
    return command

def _hidden(x):
    return x

class Klass:
    def __init__(self, x):
        pass

table = {}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module of this test alone: what was imported stays imported."""
    name = f"own_ops_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return name


def trace_of(folder: Path, name: str, *args: tuple[Any, str, Any, str]) -> Path:
    dims, types, strides, concrete = ([arg[i] for arg in args] for i in range(4))
    columns = {"Input Dims": dims, "Input type": types, "Input Strides": strides, "Concrete Inputs": concrete}
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 0, "dur": 50, "args": columns}
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    return path


def op_of(folder: Path, policy: Policy, name: str, *args: tuple[Any, str, Any, str]) -> ReplayOp:
    (op,) = build_plan(read_trace(trace_of(folder, name, *args)), policy=policy).ops
    return op


def test_a_function_of_the_named_module_runs_with_the_arguments_by_position(tmp_path: Path, module: str) -> None:
    policy = Policy(allow_imports={"own": module})
    trace = read_trace(trace_of(tmp_path, "own::foo", X, X, THREE))
    plan = build_plan(trace, policy=policy)
    assert parse_plan(dump_plan(plan)) == plan
    (op,) = plan.ops
    assert (op.resolved_by, op.schema, op.overload) == ("python function", None, None)
    assert [(arg.name, arg.value) for arg in op.args] == [("x", None), ("y", None), ("n", 3)]
    x = torch.ones(2)
    assert torch.equal(find_overload(op, policy)(x, x, 3), x * 4)
    assert [(one.argument, f"{module}.foo (" in one.what) for one in op.assumptions] == [("*", True)]
    for isolation in ("none", "process"):
        sink = MemorySink()
        options = RunOptions(isolation=isolation, op_time_s=0.002, allow_imports=policy.allow_imports)  # type: ignore[arg-type]
        run_plan(plan, options, sink=sink)
        assert [(one.status, one.resolved_by) for one in sink.results] == [("replayed", "python function")]


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("system", "policy"),  # a builtin of os, though listed in __all__
        ("rmtree", "policy"),  # shutil's, and not listed
        ("Klass", "policy"),
        ("table", "policy"),
        ("_hidden", "library missing"),
        ("__class__", "library missing"),
        ("no_such", "library missing"),
        ("foo.default", "library missing"),
        ("torch", "policy"),
        ("unsafe_foo", "policy"),
    ],
)
def test_a_trace_reaches_nothing_else_of_the_module(op: str, kind: str, module: str) -> None:
    found = candidates(f"own::{op}", Policy(allow_imports={"own": module}))
    assert (found.function, found.specs, found.reason and found.reason.kind) == (None, (), kind)


def test_what_the_module_lists_counts_and_texts_are_those_of_modes(tmp_path: Path, module: str) -> None:
    policy = Policy(allow_imports={"own": module})
    assert candidates("own::join", policy).function is not None
    text = ([], "String", [], "rm -r x")
    assert op_of(tmp_path, policy, "own::exec_text", text).reason is not None
    whole = op_of(tmp_path, policy, "own::foo", X, X, THREE, ([], "", [], ""))
    assert whole.reason is None


@pytest.mark.parametrize("library", ["os", "shutil", "torch", "builtins"])
def test_the_standard_library_and_torch_give_no_functions(library: str) -> None:
    for name in ("system", "removedirs", "rmtree", "load", "eval"):
        found = candidates(f"own_{library}::{name}", Policy(allow_imports={f"own_{library}": library}))
        assert (found.function, found.reason and found.reason.kind) == (None, "policy")


def test_without_the_users_word_no_module_is_looked_at(tmp_path: Path, module: str) -> None:
    __import__(module)
    found = candidates(f"{module}::foo", Policy())
    assert (found.function, found.reason and found.reason.kind) == (None, "policy")
    op = op_of(tmp_path, Policy(allow_imports={"own": module}), "own::foo", X, X, THREE)
    with pytest.raises(NotReplayable) as caught:
        find_overload(op, Policy())
    assert caught.value.reason.kind == "policy"


def test_each_stage_resolves_an_op_that_no_stage_before_it_has(tmp_path: Path, module: str) -> None:
    library = f"{module}_lib"
    (tmp_path / f"{library}.py").write_text(
        f"import torch\nlib = torch.library.Library('{library}', 'DEF')\nlib.define('twice(Tensor x) -> Tensor')\n"
        "lib.impl('twice', lambda x: x * 2, 'CompositeExplicitAutograd')\n"
    )
    plugin = tmp_path / "plug.py"
    plugin.write_text((tmp_path / f"{library}.py").read_text().replace(f"'{library}'", f"'{module}_plug'"))
    names = {
        "jit": "aten::relu",
        "torch.ops": f"{module}_plug::twice",
        "import": f"{library}::twice",
        "python function": "own::exported_late",
        "executor": "own::no_such",
    }
    (tmp_path / f"{module}.py").write_text(MODULE + "\ndef exported_late(x):\n    return x\n")
    policy = Policy(allow_imports={"own": module, library: library})
    before = {stage: op_of(tmp_path, Policy(), name, X).resolved_by for stage, name in names.items()}
    assert before == {**dict.fromkeys(names), "jit": "jit"}
    load_user_code(str(plugin), flag="--plugin")
    register_executor("own::no_such")(torch.relu)
    after = {stage: op_of(tmp_path, policy, name, X) for stage, name in names.items()}
    assert {stage: op.resolved_by for stage, op in after.items()} == {stage: stage for stage in names}
    assert registered_by(after["torch.ops"]) == f"--plugin {plugin}"
    assert registered_by(after["import"]) == library
    # The stage is the library's, whoever imported it first.
    assert op_of(tmp_path, policy, f"{library}::twice", X).resolved_by == "import"


def test_the_commands_and_the_library_run_it_and_a_bundle_refuses_it(tmp_path: Path, module: str) -> None:
    trace, allow = str(trace_of(tmp_path, "own::foo", X, X, THREE)), ("--allow-import", f"own={module}")

    def facts(*args: str) -> dict[str, Any]:
        done = CliRunner().invoke(command, [*args, *allow, "--format", "json"])
        assert done.exit_code == 0, done.output
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    planned = facts("plan", trace)["unique_ops"]
    assert [(op["resolved_by"], op["registered_by"]) for op in planned] == [("python function", None)]
    explained = CliRunner().invoke(command, ["plan", trace, *allow, "--explain", "own::foo"]).stdout
    assert "Python function" in explained
    assert "result = foo(x, y, 3)" in explained
    quick = ("--set", "op_time=2ms")
    for done in (facts("run", trace, *quick), facts("batch", trace, *quick)):
        assert [(op["status"], op["resolved_by"]) for op in done["ops"]] == [("replayed", "python function")]
    called = facts("op", "own::foo(f32[4], f32[4], 3)", *quick)
    assert "python function" in json.dumps(called)
    opened = opreplay.open(trace, allow_imports={"own": module})
    assert tuple(opened[0]().shape) == (8, 64)
    assert tuple(opreplay.op("own::foo(f32[4], f32[4], 3)", allow_imports={"own": module})().shape) == (4,)
    bundled = CliRunner().invoke(command, ["export", trace, *allow, "-o", str(tmp_path / "b")])
    assert "bundle cannot contain" in " ".join(bundled.output.split())
    with pytest.raises(NotReplayable, match="policy"):
        opreplay.op("own::foo(f32[4], f32[4], 3)")()


def test_an_import_that_fails_says_why(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}_broken.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    allowed = Policy(allow_imports={"own_broken": f"{module}_broken", "own_absent": "nowhere_at_all"})
    broken, absent = (candidates(f"own_{kind}::foo", allowed).reason for kind in ("broken", "absent"))
    assert broken is not None
    assert absent is not None
    assert (broken.kind, absent.kind) == ("library missing", "library missing")
    assert "RuntimeError: operator torchvision::nms does not exist" in broken.detail
    assert "nowhere_at_all" in absent.detail
