"""Whether predictions go where more work and larger devices go: a sweep of some 3,000 calls on all devices.

    python benchmarks/plausible.py [--l2 sequence|cold|warm ...] [--worst N]

Each call is a text of `CALLS` at sizes of `ROWS` and `COLUMNS`, or a product of `PRODUCTS`. A violation is a prediction
more than 5 % above that of the same call on a smaller device of its generation (no number of its datasheet is larger,
and none of memory's), or above that of the same call with the next larger size. Sizes of which only the larger lies
aligned in memory are no such pair: unaligned rows do take longer. Bar: none, in a network and alone.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import cast

from opreplay.replay.ascend import list_devices, load_device, simulate_op
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls
from opreplay.replay.results.records import L2State

TOLERATED = 1.05
STATES: tuple[L2State, ...] = ("sequence", "cold", "warm")
ROWS = (1, 7, 64, 65, 1024, 4096, 4097)
COLUMNS = (64, 1000, 1024, 1025, 8192)
PRODUCTS = {
    "m": (1, 16, 64, 65, 128, 129, 256, 1024, 4096, 4097),
    "n": (1, 64, 1024, 4096, 11008),
    "k": (128, 2048, 4096, 11008),
}
FLOATS, ALL, HALVES = ("f32", "bf16"), ("f32", "bf16", "f16"), ("bf16",)
CALLS: dict[str, Sequence[str]] = {
    "aten::add(T[r,c],T[r,c])": ALL,
    "aten::add(T[r,c],T[c])": FLOATS,
    "aten::mul(T[r,c],T[r,1])": FLOATS,
    "aten::div(T[r,c],T[r,c])": ALL,
    "aten::maximum(T[r,c],T[r,c])": FLOATS,
    "aten::remainder(T[r,c],T[r,c])": FLOATS,
    "aten::exp(T[r,c])": ALL,
    "aten::sin(T[r,c])": FLOATS,
    "aten::relu(T[r,c])": ALL,
    "aten::gelu(T[r,c])": FLOATS,
    "aten::silu(T[r,c])": HALVES,
    "aten::sigmoid(T[r,c])": FLOATS,
    "aten::clamp(T[r,c],-1.0,1.0)": FLOATS,
    "aten::eq(T[r,c],T[r,c])": FLOATS,
    "aten::where(bool[r,c],T[r,c],T[r,c])": FLOATS,
    "aten::softmax(T[r,c],-1)": ALL,
    "aten::log_softmax(T[r,c],-1)": FLOATS,
    "aten::native_layer_norm(T[r,c],[c],T[c],T[c],1e-05)": FLOATS,
    "npu::npu_rms_norm(T[r,c],T[c])": ALL,
    "npu::npu_add_rms_norm(T[r,c],T[r,c],T[c])": HALVES,
    "npu::npu_swiglu(T[r,c])": FLOATS,
    "npu::npu_dynamic_quant(T[r,c])": HALVES,
    "aten::argmax(T[r,c],-1,False)": FLOATS,
    "aten::max.dim(T[r,c],-1)": FLOATS,
    "aten::sum.dim_IntList(T[r,c],[1])": ALL,
    "aten::sum.dim_IntList(T[r,c],[0])": ALL,
    "aten::sum(T[r,c])": FLOATS,
    "aten::mean.dim(T[r,c],[1])": FLOATS,
    "aten::amax(T[r,c],[1])": ALL,
    "aten::var.dim(T[r,c],[1])": FLOATS,
    "aten::cumsum(T[r,c],1)": FLOATS,
    "aten::cumsum(T[r,c],0)": FLOATS,
    "aten::cat([T[r,c],T[r,c]],1)": FLOATS,
    "aten::flip(T[r,c],[1])": FLOATS,
    "aten::t_copy(T[r,c])": ALL,
    "aten::clone(T[r,c])": FLOATS,
    "aten::_to_copy(T[r,c],dtype=torch.float16)": FLOATS,
    "aten::fill_(T[r,c],1.0)": FLOATS,
    "aten::embedding(T[32000,c],i64[r])": FLOATS,
    "aten::gather(T[r,c],1,i64[r,c])": FLOATS,
    "aten::index_add(T[r,c],0,i64[r],T[r,c])": FLOATS,
    "aten::sort(T[r,c],-1,False)": FLOATS,
    "aten::topk(T[r,c],8)": FLOATS,
    "aten::bmm(T[8,r,128],T[8,128,c])": FLOATS,
    "aten::linear(T[r,c],T[4096,c])": FLOATS,
    "aten::native_dropout(T[r,c],0.1,True)": FLOATS,
}


def cases() -> list[Written]:
    """All calls of the sweep."""
    sizes_of = {"r": ROWS, "c": COLUMNS}
    texts = [(text.replace("T[", f"{dtype}["), sizes_of) for text, dtypes in CALLS.items() for dtype in dtypes]
    texts += [(f"aten::mm({dtype}[m,k],{dtype}[k,n])", PRODUCTS) for dtype in FLOATS]
    return [
        Written(text=text, sizes=dict(zip(values, sizes, strict=True)))
        for text, values in texts
        for sizes in itertools.product(*values.values())
    ]


def is_larger(device: DeviceProfile, other: DeviceProfile) -> bool:
    """Whether a device has no less of anything than another one of its generation, and more of something."""

    def numbers(of: DeviceProfile) -> tuple[float, ...]:
        macs = (of.macs_per_cycle[dtype] for dtype in sorted(of.macs_per_cycle))
        return of.aic_cores, of.aiv_cores, of.freq_hz, of.l2_bytes, of.hbm_bytes_per_s, *macs

    if device.generation != other.generation:
        return False
    pairs = list(zip(numbers(device), numbers(other), strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def larger_sizes(case: Written, known: dict[tuple[str, tuple[int, ...]], int]) -> Iterator[int]:
    """Cases with the next larger size of one kind, unless that alone is aligned."""
    for name, size in case.sizes.items():
        values = PRODUCTS.get(name, ROWS if name == "r" else COLUMNS)
        following = [value for value in values if value > size]
        if following and (size % 16 == 0 or following[0] % 16):
            yield known[case.text, tuple({**case.sizes, name: following[0]}.values())]


def predicted(calls: Sequence[Written], devices: Sequence[DeviceProfile], l2: L2State) -> list[list[float]]:
    """Microseconds by call and device; empty for a call without a prediction."""
    plan, ids = plan_of_calls(calls)
    ops = {op.id: op for op in plan.ops}
    times: list[list[float]] = []
    for case, place in zip(calls, ids, strict=True):
        op = ops[place]
        row = [simulate_op(op, device, l2=l2) for device in devices]
        if op.reason is not None or any(one.by != "rule" for one in row):
            sys.exit(f"{case.text} {case.sizes}: {op.reason or row[0].by}")
        times.append([one.time_us for one in row])
    return times


def violations(calls: Sequence[Written], l2: L2State) -> Iterator[tuple[float, str, str]]:
    """(factor, what kind, which) of each pair that goes the wrong way."""
    devices = [load_device(name) for name in list_devices()]
    known = {(case.text, tuple(case.sizes.values())): place for place, case in enumerate(calls)}
    times = predicted(calls, devices, l2)
    pairs = [(i, j) for i, j in itertools.permutations(range(len(devices)), 2) if is_larger(devices[i], devices[j])]
    for case, row in zip(calls, times, strict=True):
        here = [(f"{case.sizes} on the {device.name}", time_us) for device, time_us in zip(devices, row, strict=True)]
        compared = [("larger device slower", *here[i], *here[j]) for i, j in pairs]
        for place in larger_sizes(case, known):
            more = zip(here, times[place], strict=True)
            compared += [("more work cheaper", *less, str(calls[place].sizes), more_us) for less, more_us in more]
        for kind, which, time_us, other, other_us in compared:
            if time_us > TOLERATED * other_us:
                yield time_us / other_us, kind, f"{case.text} {which} {time_us:.1f}, {other} {other_us:.1f} us"


def main() -> None:
    """Parse the command line and measure; fails where there are violations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--l2", nargs="*", choices=STATES, default=STATES)
    parser.add_argument("--worst", type=int, default=10)
    args = parser.parse_args()
    calls, total = cases(), 0
    for l2 in cast("Sequence[L2State]", args.l2):
        worst = sorted(violations(calls, l2), reverse=True)
        total += len(worst)
        counts = Counter(kind for _, kind, _ in worst)
        print(f"{l2}: {len(calls)} calls; {', '.join(f'{n} {kind}' for kind, n in counts.items()) or 'no violation'}")
        for kind in counts:
            for factor, _, which in [one for one in worst if one[1] == kind][: args.worst]:
                print(f"  {factor:.2f} {which}")
    sys.exit(bool(total))


if __name__ == "__main__":
    main()
