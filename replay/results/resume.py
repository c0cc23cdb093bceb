# pyright: strict
"""Check whether an interrupted run may be resumed: what must be equal for old and new results to be from one run.

This module compares the runs. `writing` handles the file, and `run` the order of work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from opreplay.replay.host import environment
from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import SHARE_TAKEN, WHILE_IT_RAN
from opreplay.replay.results.outcome import is_lost
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import Header, OpResult, Summary
from opreplay.traces.errors import UsageError
from opreplay.traces.names import plural

FREE = frozenset({"total_time_s", "limit_s", "shared_device", "stop_on_error"})
"""Options that may differ, because they determine how long a run takes and when it ends, not what is measured."""
NAMED = frozenset({"seed", "device"})
"""Options that are reported individually if they differ; all others are in one digest."""
WORDS = {
    "plan": "the ops (another trace, or other filters)",
    "options": "the measuring options",
    "values": "the argument values",
    "code": "the contents of the --plugin files",
}
"""Part of the identity that is a digest → its name in messages."""


def identity_of(
    plan: ReplayPlan, options: Mapping[str, Any], facts: Mapping[str, object], *, devices: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return everything that must be the same in a run and in the run that it resumes, as name → text.

    `options` holds the options of the run as plain values, `facts` the facts about its device, and `devices` the names
    of the simulated devices.
    """
    rest = {key: value for key, value in options.items() if key not in FREE | NAMED}
    identity = {
        "plan": digest(
            msgspec.json.encode(
                [plan.selection, plan.device_us_total, plan.host_us_total, [_without_findings(op) for op in plan.ops]]
            )
        ),
        "options": digest(msgspec.json.encode(rest, order="deterministic")),
        "devices": ",".join(devices),
        "opreplay": environment.opreplay_version(),
        **{key: str(facts[key]) for key in ("torch", "device_name") if key in facts},
        **{key: str(options[key]) for key in sorted(NAMED) if key in options},
    }
    cpu = environment.cpu_model()
    if cpu:
        identity["cpu"] = cpu
    values = options.get("values")
    if isinstance(values, str):
        identity["values"] = file_digest(values)
    code = sorted(name for key in ("plugins", "init_modules") for name in options.get(key) or ())
    if digests := [file_digest(name) for name in code if Path(name).is_file()]:
        identity["code"] = digest("".join(digests).encode())
    return identity


def _without_findings(op: ReplayOp) -> ReplayOp:
    """Return the op as recorded and resolved, without what was found by calling it on meta tensors.

    These calls run in a separate process, which the machine may have ended. Therefore the findings may differ between
    runs.
    """
    reason = None if op.reason is not None and op.reason.kind in FOUND_BY_CALLS else op.reason
    return msgspec.structs.replace(op, outputs=None, reason=reason)


FOUND_BY_CALLS = frozenset({"budget", "failed", "worker lost"})
"""Kinds of reasons that may come from a process that calls ops."""
FLAGS = {
    "op_time_s": "--set op_time",
    "max_op_bytes": "--set max_op_memory",
    "visits": "--set repeats",
    "over_budget": "--set over_budget",
    "cuda_graph": "--set cuda_graph",
    "backend": "--set backend",
    "mode": "--mode",
    "check_results": "--set no_check=true",
    "allow_imports": "--allow-import",
    "plugins": "--plugin",
    "init_modules": "--plugin",
    "init_args": "--set init_arg",
    "seed": "--set seed",
    "threads": "--set threads",
    "values": "--set values",
    "max_live_bytes": "--set max_live_memory",
}
"""Option of a run → its command-line flag, if the name differs."""


def refuse_another(earlier: ResultFile, header: Header, ops: Sequence[ReplayOp] = ()) -> None:
    """Raise UsageError that names what differs between the run to resume and the run given by `header` and `ops`."""
    before, now = earlier.header.identity, header.identity
    if not before:
        raise UsageError(
            "the results are from an opreplay version that could not resume runs", hint="Run again with another file."
        )
    differing = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if "code" in differing and "plan" in differing:
        differing.remove("plan")  # what resolves ops is part of them
    if not differing:
        return
    parts: list[str] = []
    for key in differing:
        if key == "options" and (named := _differing_options(earlier.header.options, header.options)):
            parts += named
        elif key in WORDS:
            parts.append(WORDS[key])
            if key == "plan" and ops and (which := differing_op(earlier, ops)):
                parts[-1] += f", starting with {which}"
        else:
            parts.append(f"{key} ({before.get(key) or 'none'} before, {now.get(key) or 'none'} now)")
    raise UsageError(
        f"cannot resume: {', '.join(parts)} differ",
        hint="Use the options of the first run, or name another file.",
    )


