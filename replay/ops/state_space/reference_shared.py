# pyright: strict
"""Mamba's two kernels as in vLLM and SGLang: the causal depthwise convolution and the selective scan.

Sequences are packed [dim, tokens] with query_start_loc, or [batch, dim, length]. cache_indices gives the slot of each
sequence's state. A slot equal to pad_slot_id is left unchanged.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.initializers.fill import elements
from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import ends


def conv_sequence(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None, silu: bool) -> Tensor:
    """Convolve x [dim, L], preceded by `before` [dim, width − 1] (zeros if absent), with weight [dim, width]."""
    width = weight.shape[1]
    front = x.new_zeros((x.shape[0], width - 1)) if before is None else before.to(x.dtype)
    padded = torch.cat((front, x), 1).float()
    out = F.conv1d(
        padded.unsqueeze(0), weight.float().unsqueeze(1), None if bias is None else bias.float(), groups=x.shape[0]
    )[0]
    return (F.silu(out) if silu else out).to(x.dtype)


def _tail(x: Tensor, before: Tensor | None, length: int) -> Tensor:
    """Return the last `length` columns of the concatenation of `before` and x [dim, L]."""
    front = x.new_zeros((x.shape[0], length)) if before is None else before.to(x.dtype)
    return torch.cat((front, x), 1)[:, -length:]


def _sequences(x: Tensor, query_start_loc: Tensor | None) -> list[Tensor]:
    """Return a view [dim, L] of each sequence."""
    if query_start_loc is None:
        return list(x.unbind(0)) if x.dim() == 3 else [x]
    bounds = ends(query_start_loc, x.shape[-1], "query_start_loc")
    return [x[:, bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1)]


def _started(has_initial_state: Tensor | None, number: int) -> list[bool]:
    return [False] * number if has_initial_state is None else [bool(flag) for flag in elements(has_initial_state)]


def _slots(indices: Tensor | None, number: int) -> list[int]:
    return list(range(number)) if indices is None else elements(indices.flatten())


@stands_for(
    "_C::causal_conv1d_fwd",
    "sgl_kernel::causal_conv1d_fwd",
    "sglang::mamba_causal_conv1d_fwd",
    writes=("x", "conv_states"),
)
def causal_conv1d_fwd(c: Call) -> None:
    """Convolve x in place. The last columns of each sequence are written to conv_states [slots, dim, width − 1]."""
    conv_states = c.conv_states
    parts = _sequences(c.x, c.query_start_loc)
    started = _started(c.has_initial_state, len(parts))
    for part, slot, first in zip(parts, _slots(c.cache_indices, len(parts)), started, strict=False):
        if slot == c.pad_slot_id:
            continue
        length = c.weight.shape[1] - 1
        before = None
        if conv_states is not None and first:
            before = conv_states[slot][:, -length:].clone()
        state = _tail(part, before, length)
        part.copy_(conv_sequence(part, c.weight, c.bias_, before, c.silu_activation))
        if conv_states is not None:
            conv_states[slot][:, -length:] = state.to(conv_states.dtype)


@stands_for(
    "_C::causal_conv1d_update",
    "sgl_kernel::causal_conv1d_update",
    "sglang::mamba_causal_conv1d_update",
    writes=("x", "conv_state"),
)
def causal_conv1d_update(c: Call) -> None:
    """Convolve the new columns x, [B, dim] or [B, dim, L], after conv_state [slots, dim, ≥ width − 1], and update the
    state.
    """
    x, conv_state = c.x, c.conv_state
    columns = x.unsqueeze(-1) if x.dim() == 2 else x
    slots = (
        torch.arange(x.shape[0], device=x.device)
        if c.conv_state_indices is None
        else c.conv_state_indices.flatten().to(torch.int64)
    )
    real = (slots != c.pad_slot_id) & (slots >= 0)
    place = slots.clamp(0, conv_state.shape[0] - 1)
    state = conv_state[place].to(x.dtype)
    together = torch.cat((state, columns), -1)
    width = c.weight.shape[1]
    window = together[..., -(width - 1 + columns.shape[-1]) :].float()
    bias = None if c.bias_ is None else c.bias_.float()
    out = F.conv1d(window, c.weight.float().unsqueeze(1), bias, groups=c.weight.shape[0])
    out = (F.silu(out) if c.silu_activation else out).to(x.dtype)
    columns.copy_(torch.where(real.reshape(-1, 1, 1), out, columns))
    conv_state[place[real]] = together[real][..., -conv_state.shape[-1] :].to(conv_state.dtype)


def scan_sequence(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run Mamba's recurrence h ← exp(delta · A) · h + delta · B · u, with outputs y = Σ over n of C · h.

    u and delta are [dim, L], A is [dim, n], B and C are [dim, n, L], and the initial state is [dim, n]. Returns (y
    [dim, L], final state).
    """
    decay = torch.exp(delta.unsqueeze(1) * A.unsqueeze(-1))
    driven = (delta * u).unsqueeze(1) * B
    out = torch.empty_like(u)
    for t in range(u.shape[1]):
        state = decay[:, :, t] * state + driven[:, :, t]
        out[:, t] = (C[:, :, t] * state).sum(1)
    return out, state


