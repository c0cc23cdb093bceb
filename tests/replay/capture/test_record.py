"""A step recorded on fake tensors: every call with where it was called, memory, operations; nothing real changes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import opreplay
from opreplay.replay.capture.capture import capture_made, check_made
from opreplay.replay.capture.record import forget_cached_tensors
from opreplay.replay.ir.captured import CaptureOptions
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.plan_file import dump_plan, parse_plan
from opreplay.traces.errors import UsageError

pytestmark = pytest.mark.slow


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def training() -> tuple[Any, ...]:
    model = net()
    options = {"optimizer": torch.optim.AdamW(model.parameters()), "loss": lambda out: out.square().mean()}
    return model, (torch.randn(3, 8),), options


def calls(plan: ReplayPlan) -> list[tuple[str, str, str]]:
    """(phase, module, op) of each call."""
    sequence = plan.sequence
    assert sequence is not None
    by_id = {op.id: op.name for op in plan.ops}
    names = (*sequence.module_names, "-")
    return [
        (phase, names[module], by_id[sequence.ids[index]])
        for phase, module, index in zip(sequence.phases, sequence.modules, sequence.calls, strict=True)
    ]


def test_each_call_knows_its_phase_and_its_module() -> None:
    found = calls(capture_made(training, source="here"))
    assert ("forward", "0", "aten::addmm") in found
    assert ("forward", "1", "aten::relu") in found
    assert ("backward", "1", "aten::threshold_backward") in found
    assert [one for one in found if one[2] == "aten::mm"] == [("backward", "2", "aten::mm")] * 2 + [
        ("backward", "0", "aten::mm")
    ]
    assert ("optimizer", "-", "aten::addcdiv_") in found
    assert [phase for phase, _, _ in found] == sorted(
        (phase for phase, _, _ in found), key=("forward", "backward", "optimizer").index
    )


def test_a_captured_plan_is_a_plan() -> None:
    plan = capture_made(training, source="here")
    assert plan.captured
    assert plan.schema_version == 5
    assert parse_plan(dump_plan(plan)) == plan
    assert all(op.resolved_by == "jit" and op.outputs is not None for op in plan.ops)


def test_scalars_that_become_tensors_keep_their_value() -> None:
    plan = opreplay.capture(lambda x: x * 2.5 + 3, torch.randn(4))
    numbers = {op.name: [arg.value for arg in op.args if arg.name == "other"] for op in plan.ops}
    assert numbers == {"aten::mul": [2.5], "aten::add": [3]}


@pytest.mark.parametrize(
    ("x", "weight", "dealt", "products"),
    [
        ((64, 32), (4, 32, 16), 64, 64 * 32 * 16),
        ((4, 8, 32), (4, 32, 16), None, 4 * 8 * 32 * 16),
        ((4, 8, 32), (32, 64), 64, 8 * 32 * 64),
        ((8, 64), (64, 16), 64, 8 * 64 * 16),
    ],
)
def test_products_of_groups_count(
    x: tuple[int, ...], weight: tuple[int, ...], dealt: int | None, products: int
) -> None:
    def make() -> Any:
        ends = None if dealt is None else torch.arange(1, 5, dtype=torch.int32) * (dealt // 4)

        def step(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return torch._grouped_mm(left, right, offs=ends)

        return step, (torch.zeros(x, dtype=torch.bfloat16), torch.zeros(weight, dtype=torch.bfloat16))

    plan = capture_made(make, source="here")
    assert plan.capture is not None
    assert sum(plan.capture.flops.values()) == 2 * products


def test_flops_are_those_of_torchs_counter() -> None:
    plan = capture_made(training, source="here")
    with FlopCounterMode(display=False) as counter:
        model, (x,), options = training()
        options["loss"](model(x)).backward()
    assert plan.capture is not None
    assert sum(plan.capture.flops.values()) == counter.get_total_flops()


def test_attention_and_recurrent_layers_count_on_a_cpu() -> None:
    q, k = torch.randn(2, 4, 16, 8), torch.randn(2, 4, 32, 8)
    plan = opreplay.capture(lambda q, k: torch.nn.functional.scaled_dot_product_attention(q, k, k), q, k)
    assert plan.capture is not None
    assert sum(plan.capture.flops.values()) == 2 * 2 * (2 * 4 * 16 * 32 * 8)
    with torch.no_grad():
        plan = opreplay.capture(torch.nn.LSTM(8, 16).eval(), torch.randn(5, 3, 8))
    assert plan.capture is not None
    assert sum(plan.capture.flops.values()) == 2 * (5 * 3) * (64 * 8 + 64 * 16)


def test_peak_memory_is_of_what_lives_at_a_time() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x + 1
        return x

    plan = opreplay.capture(chain, torch.zeros(1024))
    assert plan.capture is not None
    (peak,) = plan.capture.peaks
    # The input, a result and the one that it is made of: never all five.
    assert peak.by_kind == {"input": 4096, "activation": 2 * 4096}
    assert peak.peak_bytes == 3 * 4096


def test_memory_of_a_training_step_is_told_by_kind() -> None:
    plan = capture_made(training, source="here")
    parameters = sum(p.numel() * 4 for p in net().parameters())
    assert plan.capture is not None
    peaks = {peak.phase: peak.by_kind for peak in plan.capture.peaks}
    assert peaks["optimizer"]["parameter"] == peaks["optimizer"]["gradient"] == parameters
    assert peaks["optimizer"]["optimizer state"] == 2 * parameters + 4 * len(list(net().parameters()))
    assert all(sum(peak.by_kind.values()) == peak.peak_bytes for peak in plan.capture.peaks)


def test_shared_parameters_are_one_storage_of_two_names() -> None:
    model = net()
    model[2] = nn.Linear(8, 16)
    model[2].weight = model[0].weight
    plan = opreplay.capture(lambda x: (model[0](x), model[2](x)), torch.randn(2, 8))
    tied = nn.ModuleDict({"a": model[0], "b": model[2]})
    plan = opreplay.capture(Both(tied), torch.randn(2, 8))
    assert plan.capture is not None
    assert ("of.a.weight", "of.b.weight") in [one.names for one in plan.capture.storages]


class Both(nn.Module):
    def __init__(self, of: nn.ModuleDict) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.of["a"](x), self.of["b"](x)


def test_real_modules_and_optimizers_stay_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(3, 8)
    model(x).sum().backward()
    optimizer.step()
    before = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    steps = [state["step"].clone() for state in optimizer.state.values()]
    opreplay.capture(model, x, optimizer=optimizer, loss=torch.sum)
    assert all(torch.equal(a, b) for a, b in zip(before, (*model.parameters(), *model.buffers()), strict=True))
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True) if p.grad is not None)
    assert [state["step"] for state in optimizer.state.values()] == steps


def test_the_second_step_of_an_optimizer_has_the_numbers_of_a_second_step() -> None:
    """Its step is a real tensor that fake ones must know the value of."""
    model = net()
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(3, 8)
    plans = []
    for _ in range(2):
        plans.append(opreplay.capture(model, x, optimizer=optimizer, loss=torch.sum))
        model(x).sum().backward()
        optimizer.step()
    corrections = [{arg.value for op in plan.ops if op.name == "aten::addcdiv_" for arg in op.args} for plan in plans]
    assert corrections[0] != corrections[1]


def test_detaches_of_torchs_own_are_no_calls() -> None:
    """Under a dispatch mode torch dispatches one for each tensor that it saves; without a mode there is none."""
    plan = opreplay.capture(lambda x: (x * x).relu().detach(), torch.randn(3, requires_grad=True))
    assert [name for _, _, name in calls(plan)] == ["aten::mul", "aten::relu", "aten::detach"]


def test_control_flow_on_values_names_the_line() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(UsageError, match=r"test_record.py, line \d+, in step: return x if") as stopped:
        opreplay.capture(step, torch.randn(3))
    assert "--real" in stopped.value.hint
    assert opreplay.capture(step, torch.ones(3), real=True).captured


def test_a_refused_call_is_not_also_logged_by_torch(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="broadcast"):
        opreplay.capture(lambda x: x.masked_fill(torch.ones(7) > 0, 0.0), torch.randn(3, 4))
    assert capfd.readouterr() == ("", "")


def test_sizes_that_depend_on_values_name_the_line() -> None:
    with pytest.raises(UsageError, match=r"aten::nonzero.*in <lambda>"):
        opreplay.capture(lambda x: x.nonzero(), torch.randn(3))


def flexible(q: torch.Tensor) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, q, q)


def sparse(ids: torch.Tensor) -> Any:
    return nn.Embedding(10, 4, sparse=True)(ids).sum().backward()


def overwritten(x: torch.Tensor) -> Any:
    index = torch.arange(4)
    index[0] = x.sum().long()
    return x if index[0] == 0 else x + 1


@pytest.mark.parametrize(
    ("step", "argument", "word"),
    [
        (flexible, torch.randn(1, 2, 16, 8), "flex_attention"),
        (sparse, torch.tensor([1, 2]), "sparse"),
        (overwritten, torch.randn(3), "_local_scalar_dense"),
    ],
)
def test_what_cannot_be_captured_is_one_sentence(step: Any, argument: torch.Tensor, word: str) -> None:
    with pytest.raises(UsageError) as error:
        opreplay.capture(step, argument)
    assert word in str(error.value)
    assert "\n" not in error.value.problem
    assert error.value.hint


def test_an_op_without_a_fake_kernel_says_how_to_register_one() -> None:
    library = torch.library.Library("capturetest", "DEF")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x * 2, "CPU")
    with pytest.raises(UsageError, match="capturetest::doubled has no fake kernel") as stopped:
        opreplay.capture(torch.ops.capturetest.doubled, torch.ones(3))
    assert 'register_fake("capturetest::doubled")' in stopped.value.hint
    torch.library.register_fake("capturetest::doubled", torch.empty_like, lib=library)
    plan = opreplay.capture(torch.ops.capturetest.doubled, torch.ones(3))
    assert [op.name for op in plan.ops] == ["capturetest::doubled"]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (3, "not a step"),
        ((net(), ()), None),
        ((lambda: 1, (), {"optimizer": None}), "needs a module"),
        ((net(), (), {"optimiser": 1}), "options"),
        ((net(), (torch.ones(1, 8),), {"optimizer": "adam"}), "optimizer a str is not an optimizer"),
        ((net(), (torch.ones(1, 8),), {"optimizer": torch.optim.SGD}), "loss is not a tensor with one element"),
    ],
)
def test_what_is_no_step_says_what_one_is(made: Any, message: str | None) -> None:
    with pytest.raises(UsageError, match=message or "raised TypeError"):
        capture_made(lambda: made, source="here")


def profiled_sums(step: Any) -> list[str]:
    """Sums in the backward of a step, as a profile without any mode has them."""
    loss = step()
    with torch.profiler.profile() as found:
        loss.backward()
    return [event.name for event in found.events() or () if event.name in ("aten::add", "aten::add_")]


def test_gradients_are_summed_up_as_without_a_mode() -> None:
    """In place where nobody else holds the sum; a residual's gradient is held by two. A hook's sum is its own."""
    layer = nn.Linear(4, 4)

    def steps() -> list[Any]:
        def residual() -> torch.Tensor:
            x = layer(torch.randn(3, 4))
            x = x + torch.tanh(x)
            return (x + torch.sigmoid(x)).sum()

        def thrice() -> torch.Tensor:
            x = layer(torch.randn(3, 4))
            return (x.sin() + x.cos() + x.exp()).sum()

        def hooked() -> torch.Tensor:
            x = layer(torch.randn(3, 4)).cos()
            x.register_hook(lambda gradient: gradient + torch.ones(3, 4))
            return x.sin().sum()

        return [residual, thrice, hooked]

    for step in steps():
        found = calls(opreplay.capture(lambda step=step: step().backward()))
        mine = [name for phase, _, name in found if phase == "backward" and name in ("aten::add", "aten::add_")]
        assert mine == profiled_sums(step), step.__name__


def test_an_optimizer_takes_lists_where_the_device_does() -> None:
    here = capture_made(training, source="here")
    assert here.capture is not None
    assert any("AdamW updates parameters one by one" in note for note in here.capture.notes)
    there = capture_made(training, source="there", options=CaptureOptions(device="npu"))
    assert there.capture is not None
    assert there.capture.notes == ()
    optimizer = [op for phase, _, op in calls(there) if phase == "optimizer"]
    assert "aten::_foreach_addcdiv_" in {op for op in optimizer if op.startswith("aten::_foreach")}
    assert len(optimizer) < len([one for one in calls(here) if one[0] == "optimizer"])
    assert check_made(training, there, device="npu").equal


def test_what_a_user_says_of_lists_stays() -> None:
    def make(**options: Any) -> tuple[Any, ...]:
        model = net()
        return (
            model,
            (torch.randn(3, 8),),
            {"optimizer": torch.optim.SGD(model.parameters(), **options), "loss": torch.sum},
        )

    for foreach in (True, False):
        plan = capture_made(
            lambda foreach=foreach: make(lr=0.1, foreach=foreach), source="said", options=CaptureOptions(device="cuda")
        )
        assert plan.capture is not None
        assert plan.capture.notes == ()
        assert ("aten::_foreach_add_" in {op.name for op in plan.ops}) is foreach
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opreplay.capture(model, torch.randn(3, 8), optimizer=optimizer, loss=torch.sum, device="cuda")
    assert optimizer.param_groups[0]["foreach"] is None


def test_a_graph_may_leave_out_arguments_before_others() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    def make() -> tuple[Any, ...]:
        return attend, (torch.randn(1, 2, 8, 4),)

    plan = capture_made(make, source="graph", options=CaptureOptions(via="export"))
    assert "aten::scaled_dot_product_attention" in {op.name for op in plan.ops}
    assert check_made(make, plan).equal


def test_an_argument_named_group_need_not_be_one_of_processes() -> None:
    plan = capture_made(lambda: (nn.GroupNorm(2, 4), (torch.randn(2, 4, 3),)), source="norm")
    (op,) = [op for op in plan.ops if op.name == "aten::native_group_norm"]
    assert (op.collective, op.ranks, op.reason) == (None, None, None)


def test_a_step_of_ranks_says_how_to_be_one() -> None:
    def make() -> Any:
        torch.distributed.init_process_group("gloo")

    with pytest.raises(UsageError, match="process group") as raised:
        capture_made(make, source="m.py:make")
    assert "world_size=" in (raised.value.hint or "")


def test_lazy_modules_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="a lazy module has unknown sizes"):
        capture_made(lambda: (nn.LazyLinear(8), (torch.randn(2, 4),)), source="here")


class Renamed(torch.Tensor):
    """A subclass without memory of its own."""


def as_jagged(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (torch.nested.nested_tensor([a, b], layout=torch.jagged) * 2).values()


def as_renamed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.as_subclass(Renamed) + b


def as_mkldnn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.to_mkldnn().to_dense() + b.sum()


@pytest.mark.parametrize(
    ("step", "word", "way"),
    [
        (as_jagged, "cannot be nested", "--real"),
        (as_renamed, "as_subclass", "_make_wrapper_subclass"),
        (as_mkldnn, "mkldnn", "Remove to_mkldnn"),
    ],
)
def test_tensors_that_cannot_be_fake_are_named(step: Any, word: str, way: str) -> None:
    with pytest.raises(UsageError) as raised:
        capture_made(lambda: (step, (torch.randn(3, 4), torch.randn(5, 4))), source="here")
    assert word in str(raised.value)
    assert way in raised.value.hint


def test_a_cache_is_emptied_once_it_holds_a_tensor() -> None:
    @cache
    def made(size: int) -> Any:
        return torch.ones(size) if size else {}

    def entries() -> int:
        forget_cached_tensors()
        return made.cache_info().currsize

    store = made(0)
    assert entries() == 1
    store["later"] = torch.ones(1)
    assert entries() == 0
    assert [made(0), entries()] == [{}, 1]
    made(1)
    assert entries() == 0
