"""Every op with a reference: its row is complete and fits its schemas, its reference gives what its formula does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from opreplay.replay.ascend import lower
from opreplay.replay.check.calling.calls import Bench
from opreplay.replay.check.calling.target import OfNames, Reference, find_target
from opreplay.replay.check.cases import given_cases
from opreplay.replay.check.points.peak import arguments_for
from opreplay.replay.check.points.values import against_reference
from opreplay.replay.execute.executors.make import make_executor
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.host.libraries import LIBRARY_OF
from opreplay.replay.ops import table
from opreplay.replay.ops.calls import arguments_read
from opreplay.replay.ops.catalog import LIBRARIES
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.register import register_namespace
from tests.replay.ops.costs.vendor.test_every_stand_in import of_schema
from tests.replay.ops.formulas.formula import all_formulas

table.load("references")
FORMULAS = all_formulas()
ROWS = {row.name: row for row in table.rows() if row.references or row.name in FORMULAS}
INITIALIZERS = {rule.name for rule in built_in()}
CALLS = [(name, text) for name, formula in FORMULAS.items() for text in formula.calls]
SHAPES = ((64, 128), (4, 32, 64), (2, 8, 16, 32), (8,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_complete_and_fits_the_schemas_of_its_op(name: str) -> None:
    row = ROWS[name]
    namespace = name.partition("::")[0]
    assert namespace in LIBRARY_OF, f"add {namespace} to `LIBRARIES` of replay/host/libraries.py"
    assert namespace in LIBRARIES, f"add {namespace} to `LIBRARIES` of replay/ops/catalog.py"
    assert row.family, "add it to `families.py` of its folder"
    assert row.references, "a formula checks a reference, and there is none"
    assert not row.inputs or set(row.inputs.split(",")) <= INITIALIZERS
    everywhere = set[str]()
    for version in row.references:
        assert version.run.__module__.split(".")[3] == row.folder
        schema = torch._C.parse_schema(version.schema)
        arguments = {argument.name for argument in schema.arguments}
        everywhere |= arguments
        assert schema.name == name
        for function in (version.run, version.fake or version.run):
            needed = {version.renames.get(name, name) for name, needed in arguments_read(function).items() if needed}
            assert row.like or needed <= arguments
        assert set(version.into) <= arguments
    assert {ours.partition(".")[0] for version in row.references for ours in version.renames.values()} <= everywhere
    calls = (of_schema(name, v.schema, s, t) for v in row.references for s in SHAPES for t in ("bfloat16", "int8"))
    if row.uncosted:
        assert not any(lower(call).kernels for call in calls)
    else:
        assert table.cost_of(name) is not None, "add a cost, or `uncosted=` and the reason"
        assert any(lower(call).known for call in calls), "its cost asks for arguments that it does not have"


@pytest.fixture(scope="module")
def executor() -> Iterator[TorchExecutor]:
    made = make_executor(WorkerConfig(options=RunOptions(device="cpu"), memory_bytes=1 << 30))
    assert isinstance(made, TorchExecutor)
    yield made
    made.close()  # torch's settings are those of the process


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), CALLS, ids=[f"{name} {text}" for name, text in CALLS])
def test_a_reference_gives_what_the_formula_does(
    name: str, text: str, executor: TorchExecutor, call: Callable[..., Any]
) -> None:
    """And writes to what its schema marks, and has the same results on meta tensors and on a GPU."""
    register_namespace(name.partition("::")[0])
    target = find_target(name)
    overload = target.specs[0].overload
    (case, *_) = given_cases(text, name, [spec for spec in target.specs if spec.overload == overload])
    reference = Reference(text="formula", function=OfNames(FORMULAS[name].compute))
    bench = Bench(target=target, reference=reference, executor=executor, seed=0, bases=[case], compact_bases=[case])
    finding = against_reference(bench, case)
    assert finding.verdict == "pass", finding.detail
    call(name, overload or "default", **arguments_for(bench, case).values)


def test_most_ops_have_a_formula() -> None:
    assert len(FORMULAS) >= 625
    assert len(ROWS.keys() - FORMULAS) <= 153, "write a formula for each new op"
