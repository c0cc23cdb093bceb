"""The surface of TraceLens's EventReplayer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import opreplay
from opreplay.replay.session.tracelens import settings_of
from opreplay.tracelens import EventReplayer, benchmark_func
from opreplay.traces.errors import UsageError

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
    assert len(replayer.args) == (0 if lazy else 2)
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
