"""What ships with opreplay fits a call or says why not; whatever else it raises is an internal error."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from click.testing import CliRunner

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.main import opreplay
from opreplay.initializers.base import InitContext, InitializerError
from opreplay.initializers.dense import DenseInit
from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.table import work_of
from opreplay.replay.ops.work.expected import contents_of
from opreplay.traces.errors import InternalError, lacks_memory
from opreplay.traces.samples import sample_path
from tests.initializers.mutated_calls import calls, scramble
from tests.replay.ops.names import counted_ops

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

REGISTRY = built_in()
COUNTERS = "opreplay.replay.ops.work.indices"
PARTS = 8
CALLS = 6


def ops() -> list[str]:
    return sorted({op for rule in built_in() for op in rule.op_patterns} | set(counted_ops()))


def attempts(context: InitContext) -> Iterator[str]:
    """Fill the call, count its work and its contents; what fitted."""
    registry, lengths = REGISTRY, None
    try:
        rule = registry.find(context)
        if rule is not None:
            lengths = registry.apply(rule, context).lengths
        yield "filled"
    except InitializerError:
        pass
    for _ in range(2):
        for what, count in (("counted", work_of), ("contents", contents_of)):
            try:
                if count(context, lengths) is not None:
                    yield what
            except InitializerError:
                pass
            except (MemoryError, RuntimeError) as error:
                if not lacks_memory(error):
                    raise
        scramble(context, random.Random(context.seed))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_every_initializer_and_counter_takes_or_refuses_any_call(part: int) -> None:
    outcomes: set[str] = set()
    for op in ops()[part::PARTS]:
        for context in calls(op, CALLS, seed=part):
            DenseInit().initialize(context)
            outcomes.update(attempts(context))  # raises InternalError for anything else
    assert outcomes == {"filled", "counted", "contents"}


def embedding() -> InitContext:
    args = {"weight": torch.zeros(8, 4), "indices": torch.zeros(5, dtype=torch.int64)}
    return InitContext(op="aten::embedding", args=args, generator=torch.Generator())


@pytest.mark.parametrize("error", [TypeError, ValueError, IndexError, RuntimeError, KeyError, ZeroDivisionError])
@pytest.mark.parametrize(
    ("what", "helper"),
    [("initializer index", "opreplay.initializers.fill.integers"), ("work counter", f"{COUNTERS}.distinct_of")],
)
def test_a_slip_in_a_helper_is_an_internal_error_that_names_the_op(
    what: str, helper: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, Mock(side_effect=error("a slip")))
    with pytest.raises(InternalError, match=f"{what}.*aten::embedding.*{error.__name__}"):
        list(attempts(embedding()))


@pytest.mark.parametrize("helper", ["opreplay.initializers.fill.integers", f"{COUNTERS}.distinct_of"])
def test_a_run_with_a_slip_ends_as_an_internal_error(
    helper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, Mock(side_effect=TypeError("a slip")))
    monkeypatch.setattr(
        "opreplay.replay.execute.options.RunOptions", partial(RunOptions, isolation="none")
    )  # where the slip is
    measured = tmp_path / "run.jsonl"
    chosen = [
        "--include",
        "aten::embedding",
        "--include",
        "aten::rms_norm",
        "--set",
        "op_time=10ms",
        "--check",
        "work",
    ]
    command = ["run", str(sample_path("transformer_infer")), *chosen, "--output", str(measured)]
    result = CliRunner().invoke(opreplay, command)
    assert result.exit_code == ExitCode.INTERNAL, result.output
    assert "aten::embedding" in result.stderr
    rows = [json.loads(line) for line in measured.read_text().splitlines()]
    status = {row["name"]: row["status"] for row in rows if row.get("name")}
    assert status["aten::rms_norm"] == "replayed"
    assert status["aten::embedding"] == "failed"
