# pyright: basic, reportOperatorIssue=false
"""How many ops would be replayed as they were recorded: plans compared with the exact calls, argument by argument.

    python benchmarks/replayed_as_recorded.py [--workloads NAME ...] [--levels all strides dims] [--select all]
                                              [--set first|unseen|further|mapped|held-out] [--verbose]

Records some 30 workloads here with torch.profiler and an ExecutionTraceObserver in one run. The ExecutionTrace holds
each call in full (overload, lists of any length, strings, index tensors). From the profile a plan of all its ops is
made at three levels of metadata: all of it; without strides; sizes and types only. Each op of a plan is compared with
the calls it stands for, and belongs to the first of these kinds that fits:

    size      a tensor has another shape or element type, is there or not there, or a list has another length
    value     an integer, a flag, a text or an element type differs: other work, or another result
    layout    strides or places differ, as those that a level does not record (of views: where they begin)
    number    only numbers differ that values are made with (eps, alpha, probabilities, operands): the same work
    right     none of these; other ways to write the same are not told apart: sizes of -1, dimensions counted from the
              end, no dimensions for all of them, a new dimension beside one of size 1, the two dimensions of a
              transposition in the other order, letters for the dots of an equation, the side that a flag says as well,
              whole turns, modes of a QR factorisation of a matrix that is not tall, a slice of all of one dimension
              or of another, padding of 0 of the first dimensions or none

A memory format decides strides and is "layout"; the half of a symmetric matrix that is read (UPLO), bounds of random
numbers, and the ends of a range of the same length, are "number".

"merged" are ops that stand for calls of different arguments; such an op is right where it is one of them. "unsaid"
are the wrong ones (size, value) of which no argument that differs has an assumption. Ops that are not replayed, and
labels, are counted apart.

Bars: wrong of all (size, value) at most 0.1 %, 0.1 % and 5 %.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from further_workloads import FURTHER
from held_out_workloads import HELD_OUT
from mapped_workloads import MAPPED
from recorded_workloads import WORKLOADS, Step, warm
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile
from unseen_workloads import UNSEEN

from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ir.recorded_call import CODES
from opreplay.replay.plan.build import build_plan, signature_id
from opreplay.traces import read_trace
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.model import TensorMeta

LEVELS: dict[str, tuple[str, ...]] = {
    "all": (),
    "strides": ("Input Strides",),
    "dims": ("Input Strides", "Concrete Inputs"),
}
"""Name of a level → what of the profile is taken away."""
ROUNDED = 1e-5
"""A profile holds floating numbers with six digits."""
SETS: dict[str, tuple[Callable[[], Step], ...]] = {
    "first": WORKLOADS,
    "unseen": UNSEEN,
    "further": FURTHER,
    "mapped": MAPPED,
    "held-out": HELD_OUT,
}
"""Those that the rules were made on first; two sets that judged these rules and led to more; one of vmap, flex
attention, sparse matrices and complex numbers, with rules made on it; and one that judges all rules.
"""
KINDS = ("size", "value", "layout", "number", "right")
ON_PURPOSE = frozenset({"unsafe", "assert_msg", "api_name"})
"""Arguments that a plan leaves out on purpose: a flag that skips checks of bounds, texts that only an error shows."""
PLACES = frozenset(
    {
        "as_strided(stride)",
        "as_strided(storage_offset)",
        "as_strided_(stride)",
        "as_strided_(storage_offset)",
        "_reshape_alias(stride)",
        "empty_strided(stride)",
        "new_empty_strided(stride)",
        "select(index)",
        "select_backward(index)",
    }
)
"""Arguments that say where in memory something lies, and nothing of how large it is."""
DRAWN = frozenset(
    {"random_(to)", "random_(from)", "randint(high)", "randint(low)", "randint_like(high)", "randint_like(low)"}
)
"""Bounds of numbers that are drawn: as many are, whatever they are."""
REDUCED = frozenset({"sum", "mean", "nansum", "nanmean", "amax", "amin", "std", "var", "linalg_vector_norm"})
"""Reductions of which no dimensions are all of them."""
SWAPS = frozenset(f"aten::{name}" for name in ("transpose", "transpose_", "swapaxes", "swapdims"))
ENDS = frozenset({"linspace(start)", "linspace(end)", "logspace(start)", "logspace(end)"})
"""Of a range whose length another argument says."""
COUNTED = frozenset({"start", "end", "step", "steps", "n", "repeats"})
"""Arguments of the type Scalar that sizes follow from; others are operands."""
_UNKNOWN = object()
"""A value that the ExecutionTrace does not hold either."""
_TENSOR = re.compile(r"Tensor\((.*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """One tensor as it really was."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCall:
    """One call as it really was: its arguments by name, in the order of the schema."""

    overload: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How an op differs from the closest of its calls."""

    kind: str
    differing: tuple[str, ...] = ()
    """Each "argument: planned, recorded"."""
    wrong: tuple[str, ...] = ()
    """Names of the arguments that differ in size or value."""
    said: bool = True

    def names(self, op: str) -> list[str]:
        """ "op(argument)" of each argument that is wrong."""
        return [f"{op.removeprefix('aten::')}({name})" for name in self.wrong]


def record(step: Step, folder: Path) -> tuple[Path, Path]:
    """The profile and the ExecutionTrace of one step."""
    kineto, exact = folder / "kineto.json", folder / "exact.json"
    observer = ExecutionTraceObserver()
    observer.register_callback(str(exact))
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, record_shapes=True, execution_trace_observer=observer) as profiler:
        step()
    profiler.export_chrome_trace(str(kineto))
    return kineto, exact


def without(path: Path, columns: tuple[str, ...]) -> Path:
    """The profile less some columns."""
    if not columns:
        return path
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        for column in columns:
            event.get("args", {}).pop(column, None)
    reduced = path.with_name(f"without_{len(columns)}.json")
    reduced.write_text(json.dumps(trace))
    return reduced


def exact_calls(path: Path) -> dict[int, ExactCall]:
    """The calls of an ExecutionTrace by their record function id; those without a schema are left out."""
    calls_by_id = {}
    for node in json.loads(path.read_text())["nodes"]:
        attrs = {attr["name"]: attr["value"] for attr in node.get("attrs", ())}
        if not attrs.get("op_schema"):
            continue
        schema = torch._C.parse_schema(attrs["op_schema"])
        inputs = node["inputs"]
        columns = zip(
            schema.arguments, inputs["values"], inputs["shapes"], inputs["types"], inputs["strides"], strict=False
        )
        args = {arg.name: _exact(str(arg.type), *rest) for arg, *rest in columns}
        calls_by_id[attrs["rf_id"]] = ExactCall(overload=schema.overload_name, args=args)
    return calls_by_id


def _exact(wanted: str, value: Any, shape: Any, spelled: str, strides: Any) -> Any:
    if tensor := _TENSOR.fullmatch(spelled):
        if tensor[1] == "nullptr (uninitialized)":
            return None
        return Exact(shape=tuple(shape), dtype=torch_dtype_name(tensor[1]) or tensor[1], strides=tuple(strides))
    if spelled == "None":
        return None
    if spelled.startswith("GenericList["):
        kinds = re.findall(r"Tensor\([^)]*\)+|\w+", spelled.removeprefix("GenericList["))
        return (
            tuple(_exact(wanted, *item) for item in zip(value, shape, kinds, strides, strict=False))
            if len(kinds) >= len(value)
            else _UNKNOWN
        )
    if isinstance(value, str) and value.startswith("<"):
        return _UNKNOWN
    codes = _codes(wanted)
    return codes[value] if codes and isinstance(value, int) and not isinstance(value, bool) else value


def _codes(wanted: str) -> tuple[str, ...]:
    """What an integer stands for where the schema wants no integer; torch shows these types as int alike."""
    return ()


def differences(op: ReplayOp, call: ExactCall, *, strides: bool) -> Iterator[tuple[str, str, str]]:
    """(kind, argument, what) of each argument that differs."""
    planned = {arg.name: arg for arg in op.args}
    for name, exact in call.args.items():
        arg = planned.get(name)
        if exact is _UNKNOWN or name in ON_PURPOSE:
            continue
        if arg is None:
            if exact is not None and op.args and op.overload == call.overload:
                yield "value", name, f"left out, {exact}"
            continue
        if any(note.argument == name and "autocast had cast it" in note.what for note in op.assumptions):
            continue  # what ran is what autocast passed on
        first_meta = next((meta for a in op.args for meta in a.tensors if meta is not None), None)
        op_name = op.name.partition("::")[2]
        ours, theirs = (_exact_in_full(op_name, arg, value, first_meta) for value in (arg.value, exact))
        kind = _difference(msgspec.structs.replace(arg, value=ours), theirs, strides)
        if kind == "value" and _written_otherwise(op, name, planned, call):
            continue
        if kind == "value" and (f"{op_name}({name})" in DRAWN | ENDS or _as_long(op_name, planned, call)):
            kind = "number"
        if kind == "value" and name == "UPLO":  # which half of a symmetric matrix is read
            kind = "number"
        if kind == "value" and name == "memory_format":  # decides strides alone
            kind = "layout"
        if kind == "value" and (f"{op_name}({name})" in PLACES or _same_length(op, call)):
            kind = "layout"
        if kind is not None:
            yield kind, name, f"{_shown(arg)}, recorded {exact}"


def _written_otherwise(op: ReplayOp, name: str, planned: dict[str, ReplayArg], call: ExactCall) -> bool:
    """Whether other arguments say that this one, written otherwise, means the same."""
    if op.name in SWAPS and name in ("dim0", "dim1"):
        rank = max(len(meta.shape) for meta in planned["self"].tensors if meta is not None)
        pairs = [{dims[which] % max(1, rank) for which in ("dim0", "dim1")} for dims in (_values(planned), call.args)]
        return pairs[0] == pairs[1]
    if name == "pad":
        return _without_zeros(planned["pad"].value) == _without_zeros(call.args["pad"])
    if name == "shifts" and op.name == "aten::roll":
        sizes = [n for meta in planned["self"].tensors if meta is not None for n in meta.shape]
        if any(d >= len(sizes) for dims in (_values(planned), call.args) for d in dims.get("dims") or ()):
            return False
        turned = [
            [
                shift % max(1, sizes[d] if dims.get("dims") else math.prod(sizes))
                for shift, d in zip(dims["shifts"], dims.get("dims") or (0,), strict=False)
            ]
            for dims in (_values(planned), call.args)
        ]
        return turned[0] == turned[1]
    if name == "side":
        sides = [
            dims.get("side") or ("right" if dims.get("right") else "left") for dims in (_values(planned), call.args)
        ]
        return sides[0] == sides[1]
    if name == "mode" and op.name == "aten::linalg_qr":
        rows, columns = planned["A"].tensors[0].shape[-2:]  # pyright: ignore[reportOptionalMemberAccess]
        return rows <= columns and {planned["mode"].value, call.args["mode"]} == {"reduced", "complete"}
    if name == "equation":
        ranks = [len(meta.shape) for meta in planned["tensors"].tensors if meta is not None]
        return _spelled(planned["equation"].value) == _spelled(_in_letters(str(call.args["equation"]), ranks))
    return False


def _without_zeros(pads: Any) -> tuple[int, ...]:
    """Paddings without those of 0 of the first dimensions, which come last."""
    kept = tuple(pads or ())
    while kept and kept[-1] == 0:
        kept = kept[:-1]
    return kept


def _values(planned: dict[str, ReplayArg]) -> dict[str, Any]:
    return {name: arg.value for name, arg in planned.items()}


def _in_letters(equation: str, ranks: list[int]) -> str:
    """An equation without dots: letters that it does not use, from the end of the alphabet."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    covered = max((r - len(t) + 3 for t, r in zip(operands.split(","), ranks, strict=True) if "..." in t), default=0)
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation][:covered]
    texts = []
    for text, rank in zip(operands.split(","), ranks, strict=True):
        missing = covered - (rank - len(text) + 3)
        texts.append(text.replace("...", "".join(free[missing:])))
    return ",".join(texts) + arrow + result.replace("...", "".join(free))


