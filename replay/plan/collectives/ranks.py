# pyright: strict
"""How many processes take part in a recorded collective: by its arguments, else by the size of the job; no torch."""

from __future__ import annotations

import re

from opreplay.replay.collectives.names import EXPERTS
from opreplay.replay.ir.labels import is_collective
from opreplay.replay.ir.model import MAX_RANKS
from opreplay.traces.literals import parse_literal
from opreplay.traces.model import OpSignature

PARAMETERS = (9, 10)
"""Arguments of `record_param_comms` without and with tensors, of torch versions that name the ranks: its last three are
the first rank, the stride between ranks and their number."""

_PLACES = {
    "_c10d_functional::all_gather_into_tensor": 0,
    "_c10d_functional::all_gather_into_tensor_out": 0,
    "_c10d_functional::reduce_scatter_tensor": 0,
    "_c10d_functional::all_gather_into_tensor_coalesced": 0,
    "_c10d_functional::reduce_scatter_tensor_coalesced": 0,
    "vllm::all_gather": 1,
    "vllm::reduce_scatter": 1,
}
"""Op → place of the number of ranks among its integers: (input, group_size, name), (tensor, dim, world_size, name),
(tensors, group, ep_world_size, ep_rank_id, moe_expert_num) of an NPU's experts."""
_EXPERTS = re.compile(rf"npu::npu_{EXPERTS}(dispatch|combine)(_v2)?")


def ranks_of(signature: OpSignature, world_size: int | None) -> int | None:
    """The ranks of a collective's group; those of the whole job where its arguments do not tell; None for other ops."""
    if not is_collective(signature):
        return None
    candidates = (_size_of_group(signature), world_size)
    return next((n for n in candidates if n is not None and 0 < n <= MAX_RANKS), None)


def _size_of_group(signature: OpSignature) -> int | None:
    """The number that stands in the place of the group's size; None where the arguments have none."""
    numbers = _integers(signature)
    if signature.name == "record_param_comms":
        return numbers[-1] if len(signature.types or ()) in PARAMETERS and len(numbers) > 2 else None
    place = 0 if _EXPERTS.fullmatch(signature.name) else _PLACES.get(signature.name)
    return numbers[place] if place is not None and place < len(numbers) else None


def _integers(signature: OpSignature) -> list[int]:
    integers: list[int] = []
    for kind, text in zip(signature.types or (), signature.concrete or (), strict=False):
        if kind == "Scalar" and text:
            value = parse_literal(text)
            if isinstance(value, int) and not isinstance(value, bool):
                integers.append(value)
    return integers
