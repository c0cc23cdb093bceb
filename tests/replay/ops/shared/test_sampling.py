"""Sampling against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from opreplay.replay.ops.register import register_namespace

Call = Callable[..., Any]


PROBS = torch.rand(4, 50).softmax(-1)


def top_p(row: Tensor, p: float) -> set[int]:
    kept, total = set(), 0.0
    for column in row.argsort(descending=True).tolist():
        if kept and total >= p:
            break
        kept.add(column)
        total += float(row[column])
    return kept


def test_renormalisation(call: Call, close: Call) -> None:
    k, p = torch.tensor([3, 5, 1, 50]), torch.tensor([0.1, 0.5, 0.9, 0.02])
    wanted = torch.zeros(4, 50, dtype=torch.float64)
    for i, number in enumerate(k.tolist()):
        ids = PROBS[i].argsort(descending=True)[:number]
        wanted[i, ids] = PROBS[i, ids].double() / PROBS[i, ids].double().sum()
    out = torch.empty(4, 50)
    call("sgl_kernel::top_k_renorm_probs", probs=PROBS, renorm_probs=out, maybe_top_k_arr=k, top_k_val=0)
    close(out, wanted)
    close(call("aiter::top_k_renorm_probs", probs=PROBS, maybe_top_k_arr=k, top_k_val=0), wanted)
    call(
        "sgl_kernel::top_k_renorm_probs_wrapper",
        probs=PROBS,
        renorm_probs=out,
        maybe_top_k_arr=None,
        top_k_val=1,
        cuda_stream=0,
    )
    assert torch.equal(out.argmax(-1), PROBS.argmax(-1))
    call("sgl_kernel::top_p_renorm_probs", probs=PROBS, renorm_probs=out, maybe_top_p_arr=p, top_p_val=0.0)
    for i in range(4):
        assert set(out[i].nonzero().flatten().tolist()) == top_p(PROBS[i], float(p[i]))
    call("sgl_kernel::top_k_mask_logits", logits=PROBS, mask_logits=out, maybe_top_k_arr=k, top_k_val=0)
    assert out.isfinite().sum(-1).tolist() == k.tolist()
    for name in ("npu::npu_top_k_top_p", "_C_ascend::npu_apply_top_k_top_p"):
        left = call(name, logits=PROBS.log(), p=torch.ones(4), k=k)
        assert left.isfinite().sum(-1).tolist() == k.tolist()


def _draws(call: Call, name: str, **given: Any) -> Tensor:
    """Many draws of one distribution, as columns counted."""
    rows = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).expand(4000, -1).contiguous()
    if name.startswith("sgl"):
        out = torch.empty(4000, dtype=torch.int32)
        call(name, probs=rows, output=out, maybe_indices=None, deterministic=True, gen=None, **given)
    else:
        out = call(name, probs=rows, indices=torch.arange(4000), **given)
    return out.to(torch.int64).bincount(minlength=4) / 4000


@pytest.mark.skipif(torch.cuda.is_available(), reason="another device draws other numbers")
def test_draws_follow_their_distribution(call: Call) -> None:
    for ns in ("sgl_kernel", "aiter"):
        found = _draws(
            call,
            f"{ns}::top_k_top_p_sampling_from_probs",
            maybe_top_k_arr=None,
            top_k_val=2,
            maybe_top_p_arr=None,
            top_p_val=1.0,
        )
        torch.testing.assert_close(found, torch.tensor([2 / 3, 1 / 3, 0, 0]), rtol=0, atol=0.04)
        found = _draws(call, f"{ns}::top_p_sampling_from_probs", maybe_top_p_arr=None, top_p_val=0.8)
        torch.testing.assert_close(found, torch.tensor([0.5, 0.25, 0.15, 0]) / 0.9, rtol=0, atol=0.04)
    found = _draws(call, "sgl_kernel::min_p_sampling_from_probs", maybe_min_p_arr=None, min_p_val=0.4)
    torch.testing.assert_close(found, torch.tensor([2 / 3, 1 / 3, 0, 0]), rtol=0, atol=0.04)
    logits, out = torch.tensor([[2.0, 1.0, 0.0]]).expand(4000, -1).contiguous(), torch.empty(4000, dtype=torch.int32)
    wanted = (logits[0] / 2).softmax(-1)
    for name in ("aiter::random_sample", "aiter::_random_sample"):
        call(name, out=out, input=logits, temperatures=torch.full((4000,), 2.0))
        torch.testing.assert_close(out.to(torch.int64).bincount(minlength=3) / 4000, wanted, rtol=0, atol=0.04)
    for name in ("aiter::mixed_sample", "aiter::_mixed_sample"):
        call(name, out=out, input=logits, temperature=torch.zeros(4000))
        assert not out.any()


def test_rows_without_heat_take_the_likeliest_token_whatever_the_noise(call: Call) -> None:
    logits, noise, out = torch.randn(4, 9), torch.rand(4, 9) + 0.1, torch.empty(4, dtype=torch.int32)
    heat = torch.tensor([0.5, 0.0, 0.5, 0.0])
    call("aiter::mixed_sample_outer_exponential", out=out, input=logits, exponentials=noise, temperature=heat)
    drawn = ((logits / 0.5).softmax(-1) / noise).argmax(-1)
    assert torch.equal(out, torch.where(heat == 0, logits.argmax(-1), drawn).int())


def test_penalties_and_bitmasks(call: Call) -> None:
    logits = torch.tensor([[1.0, -2.0, 4.0], [1.0, -2.0, 4.0]])
    seen = torch.tensor([[True, False, False], [False, False, False]])
    said = torch.tensor([[False, True, False], [False, False, True]])
    call(
        "_C::apply_repetition_penalties_",
        logits=logits,
        prompt_mask=seen,
        output_mask=said,
        repetition_penalties=torch.tensor([2.0, 4.0]),
    )
    assert logits.tolist() == [[0.5, -4.0, 4.0], [1.0, -2.0, 1.0]]
    words = torch.tensor([[0b101, 0], [0, 0b10]], dtype=torch.int32)
    scores = torch.zeros(2, 40)
    masked = call("npu::apply_token_bitmask", logits=scores, bitmask=words, indices=None)
    assert [row.isfinite().nonzero().flatten().tolist() for row in masked] == [[0, 2], [33]]
    call("sgl_kernel::apply_token_bitmask_inplace_cuda", logits=scores, bitmask=words, indices=torch.tensor([1]))
    assert scores[0].isfinite().all()
    assert torch.equal(scores[1], masked[1])


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("aiter::mixed_sample", True),
        ("aiter::mixed_sample_outer_exponential", False),
        ("sgl_kernel::min_p_sampling_from_probs", True),
        ("npu::_npu_dropout", True),
    ],
)
def test_ops_that_draw_say_so(name: str, draws: bool) -> None:
    namespace, _, op = name.partition("::")
    register_namespace(namespace)
    tags = getattr(getattr(torch.ops, namespace), op).default.tags
    assert (torch.Tag.nondeterministic_seeded in tags) == draws
