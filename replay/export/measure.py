# pyright: strict
"""Writes a file that measures calls of a plan on any machine with torch.

This module determines which calls a script can make and how they are written. The caller selects the calls to measure;
`measure_script` measures them.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from pprint import pformat
from typing import Any

import msgspec

from opreplay.initializers.registry import Registry
from opreplay.replay.export import measure_script, script
from opreplay.replay.export.one_file import one_file
from opreplay.replay.export.values import describe
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.ir.notation import call_identity
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy

NAMESPACES = frozenset({"aten", "npu"})
"""Namespaces of the ops that the file may call: torch's, and torch_npu's."""
SETUP_S = measure_script.SETUP_S
"""Seconds that a call takes besides its samples. They are needed to create its arguments and to run it the
first time.
"""
FLUSH_S = 1e-3
"""Approximate seconds for clearing the caches. To clear them, twice the size of the L2 cache is written."""


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """A call to measure, and its predicted times."""

    op: ReplayOp
    cold_us: float
    warm_us: float
    count: int
    """Number of calls in the step."""
    share: float
    """Share by which measuring this call reduces the variance of the predicted total."""


def cost_s(cold_us: float, warm_us: float) -> float:
    """Return the approximate number of seconds that measuring a call takes."""
    samples = measure_script.SAMPLES
    warm_s = samples * max(2 * measure_script.BATCH_US, 3 * warm_us) * 1e-6
    return SETUP_S + warm_s + samples * (2 * FLUSH_S + cold_us * 1e-6)


def refusal(op: ReplayOp, memory_bytes: int) -> Reason | None:
    """Return why the file cannot call an op; None if the op's name and sizes allow it."""
    if op.collective is not None:
        return Reason("policy", "collectives need several devices")
    if op.resolved_by in ("executor", "python function"):
        return Reason("library missing", "runs through your own Python code")
    if op.called.partition("::")[0] not in NAMESPACES:
        return Reason("library missing", f"the file can only call ops of {' and '.join(sorted(NAMESPACES))}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            find_overload(op, Policy())
    except NotReplayable as stopped:
        return stopped.reason
    return budget.over_budget(op, memory_bytes)


def encode_call(timed: Timed, registry: Registry, *, seed: int, memory_bytes: int) -> str:
    """Return a call as JSON text for the file. Raises NotReplayable if its values cannot be described."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        op, specs, _ = describe(timed.op, registry, seed=seed, memory_bytes=memory_bytes)
    inputs: dict[str, Any] = dict(specs)
    if elements := budget.base_elements(op):
        inputs["*"] = elements
    overload = re.sub(r"_?since_\d{8}$", "", op.overload or "")
    args = msgspec.to_builtins(op.args)
    call = {
        "text": call_identity(timed.op),
        "name": op.called,
        "overload": overload,
        "count": timed.count,
        "share": round(timed.share, 4),
        "predicted_us": {"warm": round(timed.warm_us, 3), "cold": round(timed.cold_us, 3)},
        "gradients": op.gradients,
        "args": _by_name(args) if op.called.startswith("npu::") else args,
        "inputs": inputs,
    }
    return json.dumps(call)


def _by_name(args: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark the arguments after the leading tensors as passed by name. Releases of torch_npu have them in different
    orders.
    """
    first = next((place for place, arg in enumerate(args) if not arg["type"].startswith("Tensor")), len(args))
    return [{**arg, "keyword_only": arg.get("keyword_only", False) or place >= first} for place, arg in enumerate(args)]


def file_text(calls: Sequence[str], facts: Mapping[str, Any]) -> str:
    """Return the text of the file.

    `calls` come from `encode_call`. `facts` are plain values for `measure_script.FACTS`; their texts must be printable
    ASCII.
    """
    lines = "".join(f"    {call!a},\n" for call in calls)
    constants = {
        "FACTS": pformat(dict(facts), width=110, sort_dicts=False),
        "CALLS": f"[\n{lines}]",
    }
    return one_file(Path(measure_script.__file__), Path(script.__file__), constants)


def left_out_lines(left_out: Sequence[tuple[ReplayOp, Reason]]) -> list[str]:
    """Return one line for each op name and reason among the ops that are not in the file."""
    counts = Counter((op.called, str(reason)) for op, reason in left_out)
    lines = [f"not in this file: {count} x {name}: {why}" for (name, why), count in counts.most_common()]
    return ["".join(c if c.isascii() and c.isprintable() else "?" for c in line) for line in lines]
