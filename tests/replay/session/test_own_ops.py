"""Ops that this program put into torch, in both forms of measuring, and where workers get them from."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import opreplay
from opreplay.replay.execute.options import RunOptions
from opreplay.traces.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

QUICK = RunOptions(op_time_s=0.005)
CALL = "(f32[4,8], f32[4,8])"


def defined(namespace: str) -> str:
    return (
        f"import torch\nlib = torch.library.Library({namespace!r}, 'DEF')\n"
        "lib.define('my_add(Tensor x, Tensor y) -> Tensor')\n"
        "lib.impl('my_add', lambda x, y: x + y, 'CompositeExplicitAutograd')\n"
    )


def trace_of(folder: Path, name: str) -> Path:
    columns: dict[str, Any] = {"Input Dims": [[4, 8]] * 2, "Input type": ["float"] * 2, "Input Strides": [[8, 1]] * 2}
    args = {**columns, "Concrete Inputs": ["", ""]}
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 0, "dur": 50, "args": args}
    path = folder / f"{name.partition('::')[0]}.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    return path


@torch.library.custom_op("own_session::decorated", mutates_args=())
def decorated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


decorated.register_fake(lambda x, y: torch.empty_like(x))
lib = torch.library.Library("own_session", "DEF")
lib.define("my_add(Tensor x, Tensor y) -> Tensor")
lib.impl("my_add", lambda x, y: x + y, "CompositeExplicitAutograd")
torch.library.define("own_session::called", "(Tensor x, Tensor y) -> Tensor", lib=lib)
lib.impl("called", lambda x, y: x + y, "CompositeExplicitAutograd")


@pytest.mark.parametrize("name", ["my_add", "decorated", "called"])
def test_an_op_of_this_program_is_measured_here_whatever_the_options_say(name: str, tmp_path: Path) -> None:
    op = opreplay.op(f"own_session::{name}{CALL}")
    assert op().shape == (4, 8)
    assert op.measure(options=QUICK).median_us > 0
    with pytest.raises(UsageError) as alone:
        op.measure(options=RunOptions(op_time_s=0.005, isolation="process"))
    trace = opreplay.open(trace_of(tmp_path, f"own_session::{name}"))
    with pytest.raises(UsageError) as whole:
        opreplay.run(trace, options=QUICK)
    for caught in (alone, whole):
        assert f"own_session::{name}" in str(caught.value)
        assert "plugins" in caught.value.hint
        assert "isolation" in caught.value.hint
    here = opreplay.run(trace, options=RunOptions(op_time_s=0.005, isolation="none"))
    assert [result.status for result in here.ops] == ["replayed"]


def test_what_a_trace_is_opened_with_workers_have_too(tmp_path: Path) -> None:
    namespace = f"own_opened_{abs(hash(tmp_path))}"
    file, folder = tmp_path / "ops.py", tmp_path / "folder"
    folder.mkdir()
    file.write_text(defined(namespace))
    (folder / "more.py").write_text(defined(f"{namespace}_more"))
    first, second = (trace_of(tmp_path, f"{namespace}{end}::my_add") for end in ("", "_more"))
    traces = (opreplay.open(first, plugins=(str(file),)), opreplay.open(second, custom_op_dirs=(str(folder),)))
    for trace in traces:
        assert [result.status for result in opreplay.run(trace, options=QUICK).ops] == ["replayed"]
    op = opreplay.op(f"{namespace}::my_add{CALL}", plugins=(str(file),))
    assert op.measure(options=RunOptions(op_time_s=0.005, isolation="process")).median_us > 0


def test_a_run_tells_the_isolation_it_chose(tmp_path: Path) -> None:
    done = opreplay.run(trace_of(tmp_path, "aten::add"), options=RunOptions(executor="fake"))
    assert done.header is not None
    assert done.header.options["isolation"] == "process"
