"""Results whose sizes nothing reads afterwards mark a guessed value; a list of an old profile is no absent argument."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

from tests.scenarios.conftest import console, op, trace_of

__all__ = ["console", "trace_of"]


def old(name: str, ts: float, dims: list[Any], types: list[str]) -> dict[str, Any]:
    """A call as profiles up to torch 1.12 have it: no values, no strides, lists of numbers without a type."""
    event = op(name, ts, dims, types)
    del event["args"]["Concrete Inputs"]
    return event


def planned(console: Callable[..., Result], trace: Path, name: str) -> dict[str, Any]:
    out = trace.with_suffix(".plan")
    console("plan", trace, "-o", out, "--force", "--select", "all")
    return next(one for one in json.loads(out.read_text())["ops"] if one["name"] == name)


def test_a_guess_that_nothing_reads_is_marked(console: Callable[..., Result], trace_of: Callable[..., Path]) -> None:
    chunk = old("aten::chunk", 0, [[512, 3328], [], []], ["float", "Scalar", "Scalar"])
    readers = [old("aten::neg", 20.0 + i, [[7 + i]], ["float"]) for i in range(2)]
    marked = planned(console, trace_of(chunk, *readers, device=None), "aten::chunk")
    assert any("so a guessed value may be wrong" in a["what"] for a in marked["assumptions"])
    fine = planned(console, trace_of(chunk, old("aten::neg", 20, [[256, 3328]], ["float"]), device=None), "aten::chunk")
    assert not any("no later op reads" in a["what"] for a in fine["assumptions"])
    last = planned(console, trace_of(chunk, device=None), "aten::chunk")
    assert not any("no later op reads" in a["what"] for a in last["assumptions"]), "nothing follows it at all"


def test_a_list_of_numbers_of_an_old_profile_is_not_absent(
    console: Callable[..., Result], trace_of: Callable[..., Path]
) -> None:
    """The gradient of a bias, [16, 512] to [1, 512], was summed to one number."""
    total = old("aten::sum", 0, [[16, 512], [], [], []], ["float", "", "Scalar", ""])
    reader = old("aten::view", 20, [[1, 512], []], ["float", ""])
    made = planned(console, trace_of(total, reader, device=None), "aten::sum")
    values = {arg["name"]: arg.get("value") for arg in made["args"]}
    assert (values["dim"], values["keepdim"]) == ([0], True)
    assert made["outputs"][0]["shape"] == [1, 512]
    listed = op("aten::view", 40, [[1, 512], []], ["float", "ScalarList"], ["", "[512]"])
    made = planned(console, trace_of(total, reader, listed, device=None), "aten::sum")
    assert {arg["name"]: arg.get("value") for arg in made["args"]}["dim"] is None, "this profile spells lists out"
