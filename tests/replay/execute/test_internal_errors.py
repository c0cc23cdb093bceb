"""A missing name in code of opreplay's own is an internal error of the op, whoever called it; a refusal is not."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.main import opreplay
from opreplay.initializers import applying
from opreplay.initializers.base import InitContext, InitializerError
from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ir.reasons import reason_for
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.register import register_namespace
from opreplay.traces import errors
from opreplay.traces.errors import InternalError, is_own_fault


def context() -> InitContext:
    index = torch.zeros(4, dtype=torch.int64)
    return InitContext(op="aten::embedding", args={"indices": index}, metas={}, generator=torch.Generator(), seed=0)


def raised(code: str, place: str | Path) -> Exception:
    try:
        FunctionType(compile(code, str(place), "exec"), {})()
    except Exception as error:
        return error
    raise AssertionError(code)


OURS = Path(errors.__file__).parents[1] / "replay" / "ops" / "norms" / "reference_npu.py"


TAKES_ONE = "def scaled(x):\n    return x + None\n"


@pytest.mark.parametrize(
    "code",
    [
        "None.shape",
        "no_such_name",
        "{}[0]",
        "import opreplay.gone",
        "from opreplay.traces.errors import gone",
        f"{TAKES_ONE}scaled(1, 2)",
        f"{TAKES_ONE}scaled(1, factor=2)",
        f"{TAKES_ONE}scaled()",
    ],
)
def test_a_name_that_a_line_of_ours_lacks_is_an_internal_error(code: str) -> None:
    assert is_own_fault(raised(code, OURS))
    reason = reason_for(raised(code, OURS))
    assert reason.kind == "internal error"
    assert reason.status == "failed"
    assert OURS.name in reason.detail


@pytest.mark.parametrize("code", ["None.shape", "no_such_name", "import opreplay.gone", f"{TAKES_ONE}scaled()"])
def test_one_that_a_users_file_lacks_is_not(code: str, tmp_path: Path) -> None:
    assert reason_for(raised(code, tmp_path / "replay" / "mine.py")).kind == "failed"


@pytest.mark.parametrize(
    "code",
    [
        "1 + ''",
        "().index(1)",
        "[][0]",
        "raise RuntimeError('shapes')",
        "import no_such_library",
        "rows, columns = (1, 2, 3)",
        f"{TAKES_ONE}scaled(1)",
        f"{TAKES_ONE}scaled(*(1, 2))",
        "import torch\ntorch.zeros('four')",
        "import torch\ntorch.finfo(torch.int8)",
        "import torch\ntorch.relu(torch.ones(1), 2)",
    ],
)
def test_a_refusal_of_arguments_is_not(code: str) -> None:
    assert reason_for(raised(code, OURS)).kind == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["applies_to", "initialize"])
@pytest.mark.parametrize("error", [AttributeError, TypeError, IndexError, RuntimeError])
def test_a_fault_of_an_initializer_is_named_with_the_op(
    method: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that ships with opreplay; a user's, here a subclass of it, may raise anything."""

    def fails(*_: object) -> Any:
        raise error("a slip")

    rule = built_in().rules_for("aten::embedding")[0]
    mine = type("Mine", (type(rule),), {"__module__": "mine"})()
    call = applying.applies if method == "applies_to" else applying.apply
    monkeypatch.setattr(type(rule), method, fails)
    with pytest.raises(InternalError, match=f"{rule.name}.*aten::embedding.*{Path(__file__).name}"):
        call(rule, context())
    with pytest.raises(InitializerError):
        call(mine, context())


@pytest.mark.parametrize("slip", ["no such function", "another signature"])
def test_a_run_with_a_slip_in_a_stand_in_ends_as_an_internal_error(
    slip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_namespace("_C")
    if slip == "no such function":
        monkeypatch.delattr("opreplay.replay.ops.norms.reference_aiter.rms_norm")
    else:
        renamed = FunctionType(compile("def rms_norm(): ...", str(OURS), "exec").co_consts[0], {})
        monkeypatch.setattr("opreplay.replay.ops.norms.reference_aiter.rms_norm", renamed)
    monkeypatch.setattr("opreplay.replay.execute.options.RunOptions", partial(RunOptions, isolation="none"))
    args = {
        "Input Dims": [[4, 8], [4, 8], [8], []],
        "Input type": ["float", "float", "float", "Scalar"],
        "Input Strides": [[8, 1], [8, 1], [1], []],
        "Concrete Inputs": ["", "", "", "1e-06"],
    }
    event = {"ph": "X", "cat": "cpu_op", "name": "_C::rms_norm", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": args}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [event]}))
    result = CliRunner().invoke(opreplay, ["run", str(trace), "--set", "op_time=5ms"])
    assert result.exit_code == ExitCode.INTERNAL, result.output
    assert "_C::rms_norm" in result.stderr
