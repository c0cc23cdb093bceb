"""Op-level tables of measurements: one row per op or problem of several ops, with shapes, dtype and time.

Owns the columns of these tables and the ops behind a problem's name; `aten_chain` makes kernels of them. The header
identifies the kind of table. Rows without shapes, and programs that are not CANN's, are counted with the reason, not
guessed.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from benchmarks.device_model.aten_chain import NEW_GELU, Tensor, chain
from opreplay.replay.ascend.cost.cube import gemm_of
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ascend.measured.call_tables import MAX_ROWS, MAX_TABLE_BYTES, header_of
from opreplay.replay.ir.kernel import KernelCall, State, TensorSpec, broadcast
from opreplay.replay.ir.model import ReplayOp
from opreplay.traces.dialects.kernel_table import MAX_DURATION_US, dtype_of
from opreplay.traces.errors import Malformed, TooLarge
from opreplay.traces.folders import open_regular_text

MAX_ELEMENTS = 1 << 48
MAX_OPS = 64
"""Ops of one problem."""

Row = Mapping[str, str]


class OpCase(msgspec.Struct, frozen=True, kw_only=True):
    """One measured op or problem."""

    label: str
    kernels: tuple[KernelCall, ...]
    """In launch order."""
    calls: tuple[ReplayOp, ...] = ()
    """The aten calls that were timed; empty where the table lists kernels."""
    duration_us: float | None
    """None where the table is blank."""
    held_out: bool = False
    soc: str = ""
    """What a column `soc` says, lower case."""


class OpTable(msgspec.Struct, frozen=True, kw_only=True):
    """An op-level table as read."""

    path: str
    kind: str
    state: State
    """In which its times were measured."""
    cases: tuple[OpCase, ...]
    dropped: dict[str, int]
    """Reason → rows that could not be used."""
    has_held_out: bool = False
    """Whether a column says which rows are held out."""


class _Skip(ValueError):
    """A row that cannot be used; the message is the reason."""


KERNELBENCH_OPS: dict[str, tuple[str, ...]] = {
    "relu": ("relu.default",), "leakyrelu": ("leaky_relu.default",), "sigmoid": ("sigmoid.default",),
    "tanh": ("tanh.default",), "gelu": ("gelu.default",), "selu": ("elu.default",), "elu": ("elu.default",),
    "hardsigmoid": ("hardsigmoid.default",), "hardtanh": ("hardtanh.default",), "softplus": ("softplus.default",),
    "swish": ("sigmoid.default", "mul.Tensor"), "silu": ("silu.default",), "softmax": ("_softmax.default",),
    "logsoftmax": ("_log_softmax.default",), "softsign": ("abs.default", "add.Scalar", "div.Tensor"),
    "layernorm": ("native_layer_norm.default",), "groupnorm": ("native_group_norm.default",),
    "l1norm": ("abs.default", "sum.dim_IntList", "div.Tensor"),
    "l2norm": ("linalg_vector_norm.default", "div.Tensor"),
    "frobeniusnorm": ("linalg_vector_norm.full", "div.Tensor"),
    "rmsnorm": ("pow.Tensor_Scalar", "mean.dim", "add.Scalar", "sqrt.default", "div.Tensor"),
    "batchnorm": ("native_batch_norm.default",), "instancenorm": ("instance_norm.default",),
    "sumreductionoverdim": ("sum.dim_IntList",), "meanreductionoverdim": ("mean.dim",),
    "maxreductionoverdim": ("max.dim",), "minreductionoverdim": ("min.dim",), "argmaxoverdim": ("argmax.default",),
    "argminoverdim": ("argmin.default",), "productreductionoverdim": ("prod.dim_int",),
    "mingptnewgelu": NEW_GELU, "newgelu": NEW_GELU, "cumsum": ("cumsum.default",), "cumprod": ("cumprod.default",),
    "cumsumreverse": ("flip.default", "cumsum.default", "flip.default"),
    "maskedcumsum": ("mul.Tensor", "cumsum.default"), "cumsumexclusive": ("cat.default", "cumsum.default"),
    "mseloss": ("sub.Tensor", "pow.Tensor_Scalar", "mean.default"),
    "huberloss": ("smooth_l1_loss.default",), "smoothl1loss": ("smooth_l1_loss.default",),
    "hingeloss": ("mul.Tensor", "rsub.Scalar", "clamp.default", "mean.default"),
    "kldivloss": ("log.default", "xlogy.Tensor", "mul.Tensor", "sub.Tensor", "sum.default", "div.Tensor"),
    "crossentropyloss": ("_log_softmax.default", "nll_loss_forward.default"),
    "matmul": ("mm.default",), "squarematrixmultiplication": ("mm.default",), "batchedmatmul": ("bmm.default",),
}  # fmt: skip
"""KernelBench's problems as tables name them, letters only → the aten ops that torch makes of them."""

