from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport
from opreplay.initializers.extensions import register_initializer
from opreplay.initializers.registry import Registry
from opreplay.replay.ops.inputs import built_in
from opreplay.traces.errors import UsageError


class First(CustomInit):
    name = "first"
    op_patterns = ("my::op", "my::other")

    def initialize(self, context: InitContext) -> InitReport:
        return InitReport(summary="first")


class Stronger(First):
    name = "stronger"
    op_patterns = ("my::op",)
    priority = 5


class OnlyWithX(First):
    name = "only_with_x"
    op_patterns = ("my::third",)

    def applies_to(self, context: InitContext) -> bool:
        return "x" in context.args


class OnlyWithY(OnlyWithX):
    name = "only_with_y"

    def applies_to(self, context: InitContext) -> bool:
        return "y" in context.args


def context(op: str, **args: object) -> InitContext:
    return InitContext(op=op, args=args, generator=torch.Generator())


def test_priority_decides_and_names_are_exact() -> None:
    registry = Registry()
    first, stronger = registry.register(First()), registry.register(Stronger())
    assert registry.find(context("my::op")) is stronger
    assert registry.find(context("my::other")) is first
    assert registry.find(context("my::op2")) is None
    assert len(registry) == 2


def test_conditions_share_an_op() -> None:
    registry = Registry()
    with_x, with_y = registry.register(OnlyWithX()), registry.register(OnlyWithY())
    assert registry.find(context("my::third", x=1)) is with_x
    assert registry.find(context("my::third", y=1)) is with_y
    assert registry.find(context("my::third")) is None


def test_duplicates_are_refused() -> None:
    registry = Registry()
    registry.register(First())

    class SameName(First):
        op_patterns = ("my::new",)

    class SameOp(First):
        name = "same_op"

    class Twice(First):
        name = "twice"
        op_patterns = ("my::a", "my::a")

    for kind, message in (
        (SameName, "already"),
        (SameOp, "priority 0"),
        (Twice, "twice"),
        (CustomInit, "needs a name"),
    ):
        with pytest.raises(UsageError, match=message):
            registry.register(kind())


def test_unknown_name_lists_the_known_ones() -> None:
    registry = Registry()
    registry.register(First())
    assert registry["first"].name == "first"
    with pytest.raises(UsageError, match="unknown initializer 'frist'") as caught:
        registry["frist"]
    assert "first" in caught.value.hint


def test_built_ins_have_names_docs_and_exact_ops() -> None:
    registry = built_in()
    assert len(registry) >= 15
    for rule in registry:
        assert rule.__doc__
        assert all("::" in op and "*" not in op for op in rule.op_patterns)


def test_context_reaches_tensors_by_name() -> None:
    one, two = torch.empty(1), torch.empty(2)
    found = context("my::op", a=one, b=[two, None], c=3)
    assert found.tensor("a") is one
    assert found.tensor("b") is None
    assert [name for name, _ in found.tensors()] == ["a", "b"]
    with pytest.raises(InitializerError, match="'c'"):
        found.need("c")


def initializer_class(**members: Any) -> type[CustomInit]:
    return type(
        "Odd", (CustomInit,), {"name": "odd", "op_patterns": ("my::op",), "initialize": fill_nothing, **members}
    )


def fill_nothing(self: CustomInit, context: InitContext) -> None:
    """Not CustomInit's."""


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"name": ""}, "needs a name"),
        ({"name": "  "}, "needs a name"),
        ({"op_patterns": ()}, "needs op_patterns"),
        ({"op_patterns": "my::op"}, "not a tuple"),
        ({"op_patterns": ("my::op", "my::beam_*")}, "'my::beam_\\*', which is not an op name"),
        ({"op_patterns": ("my::o?",)}, "is not an op name"),
        ({"op_patterns": ("",)}, "'', which is not an op name"),
        ({"op_patterns": ("relu",)}, "'relu', which is not an op name"),
        ({"op_patterns": ("aten::add.Tensor",)}, "is not an op name"),
        ({"op_patterns": (" my::op",)}, "is not an op name"),
        ({"op_patterns": (3,)}, "3, which is not an op name"),
    ],
)
def test_what_no_op_could_ever_get_is_refused_when_it_is_made(members: dict[str, Any], why: str) -> None:
    kind = initializer_class(**members)
    with pytest.raises(UsageError, match=why):
        register_initializer(kind)
    with pytest.raises(UsageError, match=why):
        Registry().register(kind())


def test_a_refusal_says_where_the_class_is() -> None:
    with pytest.raises(UsageError, match=r"test_registry\.py:\d+: initializer lost is for"):

        @register_initializer
        class Lost(First):
            name = "lost"
            op_patterns = ("my::lost*",)
