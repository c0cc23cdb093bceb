# pyright: strict
"""Classifies errors of calls on meta tensors: the call itself is invalid, or meta tensors cannot show whether it is."""

from __future__ import annotations

import re

import torch

from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.ir.reasons import reason_for, refuses_arguments
from opreplay.replay.ir.verdicts import MetaCheck
from opreplay.replay.resolve.names import known_overload

_SPEAKS_OF_META = re.compile(r"\bmeta\b", re.IGNORECASE)
_NEEDS_CONTENTS = (
    "Tensor.item() cannot be called on meta tensors",
    "Cannot copy out of meta tensor",
    "cannot repeat_interleave a meta tensor",
    "torch.nonzero() raises unimplemented",
    "on cpu, but it's on meta",
    "CPU int64 tensor, but got",
    "its data is not allocated yet",
)
"""Parts of error messages of composite ops that read tensor contents in a nested call; torch does not tag them."""
_NEEDS_MEMORY = ("expects CPU tensor input", "need to be on the same device")
"""Parts of error messages of kernels that fail on meta tensors. They treat meta tensors as tensors of the kernel's own
device, or create results on that device.
"""
_LACKS_FAKE = re.compile(r"register_fake|register_abstract|no (?:fake|abstract) impl")
"""Matches torch's errors for an op in Python (`torch.library.custom_op`) without a fake kernel."""
_NO_KERNEL = re.compile(r"no fake impl or Meta kernel|Could not run '[^']{1,200}' with arguments from the '\w{1,60}'")
_WITH_META_KERNELS = frozenset({"aten", "prims", "prim", "quantized", "_c10d_functional", "torchvision"})
"""Namespaces whose meta kernels fail only for calls that are invalid on any device."""
_FAITHFUL_NOTES = ("contiguous strides", "added to the schema after the recording")
"""Final words of notes about assumptions that do not change the sizes or numbers of a recorded call."""
_NOT_OF_SIZES = re.compile(
    r"dtype|scalar ?type|\btypes?\b|stride|contiguous|layout|memory.format|alias|overlap|grad|^$", re.IGNORECASE
)
"""Matches torch's errors about something other than sizes.

Such errors do not show that a call is invalid: strides may be assumed, and dtypes may be those before an unrecorded
cast.
"""


def is_torchs(op: ReplayOp) -> bool:
    """Check whether a call that the op's meta kernel rejects is invalid on all devices."""
    return op.called.partition("::")[0] in _WITH_META_KERNELS


def refused_sizes(op: ReplayOp, error: Exception) -> Reason | None:
    """Return why no device can run a recorded call, given the error of its meta kernel; None if the error does not show
    this.

    Applies only to torch's own ops whose sizes and numbers were all recorded. A call with a guessed number may fail
    because of the guess.
    """
    if not is_torchs(op) or any(_may_change_call(note.argument, note.what) for note in op.assumptions):
        return None
    reason = reason_for(error)
    said = str(error)
    if not refuses_arguments(reason) or _NOT_OF_SIZES.search(said):
        return None
    return reason if verdict_on(op, error).status == "failed" else None


def _may_change_call(argument: str, what: str) -> bool:
    return argument not in ("batch", "device") and not what.endswith(_FAITHFUL_NOTES)


def verdict_on(op: ReplayOp, error: Exception) -> MetaCheck:
    """Return the verdict for an error on meta tensors: the call is invalid, or meta tensors cannot show
    whether it is.
    """
    text = str(error)
    lacks_fake = _LACKS_FAKE.search(text) is not None and not _depends_on_contents(op)
    if lacks_fake or any(sign in text for sign in _NEEDS_MEMORY):
        return MetaCheck(status="no meta kernel", detail=reason_for(error).detail)
    contents = any(sign in text for sign in _NEEDS_CONTENTS)
    if not contents and not isinstance(error, NotImplementedError) and not _SPEAKS_OF_META.search(text):
        return MetaCheck(status="failed", detail=reason_for(error).detail)
    if contents or _depends_on_contents(op):
        return MetaCheck(status="data-dependent", detail="sizes or values depend on the contents of tensors")
    if _NO_KERNEL.search(text):
        return MetaCheck(status="no meta kernel")
    return MetaCheck(status="no meta kernel", detail=reason_for(error).detail)


def _depends_on_contents(op: ReplayOp) -> bool:
    """Check whether torch has tagged the op as one whose results depend on the values of tensors."""
    tags = getattr(known_overload(op), "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
