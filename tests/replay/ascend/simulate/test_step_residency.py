"""What lies in the cache in a step: results of the call before do, weights of another layer do not."""

from __future__ import annotations

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.cost.residency import Held, Stream, codes_kept, reuse_distances
from opreplay.replay.ascend.simulate.step import simulate_step
from opreplay.replay.ascend.simulate.step_residency import held_in_caches, step_kernels
from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ir.model import Recorded, RecordedSequence, ReplayArg, ReplayOp
from opreplay.replay.ops.op_view import kernel, spec
from opreplay.traces.model import TensorMeta

DEVICE = load_device("910b2")
MIB = 1 << 20


def meta(mib: float) -> TensorMeta:
    return TensorMeta(shape=(int(mib * MIB) // 4096, 1024), dtype="float32")


def op(id_: str, name: str, outputs: tuple[TensorMeta, ...], **tensors: TensorMeta) -> ReplayOp:
    args = tuple(ReplayArg(name=key, type="Tensor", tensors=(one,)) for key, one in tensors.items())
    recorded = Recorded(host_us_total=1.0, host_us_median=1.0)
    return ReplayOp(id=id_ * 12, name=name, count=1, recorded=recorded, args=args, outputs=outputs)


def sequence(*calls: str) -> RecordedSequence:
    ids = tuple(dict.fromkeys(one * 12 for one in calls))
    return RecordedSequence(
        step="",
        steps=0,
        dur_us=0,
        ids=ids,
        calls=tuple(ids.index(one * 12) for one in calls),
        host_us=(1.0,) * len(calls),
    )


def shares(ops: list[ReplayOp], *calls: str) -> dict[str, float]:
    (found,) = held_in_caches(step_kernels(ops, sequence(*calls)), [DEVICE])
    return {id_[0]: of_kernels[-1].resident or 0.0 for id_, of_kernels in found.items() if of_kernels}


def test_a_result_that_is_read_at_once_is_in_the_cache_and_one_from_long_ago_is_not() -> None:
    made = op("a", "aten::exp", (meta(8),), self=meta(8.5))
    used = op("b", "aten::relu", (meta(8),), self=meta(8))
    much = op("c", "aten::exp", (meta(1500),), self=meta(1501))
    near = shares([made, used, much], "a", "b", "c")["b"]
    far = shares([made, used, much], "a", "c", "b")["b"]
    assert near > 0.45 > 0.1 > far


@pytest.mark.parametrize(("layers", "resident"), [(1, True), (40, False)])
def test_each_layer_has_weights_of_its_own(layers: int, resident: bool) -> None:
    layer = op("a", "aten::mul", (meta(0.5),), self=meta(0.5), weight=meta(32))
    share = shares([layer], *"a" * layers)["a"]
    assert (share > 0.8) == resident, "weights of one layer stay from step to step, those of forty do not"


def test_a_view_in_between_hides_nothing() -> None:
    made = op("a", "aten::exp", (meta(8),), self=meta(8.5))
    turned = TensorMeta(shape=(1024, 2048), dtype="float32")
    viewed = op("v", "aten::view", (turned,), self=meta(8))
    used = op("b", "aten::relu", (turned,), self=turned)
    assert shares([made, viewed, used], "a", "v", "b")["b"] == pytest.approx(
        shares([made, op("b", "aten::relu", (meta(8),), self=meta(8))], "a", "b")["b"], abs=0.02
    )


def test_the_steps_time_follows_what_is_in_the_cache() -> None:
    ops = [op("a", "aten::exp", (meta(64),), self=meta(65)), op("b", "aten::relu", (meta(64),), self=meta(64))]
    near, far = ({"a" * 12: (Held(share),), "b" * 12: (Held(share),)} for share in (1.0, 0.0))
    assert simulate_step(ops, DEVICE, None, near).total_us < simulate_step(ops, DEVICE, None, far).total_us
    plain = simulate_step(ops, DEVICE)
    assert simulate_step(ops, DEVICE, None, {"b" * 12: (Held(),), "c" * 12: (Held(1.0),)}) == plain
    assert simulate_step(ops, DEVICE, None, {"a" * 12: (Held(1.0), Held(1.0))}) == plain, (
        "shares of other kernels are not taken"
    )


def test_ops_that_the_plan_lacks_are_left_out() -> None:
    one = op("a", "aten::exp", (meta(8),), self=meta(8.5))
    (found,) = held_in_caches(step_kernels([one], sequence("a", "z", "a")), [DEVICE])
    assert set(found) == {"a" * 12}


def test_a_named_tensor_is_not_mistaken_for_another_of_its_size() -> None:
    def call() -> KernelCall:
        return kernel("Relu", [spec((1024,), "float32")], [])

    stream = Stream()
    stream.touch(call(), ["x"])
    assert stream.touch(call(), ["y"])[0][1] is None
    assert stream.touch(call(), ["x"])[0][1] == 3 * 4096 - 4096
    assert reuse_distances([call(), call()])[1][0][1] == 4096


def test_code_that_ran_shortly_before_makes_a_launch_shorter() -> None:
    relu, exp = (op(name[0], f"aten::{name}", (meta(8),), self=meta(8)) for name in ("relu", "exp"))
    (found,) = held_in_caches(step_kernels([relu, exp], sequence("r", "r", "r", "e")), [DEVICE])
    assert found["r" * 12][0].loaded == 1.0, "a step follows itself: the first relu comes one kernel after the last"
    assert found["e" * 12][0].loaded == 1.0
    calls = [kernel(kind, [spec((1 << 20,), "float32")], [spec((1 << 20,), "float32")]) for kind in "ABCDE"]
    assert codes_kept([*calls[:4], calls[0]])[-1], "three others ran in between"
    assert not codes_kept([*calls, calls[0]])[-1], "four others did"
    assert not codes_kept([calls[0], None, None, None, None, calls[0]])[-1]
    near, far = ({"r" * 12: (Held(1.0, loaded),)} for loaded in (1.0, 0.0))
    quick, slow = (simulate_step([relu], DEVICE, None, held) for held in (near, far))
    assert 1.0 < slow.total_us - quick.total_us < 10.0
