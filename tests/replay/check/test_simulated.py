"""What a check predicts of a reference: its outermost ops that the simulator has a rule for."""

from __future__ import annotations

from pathlib import Path

from opreplay.replay.check.bench import make_bench
from opreplay.replay.check.model import CheckResult, Setup, Speed
from opreplay.replay.check.simulated import simulated
from opreplay.replay.report.checked import notes


def test_what_is_one_kernel_in_a_trace_is_one_in_the_reference(tmp_path: Path) -> None:
    ours = tmp_path / "norms.py"
    ours.write_text(
        "from torch.nn import functional as F\n"
        "def norm(x, res, w):\n    return F.silu(F.rms_norm(x + res, (x.shape[-1],), w, 1e-6))\n"
    )
    text = f"{ours}:norm"
    setup = Setup(op=text, against=text, shapes=("64x128, 64x128, 128",), points=("speed",), memory_bytes=1 << 28)
    bench, _ = make_bench(setup)
    try:
        mine, reference = simulated(bench, bench.first, ["910b3"])
    finally:
        bench.executor.close()
    assert reference["910b3"].kernels == ("Add", "RmsNorm", "Swish")
    assert reference["910b3"].l2 == "warm"
    assert mine == reference, "a function of Python's is what it calls"
    shown = CheckResult(
        op="o.py:norm",
        against="r",
        device="cpu",
        seed=0,
        environment={},
        points=(),
        simulated=mine,
        simulated_reference=reference,
    )
    (line,) = notes(shown)
    assert "µs for the torch ops that it calls, " in line
    assert line.endswith("for the ops that the reference calls (L2 warm)")


def test_a_ratio_of_pairs_does_not_stand_beside_medians_as_theirs() -> None:
    speed = Speed(ratio=1.25, low=1.1, high=1.4, pairs=20, op_us=10.0, reference_us=10.0, case="c")
    shown = CheckResult(op="o::p", against="r", device="cpu", seed=0, environment={}, points=(), speed=speed)
    (line,) = notes(shown)
    assert line.index("(medians)") < line.index("20 pairs") < line.index("1.250")
