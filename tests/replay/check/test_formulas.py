"""Every formula agrees with the stand-in of each of its ops in the call that is written beside it; what that mended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from opreplay.replay.check.calling.calls import Bench
from opreplay.replay.check.calling.target import OfNames, Reference, find_target
from opreplay.replay.check.cases import given_cases
from opreplay.replay.check.points.values import against_reference
from opreplay.replay.execute.executors.make import make_executor
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.ops import table
from opreplay.replay.ops.register import implemented, register_namespace

table.load("formulas")
FORMULAS = {known.name: known.formula for known in table.rows() if known.formula is not None}


@pytest.fixture(scope="module")
def executor() -> Iterator[TorchExecutor]:
    made = make_executor(WorkerConfig(options=RunOptions(device="cpu"), memory_bytes=1 << 30))
    assert isinstance(made, TorchExecutor)
    yield made
    made.close()  # torch's settings are those of the process


@pytest.mark.parametrize(("name", "formula"), FORMULAS.items(), ids=FORMULAS)
def test_it_is_what_the_stand_in_gives(name: str, formula: table.Formula, executor: TorchExecutor) -> None:
    register_namespace(name.partition("::")[0])
    target = find_target(name)
    newest = [spec for spec in target.specs if spec.overload == target.specs[0].overload]
    (case, *_) = given_cases(formula.call, name, newest)
    reference = Reference(text="formula", function=OfNames(formula.compute))
    bench = Bench(target=target, reference=reference, executor=executor, seed=0, bases=[case], compact_bases=[case])
    found = against_reference(bench, case)
    assert found.verdict == "pass", found.detail


def test_each_op_is_a_stand_in_and_has_one_formula() -> None:
    known = {name for group in implemented().values() for name in group}
    assert len(FORMULAS) > 170
    assert set(FORMULAS) <= known


def test_attention_reads_heads_whose_elements_lie_apart() -> None:
    register_namespace("flash_attn")
    q, k, v = (torch.randn(2, 6, 2, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    rest = (0.0, 0.35, True, -1, -1, 0.0, None, False)
    wanted, _, _, _ = torch.ops.flash_attn._flash_attn_forward(q, k, v, *rest)
    apart = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v)]
    found, _, _, _ = torch.ops.flash_attn._flash_attn_forward(*apart, *rest)
    torch.testing.assert_close(found, wanted)


def test_scales_of_a_weight_lie_in_a_row_or_in_a_column() -> None:
    register_namespace("aiter")
    x, w = (torch.randint(-9, 9, (n, 16), dtype=torch.int8) for n in (8, 24))
    rows, columns = torch.rand(8, 1), torch.rand(24, 1)
    wanted = torch.ops.aiter.gemm_a8w8(x, w, rows, columns, None, torch.float32)
    torch.testing.assert_close(torch.ops.aiter.gemm_a8w8(x, w, rows, columns.mT, None, torch.float32), wanted)
    torch.testing.assert_close(wanted, x.float() @ w.float().mT * rows * columns.mT)


def test_nothing_is_quantised_where_there_are_no_columns() -> None:
    register_namespace("_C")
    for shape in ((8, 0), (0, 0), (5,)):
        out = torch.empty(shape, dtype=torch.float8_e4m3fn)
        torch.ops._C.static_scaled_fp8_quant(out, torch.ones(shape), torch.ones(1))
        assert bool((out.float() == 1).all())


def test_a_norm_keeps_the_sign_of_a_zero_weight() -> None:
    register_namespace("_C")
    out, weight = torch.empty(1, 2), torch.tensor([-0.0, 1.0])
    torch.ops._C.rms_norm(out, torch.ones(1, 2), weight, 1e-6)
    assert torch.signbit(out).tolist() == [[True, False]]
