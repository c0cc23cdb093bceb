"""Texts that no profile holds: told by the calls inside or by kernels' names, else the default, as an assumption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from opreplay.replay.ir.model import ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.resolve.guess.texts import TEXTS
from opreplay.replay.resolve.guess.values import Context, Relatives
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
    assert _noted(op, "rounding_mode").startswith("'floor': an overload that takes a mode was called")


@pytest.mark.parametrize(("number", "text"), [(1, "tanh"), (2, "none")])
def test_the_kernel_of_a_gelu_tells_its_approximation(number: int, text: str) -> None:
    guess = TEXTS["gelu", "approximate"]({}, Context(kernels=(KERNEL.format(number),)))
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
    guess = TEXTS[op, argument]({}, Context(kernels=(kernel,)))
    assert guess is not None
    assert guess.value == text
    assert "recorded kernel" in guess.why


def test_a_quotient_of_integers_that_is_read_as_a_floating_number_is_not_rounded() -> None:
    known = {"self": ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=(4,), dtype="int64"),))}
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
