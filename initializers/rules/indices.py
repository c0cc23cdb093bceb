# pyright: strict
"""Initializers for indices, targets, offsets and lengths: values are in range and never all equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, cast

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport, extent
from opreplay.initializers.draws.distributions import IndexRule, draw_indices
from opreplay.initializers.rules.masks import choose

Bound = Callable[[InitContext], int]
"""Function that returns the exclusive upper bound of an index."""


def _size(argument: str, dim: int) -> Bound:
    def bound(context: InitContext) -> int:
        shape = context.need(argument).shape
        return shape[dim] if -len(shape) <= dim < len(shape) else 1

    return bound


def _along(argument: str) -> Bound:
    """Return a function that gives the bound of an index: the size of `argument` along the op's `dim`."""

    def bound(context: InitContext) -> int:
        dim = context.args.get("dim")
        if not isinstance(dim, int):
            raise InitializerError(f"{context.op}: dim is unknown, and with it the range of the index")
        tensor = context.need(argument)
        return extent(tensor, dim) if tensor.dim() else 1

    return bound


def _number(argument: str, default: int = 0) -> Bound:
    def bound(context: InitContext) -> int:
        value = context.args.get(argument)
        return value if isinstance(value, int) and value > 0 else default

    return bound


def _elements(argument: str) -> Bound:
    return lambda context: context.need(argument).numel()


def _classes(context: InitContext) -> int:
    """Return the number of classes of a loss: dimension 1 of the scores, or dimension 0 without a batch."""
    scores = context.need("self")
    return extent(scores, 1 if scores.dim() > 1 else 0)


def _along_recorded(argument: str) -> Bound:
    """Return a function that gives the bound of an index: entry `dim` of `argument`, a list of sizes."""

    def bound(context: InitContext) -> int:
        listed, dim = context.args.get(argument), context.args.get("dim")
        sizes = cast("Sequence[object]", listed) if isinstance(listed, (list, tuple)) else ()
        size = sizes[dim] if isinstance(dim, int) and -len(sizes) <= dim < len(sizes) else None
        if not isinstance(size, int):
            raise InitializerError(f"{context.op}: {argument} or dim is unknown")
        return size

    return bound


_SCATTERS = (
    "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "gather",
    "gather_backward", "index_select", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill",
    "index_fill_", "index_reduce", "index_reduce_",
)  # fmt: skip

RANGES: dict[str, tuple[str, Bound]] = {
    "aten::embedding": ("indices", _size("weight", 0)),
    "aten::embedding_renorm_": ("indices", _size("self", 0)),
    "aten::embedding_dense_backward": ("indices", _number("num_weights")),
    "aten::embedding_backward": ("indices", _number("num_weights")),
    "aten::embedding_sparse_backward": ("indices", _number("num_weights")),
    **{f"aten::{base}": ("index", _along("self")) for base in _SCATTERS},
    "aten::index_select_backward": ("index", _along_recorded("self_sizes")),
    "aten::take": ("index", _elements("self")),
    "aten::put": ("index", _elements("self")),
    "aten::put_": ("index", _elements("self")),
    "aten::value_selecting_reduction_backward": ("indices", _along_recorded("sizes")),
    "aten::take_along_dim": ("indices", _along("self")),
    **{f"aten::{base}": ("target", _classes) for base in (
        "nll_loss", "nll_loss_forward", "nll_loss_backward", "nll_loss_nd", "nll_loss2d", "nll_loss2d_forward",
        "nll_loss2d_backward", "multi_margin_loss", "multi_margin_loss_backward", "multilabel_margin_loss_forward",
        "multilabel_margin_loss_backward", "cross_entropy_loss",
    )},
    "aten::one_hot": ("self", _number("num_classes", 10)),
    "aten::bincount": ("self", _number("minlength", 100)),
    "aten::tensor_split": ("tensor_indices_or_sections", _size("self", 0)),
}  # fmt: skip
"""aten op → its index argument and the bound of the indices."""


def index_of(context: InitContext) -> tuple[str, Bound]:
    """Return a call's index argument and its bound. A vendor op's role is "index argument,table,dimension"."""
    if not context.role:
        return RANGES[context.op]
    argument, table, dim = context.role.split(",")
    return argument, _size(table, int(dim))