def _as_long(op: str, planned: dict[str, ReplayArg], call: ExactCall) -> bool:
    """Whether a range has as many numbers as the recorded one."""
    if op != "arange":
        return False
    counts = []
    for values in (_values(planned), call.args):
        start, end, step = (values.get(name) for name in ("start", "end", "step"))
        counts.append(math.ceil((end - (start or 0)) / (step or 1)) if end is not None else None)
    return counts[0] is not None and counts[0] == counts[1]


def _exact_in_full(op: str, arg: ReplayArg, value: Any, first_meta: TensorMeta | None) -> Any:
    """A dimension counted from the start, and sizes without -1; of a new dimension among those of size 1 the first."""
    if first_meta is None:
        return value
    if op in ("unsqueeze", "unsqueeze_", "stack") and arg.name == "dim":
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        dim = value % (len(first_meta.shape) + 1)
        while op != "stack" and dim and first_meta.shape[dim - 1] == 1:
            dim -= 1
        return dim
    if op in REDUCED and arg.name == "dim" and value in ((), None):
        return tuple(range(len(first_meta.shape)))
    if arg.name in ("dim", "dim0", "dim1", "dims", "start_dim", "end_dim") and first_meta.shape:
        if isinstance(value, tuple):
            return tuple(d % len(first_meta.shape) if isinstance(d, int) else d for d in value)
        return value % len(first_meta.shape) if isinstance(value, int) and not isinstance(value, bool) else value
    if arg.name in ("size", "shape") and isinstance(value, tuple) and -1 in value:
        if op != "expand" and value.count(-1) == 1 and math.prod(n for n in value if n != -1):
            rest = math.prod(first_meta.shape) // math.prod(n for n in value if n != -1)
            viewed = tuple(rest if n == -1 else n for n in value)
            if math.prod(viewed) == math.prod(first_meta.shape) and rest > 0:
                return viewed
        sizes = (1,) * (len(value) - len(first_meta.shape)) + first_meta.shape
        return tuple(m if n == -1 else n for n, m in zip(value, sizes, strict=False))
    return value


