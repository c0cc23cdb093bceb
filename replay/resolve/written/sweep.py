# pyright: strict
"""Builds a plan from several calls given as text, for all combinations of sizes. Parses texts and files, and checks the
calls on meta tensors.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec

from opreplay.replay.host.needs_torch import require_torch
from opreplay.replay.ir.model import Assumption, Reason, ReplayOp, ReplayPlan
from opreplay.replay.ir.notation import parse_call, parse_sizes, size_names
from opreplay.replay.ir.verdicts import META_WRONG
from opreplay.traces.errors import UsageError

MOST_CASES = 10_000
MOST_FILE_BYTES = 16 << 20


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """One call: its text, and a value for each size in the text."""

    text: str
    sizes: Mapping[str, int] = {}


def calls_of_file(path: str) -> tuple[str, ...]:
    """Return the calls of a file ("-" is stdin), one per line, without comments (after #) and empty lines.

    Raises UsageError for a file that cannot be read, is not text, or holds no call.
    """
    try:
        data = sys.stdin.buffer.read(MOST_FILE_BYTES + 1) if path == "-" else _bytes_of(Path(path))
        text = data.decode()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="Name a file of calls, one per line.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text", hint="Name a file of calls, one per line.") from None
    if len(data) > MOST_FILE_BYTES:
        raise UsageError(f"{path} has more than {MOST_FILE_BYTES:,} bytes", hint="Split it.")
    lines = (_COMMENT.sub(r"\1", line).strip() for line in text.splitlines())
    calls = tuple(line for line in lines if line)
    if not calls:
        raise UsageError(f"{path} contains no call", hint="Write one call per line: aten::mm(bf16[64,32], bf16[32,8]).")
    return calls


_COMMENT = re.compile(r"""^((?:"[^"]*"|'[^']*'|[^"'#])*)#.*""")
"""Matches a line with a comment, which begins at the first # outside quotes. Group 1 is the text before the comment."""


def _bytes_of(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(MOST_FILE_BYTES + 1)


def sizes_among(sweeps: Sequence[str], texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split command-line texts into (sizes, calls).

    Sweeps like "n=1,4 k=1,8" are split into single sizes. If there are sweeps, texts of this form among the calls also
    count as sizes.
    """
    split = [part for sweep in sweeps for part in sweep.split()]
    sizes = [text for text in texts if sweeps and _SIZES.fullmatch(text)]
    return [*split, *sizes], [text for text in texts if text not in sizes]


_SIZES = re.compile(r"[A-Za-z_]\w*=[\dk,.^:\s]+")


def over_sizes(texts: Sequence[str], sweeps: Sequence[str]) -> tuple[Written, ...]:
    """Return each call text once for every combination of values of the size names in it.

    `sweeps` are texts like "n=1,47". Raises UsageError for a size without values, values for a size that no text has,
    and too many combinations.
    """
    named = {text: size_names(text) for text in texts}
    values = _values_of(sweeps, list(dict.fromkeys(name for names in named.values() for name in names)))
    cases: list[Written] = []
    for text, names in named.items():
        missing = next((name for name in names if name not in values), None)
        if missing is not None:
            raise UsageError(f"{missing} in {text} has no value", hint=f"Give values: --vary {missing}=1,47,128.")
        for sizes in itertools.product(*(values[name] for name in names)):
            cases.append(Written(text=text, sizes=dict(zip(names, sizes, strict=True))))
            if len(cases) > MOST_CASES:
                raise UsageError(f"more than {MOST_CASES:,} calls", hint="Use fewer sizes.")
    return tuple(cases)


def _values_of(sweeps: Sequence[str], known: list[str]) -> dict[str, tuple[int, ...]]:
    """Return each size's values in `sweeps`, by name. Raises UsageError for a name not in `known` or given twice."""
    values: dict[str, tuple[int, ...]] = {}
    for sweep in sweeps:
        name, sizes = parse_sizes(sweep)
        if name in values:
            raise UsageError(f"{name} is given twice", hint=f"Give all values at once: {name}=1,47,128.")
        values[name] = sizes
    refuse_unknown_sizes(values, known, "--vary ")
    return values


def refuse_unknown_sizes(names: Iterable[str], known: Sequence[str], option: str = "") -> None:
    """Raise UsageError for a size that no call has. In the message, `option` precedes the size's name."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Its sizes are {', '.join(known) or 'all numbers'}."
            raise UsageError(f"{option}{name}: no call has a size with this name", hint=hint)


def invalid_calls(
    cases: Sequence[Written], *, allow_imports: Mapping[str, str] | None = None, device: str = "cpu"
) -> dict[str, UsageError]:
    """Return the UsageError that `plan_of_calls` raises for each invalid call, by the call's text."""
    from opreplay.replay.resolve.policy import Policy
    from opreplay.replay.resolve.written.call import op_of_written

    policy = Policy(allow_imports=dict(allow_imports or {}))
    invalid: dict[str, UsageError] = {}
    for case in cases:
        try:
            op_of_written(parse_call(case.text, sizes=case.sizes), policy, device=device)
        except UsageError as error:
            invalid[case.text] = error
    return invalid


def plan_of_calls(
    cases: Sequence[Written], *, allow_imports: Mapping[str, str] | None = None, device: str = "cpu"
) -> tuple[ReplayPlan, tuple[str, ...]]:
    """Return a plan that contains each op of the calls once, with its outputs, and the op id of each call.

    An op that cannot run here is unresolved and has a reason, see `op_of_written`. A call on meta tensors may show that
    an op's arguments are inconsistent. This then becomes the op's reason (`is_refused`). Raises UsageError for texts
    that are not calls, and in the cases of `op_of_written`.
    """
    require_torch()
    from opreplay.replay.resolve.meta.check import check_plan
    from opreplay.replay.resolve.meta.outputs import with_outputs
    from opreplay.replay.resolve.meta.refusals import is_torchs
    from opreplay.replay.resolve.policy import Policy
    from opreplay.replay.resolve.written.call import op_of_written

    policy = Policy(allow_imports=dict(allow_imports or {}))
    calls = [parse_call(case.text, sizes=case.sizes) for case in cases]
    ops = [op_of_written(call, policy, device=device) for call in calls]
    unique = tuple({op.id: op for op in ops}.values())
    plan = ReplayPlan(source="calls", selection="all", device_us_total=0.0, host_us_total=0.0, ops=unique)
    plan = with_outputs(plan, policy=policy)
    checks = check_plan(plan, policy=policy)

    def checked(op: ReplayOp) -> ReplayOp:
        check = checks.get(op.id)
        if check is not None and op.outputs is None and check.status == "no meta kernel":
            return _of_unknown_results(op, "the op has no fake kernel")
        if check is None or check.status not in META_WRONG:
            return op
        why = check.detail.removeprefix("failed: ")
        if op.resolved_by in ("jit", "torch.ops", "import") and check.status == "failed" and not is_torchs(op):
            return _of_unknown_results(op, f"its fake kernel fails: {why}")
        if op.resolved_by == "reference":
            # The reference may know less than the library whose op it stands in for.
            unlike = Reason("failed", f"the reference does not accept this call: {why}")
            return msgspec.structs.replace(op, resolved_by=None, unfit=True, reason=unlike)
        return msgspec.structs.replace(op, reason=Reason("failed", why))

    sound = msgspec.structs.replace(plan, ops=tuple(map(checked, plan.ops)))
    return sound, tuple(op.id for op in ops)


RESULTS_UNKNOWN = "result sizes unknown"
"""Start of the note on an op whose result sizes are unknown before it runs."""


def _of_unknown_results(op: ReplayOp, why: str) -> ReplayOp:
    note = Assumption(argument="*", what=f"{RESULTS_UNKNOWN}, which matters only for predictions: {why}")
    return msgspec.structs.replace(op, assumptions=(*op.assumptions, note))


def is_refused(op: ReplayOp) -> bool:
    """Check whether a written call is invalid on any device: torch rejects its arguments, or a result exceeds any
    memory.

    False for a call that is valid but cannot run here; its time can be predicted.
    """
    return op.reason is not None and op.resolved_by is not None
