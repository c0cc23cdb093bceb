"""Texts that no profile holds: told by the calls inside or by kernels' names, else the default, as an assumption."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.guess.texts import TEXTS
from opreplay.replay.resolve.guess.values import Context, Relatives
from opreplay.replay.resolve.schema import specs_of
from opreplay.traces import read_trace
from opreplay.traces.model import OpSignature, TensorMeta
from tests.integration.test_recorded_here import recorded

KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{{lambda()#{0}}}::operator()() const::{{lambda()#4}}::operator()() const>"
)


def _values(plan: ReplayPlan, name: str, argument: str) -> list[object]:
    return [arg.value for op in plan.ops if op.name == name for arg in op.args if arg.name == argument]


def _noted(op: ReplayOp, argument: str) -> str:
    return "; ".join(note.what for note in op.assumptions if note.argument == argument)


def test_a_padding_mode_is_that_of_the_padding_inside(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 8, 8)
    modes = ("reflect", "replicate", "circular", "constant")

    def step() -> None:
        for at, mode in enumerate(modes):
            F.pad(image, (1, 1 + at, 1, 1), mode=mode)

    assert set(_values(recorded(step, tmp_path), "aten::pad", "mode")) == set(modes)


def test_names_of_norms(tmp_path: Path) -> None:
    matrix = torch.randn(3, 4, 5)

    def step() -> None:
        torch.linalg.norm(matrix, ord="fro", dim=(1, 2))
        torch.linalg.norm(matrix[:2], ord="nuc", dim=(1, 2))
        torch.linalg.norm(matrix[:1], dim=(1, 2))
        torch.linalg.matrix_norm(matrix[0], ord="nuc")

    plan = recorded(step, tmp_path)
    ops = {op.args[0].tensors[0].shape: op for op in plan.ops if op.name == "aten::linalg_norm"}  # type: ignore[union-attr]
    told = {shape: op.args[1].value for shape, op in ops.items()}
    assert told == {(3, 4, 5): "fro", (2, 4, 5): "nuc", (1, 4, 5): None}
    assert "nuc" in _values(plan, "aten::linalg_matrix_norm", "ord")


def test_scaling_of_fourier_transforms(tmp_path: Path) -> None:
    signal = torch.randn(4, 16)

    def step() -> None:
        for at, norm in enumerate(("forward", "backward", "ortho")):
            torch.fft.rfft(signal[at:], norm=norm)
            torch.fft.irfft(torch.fft.rfft(signal[at:]), norm=norm, n=15)

    plan = recorded(step, tmp_path)
    assert set(_values(plan, "aten::fft_rfft", "norm")) == {"forward", None, "ortho"}
    assert set(_values(plan, "aten::fft_irfft", "norm")) == {"forward", None, "ortho"}


def test_grids_and_factorisations_and_means(tmp_path: Path) -> None:
    def step() -> None:
        torch.meshgrid(torch.arange(3), torch.arange(4), indexing="xy")
        torch.linalg.qr(torch.randn(6, 4), mode="complete")
        torch.zeros(3).scatter_reduce(0, torch.tensor([0, 1]), torch.ones(2), reduce="mean")

    plan = recorded(step, tmp_path)
    assert _values(plan, "aten::meshgrid", "indexing") == ["xy"]
    assert _values(plan, "aten::linalg_qr", "mode") == ["complete"]
    assert _values(plan, "aten::scatter_reduce", "reduce") == ["mean"]


@pytest.mark.parametrize("text", ["bij,bkj->bik", "bld,dn->bldn", "bd,bn->bdn", "bij->b", "abc,cb->ab", "ij,kj->ik"])
def test_equations_from_permutations(text: str, tmp_path: Path) -> None:
    sizes = {letter: 2 + at for at, letter in enumerate(sorted(set(text) - set(",->")))}
    left = text.partition("->")[0]
    operands = [torch.randn([sizes[c] for c in part]) for part in left.split(",")]
    plan = recorded(lambda: torch.einsum(text, *operands), tmp_path)
    (equation,) = _values(plan, "aten::einsum", "equation")
    expected = torch.einsum(text, *operands)
    assert torch.allclose(torch.einsum(str(equation), *operands), expected)


def test_an_optional_text_is_an_assumption(tmp_path: Path) -> None:
    plan = recorded(lambda: torch.div(torch.randn(3), torch.randn(3), rounding_mode="floor"), tmp_path)
    (op,) = (op for op in plan.ops if op.name == "aten::div")
    assert _noted(op, "rounding_mode").startswith("'floor': the recorded overload takes a mode")


@pytest.mark.parametrize(("number", "text"), [(1, "tanh"), (2, "none")])
def test_the_kernel_of_a_gelu_tells_its_approximation(number: int, text: str) -> None:
    guess = TEXTS["gelu", "approximate"](Call(), Context(kernels=(KERNEL.format(number),)))
    assert guess is not None
    assert guess.value == text


@pytest.mark.parametrize(
    ("op", "argument", "kernel", "text"),
    [
        ("div", "rounding_mode", "BUnaryFunctor<long, long, long, binary_internal::div_trunc_kernel_cuda(", "trunc"),
        ("div_", "rounding_mode", "at::native::div_true_kernel_cuda(at::TensorIteratorBase&)", None),
        ("scatter_reduce", "reduce", "operator()<at::native::ReduceMaximum>(at::TensorIterator&", "amax"),
        ("scatter_reduce_", "reduce", "operator()<at::native::ReduceAdd>(at::TensorIterator&", "sum"),
        ("scatter_", "reduce", "operator()<at::native::ReduceMultiply>(at::TensorIterator&", "multiply"),
    ],
)
def test_kernels_name_roundings_and_reductions(op: str, argument: str, kernel: str, text: str | None) -> None:
    guess = TEXTS[op, argument](Call(), Context(kernels=(kernel,)))
    assert guess is not None
    assert guess.value == text
    assert "recorded kernel" in guess.why


def test_a_quotient_of_integers_that_is_read_as_a_floating_number_is_not_rounded() -> None:
    known = Call({"self": ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=(4,), dtype="int64"),))})
    reader = OpSignature(name="aten::mul", dims=((4,), ()), types=("float", "Scalar"))
    guess = TEXTS["div", "rounding_mode"](known, Context(relatives=lambda: Relatives(following=(reader,))))
    assert guess is not None
    assert guess.value is None
    guess = TEXTS["div", "rounding_mode"](known, Context())
    assert guess is not None
    assert guess.value == "floor"


def test_quantiles_say_how_they_go_between_two_elements(tmp_path: Path) -> None:
    modes = ("linear", "lower", "higher", "nearest", "midpoint")

    def step() -> None:
        for rows, mode in enumerate(modes, start=2):
            torch.quantile(torch.rand(rows, 9), 0.3, dim=1, interpolation=mode)

    plan = recorded(step, tmp_path)
    ops = {op.args[0].tensors[0].shape[0]: op for op in plan.ops if op.name == "aten::quantile"}  # type: ignore[union-attr]
    told = [next(arg.value for arg in ops[rows].args if arg.name == "interpolation") for rows in range(2, 7)]
    assert told == list(modes)


def test_a_condition_number_by_the_calls_inside(tmp_path: Path) -> None:
    matrices = {n: torch.randn(n, n) + n * torch.eye(n) for n in (3, 4, 5, 6)}

    def step() -> None:
        for size, order in zip(matrices, ("fro", "nuc", None, 2), strict=True):
            torch.linalg.cond(matrices[size], p=order)

    ops = [op for op in recorded(step, tmp_path).ops if op.name == "aten::linalg_cond"]
    told = {op.args[0].tensors[0].shape[0]: op.args[1].value for op in ops}  # type: ignore[union-attr]
    assert told == {3: "fro", 4: "nuc", 5: None, 6: 2}
    assert {op.overload for op in ops} == {"", "p_str"}


def text_twins() -> set[str]:
    """Ops of torch of which one overload takes a text where another one, of as many arguments, may be given None."""
    twins: set[str] = set()
    for name in {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}:
        specs = [spec for spec in specs_of(name) if not any(arg.out for arg in spec.args)]
        for one, other in permutations(specs, 2):
            pairs = list(zip(one.args, other.args, strict=False))
            same = len(one.args) == len(other.args) and all(a.kind == b.kind or b.kind == "str" for a, b in pairs)
            if same and any(a.kind != "str" and a.optional and b.kind == "str" for a, b in pairs):
                twins.add(name)
    return twins


def test_none_where_another_overload_takes_a_text_is_an_assumption(tmp_path: Path) -> None:
    """Nothing inside such a call is recorded here: a None and a text look the same."""
    names = text_twins()
    assert {"aten::linalg_cond", "aten::linalg_norm"} <= names
    for name in sorted(names):
        spec = next(one for one in specs_of(name) if any(arg.optional for arg in one.args))
        count = len(spec.args)
        values = [""] * 2 + ["False" if arg.kind == "bool" else "" for arg in spec.args[2:]]
        args = {
            "Input Dims": [[4, 4], *([[]] * (count - 1))],
            "Input type": ["float", "", *("Scalar" if value else "" for value in values[2:])],
            "Input Strides": [[4, 1], *([[]] * (count - 1))],
            "Concrete Inputs": values,
        }
        event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0, "args": args}
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
        (op,) = build_plan(read_trace(path), select="all").ops
        assert op.reason is None, f"{name}: {op.reason}"
        assert op.args[1].value is None
        assert _noted(op, op.args[1].name), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_drivers_of_least_squares_by_what_they_allocate(tmp_path: Path, dtype: torch.dtype) -> None:
    drivers = {3: "gels", 4: None, 5: "gelsd", 6: "gelss"}
    left, right = torch.randn(9, 6, dtype=dtype), torch.randn(9, 2, dtype=dtype)

    def step() -> None:
        for columns, driver in drivers.items():
            torch.linalg.lstsq(left[:, :columns], right, driver=driver)

    ops = [op for op in recorded(step, tmp_path).ops if op.name == "aten::linalg_lstsq"]
    told = {(op.args[0].tensors[0].shape[1], op.args[3].value) for op in ops}  # type: ignore[union-attr]
    assert told == set(drivers.items()), "outer and inner calls agree"


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (4, 4), (2, 5, 3)])
def test_modes_of_a_qr_factorisation(tmp_path: Path, shape: tuple[int, ...]) -> None:
    for mode in ("reduced", "complete", "r"):
        matrix = torch.randn(*shape)
        plan = recorded(lambda matrix=matrix, mode=mode: torch.linalg.qr(matrix, mode=mode), tmp_path)
        square = shape[-2] <= shape[-1]  # both modes make the same then
        assert _values(plan, "aten::linalg_qr", "mode") == ["reduced" if square and mode == "complete" else mode]


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_reductions_by_index_are_told_by_what_goes_back_through_them(tmp_path: Path) -> None:
    reductions = ("amax", "amin", "mean", "prod")
    index = torch.tensor([0, 2, 2, 1])

    def step() -> None:
        for at, reduction in enumerate(reductions):
            source = torch.rand(4, 5 + at, requires_grad=True)
            torch.ones(3, 5 + at).index_reduce(0, index, source, reduction).sum().backward()
            places = index[:, None].expand(4, 5 + at)
            torch.ones(3, 5 + at).scatter_reduce(0, places, source, reduction).sum().backward()

    plan = recorded(step, tmp_path, numbered=True)
    for name in ("aten::index_reduce", "aten::scatter_reduce"):
        texts = {
            op.args[0].tensors[0].shape[1]: op.args[4].value  # type: ignore[union-attr]
            for op in plan.ops
            if op.name == name and "backward pass" in _noted(op, "reduce")
        }
        # A maximum and a minimum go back in the same way.
        assert texts.get(7, "mean") == "mean"
        assert texts[8] == "prod"
        assert {texts[5], texts[6]} <= {"amax", "amin"}


def test_how_a_quotient_is_rounded(tmp_path: Path) -> None:
    """A rounded one has no gradient; whole numbers divided by a float give a float, rounded or not."""
    whole, plain = torch.arange(12), torch.rand(5, requires_grad=True)

    def step() -> None:
        torch.div(plain, 3.0, rounding_mode=None).sum().backward()
        torch.div(plain[:4], 3.0, rounding_mode="floor").sum().backward()
        (torch.div(whole, 2.5, rounding_mode="floor") + torch.ones(12)).sum()

    plan = recorded(step, tmp_path, numbered=True)
    ops = [op for op in plan.ops if op.name == "aten::div" and op.overload in ("Tensor_mode", "Scalar_mode")]
    told = {op.args[0].tensors[0].shape: op.args[2].value for op in ops}  # type: ignore[union-attr]
    assert told == {(5,): None, (4,): "floor", (12,): "floor"}


def test_a_text_that_nothing_tells_says_what_another_one_takes(tmp_path: Path) -> None:
    rows, lengths = torch.rand(12, 3), torch.tensor([5, 7])

    def step() -> None:
        F.gelu(rows, approximate="tanh")
        torch.segment_reduce(rows, "max", lengths=lengths)
        torch.linalg.eigh(rows[:3], UPLO="U")

    plan = recorded(step, tmp_path)
    notes = {op.name: _noted(op, op.args[at].name) for op in plan.ops
             for at, arg in enumerate(op.args) if arg.type == "str"}  # fmt: skip
    assert "'tanh' takes 3.6 x" in notes["aten::gelu"]
    assert "'min' takes 1.6 x" in notes["aten::segment_reduce"]
    assert notes["aten::linalg_eigh"]
    assert " x as long" not in notes["aten::linalg_eigh"], "either half is as much work"
