"""Tensors of a collective on one rank, the call that uses them, and a check of its results. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from opreplay.replay.collectives.mapping import Share
from opreplay.replay.collectives.model import REDUCING
from opreplay.traces.dtypes import ITEMSIZE_BYTES

CHUNK = 1 << 20
"""Number of elements that are filled or checked at a time. This limits the memory used."""
LARGEST_SUM = 100
"""Upper bound of sums over all ranks, so that they are exact in bfloat16 and in 8 bits."""
PERIOD = 251
"""Period of the fill pattern along the elements. It is a prime, so the check detects a misplaced part."""
REDUCED_AS = {1: "uint8", 2: "float16", 4: "float32", 8: "int64", 16: "complex64"}
"""Dtype for reductions by bytes per element. It is used if the back-end does not support the element's own dtype."""
MOVED_AS = {1: "uint8", 2: "float16", 4: "float32", 8: "float64", 16: "complex64"}
KNOWN = {
    "gloo": frozenset({"float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"}),
    "nccl": frozenset({"float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"}),
    "hccl": frozenset({"float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64"}),
}
"""Back-end → dtypes that it supports."""


Issue = Callable[[bool], Any]
"""Function that starts a collective. Given True, it returns the work to wait for; otherwise it waits."""


def carried_as(dtype: str, backend: str, *, reduces: bool) -> str:
    """Return the dtype in which a message of `dtype` is moved.

    It is `dtype` if the back-end supports it, otherwise a dtype of the same width.
    """
    if dtype in KNOWN.get(backend, KNOWN["gloo"]):
        return dtype
    size = ITEMSIZE_BYTES.get(dtype, 1)
    return (REDUCED_AS if reduces else MOVED_AS)[size if size in MOVED_AS else 1]


