"""Declaring, versioning and registering; the real op always wins."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from opreplay.replay.ops import catalog, table
from opreplay.replay.ops import register as reference
from opreplay.replay.ops import register as registry
from opreplay.replay.ops.declared import published, schemas_in, stands_for

SCHEMAS = Path(__file__).parents[4].parent / "shared" / "design" / "vendor_op_schemas.csv"


def test_registering_twice_returns_the_same_names() -> None:
    first = reference.register_namespace("_C")
    assert "_C::rms_norm" in first
    assert reference.register_namespace("_C") == first
    assert reference.is_reference("_C::rms_norm")
    assert not reference.is_reference("aten::mm")


def test_unknown_namespace_registers_nothing() -> None:
    assert reference.register_namespace("no_such_library") == ()
    assert catalog.library_of("no_such_library") is None
    assert catalog.library_of("_moe_C") == "vllm"


def test_every_namespace_has_a_library_and_ops() -> None:
    found = reference.implemented()
    assert set(found) == set(catalog.LIBRARIES)
    assert all(found.values())
    assert sum(map(len, found.values())) > 250


def test_all_versions_reach_the_dispatcher_newest_first() -> None:
    versions = {row.name: row.references for row in table.rows()}
    for namespace in catalog.LIBRARIES:
        for name in reference.register_namespace(namespace):
            overloads = {schema.overload_name for schema in torch._C._jit_get_schemas_for_operator(name)}
            assert len(overloads) == len(versions[name]), name
    overloads = torch._C._jit_get_schemas_for_operator("_C::rotary_embedding")
    assert {schema.overload_name for schema in overloads} == {"", "since_20240609"}


def test_an_op_that_exists_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    library = torch.library.Library("opreplay_test_real", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    monkeypatch.setitem(catalog.LIBRARIES, "opreplay_test_real", "nothing")
    try:
        reference.reference("opreplay_test_real::twice(Tensor x) -> Tensor")(lambda x: x * 3)
        reference.reference("opreplay_test_real::thrice(Tensor x) -> Tensor")(lambda x: x * 3)
        assert reference.register_namespace("opreplay_test_real") == ("opreplay_test_real::thrice",)
        x = torch.ones(2)
        assert torch.ops.opreplay_test_real.twice(x).tolist() == [2, 2]
        assert torch.ops.opreplay_test_real.thrice(x).tolist() == [3, 3]
        assert not reference.is_reference("opreplay_test_real::twice")
    finally:
        for name in ("twice", "thrice"):
            table._rows.pop(f"opreplay_test_real::{name}", None)
        registry._registered.pop("opreplay_test_real::thrice", None)
        registry._libraries.pop("opreplay_test_real")._destroy()
        library._destroy()


def test_declaring_twice_is_refused() -> None:
    reference.register_namespace("_C")
    with pytest.raises(ValueError, match="declared twice"):
        reference.reference("_C::mul_and_silu(Tensor! out, Tensor input) -> ()", since="2025-01-15")(lambda out: None)
    with pytest.raises(ValueError, match="not a qualified op name"):
        reference.reference("mul_and_silu(Tensor x) -> Tensor")(lambda x: x)


def test_a_function_that_wants_other_arguments_is_refused() -> None:
    stands_for("_C::rms_norm")(lambda y: y)
    with pytest.raises(ValueError, match="no version of _C::rms_norm has all of y: give y a default"):
        table.row("_C::rms_norm").declared_references()


@pytest.mark.parametrize(
    ("recorded", "canonical"),
    [
        ("_rocm_C::wvSpltK", "_rocm_C::wvSplitK"),
        ("sglang_profiler::rmsnorm_rmsnorm2d_fwd_109", "sglang_profiler::rmsnorm_rmsnorm2d_fwd"),
        ("sglang_profiler::something_else_7", "sglang_profiler::something_else_7"),
        ("aten::mm", "aten::mm"),
    ],
)
def test_canonical_names(recorded: str, canonical: str) -> None:
    assert reference.canonical_name(recorded) == canonical


def test_schemas_are_those_of_the_libraries() -> None:
    """Argument types and keyword-only marks equal a published version; names and write marks may be more exact."""
    if not SCHEMAS.exists():
        pytest.skip("the table of published schemas is not beside the repository")
    published: dict[str, list[list[tuple[str, bool]]]] = {}
    with SCHEMAS.open() as file:
        for row in csv.DictReader(file):
            name = f"{row['namespace']}::{row['op'].partition('.')[0]}"
            published.setdefault(name, []).append(_signature(row["schema"]))
    reference.implemented()
    strangers = [
        f"{name} {version.since}"
        for name, versions in ((known.name, known.references) for known in table.rows())
        for version in versions
        if version.since and _signature(version.schema) not in published.get(name, [])
    ]
    # Wider than published where one version then covers two.
    assert sorted(strangers) == [
        "aiter::fmha_v3_varlen_fwd 2025-12-18",
        "aiter::fmha_v3_varlen_fwd 2026-03-09",
        "fbgemm::split_embedding_codegen_forward_cpu 2023-09-27",
        "npu::npu_format_cast 2023-08-28",
    ]


def _signature(schema: str) -> list[tuple[str, bool]]:
    arguments = torch._C.parse_schema(schema).arguments
    return [(str(argument.type).replace("SymInt", "int"), argument.kwarg_only) for argument in arguments]


@pytest.mark.parametrize("namespace", ["../schemas/_C", "/etc/_C", "n" * 5000, "a\0b", ""])
def test_a_namespace_of_a_trace_names_no_other_file(namespace: str) -> None:
    assert schemas_in("_C")
    assert published(f"{namespace}::rms_norm") == ()
    assert schemas_in(namespace) == {}