def differing_op(earlier: ResultFile, ops: Sequence[ReplayOp]) -> str:
    """Return which op differs between a result file and the ops of a plan, and how; "" if the file does not show it."""
    now = {op.id: op for op in ops}
    for result in earlier.results:
        name, op = f"{result.name} {result.inputs} ({result.id})", now.get(result.id)
        if op is None:
            return f"{name}, which is not an op of this plan"
        if op.count != result.count:
            return f"{name}, with {plural(result.count, 'call')} before and {op.count:,} now"
        if op.resolved_by != result.resolved_by:
            return f"{name}, called by {result.resolved_by or 'nothing'} before and {op.resolved_by or 'nothing'} now"
    before = {result.id for result in earlier.results}
    new = next((op for op in ops if op.id not in before), None)
    is_whole = earlier.summary is not None and not earlier.summary.interrupted
    return f"{new.name} {describe_inputs(new)} ({new.id}), which is new" if new is not None and is_whole else ""


def _differing_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the measuring options that differ, by their command-line names, with old and new values."""
    return [
        f"{FLAGS.get(key, '--' + key.replace('_', '-'))} ({_said(before.get(key))} before, {_said(now.get(key))} now)"
        for key in sorted({*before, *now})
        if key not in FREE | NAMED and _said(before.get(key)) != _said(now.get(key))
    ]


def _said(value: object) -> str:
    if value is None or value == "" or value == () or value == [] or value == {}:
        return "none"
    return ("yes" if value else "no") if isinstance(value, bool) else msgspec.json.encode(value).decode()


def whole_summary(earlier: ResultFile, header: Header, ops: Sequence[ReplayOp] = ()) -> Summary | None:
    """Return the summary of an earlier run that has nothing left to do; None if the run has to be continued.

    Raises the errors of `refuse_another`.
    """
    refuse_another(earlier, header, ops)
    summary = earlier.summary
    if summary is None or summary.interrupted or len(kept_results(earlier, header)) < summary.ops:
        return None
    return summary


def kept_results(earlier: ResultFile, header: Header | None = None) -> list[OpResult]:
    """Return the results of an earlier run that need not be repeated.

    Ops that ran out of time or lost their process are repeated. If `header` has `stop_on_error` set, failed ops are
    repeated, too.
    """
    failures_end = header is not None and bool(header.options.get("stop_on_error"))
    return [
        result
        for result in earlier.results
        if not is_out_of_time(result)
        and not is_lost(result.reason)
        and not (failures_end and result.status == "failed")
    ]


def is_out_of_time(result: OpResult) -> bool:
    """Check whether the run had no time left for the op."""
    return result.reason is not None and result.reason.kind == "out of time"


def is_ended_by_time(result: OpResult) -> bool:
    """Check whether the op was stopped because the time of the run, or the op's share of it, was over."""
    return (
        result.reason is not None
        and is_out_of_time(result)
        and result.reason.detail.startswith((WHILE_IT_RAN, SHARE_TAKEN))
    )


def ended_by_time(earlier: ResultFile | None) -> frozenset[str]:
    """Return the ids of the ops in a file that were stopped because time was over."""
    return frozenset(result.id for result in (() if earlier is None else earlier.results) if is_ended_by_time(result))


def left_to_do(ops: Sequence[ReplayOp], done: Sequence[OpResult], costly: Set[str]) -> list[ReplayOp]:
    """Return the ops without a result in `done`, in order, but with the ops in `costly` last.

    Costly ops have used up the time of one run, and would use up the time of every further run.
    """
    known = {result.id for result in done}
    return sorted((op for op in ops if op.id not in known), key=lambda op: op.id in costly)


def digest(data: bytes) -> str:
    """Return a digest of 32 hex digits."""
    return blake2b(data, digest_size=16).hexdigest()


def file_digest(path: str) -> str:
    """Return the digest of a file's contents."""
    hasher = blake2b(digest_size=16)
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()
