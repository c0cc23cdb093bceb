from __future__ import annotations

import pytest
import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.rules.domains import domain_of
from opreplay.replay.ops.aten import legacy_of
from tests.initializers.filled import REGISTRY, initialized


@pytest.mark.parametrize(
    "op", ["log", "sqrt", "rsqrt", "acos", "atanh", "erfinv", "acosh", "logit", "reciprocal", "lgamma"]
)
def test_results_are_finite(op: str) -> None:
    found = initialized(f"aten::{op}", self=torch.empty(1000))
    assert getattr(torch.ops.aten, op)(found.need("self")).isfinite().all()


@pytest.mark.parametrize("op", ["aten::mul_", "aten::div_"])
def test_factors_of_in_place_products_are_signs(op: str) -> None:
    other = initialized(op, self=torch.empty(100), other=torch.empty(100)).need("other")
    assert set(other.tolist()) == {1.0, -1.0}


def test_integer_divisors_are_not_zero() -> None:
    other = initialized("aten::remainder", other=torch.zeros(500, dtype=torch.int32)).need("other")
    assert other.min() >= 1


@pytest.mark.parametrize("logarithm", [False, True])
def test_saved_softmax_sums_to_one(logarithm: bool) -> None:
    op = "_log_softmax_backward_data" if logarithm else "_softmax_backward_data"
    output = initialized(f"aten::{op}", output=torch.randn(4, 5, 6), dim=1).need("output")
    total = (output.exp() if logarithm else output).sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_saved_pool_indices_are_those_of_the_pooling() -> None:
    source = torch.randn(2, 3, 8, 8)
    found = initialized(
        "aten::max_pool2d_with_indices_backward",
        self=source,
        indices=torch.zeros(2, 3, 4, 4, dtype=torch.int64),
        grad_output=torch.empty(2, 3, 4, 4),
        kernel_size=[2, 2],
        stride=[2, 2],
        padding=[0, 0],
        dilation=[1, 1],
        ceil_mode=False,
    )
    expected = torch.nn.functional.max_pool2d(source, 2, return_indices=True)[1]
    assert torch.equal(found.need("indices"), expected)


def test_pool_indices_stay_in_the_plane_when_the_pooling_does_not_fit() -> None:
    found = initialized(
        "aten::adaptive_max_pool2d_backward",
        self=torch.randn(1, 2, 9, 9),
        indices=torch.full((1, 2, 3, 4), -1),
        grad_output=torch.empty(1, 2, 3, 3),
    )
    indices = found.need("indices")
    assert indices.min() >= 0
    assert indices.max() < 81


def test_matrices_can_be_factorised() -> None:
    matrix = initialized("aten::linalg_cholesky_ex", self=torch.randn(5, 30, 30)).need("self")
    assert torch.linalg.cholesky_ex(matrix).info.eq(0).all()


def test_every_rule_names_an_op_of_torch() -> None:
    names = [op for rule in REGISTRY for op in rule.op_patterns if op.startswith("aten::")]
    known = {op for op in names if torch._C._jit_get_schemas_for_operator(op) or legacy_of(op)}
    assert set(names) == known


def test_an_inverse_error_function_in_place_stays_in_its_domain() -> None:
    x = torch.full((1000,), 7.0)
    context = InitContext(op="aten::erfinv_", args={"self": x}, generator=torch.Generator().manual_seed(1))
    rule = REGISTRY.find(context)
    assert rule is not None
    REGISTRY.apply(rule, context)
    for _ in range(200):
        x.erfinv_()
    assert x.isfinite().all()


def test_a_domain_knows_what_has_left_it() -> None:
    root, arc = domain_of("aten::sqrt", "self"), domain_of("aten::asin", "self")
    assert root is not None
    assert arc is not None
    made = torch.empty(100)
    root(made, torch.Generator().manual_seed(0))
    assert root.holds(made)
    for wrong in (0.0, -1.0, float("nan"), 1e-40):
        made[3] = wrong
        assert not root.holds(made), wrong
    assert arc.holds(torch.tensor([-0.99, 0.99]))
    assert not arc.holds(torch.tensor([0.0, 1.5]))
    assert domain_of("aten::mm", "self") is None
    assert domain_of("aten::mul_", "other") is None, "signs keep products from drifting, and are no domain"


def test_special_functions_are_finite_on_what_they_are_given() -> None:
    """Every `special_*` op of ATen of tensors alone: nan and inf are often faster than a value."""
    odd: dict[str, float] = {}
    for schema in torch._C._jit_get_all_schemas():
        needed = [arg for arg in schema.arguments if not arg.has_default_value()]
        if not schema.name.startswith("aten::special_") or schema.overload_name not in ("", "Tensor"):
            continue
        if any(str(arg.type) != "Tensor" for arg in needed) or "polynomial" in schema.name:
            continue
        args = {arg.name: torch.randn(16, 16) for arg in needed}
        context = InitContext(op=schema.name, args=args, generator=torch.Generator().manual_seed(0))
        if (rule := REGISTRY.find(context)) is not None:
            rule.initialize(context)
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
        result = getattr(packet, schema.overload_name or "default")(*args.values())
        if isinstance(result, torch.Tensor) and not result.isfinite().all():
            odd[schema.name] = float((~result.isfinite()).float().mean())
    assert not odd


def test_quantiles_are_between_0_and_1() -> None:
    q = initialized("aten::quantile", self=torch.randn(40), q=torch.randn(30)).need("q")
    assert torch.quantile(torch.randn(40), q).isfinite().all()
