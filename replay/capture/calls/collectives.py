# pyright: strict
"""What a collective's arguments say of its group; owns no process group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opreplay.replay.capture.calls.arguments import named_values
from opreplay.replay.ir.names import COLLECTIVE_NAMESPACES
from opreplay.replay.resolve.schema import OpSpec


def group_size(spec: OpSpec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Processes that take part in a collective; None for any other op, and where its arguments do not tell."""
    if spec.name.partition("::")[0] not in COLLECTIVE_NAMESPACES:
        return None
    values = {arg.name: value for arg, value in named_values(spec, args, kwargs)}
    group = values.get("process_group", values.get("group_name", values.get("group")))
    if group is None:
        return None
    import torch.distributed as dist

    distributed: Any = dist.distributed_c10d
    if isinstance(group, str):
        return int(distributed._resolve_process_group(group).size())
    unboxed = dist.ProcessGroup.unbox(group) if not isinstance(group, dist.ProcessGroup) else group
    return int(unboxed.size())
