"""What measured calls say of others: values of small sets that can be thought through, and of the file that ships."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.cost.correction import Learned, Traits, learned_calls, shipped_correction
from opreplay.replay.ascend.cost.residency import written_back
from opreplay.replay.ascend.simulate.op import simulate_op
from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.op_view import spec
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls
from opreplay.replay.results.records import L2State

MISH = Traits(
    op="aten::mish", family="Activation", form="elementwise", kernel="Mish",
    generation="910", state="cold", log_time=5.0, log_elements=20.0, log_row=10.0, launch=0.2,
)  # fmt: skip


def changed(**traits: object) -> Traits:
    return msgspec.structs.replace(MISH, **traits)


def test_nothing_measured_changes_nothing() -> None:
    correction = Learned.of([], []).ask(MISH)
    assert correction.factor == 1.0
    assert not correction.is_measured
    assert correction.calls == 0


def test_a_call_that_was_measured_is_nearly_as_measured() -> None:
    calls = [changed(log_elements=20.0 + i, log_time=5.0 + i) for i in range(4)]
    correction = Learned.of(calls, [math.log(2.0)] * 4, ["910b2", "910b4", "910b2", "910b2"]).ask(MISH)
    assert correction.factor == pytest.approx(2.0, rel=0.07)
    assert (correction.socs, correction.calls) == ({"910b2", "910b4"}, 4)


def test_one_call_of_an_op_is_half_believed() -> None:
    """`mul` of f32[4096,4096] on a 910B2 took 240 us where `add` took 142, because the table has one row of it."""
    one = Learned.of([MISH], [math.log(4.0)]).ask(MISH).factor
    assert 1.3 < one < 2.0
    four = [changed(log_time=5.0 + i / 8) for i in range(4)]
    assert Learned.of(four, [math.log(4.0)] * 4).ask(MISH).factor > 3.5


def test_calls_left_out_are_corrected_as_if_learned_anew_without_them() -> None:
    calls = [changed(op=op, log_time=5.0 + i / 2) for i, op in enumerate("aabbbcaa")]
    logs = [0.4, 0.5, -0.2, -0.3, 0.1, 0.6, 0.5, 0.3]
    parts = [0, 0, 1, 1, 2, 3, 4, 4]
    together = Learned.of(calls, logs).left_out(logs, parts)
    for number in range(5):
        rest = [i for i, part in enumerate(parts) if part != number]
        learned = Learned.of([calls[i] for i in rest], [logs[i] for i in rest])
        for i in set(range(8)) - set(rest):
            # Few calls of an op are doubted by their number, which is taken with all calls here.
            assert math.log(together[i].factor) == pytest.approx(math.log(learned.ask(calls[i]).factor), abs=0.08)
            assert together[i].is_measured == learned.ask(calls[i]).is_measured


def test_a_call_that_all_others_contradict_says_little() -> None:
    calls = [changed(log_time=5.0 + i / 4, log_elements=20.0 + i / 4) for i in range(7)]
    usual, odd = [math.log(1.5)] * 7, [math.log(1.5)] * 6 + [math.log(100.0)]
    factors = [Learned.of(calls, logs).ask(MISH).factor for logs in (usual, odd)]
    assert factors == pytest.approx([1.5, 1.5], rel=0.06)


def test_the_less_alike_the_less_is_learned() -> None:
    learned = Learned.of([changed(log_time=5.0 + i) for i in range(6)], [math.log(3.0)] * 6)
    asked = [
        MISH,
        changed(generation="950"),
        changed(op="aten::celu"),
        changed(op="aten::x", family="Sort", form="sort", generation="950"),
    ]
    corrections = [learned.ask(traits) for traits in asked]
    factors = [correction.factor for correction in corrections]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > 2.3
    assert factors[-1] == pytest.approx(1.0, abs=0.05)
    assert [correction.is_measured for correction in corrections] == [True, True, False, False]


@pytest.mark.slow
def test_weights_of_the_file_are_those_of_its_calls() -> None:
    rows = learned_calls()
    learned = Learned([row.traits for row in rows], [0.0] * len(rows))
    assert learned.pulls_of([row.log_ratio for row in rows]) == pytest.approx(
        [row.pull for row in rows], rel=0.02, abs=0.05
    )


def test_the_same_call_measured_on_both_generations_goes_its_own_way() -> None:
    """Sigmoid of half a million to four million elements takes 5 to 18 us on either (hicann/cann-bench)."""
    plan, _ = plan_of_calls([Written(text="aten::sigmoid(f32[2048,1024])")])
    times = {soc: simulate_op(plan.ops[0], load_device(soc), l2="cold") for soc in ("910b2", "950pr")}
    assert 6 < times["910b2"].time_us < 14
    assert 5 < times["950pr"].time_us < 12
    assert all(t.low_us < t.time_us < t.high_us for t in times.values())
    assert shipped_correction().ask(MISH).calls > 0


def test_in_a_network_nothing_is_corrected() -> None:
    plan, _ = plan_of_calls([Written(text="aten::mm(bf16[512,1024],bf16[1024,1024])")])
    device = load_device("910b2")
    corrected = msgspec.structs.replace(device, is_own_fit=False)
    own = msgspec.structs.replace(device, is_own_fit=True)
    op = plan.ops[0]
    assert simulate_op(op, corrected) == simulate_op(op, own)
    assert simulate_op(op, corrected, l2="cold").time_us != simulate_op(op, own, l2="cold").time_us


def alone_us(text: str, soc: str, l2: L2State = "cold") -> float:
    plan, _ = plan_of_calls([Written(text=text)])
    return simulate_op(plan.ops[0], load_device(soc), l2=l2).time_us


def test_what_a_call_writes_stays_in_l2() -> None:
    """Sigmoid of [4096, 4096] bfloat16 takes 36 us on a 910B2, 64 MiB at 1.9 TB/s (hicann/cann-bench)."""
    assert alone_us("aten::sigmoid(bf16[4096,4096])", "910b2") == pytest.approx(36, rel=0.25)
    call = KernelCall(type="Sigmoid", inputs=(spec((64,), "float32"),), outputs=(spec((64,), "float32"),))
    assert written_back(call, ((256.0, None), (256.0, None))) == ((256.0, None), (256.0, 512.0))


def test_a_quantised_product_of_batches_counts_its_batch_once() -> None:
    """77 us on a 910B2, 60 on a 950PR (hicann/cann-bench); a batch of one row list took 419 before."""
    text = "npu::npu_quant_matmul(i8[8,128,2048],i8[8,2048,4096],f32[4096],output_dtype=torch.float16)"
    assert alone_us(text, "910b2") == pytest.approx(77, rel=0.3)


def test_regions_are_aligned_one_after_the_other_on_a_950pr() -> None:
    """177 us a region (hicann/cann-bench), 11 times as much as all of them take on a 910B2."""
    call = "npu::npu_roi_align(f32[2,256,128,128],f32[{n},5],0.0625,14,14,2,0)"
    assert alone_us(call.format(n=128), "950pr") == pytest.approx(21466, rel=0.1)
    assert alone_us("npu::npu_roi_align(f32[2,128,32,32],f32[64,5],0.125,7,7,1,0)", "950pr") == pytest.approx(
        10535, rel=0.2
    )


PRODUCT = (
    "npu::npu_quant_matmul(i8[{m},7168], i8[7168,{n}], f32[{n}], pertoken_scale=f32[{m}], output_dtype=torch.bfloat16)"
)


@pytest.mark.parametrize("soc", ["910b2", "950pr"])
def test_warm_caches_are_never_a_loss(soc: str) -> None:
    texts = [PRODUCT.format(m=m, n=2048) for m in (64, 512, 1024, 3072)]
    texts += ["aten::adaptive_avg_pool2d(bf16[16,1024,56,56],[28,28])", "aten::mm(bf16[512,4096], bf16[4096,2048])"]
    plan, _ = plan_of_calls([Written(text=text) for text in texts])
    for op in plan.ops:
        cold, warm = (simulate_op(op, load_device(soc), l2=l2).time_us for l2 in ("cold", "warm"))
        assert warm <= cold * 1.000001


def test_two_products_that_took_25_times_their_like_make_no_others_as_slow() -> None:
    """n = 11,008 and 14,336 in hicann/cann-bench on a 950PR, where n = 4,096 took 55 us."""
    plan, _ = plan_of_calls([Written(text=PRODUCT.format(m=m, n=7168)) for m in (512, 1024, 2048)])
    times = [simulate_op(op, load_device("950pr"), l2="cold").time_us for op in plan.ops]
    assert all(before < after < 3 * before for before, after in pairwise(times))


def test_products_say_less_of_others_than_other_ops_do() -> None:
    """Of other sizes, but for the nearest."""
    factors = []
    for form in ("matmul", "rowwise"):
        calls = [changed(form=form, log_time=5.0 + i, log_elements=18.0 + 2 * i) for i in range(4)]
        learned = Learned.of(calls, [math.log(3.0)] * 4)
        factors.append(learned.ask(changed(form=form, log_time=12.0, log_elements=30.0)).factor)
    assert factors[0] < factors[1]
    assert factors[0] < 1.2 < 1.6 < factors[1]
