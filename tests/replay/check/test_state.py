"""Functions that leave state behind, and quantization that rounds another way: single trials of a check."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from opreplay.replay.check import variants
from opreplay.replay.check.bench import make_bench
from opreplay.replay.check.calling.calls import Bench, NotApplicable
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding, Setup
from opreplay.replay.check.points import values
from opreplay.replay.check.points.stateless import stateless
from opreplay.replay.check.points.values import against_reference

FUNCTIONS = """
import threading

import torch

AT_ONCE = []

WORKSPACE = {}
TOTAL = torch.zeros(8, dtype=torch.float64)


def right(x):
    return x * 2


def turns_deterministic_on(x):
    torch.use_deterministic_algorithms(True)
    return x * 2


def turns_deterministic_off(x):
    torch.use_deterministic_algorithms(False)
    return x * 2


def sets_the_default_dtype(x):
    torch.set_default_dtype(torch.float64)
    return x * 2


def lowers_precision(x):
    torch.set_float32_matmul_precision("medium")
    return x * 2


def restores_all(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    made = x * 2
    torch.set_default_dtype(before)
    return made


def norm(x):
    return torch.nn.functional.normalize(x, dim=-1)


def norm_in_workspace(x):
    return WORKSPACE.setdefault(x.shape, torch.empty_like(x)).copy_(norm(x))


def total(x):
    return x.sum(-1)


def total_in_one_buffer(x):
    TOTAL.zero_()
    for column in x.unbind(-1):
        TOTAL.add_(column)
    return TOTAL.to(x.dtype)


def total_rarely_disturbed(x):
    if threading.current_thread() is not threading.main_thread():
        AT_ONCE.append(None)
    return x.sum(-1) + (len(AT_ONCE) == 150)


def refuses_float8(x):
    if x.itemsize < 2:
        raise ValueError("not in 8 bits")
    return x * 2


def quantized(x, scale=0.1):
    return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)


def quantized_by_product(x, scale=0.1):
    return torch.clamp(torch.round(x * (1 / scale)), -128, 127).to(torch.int8)


def rounded_away(x, scale=0.1):
    return torch.clamp(torch.trunc(x / scale + torch.copysign(torch.tensor(0.5), x)), -128, 127).to(torch.int8)


def rows(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).to(torch.int8), scale


def rows_by_product(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x * (127 / x.abs().amax(-1, keepdim=True))).to(torch.int8), scale


def rows_rounded_up(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.floor(x / scale + 0.5).to(torch.int8), scale
"""


@pytest.fixture
def benched(tmp_path: Path) -> Iterator[Callable[[str, str], Bench]]:
    """Return a function that prepares the check of a function of FUNCTIONS against another one."""
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    benches: list[Bench] = []

    def prepared(name: str, reference: str) -> Bench:
        setup = Setup(
            op=f"{path}:{name}", against=f"{path}:{reference}", shapes=("f32[8,32]",), threads=1, memory_bytes=1 << 30
        )
        benches.append(make_bench(setup)[0])
        return benches[-1]

    before = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    yield prepared
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(before[0])
    torch.set_float32_matmul_precision(before[1])
    for bench in reversed(benches):  # each restores what it found
        bench.executor.close()


def trial(bench: Bench, name: str) -> Finding:
    """Run the trial of `stateless` with this name on the small case."""
    (found,) = (each for each in stateless(bench, bench.compact_bases[0]) if each.case.startswith(f"{name}: "))
    finding = found.run()
    assert isinstance(finding, Finding)
    return finding


@pytest.mark.parametrize(
    ("name", "changed"),
    {
        "right": "",
        "restores_all": "",
        "turns_deterministic_on": "deterministic algorithms",
        "turns_deterministic_off": "deterministic algorithms",
        "sets_the_default_dtype": "default dtype",
        "lowers_precision": "precision of float32 products",
    }.items(),
)
def test_a_flag_that_an_earlier_call_left_behind_is_found(benched, name: str, changed: str) -> None:
    finding = trial(benched(name, "right"), "state of torch")
    assert finding.verdict == ("fail" if changed else "pass")
    assert changed in finding.detail


@pytest.mark.parametrize(
    ("name", "reference", "called"),
    [
        ("norm_in_workspace", "norm", "results after another call"),
        ("total_in_one_buffer", "total", "by 4 callers at once"),
        ("total_rarely_disturbed", "total", "by 4 callers at once"),
    ],
)
def test_calls_may_not_share_memory(benched, name: str, reference: str, called: str) -> None:
    assert trial(benched(name, reference), called).verdict == "fail"
    assert trial(benched(reference, reference), called).verdict == "pass"


def test_sizes_that_take_ever_longer_are_not_all_tried(benched, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the dtype is refused, so that no other sizes help: the op must not seem to hang.
    bench = benched("refuses_float8", "refuses_float8")
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    refuse = values._compared

    def slow(bench: Bench, case: Case) -> Finding:
        now[0] += 0.9
        return refuse(bench, case)

    monkeypatch.setattr(values, "_compared", slow)
    case = variants.replace_dtype(variants.primes_of(bench.compact_bases[0]), "float8_e4m3fn", "float8")
    assert len(case.instead) > 4
    with pytest.raises(NotApplicable):
        against_reference(bench, case)
    assert now[0] < 4


@pytest.mark.parametrize(
    ("name", "reference", "verdict"),
    [
        ("quantized_by_product", "quantized", "pass"),
        ("rounded_away", "quantized", "fail"),
        ("rows_by_product", "rows", "pass"),
        ("rows_rounded_up", "rows", "fail"),
    ],
)
def test_halves_are_rounded_as_the_reference_rounds_them(benched, name: str, reference: str, verdict: str) -> None:
    bench = benched(name, reference)
    (case,) = bench.compact_bases
    (halves,) = (other for other in variants.vary_values(case) if other.values == "halves")
    assert against_reference(bench, case).verdict == "pass"
    assert against_reference(bench, halves).verdict == verdict


def test_halves_are_only_for_quantized_results(benched) -> None:
    bench = benched("right", "right")
    (halves,) = (other for other in variants.vary_values(bench.compact_bases[0]) if other.values == "halves")
    with pytest.raises(NotApplicable):
        against_reference(bench, halves)
