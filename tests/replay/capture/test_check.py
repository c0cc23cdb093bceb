"""A check says that a plan is the model where it is, and what differs first where it is not."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from opreplay.replay.capture.capture import capture_made, check_made
from opreplay.replay.ir.captured import CaptureOptions
from opreplay.replay.ir.model import ReplayPlan
from opreplay.traces.errors import UsageError

pytestmark = pytest.mark.slow


def training() -> tuple[Any, ...]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))
    options = {"optimizer": torch.optim.AdamW(model.parameters()), "loss": lambda out: out.square().mean()}
    return model, (torch.randn(3, 8),), options


def test_every_output_parameter_and_buffer_is_compared() -> None:
    found = check_made(training, capture_made(training, source="here"))
    assert found.equal
    assert found.largest_error == 0.0
    assert all(one.bits_equal for one in (*found.outputs, *found.parameters))
    assert [one.name for one in found.outputs] == ["[0]", "[1]"]
    names = {one.name for one in found.parameters}
    assert names >= {"0.weight", "4.bias", "2.running_mean", "2.num_batches_tracked"}


def test_a_single_element_of_any_stride_is_compared() -> None:
    def make() -> tuple[Any, ...]:
        return lambda ids: ids.t() + 1, (torch.zeros(1, 32, dtype=torch.long)[:, 31:].as_strided((1, 1), (1, 32)),)

    assert check_made(make, capture_made(make, source="here")).equal


def test_a_step_of_the_users_own_is_compared_with_its_modules() -> None:
    def make() -> tuple[Any, ...]:
        model, (x,), options = training()

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = options["loss"](model(x))
            loss.backward()
            options["optimizer"].step()
            options["optimizer"].zero_grad()
            return loss

        return step, (x,)

    found = check_made(make, capture_made(make, source="here"))
    assert found.equal
    assert len(found.parameters) == 9


def changed(plan: ReplayPlan, name: str, argument: str, value: float) -> ReplayPlan:
    """The plan with another number in one op."""
    ops = [
        msgspec.structs.replace(
            op,
            args=tuple(msgspec.structs.replace(a, value=value) if a.name == argument else a for a in op.args),
        )
        if op.name == name
        else op
        for op in plan.ops
    ]
    return msgspec.structs.replace(plan, ops=tuple(ops))


def test_a_plan_that_computes_something_else_is_found_out_and_the_op_named() -> None:
    plan = changed(capture_made(training, source="here"), "aten::native_batch_norm", "eps", 0.5)
    found = check_made(training, plan)
    assert not found.equal
    assert found.largest_error > 0
    assert found.first_difference is not None
    assert "aten::native_batch_norm in 2, forward" in found.first_difference


def test_a_call_that_cannot_be_made_is_named() -> None:
    plan = capture_made(training, source="here")
    ops = [msgspec.structs.replace(op, args=op.args[:1]) if op.name == "aten::addmm" else op for op in plan.ops]
    found = check_made(training, msgspec.structs.replace(plan, ops=tuple(ops)))
    assert not found.equal
    assert found.reason is not None
    assert "aten::addmm" in found.reason


def test_views_and_writes_through_them_are_followed() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        column = x[:, 1]
        column += 1.0
        turned = x.t()
        turned[0].mul_(3)
        y = torch.zeros(8, 4)
        y[2:4] = x[:2].detach()
        torch.mul(x, x, out=y[:4])
        return x, y

    def make() -> tuple[Any, ...]:
        return step, (torch.randn(4, 4),)

    found = check_made(make, capture_made(make, source="here"))
    assert found.equal
    assert all(one.bits_equal for one in found.outputs)


def test_a_step_that_draws_without_the_seed_is_refused() -> None:
    generator = torch.Generator()

    def make() -> tuple[Any, ...]:
        return (lambda: torch.rand(3, generator=generator)), ()

    plan = capture_made(make, source="here", options=CaptureOptions(real=True))
    with pytest.raises(UsageError, match="two runs of the step with the same seed differ"):
        check_made(make, plan)


def test_random_ops_draw_as_the_model_does() -> None:
    def make() -> tuple[Any, ...]:
        return (lambda x: (x.bernoulli(0.5), torch.randn_like(x), nn.functional.dropout(x))), (torch.rand(64),)

    assert check_made(make, capture_made(make, source="here"), seed=5).equal


def probabilities() -> tuple[Any, ...]:
    """A constructor as those of vision models are: it draws again what is out of range, and reads values of a range."""

    class Layer(nn.Module):
        def __init__(self, drop: float) -> None:
            super().__init__()
            self.linear, self.drop = nn.Linear(8, 8), drop
            nn.init.trunc_normal_(self.linear.weight, std=0.02)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.linear(x), self.drop) if self.drop else self.linear(x)

    rates = [rate.item() for rate in torch.linspace(0.0, 0.3, 3)]
    return nn.Sequential(*[Layer(rate) for rate in rates]), (torch.randn(2, 8),)


def modules_of_a_closure() -> tuple[Any, ...]:
    layers = [nn.Linear(4, 4) for _ in range(3)]
    optimizer = torch.optim.SGD([one for layer in layers for one in layer.parameters()], lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        x.sum().backward()
        optimizer.step()
        return x

    return step, (torch.randn(2, 4),)


def groups() -> tuple[Any, ...]:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 8, 16))

        def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return torch._grouped_mm(x, self.weight, offs=ends)

    return Experts(), (torch.randn(12, 8), torch.tensor([3, 6, 9, 12], dtype=torch.int32))


def recomputed_with_dropout() -> tuple[Any, ...]:
    """Backward draws what forward drew: the generator is set back."""
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Dropout()) for _ in range(2)]

    def step(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        x.sum().backward()
        return x

    return step, (torch.randn(2, 4),)


def ways_by_positions() -> tuple[Any, ...]:
    """A way that depends on positions, which no input says."""

    def step(x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[0])[None].expand(2, -1)
        return x.exp() if (positions.diff(dim=-1) == 1).all() else x.sin()

    return step, (torch.randn(5),)


@lru_cache(maxsize=4)
def positions(size: int) -> torch.Tensor:
    return torch.arange(size) * 2.0


def with_a_cache() -> tuple[Any, ...]:
    """What a function remembers of one run is no tensor of another, and a result that no call touches is compared."""
    counter = torch.tensor(3)

    def step(x: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * positions(x.shape[0]), count

    return step, (torch.randn(5), counter)


def gradients_of_samples() -> tuple[Any, ...]:
    net = nn.Linear(4, 1)
    parameters = dict(net.named_parameters())

    def loss(weights: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, weights, (x[None],)).square().sum()

    return lambda x: torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x), (torch.randn(3, 4),)


@pytest.mark.parametrize(
    "make", [probabilities, modules_of_a_closure, groups, recomputed_with_dropout, ways_by_positions, with_a_cache]
)
def test_what_fake_tensors_refuse_of_models_that_run(make: Any) -> None:
    plan = capture_made(make, source="here")
    check = check_made(make, plan)
    assert check.equal
    assert check.other_calls is None
    assert all(one.bits_equal for one in (*check.outputs, *check.parameters))
    assert len({one.name for one in check.parameters}) == len(check.parameters)


def clamped(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    if not torch.isfinite(y).all() or torch.isinf(y).any() or y.isnan().any():
        y = y.clamp(max=1e3)
    return y * 2


def test_numbers_are_taken_to_be_finite_and_the_plan_says_so() -> None:
    plan = capture_made(lambda: (clamped, (torch.randn(3),)), source="here")
    assert plan.capture is not None
    assert len(plan.capture.notes) == 1
    check = check_made(lambda: (clamped, (torch.randn(3),)), plan)
    assert check.equal
    assert check.other_calls is None
    assert not check_made(lambda: (clamped, (torch.full((3,), 1e3),)), plan).equal


def test_a_step_that_fails_on_values_is_refused() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(x > 9.0)
        return x

    plan = capture_made(lambda: (step, (torch.zeros(3),)), source="here")
    with pytest.raises(UsageError):
        check_made(lambda: (step, (torch.zeros(3),)), plan)


def test_transformed_functions_are_followed() -> None:
    plan = capture_made(gradients_of_samples, source="here")
    assert check_made(gradients_of_samples, plan).equal


def test_layers_that_drop_nothing_are_known_by_their_values() -> None:
    plan = capture_made(probabilities, source="here")
    dropout = [op for op in plan.ops if "bernoulli" in op.name or "dropout" in op.name]
    assert sum(op.count for op in dropout) == 2, "the first layer drops nothing"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, of jvp
def test_forward_derivatives_of_a_module_are_captured() -> None:
    def make() -> Any:
        layer = torch.nn.Linear(6, 4)
        return lambda x, tangent: torch.func.jvp(layer, (x,), (tangent,)), (torch.randn(3, 6), torch.randn(3, 6))

    plan = capture_made(make, source="jvp")
    assert sum(op.count for op in plan.ops if op.name in ("aten::mm", "aten::addmm")) >= 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, of jvp
def test_forward_derivatives_are_checked() -> None:
    """`torch.func.jvp` passes tangents that are zeros without memory."""

    def make() -> Any:
        weight, x = torch.randn(6, 5), torch.randn(3, 6)
        return lambda: torch.func.jvp(lambda y: torch.tanh(y @ weight).sum(1), (x,), (torch.ones_like(x),)), ()

    plan = capture_made(make, source="jvp")
    assert {"aten::mm", "aten::tanh"} <= {op.name for op in plan.ops}
    found = check_made(make, plan)
    assert (found.equal, len(found.outputs)) == (True, 2)


def test_a_sharded_model_in_a_group_of_its_own_is_checked(tmp_path: Path) -> None:
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    def make() -> Any:
        if not distributed.is_initialized():
            store = distributed.FileStore(str(tmp_path / "store"), 1)
            distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        model = nn.Sequential(nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 4))
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step, (torch.randn(8, 16),)

    try:
        found = check_made(make, capture_made(make, source="fsdp"))
    finally:
        distributed.destroy_process_group()
    assert found.equal
    assert len(found.parameters) == 4
