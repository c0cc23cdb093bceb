# pyright: strict
"""Describes a torch.distributed call as a collective (operation, sizes, group) without holding a process group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opreplay.replay.capture.calls.arguments import named_values, tensors_in
from opreplay.replay.collectives.model import MAX_PARTS, POINT_TO_POINT, ROOTED, Collective
from opreplay.replay.ir.names import COLLECTIVE_NAMESPACES
from opreplay.replay.resolve.schema import OpSpec
from opreplay.traces.collectives.names import Kind, kind_of

_GROUPS = ("process_group", "group_name", "group")
_RESULTS = ("output", "out")
"""Prefixes of the names of arguments that hold results."""
_ROOTS = ("root_rank", "src")
_PEERS = ("src", "dst")


def collective_of(spec: OpSpec, args: Sequence[Any], kwargs: Mapping[str, Any], returned: Any) -> Collective | None:
    """Return the collective that a call performs, as seen by the calling rank.

    None if the op is no collective, or if its arguments are ambiguous. `reduce_op` is "" for c10d ops, because Python
    cannot read their reduction.
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
    reduction = values.get("reduce_op")
    return Collective(
        kind=kind,
        dtype=dtype,
        in_elements=in_elements,
        out_elements=out_elements,
        in_splits=_splits(values.get("input_split_sizes"), in_elements),
        out_splits=_splits(values.get("output_split_sizes"), out_elements),
        parts=parts if 1 < len(parts) <= MAX_PARTS and sum(parts) == in_elements else (),
        group=str(group.group_name),
        group_size=len(ranks),
        group_ranks=ranks if len(ranks) <= MAX_PARTS else (),
        reduce_op=reduction.lower() if isinstance(reduction, str) else "",
        asynchronous=bool(values.get("async_op", True)) and kind != "barrier",
        **_roles(kind, values, int(group.rank())),
    )


def _roles(kind: Kind, values: Mapping[str, Any], group_rank: int) -> dict[str, Any]:
    """Return the fields of `Collective` that say which rank sends, receives, or is the root."""
    import torch.distributed as dist

    if kind in ROOTED:
        return {"root": _first_number(values, _ROOTS)}
    if kind not in POINT_TO_POINT:
        return {"rank": dist.get_rank()}
    peer = _first_number(values, _PEERS)
    source, target = (group_rank, peer) if kind == "send" else (peer, group_rank)
    return {"source": source, "target": target}


def _first_number(values: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((values[name] for name in names if type(values.get(name)) is int), None)


def group_name(func: Any, args: Sequence[Any]) -> str:
    """Return the name of the process group that a c10d op gets as an object; "" for other ops."""
    import torch

    if func.namespace not in COLLECTIVE_NAMESPACES:
        return ""
    kind = "__torch__.torch.classes.c10d.ProcessGroup"
    objects = [value for value in args if isinstance(value, torch.ScriptObject)]
    groups: list[Any] = [value for value in objects if str(value._type()) == kind]
    return "".join(str(_group(group).group_name) for group in groups)


def _group(value: Any) -> Any:
    """Return the process group that an argument names or contains."""
    import torch.distributed as dist

    distributed: Any = dist.distributed_c10d
    if isinstance(value, str):
        return distributed._resolve_process_group(value)
    return value if isinstance(value, dist.ProcessGroup) else dist.ProcessGroup.unbox(value)


def _sizes(
    kind: Kind, values: Mapping[str, Any], returned: Any, ranks: int
) -> tuple[str, tuple[int, ...], int, int] | None:
    """Return (dtype, elements of each input tensor, of all inputs, of all outputs); None if no tensor is passed."""
    if kind == "barrier":
        return "uint8", (), 0, 0
    outputs = list(tensors_in([value for name, value in values.items() if name.startswith(_RESULTS)]))
    inputs = list(tensors_in([value for name, value in values.items() if not name.startswith(_RESULTS)]))
    if not inputs and not outputs:
        return None
    parts = tuple(tensor.numel() for tensor in inputs)
    sent, received = sum(parts), sum(tensor.numel() for tensor in outputs or tensors_in(returned))
    if kind in ("all_gather", "gather"):  # who is not the root of a gather names no result
        received = sent * ranks
    elif kind in ("reduce_scatter", "scatter"):
        received = received if outputs or not sent else sent // ranks
        sent = received * ranks
    elif kind != "all_to_all":
        received = sent
    return str([*inputs, *outputs][0].dtype).removeprefix("torch."), parts, sent, received


def _splits(rows: Any, total: int) -> tuple[int, ...]:
    """Return the number of elements in each split, computed from the numbers of rows. () if all splits are equal."""
    counts = tuple(int(row) for row in rows or ())
    if not sum(counts) or total % sum(counts):
        return ()
    return tuple(count * (total // sum(counts)) for count in counts)
