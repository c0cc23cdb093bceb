"""Steps of all kinds, recorded here with torch.profiler: each call that the profile holds can be replayed.

What a real model does first shows in a profile; the steps are those that once left an op out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.ascend import simulate_op
from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.simulate.step import simulate_step
from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.traces import read_trace

pytestmark = pytest.mark.slow

ONCE = MeasureOptions(op_time_s=0.0, min_samples=1, max_samples=1, warmup_calls=1, warmup_s=0.0)
Step = Callable[[], object]


@pytest.fixture(scope="module")
def executor() -> Iterator[TorchExecutor]:
    made = TorchExecutor("cpu", lambda op: find_overload(op, Policy()), memory_bytes=10**8)
    yield made
    made.close()


def recorded(step: Step, folder: Path, *, numbered: bool = False) -> ReplayPlan:
    """The plan of all calls that one step makes; `numbered`: with what autograd's numbers tell."""
    with torch.enable_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    return build_plan(read_trace(path, record_function_ids=numbered), select="all")


def left_out(plan: ReplayPlan, executor: TorchExecutor) -> list[str]:
    """Ops that are no labels and were not replayed, with the reason."""
    found = []
    for op in plan.ops:
        outcome = attempt(executor, op, seed=0, options=ONCE)
        if outcome.status != "replayed" and (op.reason is None or op.reason.kind != "label, not an op"):
            found.append(f"{op.name}: {outcome.reason}")
    return found


def notes_on(plan: ReplayPlan, name: str) -> list[str]:
    (op, *_) = (op for op in plan.ops if op.name == name)
    return [f"{note.argument}: {note.what}" for note in op.assumptions]


def named(plan: ReplayPlan, name: str) -> ReplayOp:
    return next(op for op in plan.ops if op.name == name)


def factorised() -> None:
    matrix = torch.randn(3, 4, 4) + 4 * torch.eye(4)
    torch.linalg.inv(matrix)
    torch.lu_unpack(*torch.linalg.lu_factor(matrix))
    torch.linalg.solve(matrix.requires_grad_(), torch.randn(3, 4, 2)).sum().backward()


def packed() -> None:
    batch = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 5, 4), torch.tensor([5, 3, 2]), batch_first=True)
    out, _ = nn.LSTM(4, 6, batch_first=True)(batch)
    nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].sum().backward()


def graph() -> None:
    edges, nodes = torch.randint(0, 9, (40,)), torch.randn(40, 4, requires_grad=True)
    lengths = torch.bincount(edges, minlength=9)
    total = torch.segment_reduce(nodes, "sum", lengths=lengths).sum()
    total = total + torch.zeros(9, 4).index_reduce(0, edges, nodes, "mean").sum() + nodes[edges].sum()
    total.backward()
    torch.zeros(9, 4).scatter_(0, edges[:, None].expand(-1, 4), nodes.detach(), reduce="add")


def shaped_in_place() -> None:
    torch.randn(4, 1).squeeze_(1)
    torch.randn(4).unsqueeze_(0)
    torch.randn(4, 3).t_()
    torch.empty(0).resize_(5)


def drawn() -> None:
    torch.normal(torch.zeros(4), torch.ones(4))
    torch.normal(0.0, torch.ones(4))
    torch.binomial(torch.full((5,), 10.0), torch.rand(5))
    torch.ops.aten._assert_async.msg(torch.tensor(True), "positive")


def margins() -> None:
    scores = torch.randn(4, 5, requires_grad=True)
    F.multilabel_margin_loss(scores, torch.tensor([[1, -1, 0, 0, 0]] * 4)).backward()


def compressed() -> None:
    torch.ops.aten._convert_indices_from_coo_to_csr(torch.tensor([0, 1, 1, 3]), 4)
    torch.ops.aten._convert_indices_from_csr_to_coo(torch.tensor([0, 1, 3, 3, 4]), torch.tensor([2, 0, 1, 1]))


def without_arguments() -> None:
    torch.ones(2).add_(1)  # an op with shapes: the profile records them
    torch.ops.aten._nnpack_available()


