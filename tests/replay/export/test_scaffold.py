"""Files of `opreplay new`: each runs at once, for ops of public traces too; nothing of a trace becomes code."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner

import opreplay
from opreplay.cli.main import opreplay as command
from opreplay.replay.export.scaffold import KINDS, Kind, scaffold
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.plan_file import dump_plan
from opreplay.replay.ir.sizes import need_of
from opreplay.replay.ops.inputs import open_registry
from opreplay.replay.ops.register import stand_in_of
from opreplay.replay.ops.work.expected import stand_ins
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import sample_path
from tests.forked_children import opreplay_here, python_module

pytestmark = pytest.mark.slow

TRACES = ("mi300_vllm_piecewise_exec", "mi300_sglang_prefilldecode", "npu_alexnet_trace_view", "h100_bert_small")
NEEDED = 20
MOST_BYTES = 64 << 20
"""Of an op whose call is made in a test."""


def text_of(kind: Kind, op: ReplayOp) -> str:
    rule = open_registry(plugins=False).find(stand_ins(op, 0, whole=False))
    has_stand_in = stand_in_of(op.called) is not None
    return scaffold(kind, op, trace="trace.json.gz", initializer=rule, has_stand_in=has_stand_in)


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    """Each file in a process's import of its own, as a user's pytest does it."""
    given = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", "/dev/null", str(folder))
    return python_module("pytest", *given, timeout=400)


@pytest.fixture(scope="module")
def public_ops(shared_traces: Path) -> list[ReplayOp]:
    """One op a name of public traces, those with most time of each first."""
    ops: dict[str, ReplayOp] = {}
    for trace in TRACES:
        for op in opreplay.open(shared_traces / f"{trace}.json.gz").plan.ops:
            if op.reason is None and op.args and need_of(op).total <= MOST_BYTES:
                ops.setdefault(op.called, op)
    return list(ops.values())


@pytest.mark.parametrize("kind", KINDS)
def test_files_for_ops_of_public_traces_run_at_once(kind: Kind, public_ops: list[ReplayOp], tmp_path: Path) -> None:
    written = 0
    for op in public_ops:
        if written == NEEDED:
            break
        try:
            text = text_of(kind, op)
        except UsageError:
            assert kind == "tile"  # of integers, or not contiguous
            continue
        (tmp_path / f"test_{op.called.replace('::', '_')}.py").write_text(text)
        written += 1
    assert written == NEEDED
    done = run_tests(tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{NEEDED} passed" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_writes_a_file_whose_test_passes(kind: Kind, tmp_path: Path) -> None:
    file = tmp_path / "test_mine.py"
    args = ["new", kind, "aten::rms_norm", "--trace", str(sample_path("transformer_infer")), "--output", str(file)]
    done = CliRunner().invoke(command, args)
    assert done.exit_code == 0, done.output
    assert str(file) in done.output
    assert "aten::rms_norm(" in file.read_text()
    ran = run_tests(file)
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert CliRunner().invoke(command, args).exit_code == 2  # it is there
    assert CliRunner().invoke(command, [*args, "--force"]).exit_code == 0


def test_an_initializer_without_a_built_in_one_writes_valid_indices() -> None:
    op = opreplay.op("aten::silu(f32[4,8])").ir
    (arg,) = op.args
    index = msgspec.structs.replace(
        arg, name="where", tensors=(msgspec.structs.replace(arg.tensors[0], dtype="int64"),)
    )
    text = scaffold(
        "initializer",
        msgspec.structs.replace(op, args=(arg, index)),
        trace="t",
        initializer=None,
        has_stand_in=False,
    )
    assert "context.need('self').normal_(" in text
    assert "context.need('where').random_(0, 4," in text


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_a_trace_are_no_code(kind: Kind) -> None:
    op = opreplay.op("aten::silu(f32[4,8])").ir
    evil = '"""\nimport os\nos.system("x")\n"""'
    hostile = msgspec.structs.replace(op, schema=f"aten::silu({evil}) -> Tensor", overload=evil)
    tree = ast.parse(scaffold(kind, hostile, trace=evil, initializer=None, has_stand_in=True))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names <= {"torch", "opreplay"}
    for wrong in (
        msgspec.structs.replace(op, name=f"aten::silu{evil}"),
        msgspec.structs.replace(op, args=(msgspec.structs.replace(op.args[0], name="x): pass #"),)),
        msgspec.structs.replace(op, args=(msgspec.structs.replace(op.args[0], name="lambda"),)),
        msgspec.structs.replace(op, args=()),
    ):
        if kind in ("estimator",) and wrong.args and wrong.name == op.name:
            continue
        with pytest.raises(UsageError):
            scaffold(kind, wrong, trace="t", initializer=None, has_stand_in=False)


def test_an_op_of_a_plugin_has_a_file_that_loads_it(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\n\n\n"
        '@torch.library.custom_op("scaffolded::halved", mutates_args=())\n'
        "def halved(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x / 2\n"
    )
    record = tmp_path / "record.py"
    record.write_text(
        "import sys\nimport torch\nimport own\n\n"
        "with torch.profiler.profile(record_shapes=True) as profile:\n"
        "    torch.ops.scaffolded.halved(torch.randn(8, 8))\n"
        "profile.export_chrome_trace(sys.argv[1])\n"
    )
    trace = tmp_path / "trace.json"
    subprocess.run([sys.executable, record, trace], check=True, cwd=tmp_path, capture_output=True)
    target = tmp_path / "test_new.py"
    line = ("new", "op", "scaffolded::halved", "--trace", trace, "-o", target, "--plugin", own)
    done = opreplay_here(*line)
    assert done.returncode == 0, done.stderr
    assert "load_plugins" in target.read_text()
    assert run_tests(tmp_path).returncode == 0


def test_an_op_whose_library_is_not_here_gets_a_body_to_write(tmp_path: Path) -> None:
    plan, file = tmp_path / "plan.json", tmp_path / "test_mine.py"
    whole = opreplay.capture(torch.relu, torch.randn(3))
    plan.write_bytes(dump_plan(whole).replace(b"aten::relu", b"elsewhere::relu"))
    done = CliRunner().invoke(command, ["new", "op", "elsewhere::relu", "--trace", str(plan), "-o", str(file)])
    assert (done.exit_code, "NotImplementedError" in done.stderr) == (0, True)
    body = "raise NotImplementedError('compute elsewhere::relu(Tensor self) -> Tensor')"
    file.write_text(file.read_text().replace(body, "return self.clamp(min=0)"))
    ran = run_tests(file)
    assert ran.returncode == 0, ran.stdout[-3000:]
    refused = CliRunner().invoke(command, ["new", "initializer", "elsewhere::relu", "--trace", str(plan), "-o", "x.py"])
    assert (refused.exit_code, "--plugin FILE" in refused.stderr) == (2, True)
    assert "Take another op" not in refused.stderr
    assert "--allow-import" not in refused.stderr  # an option that `new` does not have
