# pyright: strict
"""Reads collectives from the arguments of recorded ops.

`record_param_comms` has most facts about a collective in its arguments; other ops have only the group size.
"""

from __future__ import annotations

import re

from opreplay.replay.ir.labels import is_collective
from opreplay.replay.ir.model import MAX_RANKS
from opreplay.traces.activity import Collective
from opreplay.traces.collectives.names import EXPERTS
from opreplay.traces.literals import parse_literal
from opreplay.traces.model import OpSignature

PARAMETERS = "record_param_comms"
_NAMING_RANKS = (9, 10)
"""Numbers of arguments that `record_param_comms` has in torch versions that record ranks: (without tensors, with
tensors).

The last three arguments are the first rank, the stride between ranks, and the number of ranks.
"""
_PLACES = {
    "_c10d_functional::all_gather_into_tensor": 0,
    "_c10d_functional::all_gather_into_tensor_out": 0,
    "_c10d_functional::reduce_scatter_tensor": 0,
    "_c10d_functional::all_gather_into_tensor_coalesced": 0,
    "_c10d_functional::reduce_scatter_tensor_coalesced": 0,
    "vllm::all_gather": 1,
    "vllm::reduce_scatter": 1,
}
"""Op → position of the group size among its integer arguments.

The arguments are (input, group_size, name) or (tensor, dim, world_size, name). For experts on NPUs, they are (tensors,
group, ep_world_size, ep_rank_id, moe_expert_num).
"""
_EXPERTS = re.compile(rf"npu::npu_{EXPERTS}(dispatch|combine)(_v2)?")


def ranks_of(signature: OpSignature, world_size: int | None) -> int | None:
    """Return the number of ranks in a collective's group; None if the op is not a collective.

    If the arguments do not contain the number, return the number of ranks in the whole job.
    """
    if not is_collective(signature):
        return None
    candidates = (_size_of_group(signature), world_size)
    return next((n for n in candidates if n is not None and 0 < n <= MAX_RANKS), None)


def _size_of_group(signature: OpSignature) -> int | None:
    """Return the value of the argument that is the size of the group; None if there is no such argument."""
    numbers = _integers(signature)
    if signature.name == PARAMETERS:
        return numbers[-1] if len(signature.types or ()) in _NAMING_RANKS and len(numbers) > 2 else None
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


def integers_before(signature: OpSignature, before: int) -> list[int]:
    values = [parse_literal(text) for text in (signature.concrete or ())[:before] if text]
    return [value for value in values if type(value) is int]


def list_of(text: str) -> tuple[int, ...]:
    value = parse_literal(text) if text.startswith("[") else None
    if not isinstance(value, list) or any(type(item) is not int or item < 0 for item in value):
        return ()
    return tuple(item for item in value if isinstance(item, int))


def recorded_parameters(signature: OpSignature) -> Collective | None:
    """Return the collective in the arguments of an ExecutionTrace's `record_param_comms`; None for any other op."""
    if signature.name != PARAMETERS or not signature.concrete:
        return None
    # (tensors, sequence number, group, rank, name, in splits, out splits[, first rank, stride, ranks])
    texts = [i for i, text in enumerate(signature.concrete) if text and text.replace("_", "").isalpha()]
    at = next((i for i in texts if signature.types and not signature.types[i]), None)
    if at is None:
        return None
    ranks = [number for number in integers_before(signature, at)[-1:] if number >= 0]
    in_split, out_split = [*map(list_of, signature.concrete[at + 1 : at + 3]), None, None][:2]
    return Collective(
        name=signature.concrete[at],
        in_split=in_split,
        out_split=out_split,
        group_size=ranks_of(signature, None),
        rank=ranks[0] if ranks else None,
    )