STEPS: tuple[Step, ...] = (
    factorised,
    packed,
    graph,
    shaped_in_place,
    drawn,
    margins,
    compressed,
    without_arguments,
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_all_of_a_step_is_replayed(step: Step, tmp_path: Path, executor: TorchExecutor) -> None:
    plan = recorded(step, tmp_path)
    assert len(plan.ops) > 0
    assert left_out(plan, executor) == []


def test_autocast_is_seen_where_types_differ_and_where_a_narrow_type_follows(
    tmp_path: Path, executor: TorchExecutor
) -> None:
    """The profiler records arguments before autocast casts them."""

    layers = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layers(torch.randn(2, 4))

    plan = recorded(step, tmp_path)
    assert left_out(plan, executor) == []
    linears = [op for op in plan.ops if op.name == "aten::linear"]
    assert len(linears) >= 2
    for op in linears:
        assert {meta.dtype for arg in op.args for meta in arg.tensors if meta is not None} == {"bfloat16"}
    notes = [note.what for op in linears for note in op.assumptions]
    assert any(
        note.startswith("bfloat16: autocast had cast it from float32; the recorded time includes") for note in notes
    )
    shown = build_plan(read_trace(tmp_path / "trace.json"))  # the casts of two weights, two biases and the input
    assert sum(op.count for op in shown.ops if op.name == "aten::to") == 5
    inner = [op for op in shown.ops if op.name == "aten::linear"]
    assert sum(op.count for op in inner) == 2
    assert not any("autocast" in note.what for op in inner for note in op.assumptions), "recorded as replayed"


def test_float32_layers_without_autocast_stay_as_they_are(tmp_path: Path) -> None:
    plan = recorded(lambda: nn.Linear(4, 6)(torch.randn(2, 4)), tmp_path)
    metas = [meta for arg in named(plan, "aten::linear").args for meta in arg.tensors if meta is not None]
    assert {meta.dtype for meta in metas} == {"float32"}


@pytest.mark.parametrize(("padding", "why"), [("same", "'same': "), ("valid", "'valid': ")])
def test_padding_by_name_is_told_by_the_convolution_inside(
    padding: str, why: str, tmp_path: Path, executor: TorchExecutor
) -> None:
    weight = torch.randn(2, 1, 3, 3)
    plan = recorded(lambda: F.conv2d(torch.randn(1, 1, 6, 6), weight, padding=padding), tmp_path)
    assert left_out(plan, executor) == []
    assert any(note.startswith(f"padding: {why}") for note in notes_on(plan, "aten::conv2d"))


def test_a_gradient_that_skips_checks_of_bounds_is_replayed_with_them(tmp_path: Path) -> None:
    def step() -> None:
        torch.randn(9, 4, requires_grad=True)[torch.randint(0, 9, (5,))].sum().backward()

    notes = notes_on(recorded(step, tmp_path), "aten::_index_put_impl_")
    assert "unsafe: False: the recorded True skips bounds checks" in notes


@pytest.mark.filterwarnings("ignore")
def test_a_nested_tensor_has_no_shape_that_could_be_missing_elsewhere(tmp_path: Path) -> None:
    def step() -> None:
        torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)]).relu()

    op = named(recorded(step, tmp_path), "aten::relu")
    assert str(op.reason) == "metadata missing: shape of self (nested and undefined tensors have none)"


def test_copies_of_fully_sharded_training_are_replayed(tmp_path: Path, executor: TorchExecutor) -> None:
    """Their namespace is torch's own, registered by a module that nothing else imports."""
    import torch.distributed.fsdp

    def step() -> None:
        parts, gathered = [torch.randn(6), torch.randn(4)], torch.empty(20)
        torch.ops.fsdp.all_gather_copy_in(parts, gathered, [6, 4], 10, 0)
        torch.ops.fsdp.split_with_sizes_copy(
            gathered.view(2, 10), [6, 4], 1, out=[torch.empty(2, 6), torch.empty(2, 4)]
        )
        torch.ops.fsdp.chunk_cat([torch.randn(4, 3), torch.randn(2, 2)], 0, 2, out=torch.empty(2, 8))

    plan = recorded(step, tmp_path)
    assert {op.name for op in plan.ops} >= {
        "fsdp::all_gather_copy_in",
        "fsdp::split_with_sizes_copy",
        "fsdp::chunk_cat",
    }
    assert left_out(plan, executor) == []


@pytest.mark.filterwarnings("ignore")
def test_ops_of_sparse_tensors_say_that_the_layout_is_missing(tmp_path: Path, executor: TorchExecutor) -> None:
    def step() -> None:
        made = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2), (3,)).coalesce()
        made.values()
        torch.eye(3).to_sparse_csr().crow_indices()

    reasons = {reason.partition(": ")[0]: reason for reason in left_out(recorded(step, tmp_path), executor)}
    assert reasons["aten::coalesce"] == "aten::coalesce: layout not recorded: the op accepts only sparse tensors"
    assert "compressed sparse" in reasons["aten::crow_indices"]
    assert not any("failed" in reason for reason in reasons.values())


@pytest.mark.filterwarnings("ignore")
def test_sparse_and_quantized_tensors_lack_what_a_profile_does_not_record(tmp_path: Path) -> None:
    """They were replayed dense, with contiguous strides, or skipped no earlier than in the run."""
    matrix, dense = torch.randn(6, 6).relu().to_sparse(), torch.randn(6, 2)
    quantized = torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.quint8)

    def step() -> None:
        torch.sparse.mm(matrix, dense)
        quantized.dequantize()
        dense * 2

    plan = recorded(step, tmp_path)
    product = named(plan, "aten::_sparse_mm")
    assert product.reason is not None
    assert product.reason.kind == "layout not recorded"
    assert str(named(plan, "aten::dequantize").reason) == (
        "metadata missing: scale of self, a quantized tensor (quint8)"
    )
    assert named(plan, "aten::mul").reason is None


@pytest.mark.filterwarnings("ignore")
def test_ops_of_sparse_tensors_are_in_no_simulated_total_and_named(tmp_path: Path) -> None:
    """They were predicted as dense ones of the same sizes, or by bytes that they do not have."""
    matrix, dense = torch.randn(6, 6).relu().to_sparse().coalesce(), torch.randn(6, 6)

    def step() -> None:
        torch.sparse.mm(matrix, dense)
        dense.sparse_mask(matrix)
        matrix.to_dense()
        dense.cosh()

    plan = recorded(step, tmp_path)
    sparse = {named(plan, name).id for name in ("aten::_sparse_mm", "aten::sparse_mask", "aten::to_dense")}
    simulated = simulate_step(plan.ops, load_device("910b3"))
    assert sparse <= simulated.failed.keys()
    assert not sparse & {one.id for one in simulated.ops}
    assert named(plan, "aten::cosh").id in {one.id for one in simulated.ops}
    assert all(simulate_op(op, load_device("910b3")).by == "nothing" for op in plan.ops if op.id in sparse)
