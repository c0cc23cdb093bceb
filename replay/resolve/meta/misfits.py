# pyright: strict
"""Rejects calls that real kernels reject but meta kernels accept: missing dimensions, masks of the wrong size.

The ops listed here were found by calling every ATen op that has a dim on both kinds of tensors; the tests repeat this.
All other ops reject an invalid call on meta tensors, too.
"""

from __future__ import annotations

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayOp
from opreplay.traces.model import TensorMeta

DIM_UNCHECKED = frozenset(
    {
        "aten::_softmax",
        "aten::softmax",
        "aten::special_softmax",
        "aten::sort",
        "aten::argsort",
        "aten::select_scatter",
        "aten::slice_scatter",
        "aten::_weight_norm_interface",
    }
)
"""Ops whose `dim` is a dimension of their first tensor and is not checked on meta tensors."""
MASK_UNCHECKED = frozenset({"aten::masked_select", "aten::_masked_softmax"})
"""Ops with a `mask` whose sizes are not checked on meta tensors."""
INDEXED = frozenset(
    {
        "aten::index",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
    }
)
"""Ops in which a mask in `indices` covers as many dimensions of the first tensor as the mask has."""
_MASKS = frozenset({"bool", "uint8"})


def refuse_misfits(op: ReplayOp) -> None:
    """Raise IndexError, with torch's message, for a call that the op's own kernels reject but its meta kernel
    accepts.
    """
    name = op.called.partition(".")[0]
    check = next((check for names, check in _CHECKS if name in names), None)
    first = op.args[0].tensors[0] if op.args and op.args[0].tensors else None
    if check is not None and first is not None:
        check(name, first.shape, Call({arg.name: arg for arg in op.args}))


def _check_dim(_name: str, shape: tuple[int, ...], args: Call) -> None:
    dim = args.value("dim")
    rank = max(1, len(shape))
    if isinstance(dim, int) and not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")


def _check_mask(name: str, shape: tuple[int, ...], args: Call) -> None:
    mask = next(iter(args["mask"].tensors), None) if "mask" in args else None
    if mask is None:
        return
    if name == "aten::masked_select":
        _broadcast(shape, mask.shape)
    elif args.value("mask_type") in (None, 2) and shape != mask.shape:
        raise _unfit(shape, mask.shape)


def _check_indices(_name: str, shape: tuple[int, ...], args: Call) -> None:
    if "indices" in args:
        _cover(shape, args["indices"].tensors)


_CHECKS = ((DIM_UNCHECKED, _check_dim), (MASK_UNCHECKED, _check_mask), (INDEXED, _check_indices))


def _broadcast(shape: tuple[int, ...], mask: tuple[int, ...]) -> None:
    """Raise IndexError unless the sizes can be broadcast: equal or 1, starting from the last dimension."""
    if any(
        size != other and 1 not in (size, other) for size, other in zip(reversed(shape), reversed(mask), strict=False)
    ):
        raise _unfit(shape, mask)


def _unfit(shape: tuple[int, ...], mask: tuple[int, ...]) -> IndexError:
    return IndexError(f"the mask of sizes {list(mask)} does not fit a tensor of sizes {list(shape)}")


def _cover(shape: tuple[int, ...], indices: tuple[TensorMeta | None, ...]) -> None:
    """Raise IndexError if a mask's sizes differ from the dimensions it covers. A mask covers as many dimensions as it
    has; an index or None covers one.
    """
    at = 0
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            at += 1
            continue
        covered = shape[at : at + len(index.shape)]
        if covered != index.shape:
            raise IndexError(
                f"the mask of sizes {list(index.shape)} does not match dimensions {at} to {at + len(index.shape) - 1} "
                f"of a tensor of sizes {list(shape)}"
            )
        at += len(index.shape)