ALONG_DIM_1 = frozenset(
    {
        "l1norm",
        "l2norm",
        "sumreductionoverdim",
        "meanreductionoverdim",
        "maxreductionoverdim",
        "minreductionoverdim",
        "argmaxoverdim",
        "argminoverdim",
        "productreductionoverdim",
        "cumsum",
        "cumprod",
        "cumsumreverse",
        "maskedcumsum",
        "cumsumexclusive",
        "rmsnorm",
    }
)
"""Problems of KernelBench whose dimension is 1 unless the table says another."""


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").strip() or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value <= MAX_DURATION_US else None


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.strip("[]() ").split(",") if part.strip())
    if any(s < 0 for s in sizes) or math.prod(sizes) > MAX_ELEMENTS:
        raise _Skip("sizes out of range")
    return sizes


def _dtype(text: str | None) -> str:
    return dtype_of(text or "float32") or "float32"


def _inputs(shapes: str, dtypes: str | None) -> list[Tensor]:
    kinds = (dtypes or "float32").split(";")
    parts = shapes.split(";")
    return [(_sizes(part), _dtype(kinds[min(i, len(kinds) - 1)])) for i, part in enumerate(parts)]


def _listed(text: str) -> object:
    try:
        return json.loads(
            text.replace("(", "[")
            .replace(")", "]")
            .replace("None", "null")
            .replace("True", "true")
            .replace("False", "false")
            .replace("'", '"')
            or "[]"
        )
    except (json.JSONDecodeError, RecursionError):
        return []


def _aten_problem(row: Row) -> OpCase:
    """Parse a KernelBench row that lists the aten ops of the problem."""
    ops = row["aten_ops"].split()
    if not ops or len(ops) > MAX_OPS:
        raise _Skip("no aten ops")
    init_args = _listed(row.get("init_args") or "[]")
    out = row.get("output_shape")
    calls = chain(
        ops,
        _inputs(row["input_shapes"], row.get("input_dtypes")),
        init_args if isinstance(init_args, list) else [],
        _sizes(out) if out else None,
    )
    label = re.sub(r"^\d+_|_$", "", row.get("problem") or ops[0])
    return _problem(label, calls, row)


def _named_problem(row: Row) -> OpCase:
    """Parse a KernelBench row that has only the problem's name."""
    name = re.sub(r"[^a-z0-9]", "", row["operator"].lower())
    ops = KERNELBENCH_OPS.get(name)
    if ops is None:
        raise _Skip(f"nobody says what ops {row['operator'][:40]} is")
    shapes = _listed(row["input_shapes"])
    if not isinstance(shapes, list) or not all(isinstance(s, list) for s in shapes):
        raise _Skip("no shapes")
    inputs: list[Tensor] = [(_sizes(",".join(str(int(x)) for x in s)), _dtype(row.get("dtype"))) for s in shapes]
    return _problem(row["operator"], chain(ops, inputs, [1] if name in ALONG_DIM_1 else [], None), row)


def _problem(label: str, calls: tuple[ReplayOp, ...], row: Row) -> OpCase:
    """Return a KernelBench problem with its calls and their kernels."""
    kernels = tuple(kernel for call in calls for kernel in lower(call).kernels)
    return msgspec.structs.replace(_case(label, kernels, row.get("torch_npu_us"), row), calls=calls)


def _case(label: str, kernels: tuple[KernelCall, ...], time: str | None, row: Row) -> OpCase:
    if not kernels:
        raise _Skip("no kernels")
    held_out = (row.get("HeldOut") or row.get("held_out") or "").strip().lower() in ("1", "1.0", "true", "yes")
    soc = (row.get("soc") or "").strip().lower()
    return OpCase(label=label, kernels=kernels, duration_us=_number(time), held_out=held_out, soc=soc)


