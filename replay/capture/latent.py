"""Latent attention (MLA) in the absorbed form: queries attend to latents, which are never expanded to keys and values.

Applies to transformers models. Their modules expand a cache of latents by `expand_kv`. Servers use the absorbed form in
decode, because it reads only the latents. For DeepSeek-V3, the latents have 1/57 of the bytes of the expanded keys and
values.
"""

from __future__ import annotations

from typing import Any

import torch

NAME = "opreplay_absorbed"
NOTE = "latent attention (MLA) is absorbed, as in servers; --set mla=expanded captures what transformers runs"
EXPANDED = (
    "for each token, all cached latents are expanded to keys and values; servers that absorb this projection into "
    "the query (MLA) need much less time"
)


def absorb(model: Any) -> bool:
    """Make each module with latent attention attend to the latents. Returns whether the model has such modules."""
    from transformers import AttentionInterface, AttentionMaskInterface  # pyright: ignore
    from transformers.masking_utils import sdpa_mask  # pyright: ignore

    modules = [module for module in model.modules() if hasattr(module, "expand_kv") and hasattr(module, "kv_b_proj")]
    if not modules:
        return False
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    for module in modules:
        module.config._attn_implementation = NAME
        module.expand_kv = _latents
        _split_weight(module)
    return True


def _split_weight(module: Any) -> None:
    """Replace the weight that expands latents by two contiguous weights, for keys and for values, as servers
    load it.
    """
    rank = module.kv_b_proj.weight.shape[-1]
    weight = module.kv_b_proj.weight.detach().view(-1, module.qk_nope_head_dim + module.v_head_dim, rank)
    to_key, to_value = weight.split([module.qk_nope_head_dim, module.v_head_dim], dim=1)
    for name, part in (("to_key", to_key.contiguous()), ("to_value", to_value.mT.contiguous())):
        module.kv_b_proj.register_parameter(name, torch.nn.Parameter(part, requires_grad=False))
    del module.kv_b_proj.weight


def _latents(latents: torch.Tensor, rotary: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return latents [batch, 1, keys, rank] and rotary parts [batch, 1, keys, rotary] unchanged, as in the cache."""
    return latents, rotary


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with queries [batch, heads, 1, nope + rotary] to latents. `key` holds the latents, `value` their rotary
    parts.
    """
    batch, heads, tokens, width = query.shape
    rank, rotary = key.shape[-1], value.shape[-1]
    to_key, to_value = module.kv_b_proj.to_key, module.kv_b_proj.to_value
    plain, turned = query.transpose(0, 1).reshape(heads, batch * tokens, width).split([width - rotary, rotary], -1)
    asked = torch.bmm(plain, to_key).view(heads, batch, tokens, rank).permute(1, 0, 2, 3).reshape(batch, -1, rank)
    turned = turned.reshape(heads, batch, tokens, rotary).permute(1, 0, 2, 3).reshape(batch, -1, rotary)
    scores = torch.baddbmm(torch.bmm(turned, value[:, 0].mT), asked, key[:, 0].mT, beta=scaling, alpha=scaling)
    if attention_mask is not None:
        hidden = (~attention_mask).expand(batch, heads, tokens, -1).reshape(scores.shape)
        scores = scores.masked_fill(hidden, float("-inf"))
    seen = torch.bmm(scores.softmax(-1, dtype=torch.float32).to(key.dtype), key[:, 0])
    seen = seen.view(batch, heads, tokens, rank).transpose(0, 1).reshape(heads, batch * tokens, rank)
    result = torch.bmm(seen, to_value).view(heads, batch, tokens, -1)
    return result.permute(1, 2, 0, 3), None
