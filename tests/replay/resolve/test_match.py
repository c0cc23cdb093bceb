"""Recorded calls find their overload: each kind of argument, changed arity, and every schema of ATen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.bind import Unbound, bind
from opreplay.replay.resolve.guess.values import Context
from opreplay.replay.resolve.match import best_match, match_overload, unknown_code
from opreplay.replay.resolve.names import policy_verdict
from opreplay.replay.resolve.schema import ArgSpec, OpSpec, specs_of
from opreplay.traces.model import OpSignature

Arg = tuple[Any, str, Any, str]
"""dims, type, strides, concrete"""


def t(*shape: int, dtype: str = "float") -> Arg:
    return shape, dtype, tuple(range(len(shape), 0, -1)), ""


def s(text: str) -> Arg:
    return (), "Scalar", (), text


def ints(text: str) -> Arg:
    return (), "ScalarList", (), text


NONE: Arg = ((), "", (), "")


def call(name: str, *args: Arg) -> OpSignature:
    dims, types, strides, concrete = zip(*args, strict=True) if args else ((), (), (), ())
    return OpSignature(name=name, dims=dims, types=types, strides=strides, concrete=concrete)


def match(signature: OpSignature) -> tuple[str, dict[str, ReplayArg], dict[str, str]]:
    found = best_match(specs_of(signature.name), recorded_args(signature))
    assert found is not None
    args, notes = bind(found, Context())
    return found.spec.overload, {a.name: a for a in args}, {n.argument: n.what for n in notes}


@pytest.mark.parametrize(
    ("signature", "overload", "values"),
    [
        (call("aten::add", t(2, 3), t(2, 3), s("1")), "Tensor", {"alpha": 1}),
        (call("aten::add", t(2, 3), s("2.5"), s("1")), "Scalar", {"other": 2.5}),
        (call("aten::add", t(2, 3), t(2, 3), s("1"), t(2, 3)), "out", {}),
        (call("aten::mul", t(2, 3), ((), "double", (), "")), "Tensor", {}),
        (call("aten::sum", t(2, 3), ints("[0]"), s("True"), NONE), "dim_IntList", {"dim": (0,), "keepdim": True}),
        (call("aten::sum", t(2, 3), s("6")), "", {"dtype": "torch.float32"}),
        (call("aten::mean", t(2, 3, 4, 4), ints("[-1, -2]"), s("True"), NONE), "dim", {"dim": (-1, -2)}),
        (call("aten::to", t(2, 3), s("15"), s("False"), s("True"), NONE), "dtype", {"dtype": "torch.bfloat16"}),
        (
            call("aten::empty", ints("[2, 3]"), s("6"), s("0"), NONE, s("False"), s("2")),
            "memory_format",
            {"layout": "torch.strided", "memory_format": "torch.channels_last"},
        ),
        (call("aten::max", t(2, 3), s("-1"), s("False")), "dim", {"dim": -1}),
        (call("aten::clamp", t(3), s("-inf"), s("inf")), "", {"min": "-inf", "max": "inf"}),
        (call("aten::_foreach_add_", (((2,), (3,)), "TensorList", ((1,), (1,)), ""), s("-0.1")), "Scalar", {}),
        (call("aten::fill_", t(3, dtype="c10::complex<float>"), s("1+2j")), "Scalar", {"value": "1+2j"}),
        (
            call(
                "aten::convolution_backward",
                t(1, 2, 4, 4),
                t(1, 3, 4, 4),
                t(2, 3, 1, 1),
                ints("[2]"),
                ints("[1, 1]"),
                ints("[0, 0]"),
                ints("[1, 1]"),
                s("False"),
                ints("[0, 0]"),
                s("1"),
                ints("[True, True, False]"),
            ),
            "",
            {"output_mask": (True, True, False)},
        ),
    ],
)
def test_overload_and_values(signature: OpSignature, overload: str, values: dict[str, object]) -> None:
    found, args, _ = match(signature)
    assert found == overload
    assert {name: args[name].value for name in values} == values


def test_strings_take_the_schema_default_and_say_so() -> None:
    _, args, notes = match(call("aten::gelu", t(2, 3), NONE))
    assert args["approximate"].value == "none"
    assert notes["approximate"].startswith("'none' (schema default)")
    assert "'tanh' takes 3.6 x" in notes["approximate"], "what the other text would change"


def test_tensor_list_dtypes_come_from_siblings() -> None:
    lists = (((2, 3), (4, 3)), "TensorList", ((3, 1), (3, 1)), "")
    signature = call("aten::cat", lists, s("0"), t(6, 3, dtype="c10::Half"))
    overload, args, notes = match(signature)
    assert overload == "out"
    assert [m.dtype for m in args["tensors"].tensors if m] == ["float16", "float16"]
    assert "float16" in notes["tensors"]


def test_index_tensors_follow_from_the_values() -> None:
    _, args, notes = match(call("aten::_index_put_impl_", t(16, 27, 27), NONE, t(16, 351), s("True"), s("False")))
    assert [None if m is None else (m.shape, m.dtype) for m in args["indices"].tensors] == [
        None,
        ((351,), "int64"),
        ((351,), "int64"),
    ]
    assert "indices" in notes


def test_unsafe_index_put_is_replayed_with_its_checks() -> None:
    _, args, notes = match(call("aten::_index_put_impl_", t(4, 4), NONE, t(2, 4), s("True"), s("True")))
    assert (args["accumulate"].value, args["unsafe"].value) == (True, False)
    assert "unsafe" in notes


def test_fewer_arguments_than_the_schema_has_now() -> None:
    """_flash_attention_forward had 15 arguments when H100 traces of 2024 were recorded, and has 17 now."""
    q = t(8, 64, 4, 32, dtype="c10::Half")
    old = call(
        "aten::_flash_attention_forward",
        q,
        q,
        q,
        NONE,
        NONE,
        s("64"),
        s("64"),
        s("0."),
        s("False"),
        s("False"),
        s("0.125"),
        NONE,
        NONE,
        NONE,
        NONE,
    )
    overload, args, notes = match(old)
    assert (overload, len(args), args["scale"].value) == ("", 15, 0.125)
    assert "num_splits" in notes


def test_the_interpreter_stack_before_the_arguments_is_skipped() -> None:
    overload, args, notes = match(call("aten::linear", t(9, 9), t(7), t(2, 8), t(4, 8), t(4)))
    assert (overload, args["input"].tensors[0].shape) == ("", (2, 8))  # type: ignore[union-attr]
    assert "*" in notes


def test_missing_strides_and_values_are_assumptions() -> None:
    signature = OpSignature(name="aten::transpose", dims=((2, 3, 4), (), ()), types=("float", "Scalar", "Scalar"))
    _, args, notes = match(signature)
    assert (args["dim0"].value, args["dim1"].value) == (1, 2)
    assert set(notes) == {"dim0", "dim1", "*"}


def test_sizes_beyond_64_bits_are_no_integers() -> None:
    with pytest.raises(Unbound, match="64-bit"):
        match(call("aten::select", t(2, 3), s("0"), s("1" + "0" * 30)))


SYNTHETIC: dict[str, Arg] = {
    "Tensor": t(2, 3),
    "Tensor[]": (((2, 3), (4,)), "TensorList", ((3, 1), (1,)), ""),
    "int": s("1"),
    "bool": s("True"),
    "float": s("0.5"),
    "Scalar": s("0.5"),
    "complex": s("1+2j"),
    "str": NONE,
    "ScalarType": s("6"),
    "Layout": s("0"),
    "Device": NONE,
    "MemoryFormat": s("0"),
    "Generator": NONE,
    "int[]": ints("[1, 2]"),
    "bool[]": ints("[True, False]"),
    "float[]": ints("[0.5, 1.5]"),
    "Scalar[]": ints("[0.5, 1]"),
    "complex[]": ints("[1+2j]"),
    "str[]": NONE,
}


def synthetic(spec: OpSpec) -> OpSignature:
    """The event that the profiler would record for a call with every argument given."""

    def one(arg: ArgSpec) -> Arg:
        return NONE if arg.optional_elements else SYNTHETIC[arg.kind]

    return call(spec.name, *(one(arg) for arg in spec.args))


def test_every_schema_of_aten_matches_its_own_event() -> None:
    names = {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}
    checked = 0
    for name in names:
        specs = [spec for spec in specs_of(name) if policy_verdict(spec) is None]
        for spec in specs:
            recorded = recorded_args(synthetic(spec))
            best, own = best_match(specs, recorded), match_overload(spec, recorded)
            assert own is not None, spec.text
            assert best is not None
            assert best.cost <= own.cost, spec.text
            if best.cost == own.cost and best.spec is not spec:
                kinds = [(a.kind, a.optional) for a in best.spec.args], [(a.kind, a.optional) for a in spec.args]
                assert len(kinds[0]) == len(kinds[1]), f"{spec.text} is taken for {best.spec.text}"
            checked += 1
    assert checked > 2500


@pytest.mark.parametrize(
    ("name", "dims", "types", "argument", "value"),
    [
        ("aten::clamp", ((4,), (), ()), ("float", "Scalar", "Scalar"), "max", 1),
        ("aten::div_", ((4,), (), ()), ("long", "long", ""), "rounding_mode", "floor"),
        (
            "aten::convolution",
            ((1, 4, 8, 8), (6, 4, 3, 3), (6,), (), (), (), (), (), ()),
            ("float", "float", "float", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"),
            "padding",
            (1, 1),
        ),
        (
            "aten::native_layer_norm",
            ((2, 8), (), (8,), (8,), ()),
            ("float", "ScalarList", "float", "float", "Scalar"),
            "normalized_shape",
            (8,),
        ),
        ("aten::gather", ((4, 8), (), (4, 3), ()), ("float", "Scalar", "long", "Scalar"), "dim", 1),
        (
            "aten::tensordot",
            ((2, 5), (5, 3), (), ()),
            ("float", "float", "ScalarList", "ScalarList"),
            "dims_other",
            (0,),
        ),
        ("aten::split_with_sizes", ((9, 2), (), ()), ("float", "ScalarList", "Scalar"), "split_sizes", (5, 4)),
    ],
)
def test_values_that_follow_from_shapes(
    name: str, dims: tuple[Any, ...], types: tuple[str, ...], argument: str, value: object
) -> None:
    _, args, notes = match(OpSignature(name=name, dims=dims, types=types))
    assert args[argument].value == value
    assert argument in notes


def test_an_empty_list_of_an_execution_trace_is_one_of_tensors_too() -> None:
    """Fused optimizers take `max_exp_avg_sqs` empty without amsgrad; "GenericList[]" says no type of its elements."""
    lists = (((4,), (3,)), "TensorList", ((1,), (1,)), "")
    steps = (((), ()), "TensorList", ((), ()), "")
    numbers = [s(text) for text in ("0.001", "0.9", "0.999", "0.01", "1e-08", "False", "False")]
    overload, args, _ = match(
        call(
            "aten::_fused_adam_", lists, lists, lists, lists, ((), "ScalarList", (), "[]"), steps, *numbers, NONE, NONE
        )
    )
    assert overload == ""
    assert (args["max_exp_avg_sqs"].tensors, args["max_exp_avg_sqs"].value) == ((), ())


def test_a_value_that_an_execution_trace_cannot_write_is_not_known() -> None:
    _, args, notes = match(call("aten::fill_", t(4, dtype="c10::complex<float>"), s("<ComplexDouble>")))
    assert args["value"].value == 0
    assert "value" in notes


def test_the_text_of_an_assertion_is_left_out() -> None:
    _, args, notes = match(call("aten::_assert_async", t(dtype="bool"), s("probability tensor contains `inf`; <0!")))
    assert args["assert_msg"].value == ""
    assert "assert_msg" in notes


@pytest.mark.parametrize("code", [46, 99])
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::view", (t(4, 5, dtype="unsigned char"),)),
        ("aten::to", (t(4, 5),)),
        ("aten::zeros", (ints("[4, 5]"),)),
        ("aten::ones_like", (t(4, 5),)),
        ("aten::sum", (t(4, 5),)),
    ],
)
def test_a_number_that_is_no_type_code_is_refused(name: str, args: tuple[Arg, ...], code: int) -> None:
    rest = {
        "aten::to": (s("False"), s("False"), NONE),
        "aten::zeros": (NONE, NONE, s("False")),
        "aten::ones_like": (NONE, NONE, NONE, NONE),
    }.get(name, ())
    specs = specs_of(name)
    for number, refused_code in ((code, True), (45, False)):
        recorded = recorded_args(call(name, *args, s(str(number)), *rest))
        why = unknown_code(best_match(specs, recorded), specs, recorded)
        assert (why is not None and str(number) in why) is refused_code


def test_ordinary_numbers_are_not_taken_for_codes() -> None:
    for signature in (
        call("aten::arange", s("100"), NONE, NONE, NONE, NONE),
        call("aten::arange", s("0"), s("1000"), NONE, NONE, NONE, NONE),
        call("aten::full", ints("[4]"), s("70"), NONE, NONE, NONE, NONE),
        call("aten::view", t(8), ints("[64]")),
        call("aten::add", t(8), s("64"), s("1")),
        call("aten::cumsum", t(8), s("0"), NONE),
    ):
        recorded = recorded_args(signature)
        specs = specs_of(signature.name)
        assert unknown_code(best_match(specs, recorded), specs, recorded) is None
