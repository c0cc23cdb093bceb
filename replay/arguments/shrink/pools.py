# pyright: strict
"""Cut KV caches and embedding tables down to the memory budget. A call uses only some of their rows.

This module decides which arguments are such pools. Indices into a pool with fewer rows stay in range, because
initializers derive indices from the tensors' shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import msgspec

from opreplay.replay.ir.model import Assumption, ReplayArg, ReplayOp
from opreplay.replay.ir.sizes import need_of
from opreplay.traces.dtypes import MASKS
from opreplay.traces.model import TensorMeta


def names(text: str) -> tuple[str, ...]:
    """Split a string of names at spaces."""
    return tuple(text.split())


CACHES = frozenset(
    names(
        "key_cache value_cache k_cache v_cache kv_cache src_cache kv_c_and_k_pe_cache kv_buffer k_buffer v_buffer key "
        "value k v K V kcache vcache"
    )
)
"""Argument names that mean a paged cache if the call also has an argument in `PLACES`."""
PLACES = names(
    "block_tables block_table page_table kv_page_indices kv_indices slot_mapping slot_indices indices loc "
    "block_table_tensor"
)
"""Argument names that select blocks or slots of a cache."""
PLACED_OPS = ("cache", "attention", "attn", "varlen", "mla", "mha", "fmha", "pa_fwd", "set_kv_buffer", "fwd")
"""Substrings of the names of ops on paged caches. In other ops, `key` and `indices` have other meanings."""
TABLES: dict[str, tuple[str, str]] = {
    "aten::embedding": ("weight", "indices"),
    "aten::embedding_bag": ("weight", "indices"),
    "aten::_embedding_bag": ("weight", "indices"),
    "aten::_embedding_bag_forward_only": ("weight", "indices"),
    "aten::index_select": ("self", "index"),
    "aten::gather": ("self", "index"),
    "aten::index_copy_": ("self", "index"),
    "aten::index_add_": ("self", "index"),
    "aten::index_fill_": ("self", "index"),
    "aten::index": ("self", "indices"),
    "aten::index_put_": ("self", "indices"),
    "aten::_index_put_impl_": ("self", "indices"),
}
"""Op → (argument with the table, argument that selects its rows)."""
BATCHED_TABLES = "_embedding_codegen_"
"""Substring of the names of fbgemm's lookups. Their argument `WEIGHTS` has all tables, one after the other."""
WEIGHTS = ("dev_weights", "uvm_weights", "host_weights", "weights")
STACKED_KEYS_AND_VALUES = 2
"""Size of the first dimension of a cache [2, blocks, ...] that holds the keys and then the values."""


def with_smaller_pools(op: ReplayOp, limit_bytes: int) -> tuple[ReplayOp, tuple[Assumption, ...]]:
    """Cut rows of an op's KV caches and tables until it needs at most `limit_bytes`. Return (op, notes on cuts).

    If that is not possible, the op is returned unchanged. All pools of a call keep the same number of rows. It is at
    least the number that the call uses at once. A cache keeps at least one row per sequence. If block tables refer to
    more rows than a cache keeps, the initializer reports how often a block is reused.
    """

    def fits(smaller: ReplayOp) -> bool:
        return need_of(smaller).total <= limit_bytes

    pools, tensors = pools_of(op), single_tensors(op)
    sizes = {name: tensors[name].shape[dim] for name, dim in pools.items()}
    needed = _rows_needed(op) if pools else 0
    if not pools or needed >= min(sizes.values()) or not fits(_cut(op, pools, needed)):
        return op, ()
    rows = largest_fitting(needed, min(sizes.values()), partial(_cut, op, pools), fits)
    notes = tuple(
        Assumption(argument=name, what=f"cut to {rows} of {size} rows, because the call accesses only a few")
        for name, size in sizes.items()
    )
    return _cut(op, pools, rows), notes


