"""Reduces a transformers model to the part of one rank.

Layers are split over pipeline stages, widths over tensor ranks. The ranks of one stage are consecutive. Matrix products
are split as in Megatron and vLLM: the first by columns, the next by rows, with an all-reduce of the result. Embedding
and head are split by the vocabulary.
"""

from __future__ import annotations

import weakref
from types import MethodType
from typing import Any

import msgspec
import torch

from opreplay.replay.capture.experts import is_experts, share_experts
from opreplay.traces.errors import UsageError

_OF_RECURRENCE = frozenset({"in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"})
"""Names of the projections of gated delta nets that are split by heads."""
COLUMNS = _OF_RECURRENCE | {
    "q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "gate_up_proj"
}  # fmt: skip
ROWS = frozenset({"o_proj", "down_proj", "out_proj"})
WHOLE = frozenset({"q_a_proj", "kv_a_proj_with_mqa", "kv_a_proj", "gate", "wg", "router", "shared_expert_gate"})
"""Names of projections that are not split: every rank computes all of them."""
_REDUCE = torch.ops._c10d_functional


class Stage(msgspec.Struct):
    """A pipeline stage: consecutive layers of a model, which one group of tensor-parallel ranks runs."""

    number: int
    stages: int
    before: int
    """Rank from which the stage receives hidden states."""
    after: int
    """Rank to which the stage sends hidden states."""
    received: torch.Tensor | None = None

    @property
    def is_last(self) -> bool:
        return self.number == self.stages - 1

    def forward(self, model: Any, **inputs: Any) -> Any:
        """Return the model's output in the last stage. In other stages, send the hidden states to the next stage and
        return them.
        """
        if self.is_last:
            return model(**inputs)
        import torch.distributed as dist

        taken = {name: value for name, value in inputs.items() if name not in ("labels", "logits_to_keep")}
        hidden = model.base_model(**taken).last_hidden_state
        dist.send(hidden.detach(), self.after)
        return hidden

    def backward(self, output: Any) -> None:
        """Compute the gradients of this stage, from the loss or from the gradient that the next stage returns."""
        import torch.distributed as dist

        if self.is_last:
            output.loss.backward()
        else:
            gradient = torch.empty_like(output)
            dist.recv(gradient, self.after)
            output.backward(gradient)
        if self.received is not None and self.received.grad is not None:
            dist.send(self.received.grad, self.before)


def split_model(model: Any, tensor_ranks: int, stages: int, *, whole_experts: bool = False) -> Stage:
    """Reduce a model to the part of this process's rank.

    The rank keeps a part of each expert; with `whole_experts`, it keeps some complete experts instead. Raises
    UsageError for a model that cannot be split this way.
    """
    import torch.distributed as dist

    rank = dist.get_rank() if dist.is_initialized() else 0
    stage = Stage(number=rank // tensor_ranks, stages=stages, before=rank - tensor_ranks, after=rank + tensor_ranks)
    if tensor_ranks * stages == 1:
        return stage
    base = model.base_model
    if not all(hasattr(base, name) for name in ("layers", "embed_tokens", "norm")) or not hasattr(model, "lm_head"):
        raise UsageError(
            f"{type(model).__name__} is not a decoder of embeddings, layers and a head; only those "
            "can be split over ranks",
            hint="Write it as FILE.py:make with --set world_size=N.",
        )
    if stages > 1:
        _keep_stage(model, stage)
    if tensor_ranks > 1:
        first = stage.number * tensor_ranks
        group = dist.new_group(list(range(first, first + tensor_ranks)))
        _split_widths(model, tensor_ranks, group, whole_experts=whole_experts)
    return stage


def _keep_stage(model: Any, stage: Stage) -> None:
    base, config = model.base_model, model.config
    layers = len(base.layers)
    if stage.stages > layers:
        raise UsageError(
            f"{layers} layers cannot be split into {stage.stages} stages", hint="Use at most as many stages as layers."
        )
    share, more = divmod(layers, stage.stages)
    begin = stage.number * share + min(stage.number, more)
    end = begin + share + (stage.number < more)
    base.layers = torch.nn.ModuleList(list(base.layers)[begin:end])
    modules: list[Any] = list(base.layers.modules())
    for module in modules:
        if hasattr(module, "layer_idx"):
            module.layer_idx -= begin
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types)[begin:end]
    config.num_hidden_layers = end - begin
    if stage.number:
        base.embed_tokens = _Received(stage, int(config.hidden_size), model.dtype)
    if not stage.is_last:
        base.norm, model.lm_head = torch.nn.Identity(), torch.nn.Identity()


