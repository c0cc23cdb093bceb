"""The table of ops: what a line of a family gives, what is refused, and that each row names what exists."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import sleep

import pytest

from opreplay.initializers.rules import domains, indices, row_numbers
from opreplay.replay.ops import table
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.declared import declare_like
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.table import COUNTERS, counter_of, family, find, load, rows
from tests.replay.ops.names import counted_ops


@pytest.fixture
def scratch() -> Iterator[None]:
    """Rows of the namespace `table_test` are gone afterwards."""
    load("families")
    yield
    for name in [name for name in table._rows if name.startswith("table_test::")]:
        del table._rows[name]


@pytest.mark.usefixtures("scratch")
def test_a_line_gives_its_ops_what_differs() -> None:
    lines = "table_test::a table_test::b kernel=Gelu\n table_test::c kernel=Sort inputs=moe_routing role=chosen"
    family("activations", "gates", lines, kernels=shared.widest, inputs="domain")
    a, b, c = (find(f"table_test::{name}") for name in "abc")
    assert a is not None
    assert b is not None
    assert c is not None
    assert (a.inputs, a.role, a.folder, a.family) == ("domain", "", "activations", "gates")
    assert (c.inputs, c.role, counter_of(c.name).__name__) == ("moe_routing", "chosen", "count_chosen")
    assert [one.cost.__name__ for one in (a, b, c) if one.cost is not None] == ["widest_Gelu"] * 2 + ["widest_Sort"]


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("line", ["table_test::a colour=red", "table_test::a kernel=Gelu", "table_test::a cost=gelu"])
def test_what_a_row_does_not_have_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="sets an unknown key"):
        family("activations", "gates", line)


def test_an_op_like_another_has_its_reference_under_its_own_names() -> None:
    load("references")
    theirs, ours = find("flash_attn_3::fwd"), find("flash_attn_3::_flash_attn_forward")
    assert theirs is not None
    assert ours is not None
    names = set(ours.references[0].takes)
    assert {"qv", "causal"} <= names
    assert not {"q_v", "is_causal"} & names
    assert ours.references[0].run is theirs.references[0].run


@pytest.mark.parametrize("renames", [{"q_w": "qv"}, {"q_v": "qw"}])
def test_a_rename_of_no_argument_is_refused(renames: dict[str, str]) -> None:
    row = table.Row("flash_attn_3::_flash_attn_forward", like="flash_attn_3::fwd", renames=renames)
    with pytest.raises(ValueError, match="no such argument"):
        declare_like(row)


def test_an_op_like_one_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="no reference of its own"):
        declare_like(table.Row("flash_attn_3::_flash_attn_forward", like="flash_attn_3::nothing"))


@pytest.mark.usefixtures("scratch")
def test_an_op_is_in_one_family_and_costs_once() -> None:
    family("activations", "gates", "table_test::a", cost=shared.anti_quantize)
    with pytest.raises(ValueError, match="table_test::a already has its family"):
        family("activations", "others", "table_test::a", cost=shared.anti_quantize)
    with pytest.raises(ValueError, match="table_test::a already has its cost"):
        table.costs("table_test::a")(shared.anti_quantize)


def test_each_row_names_an_initializer_and_a_counter_that_exist() -> None:
    known = {rule.name for rule in built_in()}
    named = {name for row in rows() if row.inputs for name in row.inputs.split(",")}
    assert named <= known
    roles = {f"{row.inputs} {row.role}" for row in rows() if row.role}
    assert set(COUNTERS) <= named | roles
    assert all(callable(counter_of(name)) for name in counted_ops())


@pytest.mark.parametrize(
    ("initializer", "table"),
    [("index", indices.RANGES), ("domain", domains.DOMAINS)],
)
def test_what_says_how_arguments_are_filled_is_for_the_ops_that_are_filled_so(initializer: str, table: object) -> None:
    # A vendor's op says it in its role.
    assert set(table) == {r.name for r in rows() if r.inputs == initializer and not r.role}  # type: ignore[call-overload]


def test_each_way_to_fill_row_numbers_is_some_ops_role() -> None:
    assert set(row_numbers.ROLES) == {row.role for row in rows() if row.inputs == "row_numbers"}


def test_threads_that_ask_for_references_at_once_all_get_them() -> None:
    row, both = table.Row("table_test::slow"), Barrier(2)
    known = table.Reference(name=row.name, overload="", schema="", since="", run=len, fake=None)

    def declare() -> None:
        sleep(0.05)
        row.declared.append(known)

    def ask() -> list[table.Reference]:
        both.wait()
        return list(row.references)

    row.declarations.append(declare)
    with ThreadPoolExecutor(2) as pool:
        assert [one.result() for one in (pool.submit(ask), pool.submit(ask))] == [[known]] * 2