class IndexInit(IndexRule):
    """Fills indices that are in range. They are uniform, or some of them are more popular than others."""

    name = "index"

    def applies_to(self, context: InitContext) -> bool:
        tensor = context.tensor(index_of(context)[0])
        return tensor is not None and fill.is_integer(tensor.dtype)

    def initialize(self, context: InitContext) -> InitReport:
        argument, bound = index_of(context)
        if (flags := context.tensor("is_target")) is not None:
            fill.coins(flags, context.generator)
        return _draw(context, argument, context.need(argument), bound(context))


def index_list(context: InitContext) -> list[torch.Tensor | None]:
    """Return the index tensors of `x[i, :, j]`. Raises InitializerError if an index is not a tensor."""
    listed: object = context.args.get("indices")
    items = cast("Sequence[object]", listed) if isinstance(listed, (list, tuple)) else (listed,)
    if any(item is not None and not isinstance(item, torch.Tensor) for item in items):
        raise InitializerError(f"{context.op}: the indices are not tensors")
    return cast("list[torch.Tensor | None]", list(items))


class IndexListInit(IndexRule):
    """Fills index tensors of `x[i, :, j]`: the n-th indexes dimension n; a mask covers as many dimensions as it has."""

    name = "index_list"

    def initialize(self, context: InitContext) -> InitReport:
        shape = context.need("self").shape
        dim = 0
        parts: list[str] = []
        how = "uniform"
        for tensor in index_list(context):
            if tensor is None:
                dim += 1
            elif tensor.dtype in (torch.bool, torch.uint8):
                parts.append(_mask_index(context, tensor))
                dim += tensor.dim()
            else:
                if dim >= len(shape):
                    raise InitializerError(f"{context.op}: more indices than dimensions ({len(shape)})")
                report = _draw(context, "indices", tensor, shape[dim])
                parts.append(report.summary)
                how = report.assumed["indices"]
                dim += 1
        return InitReport(summary="; ".join(parts) or "no index tensor", assumed={"indices": how})


def _fill_saved_bags(context: InitContext) -> None:
    """Fill `offset2bag` and `bag_size`, which an embedding bag's forward pass saves, with bags of equal size."""
    grad, bags = context.tensor("grad"), context.tensor("offset2bag")
    if bags is None or not bags.numel() or grad is None:
        return
    ids = torch.arange(bags.numel(), device=bags.device) * extent(grad) // bags.numel()
    fill.assign(bags, ids)
    sizes = context.tensor("bag_size")
    if sizes is not None and sizes.numel() == grad.shape[0]:
        fill.assign(sizes, torch.bincount(ids, minlength=grad.shape[0]))


class BagInit(IndexRule):
    """Fills embedding bags: indices in range, and offsets that ascend from 0.

    Values saved for the backward pass match the indices and offsets.
    """

    name = "embedding_bag"

    def initialize(self, context: InitContext) -> InitReport:
        indices = context.need("indices")
        weight = context.tensor("weight")
        rows = extent(weight) if weight is not None else _number("num_weights")(context)
        report = _draw(context, "indices", indices, rows)
        offsets = context.tensor("offsets")
        if offsets is not None and offsets.numel():
            grad = context.tensor("grad")  # of a bag less than offsets, where these end with the number of indices
            ended = grad is not None and grad.dim() == 2 and grad.shape[0] == offsets.numel() - 1
            ended = ended or context.flag("include_last_offset")
            bags = offsets.numel() - 1 if ended else offsets.numel()
            fill.assign(offsets, fill.even_cuts(bags, indices.numel())[: offsets.numel()])
        _fill_saved_bags(context)
        largest = context.tensor("maximum_indices")
        if largest is not None and largest.numel():
            fill.integers(largest, context.generator, 0, max(1, rows))
        assumed = {**report.assumed, "offsets": "bags of equal size"}
        return InitReport(summary=f"{report.summary}, bags of equal size", assumed=assumed)


class SortedInit(CustomInit):
    """Sorts the boundaries in which an op searches, in ascending order."""

    name = "sorted"
    arguments: ClassVar[tuple[str, ...]] = ("sorted_sequence", "boundaries")

    def initialize(self, context: InitContext) -> InitReport:
        for name in self.arguments:
            if (tensor := context.tensor(name)) is not None and tensor.numel():
                fill.assign(tensor, tensor.to(_sortable(tensor.dtype)).sort(dim=-1).values)
        return InitReport(summary="ascending boundaries")


