"""The surface of TraceLens's EventReplayer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import opreplay
from opreplay.initializers import extensions
from opreplay.replay.session.tracelens import settings_of
from opreplay.tracelens import (
    CustomInit,
    EventReplayer,
    TensorCfg,
    _custom_init_registry,
    benchmark_func,
    extract_batch_context,
    list_custom_inits,
    register_custom_init,
    register_namespace,
)
from opreplay.traces.errors import UsageError
from opreplay.traces.links.annotations import BatchContext

MM: dict[str, Any] = {
    "name": "aten::mm",
    "args": {
        "Input Dims": [[8, 4], [4, 2]],
        "Input type": ["float", "float"],
        "Input Strides": [[4, 1], [2, 1]],
        "Concrete Inputs": ["", ""],
    },
}
LOOKUP: dict[str, Any] = {
    "name": "aten::embedding",
    "args": {
        "Input Dims": [[50, 8], [6], [], [], []],
        "Input type": ["float", "long int", "Scalar", "Scalar", "Scalar"],
        "Input Strides": [[8, 1], [1], [], [], []],
        "Concrete Inputs": ["", "", "-1", "False", "False"],
    },
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("auto_init", [False, True])
def test_replay_gives_the_result_in_every_mode(lazy: bool, auto_init: bool) -> None:
    replayer = EventReplayer(MM, device="cpu", lazy=lazy, auto_init=auto_init)
    assert hasattr(replayer, "args") != lazy
    result = replayer.replay()
    torch.testing.assert_close(result, replayer.args[0] @ replayer.args[1])


def test_repro_info_is_the_same_each_time_whatever_is_done_to_it() -> None:
    replayer = EventReplayer(MM, device="cpu", lazy=True)
    first = replayer.get_repro_info()
    first["replay_ir"]["list_pos_args"].clear()
    replayer.replay()
    second = replayer.get_repro_info()
    assert second == replayer.get_repro_info()
    assert second["op_name"] == "aten::mm"
    assert [arg["arg_name"] for arg in second["replay_ir"]["list_pos_args"]] == ["self", "mat2"]
    assert replayer.event_replay_IR == second["replay_ir"]


def test_repro_info_can_be_read_back(tmp_path) -> None:
    import json

    path = tmp_path / "event_replay_ir.json"
    path.write_text(json.dumps([EventReplayer(LOOKUP, device="cpu").get_repro_info()]))
    assert opreplay.open(path)["aten::embedding"]().shape == (6, 8)


def test_indices_are_valid_and_zeros_without_auto_init() -> None:
    assert EventReplayer(LOOKUP, device="cpu").args[1].max() > 0
    assert not EventReplayer(LOOKUP, device="cpu", auto_init=False).args[1].any()


def test_options_go_to_the_initializer_of_the_op() -> None:
    from opreplay.replay.ops.inputs import built_in

    rule, option = next((rule, rule.options[0]) for rule in built_in() if rule.options)
    assert f"{rule.name}.{option.name}=3" in settings_of(rule.op_patterns[0], {option.name: 3})
    assert settings_of("aten::mm", {"moe.x": 1}) == ("moe.x=1",)
    with pytest.raises(UsageError, match="no initializer of aten::mm has an option 'colour'"):
        EventReplayer(MM, device="cpu", init_kwargs={"colour": 1})


def test_an_event_that_cannot_be_replayed_says_why() -> None:
    with pytest.raises(opreplay.NotReplayable, match="label"):
        EventReplayer({"name": "ProfilerStep#1"}, device="cpu")


def test_benchmark_func_times_a_callable() -> None:
    replayer = EventReplayer(MM, device="cpu")
    found = benchmark_func(replayer.replay, "cpu", warmup=2, avg_steps=10)
    assert found.samples >= 10
    assert found.median_us > 0


class Filling(CustomInit):
    """Fills lookups with a number, and keeps whom it was called by."""

    op_patterns = ["aten::embedding"]  # noqa: RUF012 - as TraceLens's own have it

    def __init__(self, number: int = 7) -> None:
        self.number, self.calls = number, 0

    def initialize(self, replayer: Any, number: int | None = None, **kwargs: Any) -> str:
        self.calls += 1
        replayer.args[1].fill_(self.number if number is None else number)
        return "filled"


@pytest.fixture
def inits() -> Iterator[list[Any]]:
    before = list(_custom_init_registry)
    _custom_init_registry.clear()
    yield _custom_init_registry
    _custom_init_registry[:] = before


@pytest.mark.parametrize("lazy", [False, True])
def test_the_first_registered_initializer_of_the_exact_name_fills(inits: list[Any], lazy: bool) -> None:
    other, first, second = Filling(1), Filling(3), Filling(4)
    other.op_patterns = ["aten::embed"]
    for init in (other, first, second):
        assert register_custom_init(init) is init
    assert inits == [other, first, second]
    assert list_custom_inits()[:2] == [("Filling", ["aten::embed"]), ("Filling", ["aten::embedding"])]
    replayer = EventReplayer(LOOKUP, device="cpu", lazy=lazy)
    replayer.replay()
    assert (replayer.args[1] == 3).all()
    assert [init.calls for init in (other, first, second)] == [0, 1, 0]


def test_a_class_is_registered_as_an_instance_and_gets_the_options(inits: list[Any]) -> None:
    register_custom_init(Filling)
    assert isinstance(inits[0], Filling)
    assert (EventReplayer(LOOKUP, device="cpu", init_kwargs={"number": 9}).args[1] == 9).all()


def test_without_auto_init_no_initializer_of_the_users_runs(inits: list[Any]) -> None:
    log: list[str] = []

    class Logging:
        op_patterns = ("aten::embedding",)

        def initialize(self, replayer: Any, **kwargs: Any) -> None:
            log.append("ran")

    custom = register_custom_init(Filling())
    opreplay.register_initializer(Logging)
    try:
        assert not EventReplayer(LOOKUP, device="cpu", auto_init=False).args[1].any()
        assert (custom.calls, log) == (0, [])
        opreplay.op_of_event(LOOKUP).prepare()
        assert log == ["ran"]
    finally:
        extensions.clear_registrations()


def test_annotations_say_the_batch() -> None:
    expected = {"n_prefill": 2, "prefill_tokens": 18, "n_decode": 5, "decode_tokens": 5}
    name = "execute_context_2(18)_generation_5(5)"
    assert extract_batch_context(name) == extract_batch_context({"name": name, "cat": "user_annotation"}) == expected
    assert extract_batch_context("forward") is None


def test_the_batch_of_an_event_is_that_of_the_op() -> None:
    batch = {"n_prefill": 2, "prefill_tokens": 18, "n_decode": 5, "decode_tokens": 5}
    read = EventReplayer({**LOOKUP, "batch_context": batch}, device="cpu").op.ir.batch
    assert read == BatchContext(prefill_sequences=2, prefill_tokens=18, decode_sequences=5, decode_tokens=5)
    for wrong in (3, {}, {"n_prefill": -1}, {"n_prefill": "2"}):
        with pytest.raises(UsageError):
            EventReplayer({**LOOKUP, "batch_context": wrong}, device="cpu")


def test_timings_are_looked_up_by_name() -> None:
    timing = benchmark_func(EventReplayer(MM, device="cpu").replay, "cpu", warmup=2, avg_steps=10)
    assert timing["median_us"] == timing.median_us
    assert timing["min_us"] <= timing["mean_us"] <= timing["max_us"]
    with pytest.raises(KeyError):
        timing["colour"]


def test_a_namespace_may_be_imported_once_it_is_registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "lens_ops.py").write_text(
        "import torch\n_L = torch.library.Library('lens_ops', 'DEF')\n_L.define('twice(Tensor x) -> Tensor')\n"
        "_L.impl('twice', lambda x: x * 2, 'CPU')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    event = {
        "name": "lens_ops::twice",
        "args": {
            "Input Dims": [[4]],
            "Input type": ["float"],
            "Input Strides": [[1]],
            "Concrete Inputs": [""],
        },
    }
    with pytest.raises(opreplay.NotReplayable):
        EventReplayer(event, device="cpu")
    register_namespace("lens_ops")
    assert EventReplayer(event, device="cpu").replay().shape == (4,)


def test_a_tensor_of_the_ir() -> None:
    (tensor, _) = EventReplayer(MM, device="cpu").event_replay_IR["list_pos_args"]
    assert TensorCfg(**tensor["value"]) == TensorCfg([8, 4], "float", [4, 1])