class Buffers:
    """The tensors that one rank needs for a collective, and the call that uses them."""

    def __init__(self, share: Share, rank: int, group: Any, *, backend: str, device: str) -> None:
        """`rank` is one of the members of `share`."""
        self.share, self.me, self.group, self.device = share, share.members.index(rank), group, device
        dtype = carried_as(share.dtype, backend, reduces=share.kind in REDUCING)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.assumed = "" if dtype == share.dtype else f"moved as {dtype}: {backend} does not support {share.dtype}"
        """Difference from the recorded call; "" if there is none."""
        self.n = len(share.members)
        self._modulus = max(1, min(17, LARGEST_SUM // self.n))
        kind = share.kind
        self.input = self._empty(self._in_elements())
        self.output = self._empty(self._out_elements()) if self._out_elements() else self.input
        self._call: Issue = getattr(self, f"_{kind}")()

    def _in_elements(self) -> int:
        share, me = self.share, self.me
        if share.matrix:
            return sum(share.matrix[me])
        if share.kind == "scatter":
            return share.inputs if me == share.root else 0
        if share.kind == "barrier":
            return 0
        return share.inputs

    def _out_elements(self) -> int:
        """Return the number of elements of the output; 0 if the result is written to the input."""
        share, me = self.share, self.me
        if share.matrix:
            return sum(row[me] for row in share.matrix)
        if share.kind in ("all_gather", "reduce_scatter", "scatter"):
            return share.outputs
        return share.outputs if share.kind == "gather" and me == share.root else 0

    def _empty(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=self.dtype, device=self.device)

    def call(self) -> Any:
        """Run the collective once and wait for it. Raises the errors of torch.distributed."""
        work = self._call(self.share.asynchronous)
        if work is not None and self.share.asynchronous:
            work.wait()

    def issue(self) -> Any:
        """Start the collective and return its work handle at once."""
        return self._call(True)

    @property
    def bytes(self) -> int:
        """Total bytes of the tensors."""
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in (self.input, self.output)}.values())

    def _operation(self) -> Any:
        return {
            "max": dist.ReduceOp.MAX,
            "min": dist.ReduceOp.MIN,
            "product": dist.ReduceOp.PRODUCT,
            "avg": dist.ReduceOp.AVG if dist.get_backend(self.group) == "nccl" else dist.ReduceOp.SUM,
        }.get(self.share.reduce_op, dist.ReduceOp.SUM)

    # Each makes the call of one operation, all that is not the call itself done before: a loop by hand has no more.

    def _all_reduce(self) -> Issue:
        tensor, op, group = self.input, self._operation(), self.group
        parts = list(tensor.split(list(self.share.parts))) if sum(self.share.parts) == tensor.numel() else []
        if len(parts) > 1:
            return lambda later: _wait_all(
                [dist.all_reduce(part, op, group=group, async_op=True) for part in parts], later
            )
        return lambda later: dist.all_reduce(tensor, op, group=group, async_op=later)

    def _all_gather(self) -> Issue:
        output, source, group = self.output, self.input, self.group
        return lambda later: dist.all_gather_into_tensor(output, source, group=group, async_op=later)

    def _reduce_scatter(self) -> Issue:
        output, source, op, group = self.output, self.input, self._operation(), self.group
        return lambda later: dist.reduce_scatter_tensor(output, source, op, group=group, async_op=later)

    def _all_to_all(self) -> Issue:
        output, source, group, matrix = self.output, self.input, self.group, self.share.matrix
        received, sent = [row[self.me] for row in matrix], list(matrix[self.me])
        return lambda later: dist.all_to_all_single(output, source, received, sent, group=group, async_op=later)

    def _broadcast(self) -> Issue:
        tensor, root, group = self.input, self.share.members[self.share.root], self.group
        return lambda later: dist.broadcast(tensor, root, group=group, async_op=later)

    def _reduce(self) -> Issue:
        tensor, root, op, group = self.input, self.share.members[self.share.root], self._operation(), self.group
        return lambda later: dist.reduce(tensor, root, op, group=group, async_op=later)

    def _gather(self) -> Issue:
        source, group, index = self.input, self.group, self.share.root
        parts = list(self.output.split(self.share.inputs)) if self.me == index else None
        root = self.share.members[index]
        return lambda later: dist.gather(source, parts, root, group=group, async_op=later)

    def _scatter(self) -> Issue:
        output, group, index = self.output, self.group, self.share.root
        parts = list(self.input.split(self.share.outputs)) if self.me == index else None
        root = self.share.members[index]
        return lambda later: dist.scatter(output, parts, root, group=group, async_op=later)

    def _send(self) -> Issue:
        """Return this rank's side of a send and receive. The first member sends, and the second receives."""
        tensor, group, other = self.input, self.group, self.share.members[1 - self.me]
        move: Callable[..., Any] = dist.isend if self.me == 0 else dist.irecv
        return lambda later: _wait_all([move(tensor, other, group=group)], later)

    _recv = _send

    def _barrier(self) -> Issue:
        group = self.group
        return lambda later: dist.barrier(group=group, async_op=later)

    # What must come out, from what went in.

    def fill(self) -> None:
        """Fill the tensors with the values that the check expects. The values are a pattern along the elements, shifted
        by rank.
        """
        flat = self.input
        for start in range(0, flat.numel(), CHUNK):
            part = flat[start : start + CHUNK]
            part.copy_(self._pattern(self.me, start, part.numel()))
        if self.output is not self.input:
            self.output.fill_(LARGEST_SUM + 1)

    def wrong(self) -> str:
        """Describe the first error in the results after `fill` and one call; "" if everything is correct."""
        checked = self.output
        if self.share.kind == "barrier" or (self.share.kind in ("reduce", "gather") and self.me != self.share.root):
            return ""
        for start in range(0, checked.numel(), CHUNK):
            part = checked[start : start + CHUNK]
            expected = self._expected(start, part.numel()).to(part.dtype)
            if not torch.equal(part.cpu(), expected):
                at = int((part.cpu() != expected).nonzero()[0])
                return f"element {start + at} of rank {self.me} is {part[at].item()}, not {expected[at].item()}"
        return ""

    def _pattern(self, who: int, start: int, count: int) -> torch.Tensor:
        """Return `count` elements of a rank's integer pattern in 0..modulus - 1, as int64 on the CPU."""
        return ((torch.arange(start, start + count) % PERIOD) * 3 + 5 * who) % self._modulus

    def _reduced(self, start: int, count: int) -> torch.Tensor:
        values = [self._pattern(who, start, count) for who in range(self.n)]
        stacked = torch.stack(values)
        operation = self.share.reduce_op
        if operation in ("max", "min"):
            return stacked.amax(0) if operation == "max" else stacked.amin(0)
        if operation == "product":
            return stacked.prod(0)
        total = stacked.sum(0)
        averaged = operation == "avg" and dist.get_backend(self.group) == "nccl"
        return total / self.n if averaged else total

    def _expected(self, start: int, count: int) -> torch.Tensor:
        share, me = self.share, self.me
        if share.kind in ("all_reduce", "reduce"):
            return self._reduced(start, count)
        if share.kind == "reduce_scatter":
            return self._reduced(me * share.outputs + start, count)
        if share.kind == "broadcast":
            return self._pattern(share.root, start, count)
        if share.kind in ("send", "recv"):
            return self._pattern(0, start, count)
        if share.kind == "scatter":
            return self._pattern(share.root, me * share.outputs + start, count)
        return self._gathered(start, count)

    def _gathered(self, start: int, count: int) -> torch.Tensor:
        """Return the expected result of a gather or all-to-all: the parts from all ranks in order."""
        share, me = self.share, self.me
        if share.matrix:
            pieces = [(who, sum(row[:me]), row[me]) for who, row in enumerate(share.matrix)]
        else:
            pieces = [(who, 0, share.inputs) for who in range(self.n)]
        out: list[torch.Tensor] = []
        begin = 0
        for who, first, length in pieces:
            low, high = max(start, begin), min(start + count, begin + length)
            if low < high:
                out.append(self._pattern(who, first + low - begin, high - low))
            begin += length
        return torch.cat(out)


def _wait_all(works: list[Any], later: bool) -> Any:
    if not later:
        for work in works:
            work.wait()
        return None
    return _Together(works)


class _Together:
    """Several work handles combined into one."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()

    @property
    def works(self) -> list[Any]:
        """The individual work handles."""
        return self._works
