"""Factorisations and single ops of torch 1.8 to 1.13 under the names and with the results that they had then."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from opreplay.replay.ops.aten.attention import flash_attention_forward
from opreplay.replay.ops.calls import Call, but

Maybe = Tensor | None


def addmv_impl(out: Tensor, x: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta x + alpha mat vec, into `out`."""
    return torch.addmv(x, mat, vec, beta=beta, alpha=alpha, out=out)


def amp_update_scale(
    growth_tracker: Tensor, current_scale: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> Tensor:
    """The new scale of the loss; the tracker [1] int32 is updated."""
    scale = current_scale.clone()
    return torch.ops.aten._amp_update_scale_.default(scale, growth_tracker, found_inf, growth, backoff, interval)


def float_to_bfloat16(x: Tensor) -> Tensor:
    """The upper halves of float32 numbers, as 16 bits that torch calls float16."""
    return x.to(torch.bfloat16).view(torch.float16)


def bfloat16_to_float(x: Tensor) -> Tensor:
    """The way back of float_to_bfloat16."""
    return x.view(torch.bfloat16).to(torch.float32)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Maybe = None,
    dropout_p: float = 0.0,
    need_attn_weights: bool = False,
    is_causal: bool = False,
) -> tuple[Tensor, Maybe]:
    """[*, L, E], [*, S, E], [*, S, Ev] → [*, L, Ev], and the weights [*, L, S] where asked for."""
    if need_attn_weights:
        return torch.ops.aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal
        )
    return functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal), None


def flash_attention(c: Call) -> Tensor:
    """Packed sequences: [tokens, heads, E], with the starts of the sequences [n + 1]."""
    return flash_attention_forward(but(c, scale=None))[0]


def cholesky(x: Tensor, upper: bool) -> Tensor:
    """[*, n, n] → its factor."""
    return torch.linalg.cholesky(x, upper=upper)


def determinant(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[*, n, n] → [*], factors [*, n, n], pivots [*, n]."""
    lu, pivots = torch.linalg.lu_factor(x)
    swapped = (pivots != torch.arange(1, x.shape[-1] + 1, device=x.device)).sum(-1) % 2
    return lu.diagonal(dim1=-2, dim2=-1).prod(-1) * (1 - 2 * swapped), lu, pivots


def determinant_backward(grad: Tensor, det: Tensor, x: Tensor, lu: Tensor, pivots: Tensor) -> Tensor:
    """The inverse of the adjoint, times gradient and determinant; from the factors."""
    n = x.shape[-1]
    scaled = torch.diag_embed((grad * det.conj()).unsqueeze(-1).expand(*x.shape[:-2], n))
    return torch.linalg.lu_solve(lu, pivots, scaled, adjoint=True)


def inverse(x: Tensor) -> Tensor:
    """[*, n, n]."""
    return torch.linalg.inv(x)


def inverse_in_place(x: Tensor, infos_lu: Tensor, infos_getri: Tensor) -> Tensor:
    """As inverse, into `x`, with the state of each of the two steps."""
    inverse, info = torch.linalg.inv_ex(x)
    infos_lu.copy_(info.reshape(infos_lu.shape))
    infos_getri.copy_(infos_lu)
    return x.copy_(inverse)


def solve_in_place(x: Tensor, other: Tensor, infos: Tensor) -> Tensor:
    """Solves x y = other, into `other`."""
    solution, info = torch.linalg.solve_ex(x, other)
    infos.copy_(info.reshape(infos.shape))
    other.copy_(solution)
    return x


def qr(x: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """As torch.linalg.qr."""
    q, r = torch.linalg.qr(x, mode)
    return q, r


def lu_solve(x: Tensor, lu_data: Tensor, lu_pivots: Tensor) -> Tensor:
    """Right-hand sides [*, n, k] first."""
    return torch.linalg.lu_solve(lu_data, lu_pivots, x)


def solve(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Solves a y = x; also returns the factors of a."""
    lu, pivots = torch.linalg.lu_factor(a)
    return torch.linalg.lu_solve(lu, pivots, x), lu


def svd(x: Tensor, some: bool, compute_uv: bool) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and V, which is not transposed; zeros in place of U and V where they were not asked for."""
    u, s, vh = torch.ops.aten._linalg_svd.default(x, not some, compute_uv)
    if compute_uv:
        return u, s, vh.mH
    m, n = x.shape[-2:]
    return x.new_zeros((*x.shape[:-2], m, m)), s, x.new_zeros((*x.shape[:-2], n, n))


def svd_by_form(x: Tensor, full_matrices: bool = True, compute_uv: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """As torch.linalg.svd of torch 1.8."""
    return torch.ops.aten._linalg_svd.default(x, full_matrices, compute_uv)


def syevd(x: Tensor, compute_eigenvectors: bool, uplo: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors of a symmetric matrix."""
    return torch.ops.aten._linalg_eigh.default(x, uplo, compute_eigenvectors)


def symeig(x: Tensor, eigenvectors: bool = False, upper: bool = True) -> tuple[Tensor, Tensor]:
    """As syevd."""
    return syevd(x, eigenvectors, "U" if upper else "L")


def eig(x: Tensor, eigenvectors: bool = False) -> tuple[Tensor, Tensor]:
    """Eigenvalues [n, 2] as real and imaginary parts; vectors [n, n] with the parts of a pair side by side."""
    if not eigenvectors:
        return torch.view_as_real(torch.linalg.eigvals(x)), x.new_empty(0)
    values, vectors = torch.linalg.eig(x)
    second = (values.imag < 0).unsqueeze(0)
    return torch.view_as_real(values), torch.where(second, -vectors.imag, vectors.real)


def lstsq(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """min |a y - x|, with the factorisation of a."""
    return torch.linalg.lstsq(a, x, driver="gels").solution, torch.geqrf(a)[0]


def matrix_rank(x: Tensor, symmetric: bool = False) -> Tensor:
    """Number of singular values that are not 0."""
    return torch.linalg.matrix_rank(x, hermitian=symmetric)


def matrix_rank_with_tolerance(x: Tensor, tol: float, symmetric: bool = False) -> Tensor:
    """Number of singular values above `tol`."""
    return torch.linalg.matrix_rank(x, tol, hermitian=symmetric)


def frobenius_norm(x: Tensor) -> Tensor:
    """Of all elements."""
    return torch.linalg.vector_norm(x)
