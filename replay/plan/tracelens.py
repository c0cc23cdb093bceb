"""Reads TraceLens's `event_replay_ir.json` into a plan, and writes such a file.

The file is a list of `{"op_name", "replay_ir": {"list_pos_args": [...], "list_kwargs": [...]}}`. Each argument is
`{"arg_name", "arg_type", "value"}`; `tracelens_values` converts the values. An entry may have a `count` of calls. The
entry of an op that no pass has changed is written back exactly as read, including unknown fields.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from opreplay.replay.ir.model import NOT_RECORDED, Reason, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.verify import verify_argument
from opreplay.replay.plan.tracelens_values import Refused, Unknown, code_of, is_unicode, read_argument, write_argument
from opreplay.traces.errors import FormatError, UsageError
from opreplay.traces.folders import read_regular

MAX_FILE_BYTES = 256 << 20
MAX_ENTRIES = 1_000_000
_MAX_ARGUMENTS = 512
_MOST_CALLS = 1 << 53
_HINT = "Use a file from TraceLens's event replay: a JSON list of objects with op_name and replay_ir."


def read_tracelens_ir(path: str | Path) -> ReplayPlan:
    """Return a plan with the ops of the file in its order, each with its `count` (default 1) and without recorded
    times.

    The file has no overloads; they are found later by argument names. An entry with an unknown argument type or dtype
    stays in the plan with a reason. For all other errors, raises FormatError, which names the entry.
    """
    entries = _load(Path(path))
    seen: Counter[str] = Counter()
    ops = tuple(_read_entry(index, entry, seen) for index, entry in enumerate(entries))
    return ReplayPlan(source=Path(path).name, selection="all", device_us_total=0.0, host_us_total=0.0, ops=ops)


def write_tracelens_ir(plan: ReplayPlan, path: str | Path, *, force: bool = False) -> int:
    """Write the ops whose arguments are known. Return how many ops were left out because theirs are unknown.

    Raises UsageError if the file exists and `force` is not set, or if the file cannot be written.
    """
    entries = [entry for entry in map(entry_of, plan.ops) if entry is not None]
    text = json.dumps(entries, indent=2)  # ASCII
    try:
        with Path(path).open("w" if force else "x", encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError:
        raise UsageError(f"{path} exists", hint="Name another file, or overwrite it with --force.") from None
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Check the folder and its permissions."
        ) from None
    return len(plan.ops) - len(entries)


def _load(path: Path) -> list[Any]:
    try:
        data = read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}", hint="Check the path and its permissions.") from None
    try:
        entries = json.loads(data, object_pairs_hook=_without_duplicates)
    except Refused as error:
        raise FormatError(f"{path}: {error}", hint=_HINT) from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON: {str(error)[:200]}", hint=_HINT) from None
    if not isinstance(entries, list):
        raise FormatError(f"{path} does not contain a list of ops", hint=_HINT)
    if len(entries) > MAX_ENTRIES:
        raise FormatError(f"{path}: {len(entries)} entries exceed the limit of {MAX_ENTRIES}", hint=_HINT)
    return entries


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise Refused(f"an object has duplicate keys: {sorted(key for key, _ in pairs)}"[:200])
    return members


def _read_entry(index: int, entry: Any, seen: Counter[str]) -> ReplayOp:
    try:
        name, raw_args = _parts(entry)
        args, reason = _arguments(raw_args)
        count = _count_of(entry)
    except Refused as error:
        raise FormatError(f"entry {index}: {error}", hint=_HINT) from None
    origin = json.dumps(entry)  # ASCII: what is no Unicode text could not be saved with a plan
    seen[origin] += 1
    identity = f"{origin}\0{seen[origin]}" if seen[origin] > 1 else origin
    return ReplayOp(
        id=hashlib.blake2b(identity.encode(), digest_size=6).hexdigest(),
        name=name,
        count=count,
        recorded=NOT_RECORDED,
        args=args,
        reason=reason,
        origin=origin,
    )


def _count_of(entry: dict[str, Any]) -> int:
    """Return the number of calls of an entry. Raises Refused."""
    count = entry.get("count", 1)
    if type(count) is not int or not 0 < count <= _MOST_CALLS:
        raise Refused(f"count must be a number of calls from 1 to {_MOST_CALLS}")
    return count


def _parts(entry: Any) -> tuple[str, list[tuple[Any, bool]]]:
    """Return (name, [(argument entry, keyword only)]) of one entry. Raises Refused."""
    if not isinstance(entry, dict):
        raise Refused("is no object")
    name, ir = entry.get("op_name"), entry.get("replay_ir")
    if not isinstance(name, str) or not 0 < len(name) <= 1000 or not is_unicode(name):
        raise Refused("op_name is missing, not text, or too long")
    if not isinstance(ir, dict):
        raise Refused("replay_ir is missing or not an object")
    positional, keywords = ir.get("list_pos_args"), ir.get("list_kwargs")
    if not isinstance(positional, list) or not isinstance(keywords, list):
        raise Refused("list_pos_args or list_kwargs is missing or not a list")
    if len(positional) + len(keywords) > _MAX_ARGUMENTS:
        raise Refused(f"more than {_MAX_ARGUMENTS} arguments")
    return name, [*((item, False) for item in positional), *((item, True) for item in keywords)]


def _arguments(entries: list[tuple[Any, bool]]) -> tuple[tuple[ReplayArg, ...], Reason | None]:
    """Return (all arguments, None). If an argument is unknown, return ((), reason). Every argument is checked even
    then. Raises Refused.
    """
    args: list[ReplayArg] = []
    unknown: Unknown | None = None
    for entry, keyword_only in entries:
        try:
            argument = read_argument(entry, keyword_only=keyword_only)
            args.append(argument)
            verify_argument(f"argument {argument.name}", argument)
        except Unknown as error:
            unknown = unknown or error
        except FormatError as error:  # a value of another type than declared
            unknown = unknown or Unknown(error.problem)
    if len({argument.name for argument in args}) < len(args):
        raise Refused("an argument name occurs twice")
    if unknown is not None:
        return (), Reason("failed", str(unknown))
    return tuple(args), None


def entry_of(op: ReplayOp) -> dict[str, Any] | None:
    """Return the entry of an op for the file; None if the op cannot be called.

    The entry with which the op was read is returned if it still describes the op. Otherwise a new one is made.
    """
    if op.origin is not None:
        try:
            entry = json.loads(op.origin)
        except (ValueError, RecursionError):
            entry = None  # a plan file that was edited by hand
        if entry is not None and _says(entry, op):
            return entry if entry.get("count", 1) == op.count else {**entry, "count": op.count}
    if op.reason is not None:
        return None
    return {
        "op_name": op.name,
        "replay_ir": {
            "list_pos_args": [write_argument(argument) for argument in op.args if not argument.keyword_only],
            "list_kwargs": [write_argument(argument) for argument in op.args if argument.keyword_only],
        },
        "count": op.count,
    }


def _says(entry: Any, op: ReplayOp) -> bool:
    """Check whether an entry still describes the op's name and arguments. Types that were set when the op was resolved
    are ignored.
    """
    try:
        name, raw_args = _parts(entry)
        args, _ = _arguments(raw_args)
    except Refused:
        return False
    return name == op.name and _essence(args) == _essence(op.args)


def _essence(args: tuple[ReplayArg, ...]) -> dict[str, tuple[Any, ...]]:
    """Return (tensors, values) by argument name. Type, order and type codes are left out, because the overload implies
    them.
    """
    return {
        argument.name: (
            argument.tensors,
            tuple(map(code_of, argument.value if isinstance(argument.value, tuple) else (argument.value,))),
        )
        for argument in args
    }
