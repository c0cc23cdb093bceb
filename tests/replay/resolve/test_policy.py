"""What may run: names, arguments, values and imports."""

from __future__ import annotations

import pytest

from opreplay.replay.ir.names import split_name
from opreplay.replay.resolve.policy import Policy, named_modules, refuse_arguments, refuse_name, refuse_value
from opreplay.traces.errors import UsageError


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("aten::mm", ("aten", "mm", None)),
        ("aten::add.Tensor", ("aten", "add", "Tensor")),
        ("_rocm_C::wvSplitK", ("_rocm_C", "wvSplitK", None)),
        ("mm", None),
        ("aten::mm::x", None),
        ("aten::mm ", None),
        ("aten::mm\n", None),
        ("a.b::c", None),
        ("autograd::engine::evaluate_function: MmBackward0", None),
        ("aten::__class__.__init__.x", None),
    ],
)
def test_only_qualified_names_are_looked_up(name: str, parts: tuple[str, str, str | None] | None) -> None:
    assert split_name(name) == parts


@pytest.mark.parametrize(
    "name",
    [
        "prim::Constant",
        "profiler::_record_function_enter_new",
        "inductor::_reinterpret_tensor",
        "symm_mem::one_shot_all_reduce",
        "static_runtime::to_copy",
        "c10d::allreduce_",
        "aten::_unsafe_index",
        "mylib::reinterpret_cast",
        "mylib::get_unchecked",
    ],
)
def test_classes_of_ops_are_refused_by_name(name: str) -> None:
    reason = refuse_name(name, Policy())
    assert reason is not None
    assert reason.kind == "policy"


def test_unsafe_view_is_safe_and_collective_mode_allows_collectives() -> None:
    assert refuse_name("aten::_unsafe_view", Policy()) is None
    assert refuse_name("c10d::allreduce_", Policy(collectives=True)) is None


@pytest.mark.parametrize(
    ("name", "argument", "type_text", "refused"),
    [
        ("aten::from_file", "filename", "str", True),
        ("aten::gelu", "approximate", "str", False),
        ("aten::mm", "approximate", "str", True),
        ("aten::div", "rounding_mode", "Optional[str]", False),
        ("aten::set_", "source", "Storage", True),
        ("aten::x", "a", "Dict[str, t]", True),
        ("aten::x", "a", "List[t]", True),
        ("aten::x", "a", "RRef[t]", True),
        ("aten::x", "a", "Any", True),
        ("aten::record_stream", "s", "Stream", True),
        ("quantized::linear", "w", "__torch__.torch.classes.quantized.LinearPackedParamsBase", True),
        ("aten::sum", "dim", "Optional[List[int]]", False),
        ("_C_cache_ops::reshape_and_cache", "kv_cache_dtype", "str", False),
        ("_C::x", "filename", "str", True),
        ("mylib::x", "where", "str", True),
    ],
)
def test_argument_types(name: str, argument: str, type_text: str, refused: bool) -> None:
    assert (refuse_arguments(name, [(argument, type_text)]) is not None) is refused


@pytest.mark.parametrize(
    ("argument", "value", "refused"),
    [
        ("unsafe", True, True),
        ("unsafe", False, False),
        ("equation", "bij,bjk->bik", False),
        ("kv_cache_dtype", "fp8_e4m3", False),
        ("mode", "/etc/passwd", True),
        ("mode", "..\\x", True),
        ("dim", (1, 2), False),
        ("device", "cuda:0", False),
    ],
)
def test_values(argument: str, value: object, refused: bool) -> None:
    assert (refuse_value(argument, value) is not None) is refused


def test_imports_come_from_the_table_or_the_user_only() -> None:
    assert Policy().modules_for("os") == ()
    assert Policy().modules_for("torchvision") == ("torchvision",)
    assert Policy(known_libraries=False).modules_for("torchvision") == ()
    assert Policy(allow_imports={"mylib": "mylib.ops"}).modules_for("mylib") == ("mylib.ops",)


@pytest.mark.parametrize(
    "argument",
    ["mfma_type", "ocp_mx_scheme", "shared_expert_scoring_func", "kv_cache_layout", "dst_type", "softmax_layout"],
)
def test_vendor_ops_may_be_told_a_mode_by_name(argument: str) -> None:
    assert refuse_arguments("vendor::op", [(argument, "Optional[str]")]) is None


@pytest.mark.parametrize("argument", ["hcom", "handles", "group", "msg", "device", "path"])
def test_texts_that_reach_beyond_the_computation_stay_refused(argument: str) -> None:
    assert refuse_arguments("npu::op", [(argument, "str")]) is not None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        ({"a": "b.c"}, {"a": "b.c"}),
        ({"a": ["b", "c.d"]}, {"a": "b,c.d"}),
        (["a=b", "a=c", "d=e.f"], {"a": "b,c", "d": "e.f"}),
        ([("a", "b"), ("a", "b")], {"a": "b"}),
        ("a=b,c", {"a": "b,c"}),
    ],
)
def test_modules_are_named_in_several_forms(given, expected) -> None:
    modules = named_modules(given)
    assert modules == expected
    assert Policy(allow_imports=modules).modules_for("a") == tuple(expected.get("a", "").split(",") if expected else ())


@pytest.mark.parametrize("given", [["a"], ["a="], ["a=b c"], [("a",)], [3], {"a": 3}, {"a": [3]}, {"a::b": "c"}])
def test_what_names_no_module_is_a_usage_error(given) -> None:
    with pytest.raises(UsageError, match="does not name a module"):
        named_modules(given)
