"""One op on several simulated devices."""

from __future__ import annotations

from opreplay.replay.ascend.simulate.devices import load_socs, simulate_on
from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta


def op(id_: str, name: str, **more: object) -> ReplayOp:
    return ReplayOp(id=id_, name=name, count=1, recorded=Recorded(host_us_total=1.0, host_us_median=1.0), **more)  # type: ignore[arg-type]


def test_labels_are_not_simulated_as_if_they_were_free() -> None:
    devices = load_socs(["910b3"])
    label = op("dddddddddddd", "ProfilerStep#1", reason=Reason("label, not an op"))
    assert simulate_on(label, devices) == {}
    tensors = tuple(
        ReplayArg(name=name, type="Tensor", tensors=(TensorMeta(shape=(8, 8), dtype="float16"),)) for name in ("a", "b")
    )
    assert simulate_on(op("eeeeeeeeeeee", "aten::mm", args=tensors), devices)["910b3"].time_us > 0
