"""The causal convolution and the selective scan against loops over single tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Call = Callable[..., Any]
DIM, WIDTH, SLOTS = 6, 4, 5
WEIGHT, BIAS = torch.randn(DIM, WIDTH), torch.randn(DIM)
FORWARD = ["_C::causal_conv1d_fwd", "sgl_kernel::causal_conv1d_fwd", "sglang::mamba_causal_conv1d_fwd"]
UPDATE = ["_C::causal_conv1d_update", "sgl_kernel::causal_conv1d_update", "sglang::mamba_causal_conv1d_update"]


def convolve(x: Tensor, before: Tensor) -> Tensor:
    """x [dim, L] with `before` [dim, width − 1], one column after the other."""
    padded = torch.cat((before, x), 1).double()
    columns = [(padded[:, t : t + WIDTH] * WEIGHT.double()).sum(1) + BIAS.double() for t in range(x.shape[1])]
    out = torch.stack(columns, 1)
    return out * torch.sigmoid(out)


@pytest.mark.parametrize("name", FORWARD)
def test_causal_convolution(call: Call, close: Call, name: str) -> None:
    x, states = torch.randn(DIM, 9), torch.randn(SLOTS, DIM, WIDTH - 1)
    bounds, slots, started = [0, 5, 7, 9], [3, 1, -1], [True, False, True]
    out, kept = x.clone(), states.clone()
    call(
        name,
        x=out,
        weight=WEIGHT,
        bias_=BIAS,
        conv_states=kept,
        query_start_loc=torch.tensor(bounds),
        cache_indices=torch.tensor(slots),
        has_initial_state=torch.tensor(started),
        silu_activation=True,
        pad_slot_id=-1,
    )
    for i, slot in enumerate(slots):
        part = x[:, bounds[i] : bounds[i + 1]]
        if slot < 0:
            assert torch.equal(out[:, bounds[i] : bounds[i + 1]], part)
            continue
        before = states[slot] if started[i] else torch.zeros(DIM, WIDTH - 1)
        close(out[:, bounds[i] : bounds[i + 1]], convolve(part, before))
        assert torch.equal(kept[slot], torch.cat((before, part), 1)[:, -(WIDTH - 1) :])
    assert torch.equal(kept[0], states[0])


@pytest.mark.parametrize("name", UPDATE)
def test_causal_convolution_of_a_step(call: Call, close: Call, name: str) -> None:
    x, states = torch.randn(3, DIM), torch.randn(SLOTS, DIM, WIDTH - 1)
    slots = torch.tensor([4, -1, 2])
    out, kept = x.clone(), states.clone()
    lengths = "cache_seqlens" if name.startswith("sglang") else "cache_seqlens_"
    call(
        name,
        x=out,
        conv_state=kept,
        weight=WEIGHT,
        bias_=BIAS,
        silu_activation=True,
        conv_state_indices=slots,
        pad_slot_id=-1,
        **{lengths: None},
    )
    for i, slot in enumerate(slots.tolist()):
        if slot < 0:
            assert torch.equal(out[i], x[i])
            continue
        close(out[i], convolve(x[i].unsqueeze(1), states[slot])[:, 0])
        assert torch.equal(kept[slot], torch.cat((states[slot][:, 1:], x[i].unsqueeze(1)), 1))


@pytest.mark.parametrize("gated", [True, False])
def test_selective_scan(call: Call, close: Call, gated: bool) -> None:
    size, groups, tokens = 3, 2, 8
    u, delta, z = torch.randn(DIM, tokens), torch.randn(DIM, tokens), torch.randn(DIM, tokens)
    decay, skip, shift = -torch.rand(DIM, size), torch.randn(DIM), torch.randn(DIM)
    b, c = torch.randn(groups, size, tokens), torch.randn(groups, size, tokens)
    states = torch.randn(SLOTS, DIM, size)
    bounds, slots, started = [0, 5, 8], [2, 0], [False, True]
    kept, out, gate = states.clone(), delta.clone(), z.clone()
    call(
        "_C::selective_scan_fwd",
        "since_20241016",
        u=u,
        delta=out,
        A=decay,
        B=b,
        C=c,
        D_=skip,
        z_=gate if gated else None,
        delta_bias_=shift,
        delta_softplus=True,
        query_start_loc=torch.tensor(bounds),
        cache_indices=torch.tensor(slots),
        has_initial_state=torch.tensor(started),
        ssm_states=kept,
        pad_slot_id=-1,
    )
    for i, slot in enumerate(slots):
        for d in range(DIM):
            state = states[slot, d].double() if started[i] else torch.zeros(size).double()
            group = d // (DIM // groups)
            for t in range(bounds[i], bounds[i + 1]):
                step = torch.nn.functional.softplus(delta[d, t].double() + shift[d].double())
                state = torch.exp(step * decay[d].double()) * state + step * u[d, t].double() * b[group, :, t].double()
                y = (c[group, :, t].double() * state).sum() + skip[d].double() * u[d, t].double()
                wanted = y * torch.nn.functional.silu(z[d, t].double()) if gated else y
                close((gate if gated else out)[d, t], wanted, 10)
            close(kept[slot, d], state, 10)
