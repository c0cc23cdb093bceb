"""Any callable is timed as an op is, and what is not sure is refused or said."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch

import opreplay
from opreplay.replay.session.benchmarking import device_of
from opreplay.traces.errors import UsageError

A = torch.randn(32, 32)


def test_a_call_that_sleeps_takes_as_long() -> None:
    found = opreplay.benchmark(time.sleep, 0.002, op_time_s=0.05)
    assert 2000 <= found.median_us < 20_000
    assert found.cache == "warm"


@pytest.mark.slow
def test_tensors_that_are_given_are_cold_those_of_a_closure_warm() -> None:
    quick = partial(opreplay.benchmark, op_time_s=0.01)
    assert quick(torch.mm, A, A).cache == "cold"
    assert quick(partial(torch.add, alpha=2), A, A).cache == "cold"
    assert quick(torch.mm, A, A, cache="warm").cache == "warm"
    found = quick(lambda: A @ A)
    assert found.cache == "warm"
    assert "warm caches" in repr(found)


def test_the_gradient_mode_is_the_callers() -> None:
    seen: set[bool] = set()
    opreplay.benchmark(lambda: seen.add(torch.is_grad_enabled()), op_time_s=0.002)
    assert seen == {True}
    with torch.no_grad():
        opreplay.benchmark(lambda: seen.add(torch.is_grad_enabled()), op_time_s=0.002)
        assert not torch.is_grad_enabled()
    assert seen == {True, False}


def test_what_the_callable_raises_passes() -> None:
    with pytest.raises(ZeroDivisionError):
        opreplay.benchmark(lambda: 1 / 0)
    assert torch.is_grad_enabled()


def test_a_tensor_with_a_history_cannot_be_copied() -> None:
    made = torch.ones(4, requires_grad=True) * 2
    with pytest.raises(UsageError, match="gradient history"):
        opreplay.benchmark(torch.sum, made)
    assert opreplay.benchmark(torch.sum, made, cache="warm", op_time_s=0.002).median_us > 0


def test_where_it_computes_must_be_sure() -> None:
    there = torch.empty(1, device="meta")
    assert device_of([A], None) == "cpu"
    assert device_of([A], "cpu") == "cpu"
    with pytest.raises(UsageError, match="cpu and meta"):
        device_of([A, there], None)
    with pytest.raises(UsageError, match="are on cpu, not on cuda:0"):
        device_of([A], "cuda:0")


def test_without_a_tensor_an_accelerator_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="no tensor is on cuda"):
        device_of([], None)
    assert device_of([], "cpu") == "cpu"
