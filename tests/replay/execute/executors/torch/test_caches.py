"""Copies of arguments for cold caches, and one call under the profiler, on the CPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from opreplay.replay.execute.executors.clocks import HostClock
from opreplay.replay.execute.executors.torch.caches import CODE_BYTES, Caches, argument_bytes, copies
from opreplay.replay.execute.executors.torch.device import TorchPrepared
from opreplay.replay.execute.executors.torch.profile import profile_call, profiler_event_us
from opreplay.replay.host import environment
from opreplay.replay.plan.step.recency import Recency

CPU = torch.device("cpu")


def tensors_of(call: partial[torch.Tensor]) -> list[torch.Tensor]:
    return [a for a in call.args if isinstance(a, torch.Tensor)]


def test_copies_are_equal_and_apart() -> None:
    call = partial(torch.ops.aten.mm.default, torch.randn(4, 5), torch.randn(6, 5).t())
    made = copies(call, 3)
    assert made[0] is call
    assert all(torch.equal(one(), call()) for one in made)
    places = {t.data_ptr() for one in made for t in tensors_of(one)}  # type: ignore[arg-type]
    assert len(places) == 6
    assert all(tensors_of(one)[1].stride() == (1, 5) for one in made)  # type: ignore[arg-type]


def test_memory_that_arguments_share_is_shared_in_copies_and_counted_once() -> None:
    base = torch.randn(2, 8)
    call = partial(torch.ops.aten.add.Tensor, base[0], base[0])
    assert argument_bytes(call) == 32
    second = tensors_of(copies(call, 2)[1])  # type: ignore[arg-type]
    assert second[0].data_ptr() == second[1].data_ptr()
    expanded = partial(torch.ops.aten.relu.default, torch.ones(1).expand(1000))
    assert argument_bytes(expanded) == 4


def test_lists_and_named_arguments_are_copied_and_the_rest_is_not() -> None:
    parts = [torch.ones(2), torch.ones(3)]
    call = partial(torch.ops.aten.cat.default, parts, dim=0)
    assert argument_bytes(call) == 20
    made = copies(call, 2)[1]
    assert torch.equal(made(), call())
    assert made.args[0][0] is not parts[0]  # type: ignore[attr-defined]
    assert made.keywords == {"dim": 0}  # type: ignore[attr-defined]


def test_an_op_that_writes_and_one_without_room_have_no_copies() -> None:
    target = torch.zeros(256)
    call = partial(torch.ops.aten.relu_.default, target)
    assert len(TorchPrepared(call, (target,), 10**6).copies(8)) == 1
    assert len(TorchPrepared(call, (), 2048).copies(8)) == 3
    assert len(TorchPrepared(call, (), -5).copies(8)) == 1


def test_the_host_knows_its_last_cache() -> None:
    caches = Caches(CPU)
    assert caches.cache_bytes == environment.last_cache_bytes()
    assert 0 <= caches.evicted_bytes <= caches.cache_bytes
    if caches.cache_bytes:
        caches.evict()


def test_the_gauge_repeats_itself() -> None:
    caches, clock = Caches(CPU), HostClock()
    gauge = caches.gauge()
    readings = [gauge.read(clock, memory=True) for _ in range(5)]
    assert min(min(reading) for reading in readings) > 1.0
    assert gauge.best_us == min(reading[0] for reading in readings)
    assert {len(reading) for reading in readings} == {2 if caches.evicted_bytes else 1}
    assert len(gauge.read(clock)) == 1


@pytest.mark.parametrize("name", ["aten::linear", "aten::a_stand_in"])
def test_a_profile_lists_the_ops_below(name: str) -> None:
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    call = partial(torch.ops.aten.linear.default, x, weight, bias)
    found = profile_call(call, CPU, lambda: None, name)
    assert found.kernels == ()
    assert not found.has_device
    if name == "aten::linear":
        assert "aten::addmm" in found.children
        assert "aten::linear" not in found.children
    else:
        assert found.children == ("aten::linear",), "a stand-in's own calls are all there is"


def test_tensors_are_laid_out_as_a_step_leaves_them_and_not_changed() -> None:
    caches = Caches(torch.device("cpu"))
    caches.cache_bytes = caches.evicted_bytes = 1 << 20
    values, written = torch.arange(12.0).reshape(3, 4).t(), torch.ones(2)
    call = partial(torch.mul, values, 2.0)
    lay = caches.as_in_step(call, Recency(arguments=(1 << 30,), results=((48, 4096),)), 1 << 20)
    assert lay is not None
    lay()
    assert torch.equal(values, torch.arange(12.0).reshape(3, 4).t())
    lay = caches.as_in_step(partial(torch.Tensor.add_, written, 1.0), Recency(arguments=(0,)), 1 << 20)
    assert lay is not None
    lay()
    assert written.tolist() == [1.0, 1.0], "other memory is written in its place"
    assert caches.as_in_step(call, Recency(arguments=(1, 2)), 1 << 20) is None, "another call than the recorded one"


def test_as_much_other_memory_is_read_as_lay_between(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = Caches(torch.device("cpu"))
    caches.cache_bytes = caches.evicted_bytes = 64 << 20
    read: list[int] = []
    monkeypatch.setattr(caches, "_pass", read.append)
    call = partial(torch.add, torch.ones(8), torch.ones(8))
    lay = caches.as_in_step(call, Recency(arguments=(5 << 20, 3 << 10)), 1 << 20)
    assert lay is not None
    lay()
    twin = 64  # bytes of the arguments of the call on other memory, at a distance of CODE_BYTES
    assert read == [(5 << 20) - CODE_BYTES, CODE_BYTES - (3 << 10) - twin, 3 << 10]
    read.clear()
    lay = caches.as_in_step(call, Recency(arguments=(5 << 20, 3 << 10), code=4 << 10), 1 << 20)
    assert lay is not None
    lay()
    assert read == [(5 << 20) - (4 << 10), (1 << 10) - twin, 3 << 10], "its code is nearer where the step just ran it"


def test_an_event_of_the_profiler_costs_less_than_a_call_of_an_op_and_more_than_nothing() -> None:
    assert 0.0 < profiler_event_us() < 50.0
