"""Scaled products against their definition: each number times its scale, then the product in float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from opreplay.replay.ops.aten import EQUIVALENTS, equivalent_for
from opreplay.replay.ops.aten.products import E2M1, block_scales, numbers_of

if not hasattr(torch, "float4_e2m1fn_x2"):
    pytest.skip("this torch has no 4-bit floats (2.8 has)", allow_module_level=True)
FP8, E8M0, FP4 = torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2


def run(name: str, *args: object, **kwargs: object) -> torch.Tensor:
    made = EQUIVALENTS[name].load()(*args, **kwargs)
    assert isinstance(made, torch.Tensor)
    return made


def eight_bits(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(FP8)


def powers(*shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape).float().exp2()


def in_tiles(scales: torch.Tensor) -> torch.Tensor:
    """[rows, blocks] as CUDA lays them out, number by number: tiles of 128 rows and 4 blocks, each of 32 rows of 16."""
    rows, blocks = scales.shape
    down, across = -(-rows // 128), -(-blocks // 4)
    laid = torch.zeros(down * across * 512)
    for row, block in product(range(rows), range(blocks)):
        tile = (row // 128) * across + block // 4
        laid[tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + block % 4] = scales[row, block]
    return laid


def spread(scales: torch.Tensor, block: int, width: int) -> torch.Tensor:
    return torch.stack([scales[:, i // block] for i in range(width)], 1).double()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("rows", "blocks"), [(5, 3), (128, 4), (200, 9)])
@pytest.mark.parametrize("dtype", [E8M0, FP8])
def test_tiles_of_scales_are_read_in_their_order(rows: int, blocks: int, dtype: torch.dtype) -> None:
    scales, block = powers(rows, blocks), 32 if dtype is E8M0 else 16
    expected = spread(scales, block, blocks * block - 3)
    for given in (in_tiles(scales), scales):
        assert torch.equal(block_scales(given.to(dtype), rows, blocks * block - 3).double(), expected)
    with pytest.raises(ValueError, match="scales"):
        block_scales(torch.ones(7).to(dtype), rows, blocks * block)


def test_numbers_of_four_bits() -> None:
    bytes_ = torch.arange(256, dtype=torch.uint8).reshape(4, 64)
    found = numbers_of(bytes_.view(FP4))
    assert found.shape == (4, 128)
    for code in range(256):
        low, high = code & 15, code >> 4
        pair = [(-1 if n > 7 else 1) * E2M1[n % 8] for n in (low, high)]
        assert found.reshape(-1)[2 * code : 2 * code + 2].tolist() == pair


@pytest.mark.parametrize("laid", [True, False])
def test_mxfp8(laid: bool) -> None:
    m, k, n = 130, 160, 70
    x, y, a, b = eight_bits(m, k), eight_bits(n, k), powers(m, 5), powers(n, 5)
    bias = torch.randn(n)
    expected = (x.double() * spread(a, 32, k)) @ (y.double() * spread(b, 32, k)).t() + bias.double()
    scales = [(in_tiles(s) if laid else s).to(E8M0) for s in (a, b)]
    close(run("aten::_scaled_mm", x, y.t(), *scales, bias, out_dtype=torch.float32), expected)
    lists: list[Any] = [[scales[0]], [3], [1], [scales[1]], [3], [1]]
    close(run("aten::_scaled_mm_v2", x, y.t(), *lists, bias, torch.float32), expected)


def test_nvfp4() -> None:
    m, k, n = 20, 64, 12
    x, y = (torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8).view(FP4) for rows in (m, n))
    a, b = powers(m, 4), powers(n, 4)
    expected = (numbers_of(x).double() * spread(a, 16, k)) @ (numbers_of(y).double() * spread(b, 16, k)).t()
    scales = in_tiles(a).to(FP8), in_tiles(b).to(FP8)
    close(run("aten::_scaled_mm", x, y.t(), *scales, out_dtype=torch.float32), expected)
    whole = [torch.tensor(0.5)]
    lists: list[Any] = [[scales[0], *whole], [2, 0], [1, 0], [scales[1], *whole], [2, 0], [1, 0]]
    close(run("aten::_scaled_mm_v2", x, y.t(), *lists, None, torch.float32), expected / 4)


@pytest.mark.parametrize("blocks_of_rows", [1, 128])
def test_scales_of_blocks_in_float32(blocks_of_rows: int) -> None:
    m, k, n = 128, 256, 384
    x, y = eight_bits(m, k), eight_bits(n, k)
    a, b = torch.rand(m // blocks_of_rows, 2) + 0.5, torch.rand(2, 3) + 0.5
    of_a = a.repeat_interleave(blocks_of_rows, 0).repeat_interleave(128, 1).double()
    of_b = b.repeat_interleave(128, 0).repeat_interleave(128, 1).double()
    expected = (x.double() * of_a) @ (y.t().double() * of_b)
    found = run("aten::_scaled_mm", x, y.t(), a, b, out_dtype=torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_torch_computes_itself_is_the_same(by_row: bool, dtype: torch.dtype) -> None:
    x, y = eight_bits(32, 64), eight_bits(48, 64).t()
    a, b = (torch.rand(32, 1), torch.rand(1, 48)) if by_row else (torch.rand(()), torch.rand(()))
    expected = torch._scaled_mm(x, y, a, b, out_dtype=dtype)
    found = run("aten::_scaled_mm", x, y, a, b, out_dtype=dtype)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("batched", [False, True])
def test_groups_with_scales_of_blocks(batched: bool) -> None:
    k, n, cuts = 64, 40, [30, 30, 200]
    rows = [64, 64, 64] if batched else [30, 0, 170]
    xs, ys = [eight_bits(r, k) for r in rows], [eight_bits(n, k) for _ in rows]
    of_x, of_y = [powers(r, 2) for r in rows], [powers(n, 2) for _ in rows]
    parts = [
        (x.double() * spread(a, 32, k)) @ (y.double() * spread(b, 32, k)).t()
        for x, y, a, b in zip(xs, ys, of_x, of_y, strict=True)
    ]
    laid = [in_tiles(a).reshape(-1, 4) for a in of_x]
    x = torch.stack([t.view(torch.uint8) for t in xs]) if batched else torch.cat([t.view(torch.uint8) for t in xs])
    y = torch.stack([t.view(torch.uint8) for t in ys]).view(FP8).transpose(1, 2)
    a = torch.stack(laid) if batched else torch.cat(laid)
    b = torch.stack([in_tiles(s) for s in of_y])
    offs = None if batched else torch.tensor(cuts, dtype=torch.int32)
    given = (x.view(FP8), y, a.to(E8M0), b.to(E8M0))
    expected = torch.stack(parts) if batched else torch.cat(parts)
    close(run("aten::_scaled_grouped_mm", *given, offs, out_dtype=torch.float32), expected)
    lists: list[Any] = [[given[2]], [3], [1], [given[3]], [3], [1]]
    close(run("aten::_scaled_grouped_mm_v2", *given[:2], *lists, offs, None, torch.float32), expected)


@pytest.mark.parametrize(
    ("scales", "dtype", "replaced"),
    [
        (((), ()), "float32", False),
        (((1,), (1,)), "float32", False),
        (((128, 1), (1, 512)), "float32", False),
        (((128, 2), (2, 4)), "float32", True),
        (((1024,), (4096,)), "float8_e8m0fnu", True),
        (((128, 1), ()), "float32", True),
    ],
)
def test_the_cpus_kernel_is_used_where_it_knows_the_scales(
    scales: tuple[tuple[int, ...], tuple[int, ...]], dtype: str, replaced: bool
) -> None:
    types = {"self": "float8_e4m3fn", "mat2": "float8_e4m3fn", "scale_a": dtype, "scale_b": dtype}
    values = {"self": (128, 256), "mat2": (256, 512), "scale_a": scales[0], "scale_b": scales[1]}
    found = equivalent_for("aten::_scaled_mm", types, values, has_kernel=True, device="cpu")
    assert (found is not None) is replaced
    assert equivalent_for("aten::_scaled_mm", types, values, has_kernel=True, device="cuda") is None