def _same_length(op: ReplayOp, call: ExactCall) -> bool:
    """Whether a slice is as long as the recorded one and along the same dimension, but begins elsewhere; all of one
    dimension is all of another one."""
    if op.name not in ("aten::slice", "aten::narrow", "aten::slice_backward"):
        return False
    planned = {arg.name: arg.value for arg in op.args}
    sizes: Any = next((m.shape for a in op.args for m in a.tensors if m is not None), ())
    if op.name == "aten::slice_backward":
        sizes = planned.get("input_sizes") or ()
        if sizes != call.args.get("input_sizes"):
            return False
    slices = [_slice(op.name, values, sizes) for values in (planned, call.args)]
    whole = [kept is not None and kept[1] == sizes[kept[0]] for kept in slices]
    return (slices[0] is not None and slices[0] == slices[1]) or all(whole)


def _slice(name: str, values: Any, sizes: Any) -> tuple[int, int] | None:
    """(dimension, length) of a slice."""
    dim = values.get("dim")
    if not isinstance(dim, int) or not -len(sizes) <= dim < len(sizes):
        return None
    dim %= len(sizes)
    if name == "aten::narrow":
        return (dim, values["length"]) if isinstance(values.get("length"), int) else None
    step = values.get("step") or 1
    return dim, len(range(*slice(values.get("start"), values.get("end"), step).indices(sizes[dim])))


