"""Every op with a reference: its row says all that is asked of it, and what it says fits the schemas of the op."""

from __future__ import annotations

import inspect

import pytest
import torch

from opreplay.replay.ascend import lower
from opreplay.replay.ops import table
from opreplay.replay.ops.inputs import built_in
from tests.replay.ops.costs.vendor.test_every_stand_in import of_schema

table.load("references")
table.load("formulas")
ROWS = {row.name: row for row in table.rows() if row.references or row.formula}
INITIALIZERS = {rule.name for rule in built_in()}
SHAPES = ((64, 128), (4, 32, 64), (2, 8, 16, 32), (8,))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_complete_and_fits_the_schemas_of_its_op(name: str) -> None:
    row = ROWS[name]
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
            parameters = inspect.signature(function).parameters.values()
            assert {p.name for p in parameters if p.default is p.empty} <= arguments
    assert set(row.renames.values()) <= everywhere
    calls = (of_schema(name, v.schema, s, t) for v in row.references for s in SHAPES for t in ("bfloat16", "int8"))
    if row.uncosted:
        assert not any(lower(call).kernels for call in calls)
    else:
        assert table.cost_of(name) is not None, "add a cost, or `uncosted=` and the reason"
        assert any(lower(call).known for call in calls), "its cost asks for arguments that it does not have"