def largest_fitting(low: int, high: int, cut: Callable[[int], ReplayOp], fits: Callable[[ReplayOp], bool]) -> int:
    """Return the largest size below `high` at which the cut op fits; `low` if no larger size fits."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(cut(middle)) else (low, middle)
    return low


def single_tensors(op: ReplayOp) -> dict[str, TensorMeta]:
    """Map the name of each tensor argument to its metadata; tensor lists are left out."""
    return {arg.name: arg.tensors[0] for arg in op.args if arg.type == "Tensor" and arg.tensors and arg.tensors[0]}


def pools_of(op: ReplayOp) -> dict[str, int]:
    """Map the name of each argument that is a KV cache or a table to the dimension of its rows."""
    tensors = single_tensors(op)
    if op.name in TABLES:
        return _table(op, *TABLES[op.name])
    if BATCHED_TABLES in op.name:
        weights = (tensors[name].shape for name in WEIGHTS if name in tensors)
        largest = max((shape for shape in weights if len(shape) == 1), default=None)
        # A full optimizer state is as large as the weights.
        return {name: 0 for name, meta in tensors.items() if meta.shape == largest}
    short = op.name.partition("::")[2].lower()
    if tensors.keys().isdisjoint(PLACES) or not any(word in short for word in PLACED_OPS):
        return {}
    dims = {name: _block_dim(meta) for name, meta in tensors.items() if name in CACHES and len(meta.shape) > 1}
    rows = max((tensors[name].shape[dim] for name, dim in dims.items()), default=None)
    dims = {name: dim for name, dim in dims.items() if tensors[name].shape[dim] == rows}
    scales = (name for name, meta in tensors.items() if "scale" in name.lower() and meta.shape[:1] == (rows,))
    return dims | dict.fromkeys(scales, 0)


def _table(op: ReplayOp, table: str, indices: str) -> dict[str, int]:
    args = {arg.name: arg for arg in op.args}
    if table not in args or indices not in args or not any(args[table].tensors):
        return {}
    dim = op.values.get("dim", 0)
    if args[indices].type == "Tensor[]":
        # Only the first indexed dimension is cut; a mask must stay as large as what it masks.
        dtypes = {i: meta.dtype for i, meta in enumerate(args[indices].tensors) if meta is not None}
        dim = None if set(MASKS) & set(dtypes.values()) else next(iter(dtypes), None)
    rank = len(_meta(op, table).shape)
    return {table: dim % rank} if isinstance(dim, int) and -rank <= dim < rank else {}


def _block_dim(meta: TensorMeta) -> int:
    return 1 if len(meta.shape) > 3 and meta.shape[0] == STACKED_KEYS_AND_VALUES else 0


def _rows_needed(op: ReplayOp) -> int:
    """Return the smallest number of rows of a pool that does not change the work of the call."""
    values, tensors = op.values, single_tensors(op)
    if op.name == "aten::gather":
        # One index for each column: no more rows than the index has.
        index, dim = tensors.get("index"), values["dim"]
        return index.shape[dim] if index is not None and index.shape and isinstance(dim, int) else 1
    if op.name in TABLES:
        listed = next(arg.tensors for arg in op.args if arg.name == TABLES[op.name][1])
        padding = values.get("padding_idx", -1)
        last = padding + 1 if isinstance(padding, int) else 1
        return max(1, last, *(math.prod(meta.shape) for meta in listed if meta is not None))
    if BATCHED_TABLES in op.name:
        total = values.get("total_D")
        return max(1, total) if isinstance(total, int) else 1
    return max([1, *(tensors[name].shape[0] for name in PLACES if name in tensors and tensors[name].shape)])


def _cut(op: ReplayOp, pools: dict[str, int], rows: int) -> ReplayOp:
    args = tuple(_cut_argument(arg, pools[arg.name], rows) if arg.name in pools else arg for arg in op.args)
    return msgspec.structs.replace(op, args=args, outputs=_outputs(op, pools))


def _cut_argument(arg: ReplayArg, dim: int, rows: int) -> ReplayArg:
    meta = arg.tensors[0]
    assert meta is not None
    shape = tuple(min(rows, n) if i == dim else n for i, n in enumerate(meta.shape))
    strides = meta.strides
    if strides is not None and strides[dim] < max(strides):
        strides = dense_strides(shape, strides)
    return msgspec.structs.replace(arg, tensors=(in_new_memory(meta, shape, strides),))


def resize_tensor(meta: TensorMeta, shape: tuple[int, ...]) -> TensorMeta:
    """Return the metadata of a dense tensor with another shape. Dimensions keep their order in memory."""
    return in_new_memory(meta, shape, None if meta.strides is None else dense_strides(shape, meta.strides))


def in_new_memory(meta: TensorMeta, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> TensorMeta:
    """Return the tensor's metadata in separate memory that is just large enough. Recorded offset and storage are
    dropped.
    """
    return msgspec.structs.replace(meta, shape=shape, strides=strides, storage_offset=0, storage=None)


def dense_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides without gaps that keep the order of the dimensions in memory. A stride of 0 stays 0."""
    dense = [0] * len(shape)
    step = 1
    for dim in sorted(range(len(shape)), key=lambda d: (strides[d], -d)):
        if strides[dim]:
            dense[dim] = step
            step *= max(1, shape[dim])
    return tuple(dense)


def _outputs(op: ReplayOp, pools: dict[str, int]) -> tuple[TensorMeta | None, ...] | None:
    """Return the metadata of the results, with None for a pool itself, which would count twice."""
    if op.outputs is None:
        return None
    whole = {_meta(op, name).shape for name in pools if any(a.name == name and a.mutated for a in op.args)}
    return tuple(None if meta is not None and meta.shape in whole else meta for meta in op.outputs)


def _meta(op: ReplayOp, name: str) -> TensorMeta:
    meta = next(arg.tensors[0] for arg in op.args if arg.name == name)
    assert meta is not None
    return meta
