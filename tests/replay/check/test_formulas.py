"""What formulas mended in references."""

from __future__ import annotations

import torch

from opreplay.replay.ops.register import register_namespace


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