class _Received(torch.nn.Module):
    """Replaces the embedding: receives hidden states from the previous stage."""

    def __init__(self, stage: Stage, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.stage, self.width, self.dtype = stage, width, dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the received hidden states: [batch, tokens] → [batch, tokens, hidden]."""
        import torch.distributed as dist

        hidden = torch.empty(*ids.shape, self.width, dtype=self.dtype)
        dist.recv(hidden, self.stage.before)
        self.stage.received = hidden.requires_grad_() if self.training else hidden
        return hidden


def _split_widths(model: Any, ranks: int, group: Any, *, whole_experts: bool) -> None:
    base, config = model.base_model, model.config
    heads = int(config.num_attention_heads)
    if heads % ranks:
        raise UsageError(
            f"{heads} attention heads cannot be divided by {ranks} ranks",
            hint="Choose a number of ranks that divides them.",
        )
    key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if key_heads % ranks and ranks % key_heads:
        raise UsageError(
            f"{key_heads} key-value heads cannot be divided by {ranks} ranks",
            hint="Choose a number of ranks that divides them.",
        )
    for name, module in base.layers.named_modules():
        if is_experts(module):
            if whole_experts:
                share_experts(module, ranks)
            else:
                _split_experts(module, ranks)
            module.register_forward_pre_hook(lambda _, given: (_ReduceBackward.apply(given[0], group), *given[1:]))
            module.register_forward_hook(lambda _, __, result: _ReduceForward.apply(result, group))
        elif isinstance(module, torch.nn.Linear):
            # Fewer heads of keys than ranks: each has one, as some others do.
            of_keys = name.endswith((".k_proj", ".v_proj"))
            _split_linear(module, name, ranks, min(ranks, key_heads) if of_keys else ranks, group)
        if hasattr(module, "A_log") and hasattr(module, "conv_dim"):
            _split_recurrence(module, ranks)
        if hasattr(module, "k_proj") and hasattr(module, "num_key_value_groups"):
            attention: Any = module
            attention.num_key_value_groups = (heads // ranks) // max(1, key_heads // ranks)
            _split_heads(attention, heads, key_heads, ranks, group)
        _enter_together([child for key, child in module.named_children() if key in COLUMNS], group)
    _split_vocabulary(model, ranks, group)


def _split_linear(linear: torch.nn.Linear, name: str, ranks: int, column_parts: int, group: Any) -> None:
    """Reduce a linear layer to this rank's part.

    The layer's name says whether it is split by rows or by columns. Columns are split into `column_parts` parts. Raises
    UsageError if the layer cannot be split.
    """
    last = name.rpartition(".")[2]
    if last in ROWS:
        _shrink(linear, "weight", 1, _share(linear.in_features, ranks, name))
        linear.register_forward_hook(lambda _, __, result: _ReduceForward.apply(result, group))
    elif last in COLUMNS:
        _shrink(linear, "weight", 0, _share(linear.out_features, column_parts, name))
        if linear.bias is not None:
            _shrink(linear, "bias", 0, linear.out_features // column_parts)
    elif last not in WHOLE:
        raise UsageError(
            f"it is unknown how to split layers.{name} over {ranks} ranks",
            hint="Write the model as FILE.py:make with --set world_size=N.",
        )


def _share(size: int, ranks: int, what: str) -> int:
    if size % ranks:
        raise UsageError(
            f"the {size} features of layers.{what} cannot be divided by {ranks} ranks",
            hint="Choose a number of ranks that divides them.",
        )
    return size // ranks


def _shrink(module: Any, name: str, dim: int, size: int) -> None:
    """Shrink a parameter to `size` along one dimension."""
    whole = getattr(module, name)
    shape = [size if at == dim else length for at, length in enumerate(whole.shape)]
    part = torch.empty(shape, dtype=whole.dtype)
    setattr(module, name, torch.nn.Parameter(part, requires_grad=whole.requires_grad))


def _split_heads(attention: Any, heads: int, key_heads: int, ranks: int, group: Any) -> None:
    """Reduce the parameters that an attention has for each head, besides its linear layers, to this rank's heads.

    These are sinks, and norms of queries and keys with weights for each head. Norms over all heads need the heads of
    all ranks.
    """
    for name, parameter in list(attention.named_parameters(recurse=False)):
        if tuple(parameter.shape) == (heads,):
            _shrink(attention, name, 0, heads // ranks)
    for name, count in (("q_norm", heads), ("k_norm", key_heads)):
        norm, parts = getattr(attention, name, None), min(ranks, count)
        shape: tuple[int, ...] = tuple(getattr(getattr(norm, "weight", None), "shape", ()))
        head_dim = getattr(attention, "head_dim", 0)
        if len(shape) == 2 and shape[0] == count:
            _shrink(norm, "weight", 0, count // parts)
        elif count > 1 and shape == (count * head_dim,):
            _norm_all_heads(norm, count * head_dim // parts, ranks // parts, group)


def _norm_all_heads(norm: Any, width: int, copies: int, group: Any) -> None:
    """Make a norm gather the heads of all ranks and return this rank's `width` features. `copies` ranks have the same
    features.
    """

    def gather(_: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        whole = _ReduceBackward.apply(_Gathered.apply(given[0], group), group)
        if copies > 1:
            whole = torch.cat(whole.chunk(group.size(), dim=-1)[::copies], dim=-1)
        return whole, *given[1:]

    norm.register_forward_pre_hook(gather)
    norm.register_forward_hook(lambda _, __, result: result.narrow(-1, group.rank() // copies * width, width))


def _split_recurrence(net: Any, ranks: int) -> None:
    """Reduce a gated delta net to this rank's heads. Its projections are linear layers; they are split by columns and
    by rows like all others (`_split_linear`).
    """
    for name in ("num_k_heads", "num_v_heads", "key_dim", "value_dim", "conv_dim"):
        setattr(net, name, _share(int(getattr(net, name)), ranks, name))
    for name in ("A_log", "dt_bias"):
        _shrink(net, name, 0, net.num_v_heads)
    _shrink(net.conv1d, "weight", 0, net.conv_dim)
    net.conv1d.in_channels = net.conv1d.out_channels = net.conv1d.groups = net.conv_dim


def _split_experts(experts: Any, ranks: int) -> None:
    """Reduce each expert to this rank's part of its inner width."""
    width_name = next((name for name in ("intermediate_dim", "intermediate_size") if hasattr(experts, name)), None)
    if width_name is None:
        raise UsageError(f"the inner width of {type(experts).__name__} is unknown", hint="Use --expert-parallel.")
    width = int(getattr(experts, width_name))
    part = _share(width, ranks, "experts")
    for name, parameter in list(experts.named_parameters(recurse=False)):
        gated = name.startswith("gate_up")
        inner, share = (2 * width, 2 * part) if gated else (width, part)
        if inner in parameter.shape[1:] and (gated or parameter.dim() == 3):  # a bias of `down` has the outer width
            of_rows = parameter.dim() == 2 or gated != bool(getattr(experts, "is_transposed", False))
            _shrink(experts, name, 1 if of_rows else 2, share)
    setattr(experts, width_name, part)


def _split_vocabulary(model: Any, ranks: int, group: Any) -> None:
    """Reduce the embedding and the head to this rank's part of the vocabulary, rounded up, and gather the logits."""
    embedding, head = model.base_model.embed_tokens, model.lm_head
    tied = isinstance(embedding, torch.nn.Embedding) and getattr(head, "weight", None) is embedding.weight
    if isinstance(embedding, torch.nn.Embedding):
        part = -(-embedding.num_embeddings // ranks)
        _shrink(embedding, "weight", 0, part)
        first = group.rank() * part

        def looked_up(self: Any, ids: torch.Tensor) -> torch.Tensor:
            elsewhere = (ids < first) | (ids >= first + part)
            rows = torch.nn.functional.embedding((ids - first).masked_fill(elsewhere, 0), self.weight)
            return _ReduceForward.apply(rows.masked_fill(elsewhere.unsqueeze(-1), 0.0), group)

        embedding.forward = MethodType(looked_up, embedding)
    if isinstance(head, torch.nn.Linear):
        whole = head.out_features
        if tied:
            head.weight = embedding.weight
        else:
            _shrink(head, "weight", 0, -(-whole // ranks))
        head.register_forward_pre_hook(lambda _, given: (_ReduceBackward.apply(given[0], group),))
        head.register_forward_hook(lambda _, __, logits: _Gathered.apply(logits, group)[..., :whole])


def _enter_together(linears: list[Any], group: Any) -> None:
    """Sum the gradient of an input that several projections share over the ranks only once, not once per projection."""
    entered: list[Any] = [lambda: None, lambda: None]

    def hook(_: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        if not (torch.is_grad_enabled() and given[0].requires_grad):
            return None
        shared = entered[1]()
        if entered[0]() is not given[0] or shared is None:
            shared = _ReduceBackward.apply(given[0], group)
            entered[:] = weakref.ref(given[0]), weakref.ref(shared)
        return shared, *given[1:]

    for linear in linears:
        linear.register_forward_pre_hook(hook)


def _summed(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    return _REDUCE.wait_tensor(_REDUCE.all_reduce(tensor.contiguous(), "sum", group.group_name))


class _ReduceForward(torch.autograd.Function):
    """Sums partial results over the ranks in forward. In backward, the gradient is the same on all ranks and stays
    unchanged.
    """

    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: Any) -> torch.Tensor:
        return _summed(partial, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _ReduceBackward(torch.autograd.Function):
    """Returns its input unchanged in forward, because it is the same on all ranks. Sums partial gradients in
    backward.
    """

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(gradients[0], ctx.group), None


class _Gathered(torch.autograd.Function):
    """Concatenates the parts of all ranks along the last dimension. In backward, each rank keeps the gradient of its
    own part.
    """

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group, ctx.width = group, part.shape[-1]
        gathered = _REDUCE.all_gather_into_tensor(part.contiguous(), group.size(), group.group_name)
        return torch.cat(_REDUCE.wait_tensor(gathered).chunk(group.size()), dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0].narrow(-1, ctx.group.rank() * ctx.width, ctx.width), None
