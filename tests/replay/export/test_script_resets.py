"""When an exported script writes first values back: as `run` does it, and not before each sample of an in-place op."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.replay.export import script

COUNT = 64


def tensor(name: str, *, mutated: bool = False, keyword_only: bool = False) -> dict[str, Any]:
    metas = [{"shape": [COUNT], "strides": [1], "dtype": "float32"}]
    return {"name": name, "type": "Tensor", "tensors": metas, "mutated": mutated, "keyword_only": keyword_only}


def number(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "type": "Scalar", "value": value}


def call_of(name: str, overload: str, *args: dict[str, Any]) -> script.Call:
    op = {"id": "0" * 12, "name": name, "called": name, "overload": overload, "args": list(args)}
    call = script.Call(op, {}, torch.device("cpu"), 0)
    call.positional[0].fill_(1.5)
    call.saved = [(written, written.clone()) for written, _ in call.saved]
    return call


WRITTEN = tensor("self", mutated=True)


@pytest.mark.parametrize(
    ("name", "overload", "args", "most_calls"),
    [
        ("aten::relu_", "", [WRITTEN], None),
        ("aten::mul_", "Scalar", [WRITTEN, number("other", 1.0)], None),
        ("aten::copy_", "", [WRITTEN, tensor("src")], None),
        ("aten::uniform_", "", [WRITTEN], None),
        ("aten::neg", "out", [tensor("self"), tensor("out", mutated=True, keyword_only=True)], None),
        ("aten::neg_", "", [WRITTEN], 64),
        ("aten::mul_", "Scalar", [WRITTEN, number("other", 1e12)], 2),
        ("aten::neg", "", [tensor("self")], None),
    ],
)
def test_calls_without_a_reset(name: str, overload: str, args: list[dict[str, Any]], most_calls: int | None) -> None:
    call = call_of(name, overload, *args)
    call.find_resets(of_torch=True)
    assert (call.most_calls, call.by_values) == (most_calls, False)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with a call: "reset", "touch" and "call"."""
    done: list[str] = []

    class Counted(script.Call):
        def __call__(self) -> Any:
            done.append("call")
            return super().__call__()

        def reset(self) -> None:
            done.append("reset")
            super().reset()

        def touch(self) -> None:
            done.append("touch")
            super().touch()

    monkeypatch.setattr(script, "Call", Counted)
    return done


def test_samples_of_an_op_that_settles_follow_each_other_without_a_reset(counted: list[str]) -> None:
    call = call_of("aten::relu_", "", WRITTEN)
    call.find_resets(of_torch=True)
    counted.clear()
    for _ in range(5):
        script.sample(call, 3, lambda: None)
    assert counted == ["call"] * 15


def test_a_reset_waits_until_values_could_stop_being_finite(counted: list[str]) -> None:
    call = call_of("aten::neg_", "", WRITTEN)
    call.find_resets(of_torch=True)
    assert call.calls_a_sample(1000) == 63
    assert call.most_calls == 64
    counted.clear()
    for _ in range(20):
        script.sample(call, 15, lambda: None)
    assert counted.count("reset") == counted.count("touch") == 4, "each time after 4 samples of 16 calls"
    assert counted.count("call") == 20 * 16


def test_an_op_of_a_user_whose_time_goes_by_the_values_is_reset_before_each_sample(
    counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of("aten::neg_", "", WRITTEN)
    monkeypatch.setattr(call, "goes_by_values", lambda: True)
    call.find_resets(of_torch=False)
    assert call.calls_a_sample(1000) == 1
    counted.clear()
    for _ in range(3):
        script.sample(call, 1, lambda: None)
    assert counted == ["reset", "touch", "call"] * 3
