# pyright: strict
"""What a call of torch.distributed is as a collective: operation, sizes and group; owns no process group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opreplay.replay.capture.calls.arguments import named_values, tensors_in
from opreplay.replay.collectives.model import MAX_PARTS, POINT_TO_POINT, ROOTED, Collective, Kind
from opreplay.replay.collectives.names import kind_of
from opreplay.replay.ir.names import COLLECTIVE_NAMESPACES
from opreplay.replay.resolve.schema import OpSpec

_GROUPS = ("process_group", "group_name", "group")
_RESULTS = ("output", "out")
"""How arguments that hold results begin."""
_ROOTS = ("root_rank", "src")
_PEERS = ("src", "dst")


def collective_of(spec: OpSpec, args: Sequence[Any], kwargs: Mapping[str, Any], returned: Any) -> Collective | None:
    """The collective that a call is, as its rank sees it; None for any other op, and where arguments do not tell.

    Its `reduce_op` is "" for ops of c10d, whose reduction is a value that Python cannot read.
    """
    kind = kind_of(spec.name) if spec.name.partition("::")[0] in COLLECTIVE_NAMESPACES else None
    if kind is None:  # `group` of native_group_norm is a number
        return None
    values = {arg.name: value for arg, value in named_values(spec, args, kwargs)}
    group = next((_group(values[name]) for name in _GROUPS if values.get(name) is not None), None)
    if group is None:
        return None
    import torch.distributed as dist

    ranks = tuple(dist.get_process_group_ranks(group))
    sizes = _sizes(kind, values, returned, len(ranks))
    if sizes is None:
        return None
    dtype, parts, in_elements, out_elements = sizes
    me = int(group.rank())
    peer = next((values[name] for name in _PEERS if type(values.get(name)) is int), None)
    root = next((values[name] for name in _ROOTS if type(values.get(name)) is int), None)
    moves = kind in POINT_TO_POINT
    reduction = values.get("reduce_op")
    return Collective(
        kind=kind,
        dtype=dtype,
        in_elements=in_elements,
        out_elements=out_elements,
        in_splits=_splits(values.get("input_split_sizes"), in_elements) if kind == "all_to_all" else (),
        out_splits=_splits(values.get("output_split_sizes"), out_elements) if kind == "all_to_all" else (),
        parts=parts if 1 < len(parts) <= MAX_PARTS and sum(parts) == in_elements else (),
        group=str(group.group_name),
        group_size=len(ranks),
        group_ranks=ranks if len(ranks) <= MAX_PARTS else (),
        rank=None if kind in ROOTED or moves else dist.get_rank(),
        root=root if kind in ROOTED else None,
        source=(me if kind == "send" else peer) if moves else None,
        target=(me if kind == "recv" else peer) if moves else None,
        reduce_op=reduction.lower() if isinstance(reduction, str) else "",
        asynchronous=bool(values.get("async_op", True)) and kind != "barrier",
    )


def group_name(func: Any, args: Sequence[Any]) -> str:
    """Name of the process group that an op of c10d is given as an object; "" for other ops."""
    import torch

    if func.namespace not in COLLECTIVE_NAMESPACES:
        return ""
    kind = "__torch__.torch.classes.c10d.ProcessGroup"
    objects = [value for value in args if isinstance(value, torch.ScriptObject)]
    groups: list[Any] = [value for value in objects if str(value._type()) == kind]
    return "".join(str(_group(group).group_name) for group in groups)


def _group(value: Any) -> Any:
    """The process group that an argument names or is."""
    import torch.distributed as dist

    distributed: Any = dist.distributed_c10d
    if isinstance(value, str):
        return distributed._resolve_process_group(value)
    return value if isinstance(value, dist.ProcessGroup) else dist.ProcessGroup.unbox(value)


def _sizes(
    kind: Kind, values: Mapping[str, Any], returned: Any, ranks: int
) -> tuple[str, tuple[int, ...], int, int] | None:
    """(dtype, elements of each tensor handed in, of all, of all that is got); None where no tensor is given."""
    if kind == "barrier":
        return "uint8", (), 0, 0
    made = [tensor for name, value in values.items() if name.startswith(_RESULTS) for tensor in tensors_in(value)]
    given = [tensor for name, value in values.items() if not name.startswith(_RESULTS) for tensor in tensors_in(value)]
    one = next(iter([*given, *made]), None)
    if one is None:
        return None
    parts = tuple(tensor.numel() for tensor in given)
    inside, outside = sum(parts), sum(tensor.numel() for tensor in made or tensors_in(returned))
    if kind == "all_gather" or kind == "gather":  # who is not the root of a gather names no result
        outside = inside * ranks
    elif kind == "reduce_scatter" or kind == "scatter":
        outside = outside if made or not inside else inside // ranks
        inside = outside * ranks
    elif kind != "all_to_all":
        outside = inside
    return str(one.dtype).removeprefix("torch."), parts, inside, outside


def _splits(rows: Any, total: int) -> tuple[int, ...]:
    """Splits of rows in elements; () where they are even."""
    counts = tuple(int(row) for row in rows or ())
    if not sum(counts) or total % sum(counts):
        return ()
    return tuple(count * (total // sum(counts)) for count in counts)