class FewTiesInit(CustomInit):
    """Fills integers for sorting or ranking, with so many distinct values that ties are rare."""

    name = "few_ties"

    def initialize(self, context: InitContext) -> InitReport:
        tensor = context.need("self")
        if fill.is_integer(tensor.dtype):
            fill.integers(tensor, context.generator, 0, 2**31)
        return InitReport(summary="values with few ties")


class RepeatsInit(CustomInit):
    """Fills repeat counts that add up to the recorded output size or, if it is unknown, average two."""

    name = "repeats"

    def applies_to(self, context: InitContext) -> bool:
        return context.tensor("repeats") is not None

    def initialize(self, context: InitContext) -> InitReport:
        repeats = context.need("repeats")
        total = context.args.get("output_size")
        if isinstance(total, int) and repeats.numel():
            fill.assign(repeats, fill.even_cuts(repeats.numel(), total).diff())
            return InitReport(summary=f"repeats add up to {total}")
        fill.integers(repeats, context.generator, 1, 4)
        return InitReport(summary="repeats in [1, 4)", assumed={"repeats": "two on average"})


class CtcInit(CustomInit):
    """Fills CTC targets without the blank; sequences are as long as the shapes allow."""

    name = "ctc"

    def initialize(self, context: InitContext) -> InitReport:
        scores, targets = context.need("log_probs", 2), context.need("targets")
        fill.assign(scores, scores.float().log_softmax(-1))
        fill.integers(targets, context.generator, 1, scores.shape[-1])
        if (lengths := context.tensor("input_lengths")) is not None:
            lengths.fill_(scores.shape[0])
        if (lengths := context.tensor("target_lengths")) is not None and targets.dim() > 1:
            lengths.fill_(targets.shape[-1])
        elif lengths is not None and lengths.numel():  # targets one after another
            fill.assign(lengths, fill.even_cuts(lengths.numel(), targets.numel()).diff())
        return InitReport(summary="full lengths", assumed={"input_lengths": "full", "target_lengths": "full"})


class PackInit(CustomInit):
    """Fills the lengths of the sequences in a padded batch. They descend evenly from the full length."""

    name = "packed_lengths"

    def initialize(self, context: InitContext) -> InitReport:
        source, lengths = context.need("input"), context.need("lengths")
        longest = extent(source, 1 if context.flag("batch_first") else 0)
        count = lengths.numel()
        fill.assign(lengths, longest - torch.arange(count, device=lengths.device) * (longest - 1) // max(1, count))
        return InitReport(summary=f"lengths decreasing from {longest}", assumed={"lengths": "descending evenly"})


def _draw(context: InitContext, name: str, tensor: torch.Tensor, bound: int) -> InitReport:
    """Fill with integers in [0, bound). Raises InitializerError if `bound` is below 1 and the tensor has elements."""
    if bound < 1 and tensor.numel():
        raise InitializerError(f"{context.op}: {name} has {tensor.numel()} elements, but there is nothing to index")
    how = draw_indices(context, tensor, bound)
    return InitReport(summary=f"{tensor.numel()} {name} in [0, {bound})", assumed={name: how})


def _sortable(dtype: torch.dtype) -> torch.dtype:
    """Return a dtype that torch can sort and that can hold the values of `dtype`.

    Raises InitializerError for complex dtypes.
    """
    if dtype.is_complex:
        raise InitializerError("complex numbers have no order")
    return torch.float32 if dtype.is_floating_point and dtype.itemsize == 1 else dtype


def _mask_index(context: InitContext, mask: torch.Tensor) -> str:
    """Fill a mask that selects as many elements as there are values to write, or half of its elements if unknown."""
    count = mask.numel() // 2
    values = context.tensor("values")
    if values is not None and values.dim() and values.shape[0] != 1:
        count = min(values.shape[0], mask.numel())
    elif context.outputs and context.outputs[0] is not None and context.outputs[0].shape:
        count = min(context.outputs[0].shape[0], mask.numel())
    choose(mask, count, context.generator)
    return f"mask with {count} of {mask.numel()} elements set"


INITIALIZERS = (
    IndexInit,
    IndexListInit,
    BagInit,
    SortedInit,
    FewTiesInit,
    RepeatsInit,
    CtcInit,
    PackInit,
)