def _shown(arg: ReplayArg) -> str:
    return str([m and (m.shape, m.dtype, m.strides) for m in arg.tensors]) if arg.tensors else repr(arg.value)


def _difference(arg: ReplayArg, exact: Any, strides: bool) -> str | None:
    if arg.type in ("Tensor", "Tensor[]"):
        theirs = exact if isinstance(exact, tuple) else () if exact is None else (exact,)
        if not all(item is None or isinstance(item, Exact) for item in theirs):
            return "value"
        ours = arg.tensors
        if arg.type == "Tensor" and ours == (None,):
            ours = ()
        if len(ours) != len(theirs):
            return "size"
        kinds = [_tensor_difference(a, b, strides) for a, b in zip(ours, theirs, strict=True)]
        return next((kind for kind in KINDS if kind in kinds), None)
    if arg.name == "equation":
        return None if _spelled(arg.value) == _spelled(exact) else "value"
    if isinstance(exact, Exact):  # a number that was wrapped: its value is not recorded
        return None if exact.shape == () else "value"
    if arg.type in ("Generator", "Device"):
        return None
    return _value_difference(arg, exact)


def _spelled(equation: Any) -> str:
    """An equation with its letters in the order of the alphabet."""
    letters = dict.fromkeys(c for c in str(equation) if c.isalpha())
    return str(equation).translate({ord(c): chr(ord("a") + i) for i, c in enumerate(letters)}).replace(" ", "")


