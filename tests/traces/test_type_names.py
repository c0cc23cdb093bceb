"""Type names of builds of torch by different compilers, and names that are unknown."""

from __future__ import annotations

import pytest

from opreplay.replay.plan.recorded.groups import signature_id
from opreplay.traces.dtypes import CPP_SPELLINGS, ITEMSIZE_BYTES, common_spelling, torch_dtype_name, unknown_types
from opreplay.traces.model import OpSignature


@pytest.mark.parametrize(
    ("recorded", "dtype"),
    [
        ("__int64", "int64"),
        ("unsigned __int64", "uint64"),
        ("signed __int64", "int64"),
        ("struct c10::Half", "float16"),
        ("class c10::BFloat16", "bfloat16"),
        ("struct c10::Float8_e4m3fn", "float8_e4m3fn"),
        ("struct c10::complex<struct c10::Half>", "complex32"),
        ("struct c10::complex<double>", "complex128"),
        ("torch::headeronly::Half", "float16"),
        ("struct torch::headeronly::complex<float>", "complex64"),
        ("::at::BFloat16", "bfloat16"),
        ("c10::complex<c10::Half >", "complex32"),
        ("std::uint8_t", "uint8"),
        (" float ", "float32"),
        ("torch.bfloat16", "bfloat16"),
        ("structured", None),
        ("struct c10::Quux", None),
        ("enum c10::ScalarKind", None),
        ("float*", None),
        ("x" * 100_000, None),
    ],
)
def test_names_of_other_compilers(recorded: str, dtype: str | None) -> None:
    assert torch_dtype_name(recorded) == dtype


@pytest.mark.parametrize("prefix", ["struct ", "class ", "enum ", "::", "at::", "my::space::"])
def test_every_spelling_is_known_behind_a_prefix(prefix: str) -> None:
    assert {s: torch_dtype_name(prefix + s) for s in CPP_SPELLINGS} == CPP_SPELLINGS
    assert set(CPP_SPELLINGS.values()) <= set(ITEMSIZE_BYTES)


def test_words_for_arguments_that_are_no_tensors_are_known() -> None:
    known = ["", "Scalar", "ScalarList", "TensorList", "GenericList[Int,Int]", "Tuple[Int]", "None", "Device", "float"]
    assert unknown_types([*known, "Quux", "struct c10::Quux"]) == ["Quux", "struct c10::Quux"]


@pytest.mark.parametrize(
    ("recorded", "common"),
    [
        ("struct c10::Half", "c10::Half"),
        ("class c10::BFloat16", "c10::BFloat16"),
        ("struct c10::complex<float>", "c10::complex<float>"),
        ("__int64", "long int"),
        ("long", "long"),
        ("Scalar", "Scalar"),
        ("struct c10::Quux", "struct c10::Quux"),
    ],
)
def test_names_of_msvc_become_those_of_other_compilers(recorded: str, common: str) -> None:
    assert common_spelling(recorded) == common


def test_ids_of_ops_do_not_depend_on_the_compiler() -> None:
    def built_by(half: str, long: str) -> OpSignature:
        return OpSignature(name="aten::index", dims=((4, 4), (3,)), types=(half, long), list_types=((long,), ()))

    common = signature_id(built_by("c10::Half", "long int"))
    assert signature_id(built_by("struct c10::Half", "__int64")) == common
    assert signature_id(built_by("float", "__int64")) != common