def _spec(sizes: tuple[int, ...], dtype: str, layout: str = "ND") -> TensorSpec:
    if layout == "FRACTAL_NZ" and len(sizes) == 2:
        # Tables give the logical matrix; the cube's layout holds (columns / 16, rows / 16, 16, 16).
        deep = 32 if dtype == "int8" else 16
        sizes = (-(-sizes[1] // deep), -(-sizes[0] // 16), 16, deep)
    return TensorSpec(shape=sizes, dtype=dtype, format=layout)


def _loop_kernel(row: Row) -> OpCase:
    """Parse a row of a sweep that runs one CANN kernel repeatedly on the same tensors."""
    kind = row["kernel"].rsplit("_", 1)[-1]
    source, _, target = row["shapes"].partition("->")
    dtype = _dtype(row.get("dtype"))
    inputs = tuple(_spec(sizes, dtype) for sizes, _ in _inputs(source, dtype))
    outputs: tuple[TensorSpec, ...] = ()
    if target:
        outputs = tuple(_spec(_sizes(part), dtype) for part in target.split(";"))
    elif "atMul" not in kind:
        outputs = (_spec(broadcast([s.shape for s in inputs]), dtype),)
    time = _number(row.get("median_us")) or _number(row.get("mean_us"))
    return _case(kind, (_product(kind, inputs, outputs),), str(time), row)


def _product(kind: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> KernelCall:
    call = KernelCall(type=kind, inputs=inputs, outputs=outputs)
    if not outputs and (gemm := gemm_of(call)) is not None:
        lead = inputs[0].shape[:-2]
        out = TensorSpec(shape=(*lead, gemm.m, gemm.n), dtype=inputs[0].dtype)
        call = KernelCall(type=kind, inputs=inputs, outputs=(out,))
    return call


_QKV = re.compile(r"q ([\d,]+); kv ([\d,]+)$")
_CUT = re.compile(r"([\d,]+) -> ([\d,]+)$")


def _served(row: Row) -> OpCase:
    """Parse a row of kernels from a serving network."""
    kind, shapes = row["op"].split()[0], row["input_shapes"].strip()
    if "(" in row["op"]:
        raise _Skip("a kernel written by hand")
    dtypes = (row.get("input_dtypes") or "FLOAT16").split(";")
    dtype = _dtype(dtypes[0])
    qkv, cut = _QKV.match(shapes), _CUT.match(shapes)
    if qkv is not None:
        q, kv = _sizes(qkv[1]), _sizes(qkv[2])
        call = KernelCall(
            type=kind,
            inputs=(_spec(q, dtype), _spec(kv, dtype), _spec(kv, dtype)),
            outputs=(_spec(q, dtype),),
            attrs={
                "pairs": float(math.prod(q[:-1]) * kv[2]),
                "rows": math.prod(q[:-1]),
                "head_dim": q[-1],
                "moved_bytes": 4.0 * math.prod(q) + 4.0 * math.prod(kv),
            },
        )
        return _case(kind, (call,), row["duration_us"], row)
    if cut is not None:
        source, target = _spec(_sizes(cut[1]), dtype), _spec(_sizes(cut[2]), dtype)
        attrs = {"run": target.shape[-1]} if kind == "Transpose" and source.shape[-1] == target.shape[-1] else {}
        call = KernelCall(type=kind, inputs=(source,), outputs=(target,), attrs=dict(attrs))
        return _case(kind, (call,), row["duration_us"], row)
    if not re.fullmatch(r"[\d,; ]+", shapes):
        raise _Skip("shapes are not recorded")
    layouts = [layout or "ND" for layout in (row.get("input_formats") or "ND").split(";")]
    inputs = tuple(
        _spec(sizes, kind_, layouts[min(i, len(layouts) - 1)])
        for i, (sizes, kind_) in enumerate(_inputs(shapes, ";".join(dtypes)))
    )
    outputs = tuple(_result(part, dtype) for part in (row.get("output_shapes") or "").split(";") if part.strip())
    if not outputs and "atMul" not in kind:
        outputs = inputs[:1]
    return _case(kind, (_product(kind, inputs, outputs),), row["duration_us"], row)


def _result(text: str, dtype: str) -> TensorSpec:
    sizes, _, named = text.strip().partition(" ")
    return _spec(_sizes(sizes), _dtype(named) if named else dtype)


_TILED = re.compile(r"m=(\d+) k=(\d+) n=(\d+)")
_ONE_HEAD = re.compile(r"1 head, S_q=(?:S_kv=)?(\d+)(?:, S_kv=(\d+))?, D=(\d+), no mask")


def _tiled(row: Row) -> OpCase:
    """Parse a row of hand-tiled kernels: products at their best, and attention of torch_npu."""
    product, head = _TILED.match(row["shape"]), _ONE_HEAD.match(row["shape"])
    if product is not None and "unaligned" not in row["tiling"]:
        m, k, n = (int(x) for x in product.groups())
        out = "float32" if "float32 out" in row["dtype"] else "float16"
        inputs = _spec((m, k), "float16"), _spec((k, n), "float16")
        call = KernelCall(type="MatMulV3", inputs=inputs, outputs=(_spec((m, n), out),))
        return _case(f"gemm {m}x{k}x{n}", (call,), row["time_us"], row)
    if head is not None and row["program"].startswith("torch_npu"):
        queries, dim = int(head[1]), int(head[3])
        keys = int(head[2] or queries)
        if queries < 8192:
            raise _Skip("timed by the host, which takes as long as the kernel")
        q, kv = _spec((1, 1, queries, dim), "float16"), _spec((1, 1, keys, dim), "float16")
        attrs = {"pairs": float(queries * keys), "rows": queries, "head_dim": dim}
        call = KernelCall(type="FlashAttentionScore", inputs=(q, kv, kv), outputs=(q,), attrs=dict(attrs))
        return _case(f"attention {row['shape']}", (call,), row["time_us"], row)
    raise _Skip("a kernel written by hand")


KINDS: tuple[tuple[str, frozenset[str], Callable[[Row], OpCase], State], ...] = (
    ("KernelBench", frozenset({"aten_ops", "input_shapes", "torch_npu_us"}), _aten_problem, "cold"),
    ("KernelBench", frozenset({"operator", "input_shapes", "dtype", "torch_npu_us"}), _named_problem, "warm"),
    ("op sweep", frozenset({"kernel", "shapes", "median_us"}), _loop_kernel, "warm"),
    ("serving", frozenset({"op", "input_shapes", "duration_us"}), _served, "network"),
    ("tiles", frozenset({"program", "shape", "tiling", "time_us"}), _tiled, "warm"),
)
"""(name, columns that tell it, how a row is read, the state it was measured in unless a column L2 says)."""


def kind_of(header: list[str]) -> str | None:
    """Return the kind of table that has this header; None if the header is unknown."""
    return next((name for name, columns, _, _ in KINDS if columns <= set(header)), None)


def read_op_table(path: str | Path) -> OpTable:
    """Read an op-level table.

    Raises TraceError if the file cannot be read, Malformed if its header is of an unknown kind, TooLarge for more than
    MAX_ROWS rows.
    """
    header = set(header_of(path))
    kind = next((kind for kind in KINDS if kind[1] <= header), None)
    if kind is None:
        raise Malformed(f"{path}: no op-level table", hint="KINDS lists the columns.")
    name, _, read, state = kind
    dropped: Counter[str] = Counter()
    cases: list[OpCase] = []
    with open_regular_text(path, MAX_TABLE_BYTES) as file:
        for number, row in enumerate(csv.DictReader(file)):
            if number >= MAX_ROWS:
                raise TooLarge(f"{path}: more than {MAX_ROWS} rows")
            try:
                cases.append(read({key: value or "" for key, value in row.items() if isinstance(value, str | None)}))
            except _Skip as reason:
                dropped[str(reason)] += 1
            except (ValueError, KeyError, IndexError, OverflowError):
                dropped["broken row"] += 1
    return OpTable(
        path=str(path),
        kind=name,
        state=state,
        cases=tuple(cases),
        dropped=dict(dropped),
        has_held_out=bool(header & {"HeldOut", "held_out"}),
    )
