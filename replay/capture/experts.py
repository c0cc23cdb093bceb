"""Expert parallelism: distributes experts over ranks, and sends tokens to the ranks of their experts and back.

Applies to transformers models. Their modules hold the stacked weights of all experts. They are called with tokens, the
experts chosen for each token, and the routing weights of these experts. Routing is assumed to be balanced: each rank
sends the same number of tokens to every rank, rounded up.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch

from opreplay.traces.errors import UsageError

NOTE = "routing is assumed to be balanced: each rank receives as many tokens as it sends, rounded up to equal shares"


def spread_experts(model: Any, ranks: int) -> None:
    """Reduce each module of experts to this rank's experts, and make it exchange tokens with the other ranks.

    Raises UsageError if the model has no such modules, or if the number of experts is not divisible by the number of
    ranks.
    """
    expert_modules = [module for module in model.modules() if is_experts(module)]
    if not expert_modules:
        raise UsageError(
            "the model has no experts to distribute", hint="--expert-parallel needs a mixture-of-experts model."
        )
    for experts in expert_modules:
        keep_share(experts, ranks)
        experts.forward = MethodType(_exchanging, experts)


def keep_share(experts: Any, ranks: int) -> None:
    """Reduce a module to this rank's experts. Raises UsageError if the number of experts is not divisible by the number
    of ranks.
    """
    count = int(experts.num_experts)
    if count % ranks:
        raise UsageError(
            f"{count} experts cannot be divided by {ranks} ranks",
            hint="Choose a number of ranks that divides the number of experts.",
        )
    for name, parameter in list(experts.named_parameters(recurse=False)):
        if parameter.dim() and parameter.shape[0] == count:
            part = torch.empty(count // ranks, *parameter.shape[1:], dtype=parameter.dtype)
            setattr(experts, name, torch.nn.Parameter(part, requires_grad=parameter.requires_grad))
    experts.num_experts = count // ranks


def share_experts(experts: Any, ranks: int) -> None:
    """Reduce a module to this rank's experts, if all ranks have all tokens and the results are summed over the ranks
    afterwards.
    """
    keep_share(experts, ranks)

    def forward(self: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # pyright: ignore

        count = -(-chosen.numel() // ranks)
        tokens = torch.arange(count) // chosen.shape[-1]
        mine = chosen.reshape(-1, 1)[:count] % self.num_experts
        parts = ALL_EXPERTS_FUNCTIONS["grouped_mm"](self, hidden[tokens], mine, weights.reshape(-1, 1)[:count])
        return torch.zeros_like(hidden).index_add(0, tokens, parts.to(hidden.dtype))

    experts.forward = MethodType(forward, experts)


def is_experts(module: Any) -> bool:
    """Check whether a module holds transformers' experts: weights stacked in one parameter, recognized by
    `has_gate`.
    """
    return hasattr(module, "num_experts") and hasattr(module, "has_gate") and any(True for _ in module.parameters())


def _exchanging(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Apply this rank's experts to the tokens of all ranks: [tokens, hidden] → [tokens, hidden]."""
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as collectives
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # pyright: ignore

    group = dist.group.WORLD
    assert group is not None
    ranks, top_k, tokens = dist.get_world_size(), top_k_index.shape[-1], hidden_states.shape[0]
    experts, order = torch.sort(top_k_index.reshape(-1))
    rows = hidden_states[order // top_k]
    missing = -rows.shape[0] % ranks
    if missing:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, missing))
        experts = torch.nn.functional.pad(experts, (0, missing))
    received = collectives.all_to_all_single_autograd(rows, None, None, group)
    chosen = collectives.all_to_all_single(experts % self.num_experts, None, None, group)
    alike = torch.ones(received.shape[0], 1, dtype=received.dtype)
    computed = ALL_EXPERTS_FUNCTIONS["grouped_mm"](self, received, chosen.unsqueeze(-1), alike)
    returned = collectives.all_to_all_single_autograd(computed, None, None, group)[: order.shape[0]]
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0]))
    weighted = returned[back] * top_k_weights.reshape(-1, 1).to(returned.dtype)
    return weighted.view(tokens, top_k, -1).sum(dim=1)