def _groups(table: Tensor, dim: int, start: int, stop: int, batch: int | None) -> Tensor:
    """Return B or C of one sequence as [dim, n, L].

    The table is [groups, n, tokens] or [batch, groups, n, L]. If it is constant, it is [dim, n].
    """
    if table.dim() == 2:
        return table.float().unsqueeze(-1).expand(-1, -1, stop - start)
    groups = table if batch is None else table[batch]
    groups = groups.unsqueeze(0) if groups.dim() == 2 else groups
    part = groups[..., start:stop] if batch is None else groups
    return part.float().repeat_interleave(dim // part.shape[0], 0)


@stands_for("_C::selective_scan_fwd", writes=("delta", "z_", "ssm_states"))
def selective_scan_fwd(c: Call) -> None:
    """Compute the selective scan of u and update ssm_states [slots, dim, n].

    If z_ is given, the scan times silu(z_) is written to z_. Otherwise, the scan is written to delta.
    """
    null_block_id = getattr(c, "null_block_id", None)
    skipped = getattr(c, "pad_slot_id", -1) if null_block_id is None else null_block_id
    parts, deltas = _sequences(c.u, c.query_start_loc), _sequences(c.delta, c.query_start_loc)
    gates = _sequences(c.z_, c.query_start_loc) if c.z_ is not None else [None] * len(parts)
    started = _started(c.has_initial_state, len(parts))
    slots = _slots(None if c.cache_indices is None else c.cache_indices.reshape(len(parts), -1)[:, 0], len(parts))
    start = 0
    for number, (x, step, gate) in enumerate(zip(parts, deltas, gates, strict=True)):
        batch = number if c.query_start_loc is None and c.u.dim() == 3 else None
        span = (start, start + x.shape[1])
        start = span[1]
        slot = slots[number]
        if slot == skipped:
            continue
        dt = step.float() + (0.0 if c.delta_bias_ is None else c.delta_bias_.float().unsqueeze(1))
        dt = F.softplus(dt) if c.delta_softplus else dt
        dim = x.shape[0]
        state = (
            c.ssm_states[slot].float() if started[number] else torch.zeros_like(c.ssm_states[slot], dtype=torch.float32)
        )
        y, state = scan_sequence(
            x.float(), dt, c.A.float(), _groups(c.B, dim, *span, batch), _groups(c.C, dim, *span, batch), state
        )
        if c.D_ is not None:
            y = y + c.D_.float().unsqueeze(1) * x.float()
        if gate is not None:
            gate.copy_(y * F.silu(gate.float()))
        else:
            step.copy_(y)
        c.ssm_states[slot] = state.to(c.ssm_states.dtype)
