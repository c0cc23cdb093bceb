"""The surface of TraceLens's EventReplayer."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import opreplay
import opreplay.tracelens as opreplay_tracelens
from opreplay.initializers import extensions
from opreplay.replay.session.tracelens import settings_of
from opreplay.tracelens import (
    CustomInit,
    EventReplayer,
    TensorCfg,
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


ONE: dict[str, Any] = {
    "args": {"Input Dims": [[4]], "Input type": ["float"], "Input Strides": [[1]], "Concrete Inputs": [""]}
}


@pytest.mark.slow
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
def inits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An empty registry, assigned on the class."""
    registry: list[Any] = []
    monkeypatch.setattr(EventReplayer, "_custom_init_registry", registry)
    return registry


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
    monkeypatch.setattr(EventReplayer, "_namespaces", {})
    event = {**ONE, "name": "lens_ops::twice"}
    with pytest.raises(opreplay.NotReplayable):
        EventReplayer(event, device="cpu")
    register_namespace("lens_ops")
    assert EventReplayer(event, device="cpu").replay().shape == (4,)


LISTS: dict[str, Any] = {
    "name": "aten::cat",
    "args": {
        "Input Dims": [[[2, 3], [4, 3]], []],
        "Input type": ["TensorList", "Scalar"],
        "Input Strides": [[[3, 1], [3, 1]], []],
        "Concrete Inputs": ["", "0"],
    },
}


@pytest.mark.parametrize("lazy", [False, True])
def test_the_ir_of_a_replayer_holds_tensor_configurations_whatever_is_asked(lazy: bool) -> None:
    replayer = EventReplayer(MM, device="cpu", lazy=lazy)
    before = copy.deepcopy(replayer.event_replay_IR)
    for _ in range(2):
        replayer.get_repro_info()["replay_ir"]["list_pos_args"][0]["value"]["shape"].append(9)
        replayer.replay()
    assert replayer.event_replay_IR == before
    values = [argument["value"] for argument in replayer.event_replay_IR["list_pos_args"]]
    assert values == [TensorCfg([8, 4], "float", [4, 1]), TensorCfg([4, 2], "float", [2, 1])]
    assert [vars(value) for value in values] == [
        argument["value"] for argument in replayer.get_repro_info()["replay_ir"]["list_pos_args"]
    ]


def test_lists_of_tensors_in_the_ir_are_configurations_too() -> None:
    tensors, dim = EventReplayer(LISTS, device="cpu").event_replay_IR["list_pos_args"]
    assert tensors["value"] == [TensorCfg([2, 3], "float", [3, 1]), TensorCfg([4, 3], "float", [3, 1])]
    assert dim["value"] == 0


class Ones(CustomInit):
    op_patterns = ["aten::embedding"]  # noqa: RUF012 - as TraceLens's own have it

    def initialize(self, replayer: Any, **kwargs: Any) -> None:
        replayer.args[1].fill_(1)


class Twos(CustomInit):
    op_patterns = ["aten::embedding"]  # noqa: RUF012

    def initialize(self, replayer: Any, **kwargs: Any) -> None:
        replayer.args[1].fill_(2)


@pytest.mark.parametrize(
    ("registry", "expected"), [([Ones(), Twos()], 1), ([Twos(), Ones()], 2), ([Ones, Twos], 1), ((Twos(),), 2)]
)
def test_a_registry_assigned_on_the_class_is_the_one_that_counts(
    monkeypatch: pytest.MonkeyPatch, registry: Any, expected: int
) -> None:
    monkeypatch.setattr(EventReplayer, "_custom_init_registry", registry)
    assert (EventReplayer(LOOKUP, device="cpu").args[1] == expected).all()
    names = [kind.__name__ if isinstance(kind, type) else type(kind).__name__ for kind in registry]
    assert [name for name, _ in EventReplayer.list_custom_inits()] == [name for name, _ in list_custom_inits()] == names


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["embedding", "aten::embed", "aten::embedding_bag", "aten::*", "::embedding"])
def test_a_part_of_a_name_is_no_match(inits: list[Any], pattern: str) -> None:
    other = Filling()
    other.op_patterns = [pattern]
    EventReplayer.register_custom_init(other)
    EventReplayer(LOOKUP, device="cpu").replay()
    assert other.calls == 0


def test_a_registry_of_a_subclass_is_its_own(inits: list[Any]) -> None:
    class Mine(EventReplayer):
        _custom_init_registry: ClassVar[list[Any]] = []

    Mine.register_custom_init(Ones())
    assert (inits, len(Mine.list_custom_inits())) == ([], 1)
    assert (Mine(LOOKUP, device="cpu").args[1] == 1).all()


def test_an_initializer_that_could_never_run_is_refused(inits: list[Any]) -> None:
    for wrong in (object(), SimpleNamespace(op_patterns=["aten::mm"]), CustomInit()):
        with pytest.raises(UsageError, match="is not an initializer"):
            EventReplayer.register_custom_init(wrong)
    assert inits == []


def test_the_class_and_the_functions_share_one_registry(inits: list[Any]) -> None:
    first, second = register_custom_init(Ones()), EventReplayer.register_custom_init(Twos)
    assert inits[0] is first
    assert isinstance(inits[1], second)
    assert opreplay_tracelens._custom_init_registry is inits


def module_with(folder: Path, name: str, op: str, factor: int) -> None:
    """Write a module that defines `op` of the namespace lens_list."""
    (folder / f"{name}.py").write_text(
        "import torch\n"
        f"_L = torch.library.Library('lens_list', 'FRAGMENT')\n_L.define('{op}(Tensor x) -> Tensor')\n"
        f"_L.impl('{op}', lambda x: x * {factor}, 'CPU')\n"
    )


def test_every_module_of_a_namespace_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(EventReplayer, "_namespaces", {})
    monkeypatch.syspath_prepend(tmp_path)
    module_with(tmp_path, "lens_list_a", "twice", 2)
    module_with(tmp_path, "lens_list_b", "thrice", 3)
    EventReplayer.register_namespace("lens_list", ["lens_list_a", "lens_list_b", "lens_list_absent"])
    for op, factor in (("twice", 2), ("thrice", 3)):
        replayer = EventReplayer({**ONE, "name": f"lens_list::{op}"}, device="cpu")
        torch.testing.assert_close(replayer.replay(), replayer.args[0] * factor)


@pytest.mark.parametrize("modules", [[], [3], "os; import x", ["a", None], {"a": "b"}])
def test_what_names_no_module_is_refused_when_it_is_registered(modules: Any) -> None:
    with pytest.raises(UsageError, match="does not name a module"):
        EventReplayer.register_namespace("lens_wrong", modules or [""])