def _tensor_difference(ours: Any, theirs: Any, strides: bool) -> str | None:
    if ours is None or theirs is None:
        return None if ours is theirs else "size"
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return "size"
    if strides and ours.strides != theirs.strides and not _same_places(ours, theirs):
        return "layout"
    return None


def _same_places(ours: Any, theirs: Any) -> bool:
    """Whether strides agree where they mean something; None are those of a contiguous tensor."""
    step, contiguous = 1, []
    for n in reversed(theirs.shape):
        contiguous.append(step)
        step *= max(1, n)
    mine = ours.strides if ours.strides is not None else tuple(reversed(contiguous))
    return 0 in theirs.shape or all(a == b for a, b, n in zip(mine, theirs.strides, theirs.shape, strict=True) if n > 1)


def _value_difference(arg: ReplayArg, exact: Any) -> str | None:
    ours = arg.value
    codes = CODES.get(arg.type)
    if codes is not None and isinstance(exact, int):
        exact = codes[exact]
    if isinstance(ours, str) and codes is not None and isinstance(exact, str):
        return None if ours.removeprefix("torch.") == exact.removeprefix("torch.") else "value"
    if isinstance(exact, tuple) or isinstance(ours, tuple):
        a = ours if isinstance(ours, tuple) else () if ours is None else (ours,)
        b = exact if isinstance(exact, tuple) else () if exact is None else (exact,)
        if len(a) != len(b):
            return "value"
        if arg.name == "dim":
            a, b = (tuple(sorted(items, key=str)) for items in (a, b))
        kinds = [_plain_difference(x, y) for x, y in zip(a, b, strict=True)]
        return next((kind for kind in KINDS if kind in kinds), None)
    kind = _plain_difference(ours, exact)
    operand = arg.type == "Scalar" and arg.name not in COUNTED and ours is not None and exact is not None
    return "number" if kind == "value" and operand else kind


def _plain_difference(planned: Any, exact: Any) -> str | None:
    ours: Any = float(planned) if isinstance(planned, str) and isinstance(exact, float) else planned  # "inf", "nan"
    if ours == exact and isinstance(ours, bool) == isinstance(exact, bool):
        return None
    if any(isinstance(x, float) for x in (ours, exact)) and not any(isinstance(x, str) for x in (ours, exact)):
        same = ours == exact or (ours is not None and exact is not None and abs(ours - exact) <= ROUNDED * abs(exact))  # pyright: ignore[reportOperatorIssue]
        return None if same or (ours != ours and exact != exact) else "number"
    return "value"


def verdict(op: ReplayOp, calls: list[ExactCall], *, strides: bool) -> Verdict:
    """The kind of an op: that of the call it is closest to."""
    best = None
    for call in calls:
        differing = sorted(differences(op, call, strides=strides), key=lambda difference: KINDS.index(difference[0]))
        kind = differing[0][0] if differing else "right"
        if best is None or KINDS.index(kind) > KINDS.index(best.kind):
            wrong = [difference for difference in differing if difference[0] in ("size", "value")]
            noted = {note.argument for note in op.assumptions}
            best = Verdict(
                kind=kind,
                differing=tuple(f"{name}: {what}" for _, name, what in differing),
                wrong=tuple(name for _, name, _ in wrong),
                said=all(name in noted for _, name, _ in wrong),
            )
    assert best is not None
    return best


@dataclass(slots=True)
class Tally:
    """Counts of one level."""

    kinds: Counter[str]
    names: Counter[str]


def measured(
    kineto: Path, calls: dict[int, ExactCall], level: str, tally: Tally, args: argparse.Namespace
) -> Counter[str]:
    """Counts of one workload at one level; `tally` gets them too."""
    trace = read_trace(without(kineto, LEVELS[level]), record_function_ids=True)
    plan = build_plan(trace, select=args.select)
    ids = [signature_id(signature) for signature in trace.signatures]
    exact: dict[str, list[ExactCall]] = defaultdict(list)
    rows = trace.ops.record_function_id
    assert rows is not None
    for signature, number in zip(trace.ops.signature.tolist(), rows.tolist(), strict=True):
        call = calls.get(number)
        if call is not None and call not in exact[ids[signature]]:
            exact[ids[signature]].append(call)
    counts: Counter[str] = Counter()
    for op in plan.ops:
        known = exact.get(op.id)
        if op.reason is not None or not known:
            label = op.reason is not None and op.reason.kind == "label, not an op"
            counts["label" if label else "not replayed" if op.reason else "unknown"] += 1
            if args.verbose and op.reason is not None and not label:
                print(f"      not replayed {op.name}: {op.reason}")
            continue
        judged = verdict(op, known, strides=level == "all")
        counts["ops"] += 1
        counts[judged.kind] += 1
        counts["merged"] += len(known) > 1
        if judged.kind in ("size", "value"):
            counts["unsaid"] += not judged.said
            tally.names.update(judged.names(op.name))
        if args.verbose and judged.kind != "right":
            print(
                f"      {judged.kind:6} {'' if judged.said else 'UNSAID '}{op.name}.{op.overload}: "
                f"{'; '.join(judged.differing)[:400]}"
            )
    tally.kinds.update(counts)
    return counts


HEAD = ("ops", "right", "number", "layout", "value", "size", "unsaid", "merged", "not replayed", "label", "unknown")


def _line(title: str, counts: Counter[str]) -> str:
    wrong = counts["size"] + counts["value"]
    return (
        f"{title:36}"
        + "".join(f"{counts[key]:>{max(7, len(key) + 1)}}" for key in HEAD)
        + (f"  {wrong / max(1, counts['ops']):7.2%}")
    )


def measure(args: argparse.Namespace) -> None:
    """Print a line for each workload and level, then the sums and the ops that are wrong most often."""
    chosen = [w for w in SETS[args.set] if not args.workloads or w.__name__ in args.workloads]
    tallies = {level: Tally(Counter(), Counter()) for level in args.levels}
    print(f"{'workload, level':36}" + "".join(f"{key:>{max(7, len(key) + 1)}}" for key in HEAD) + "    wrong")
    for make in chosen:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kineto, exact = record(warm(make), Path(folder))
            calls = exact_calls(exact)
            for level in args.levels:
                counts = measured(kineto, calls, level, tallies[level], args)
                print(_line(f"{make.__name__}, {level}", counts), flush=True)
    for level, tally in tallies.items():
        print(_line(f"all workloads, {level}", tally.kinds))
    for level, tally in tallies.items():
        print(f"wrong, {level}: " + ", ".join(f"{count} {name}" for name, count in tally.names.most_common(60)))


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="*", default=[])
    parser.add_argument("--levels", nargs="*", default=list(LEVELS), choices=list(LEVELS))
    parser.add_argument("--select", default="all", choices=("owner", "leaf", "top", "all"))
    parser.add_argument("--set", default="first", choices=list(SETS), help="which workloads")
    parser.add_argument("--verbose", action="store_true", help="each op that is not right")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
