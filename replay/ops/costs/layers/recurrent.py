# pyright: strict
"""Lowering of recurrent layers and cells: one product for all inputs, then one product and the gates for each step."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.op_view import DoesNotFit, OpView, kernel, length, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta


def _mode_gates(op: OpView) -> int:
    """Return the number of gates of a cell: 4 for an LSTM, 3 for a GRU, 1 for a plain RNN."""
    name = op.op.name
    if "rnn" in name and "cudnn" not in name and "miopen" not in name and "mkldnn" not in name:
        return 1
    # The vendors' modes: 0 and 1 plain, 2 LSTM, 3 GRU.
    vendor = {0: 1, 1: 1, 2: 4, 3: 3}.get(op.integer("mode", default=2), 4)
    return 3 if "gru" in name else 4 if "lstm" in name else vendor


def _step(rows: int, hidden: int, gates: int, dtype: str, count: int) -> list[KernelCall]:
    state, weight = spec((rows, hidden), dtype), spec((gates * hidden, hidden), dtype)
    out = spec((rows, gates * hidden), dtype)
    kind = "Sigmoid" if gates > 1 else "Tanh"
    return [
        kernel("MatMulV3", [state, weight], [out], count, transpose_a=False, transpose_b=True),
        kernel(kind, [out, out, state], [state], count),
    ]


def _sequence(op: OpView) -> tuple[int, int, int, str]:
    """Return (steps, batch, width, dtype) of the input."""
    source = op.meta("input", "self", "data", at=0)
    if source is None or len(source.shape) < 2:
        raise DoesNotFit("a recurrent layer needs a sequence")
    if len(source.shape) == 2:  # packed: rows of all steps, and how many each step has
        sizes = op.meta("batch_sizes")
        steps = length(sizes)
        return max(1, steps), -(-source.shape[0] // max(1, steps)), source.shape[1], source.dtype
    first = op.flag("batch_first")
    batch, steps = (source.shape[0], source.shape[1]) if first else (source.shape[1], source.shape[0])
    return max(1, steps), max(1, batch), source.shape[2], source.dtype


def _hidden(op: OpView, gates: int) -> int:
    hidden_size = op.integer("hidden_size", default=0)
    states = [t for t in op.metas("hx") if len(t.shape) >= 2] if "hx" in op.args else []
    if hidden_size > 0 or states:
        return hidden_size if hidden_size > 0 else states[0].shape[-1]
    weights = [t for t in _weights(op) if len(t.shape) == 2]
    if not weights:
        raise DoesNotFit("the size of the state was not recorded")
    return max(1, weights[0].shape[0] // gates)


def _weights(op: OpView) -> list[TensorMeta]:
    return op.metas("params" if "params" in op.args else "weight") if op.args.keys() & {"params", "weight"} else []


def _layers(op: OpView, *, factor: int) -> list[KernelCall]:
    gates = _mode_gates(op)
    steps, batch, width, dtype = _sequence(op)
    hidden, ways = _hidden(op, gates), 2 if op.flag("bidirectional") else 1
    kernels: list[KernelCall] = []
    for layer in range(max(1, min(op.integer("num_layers", default=1), 1024))):
        wide = width if layer == 0 else hidden * ways
        inputs, weight = spec((steps * batch, wide), dtype), spec((gates * hidden, wide), dtype)
        out = spec((steps * batch, gates * hidden), dtype)
        product = kernel("MatMulV3", [inputs, weight], [out], ways * factor, transpose_a=False, transpose_b=True)
        kernels += [product, *_step(batch, hidden, gates, dtype, steps * ways * factor)]
    op.note("the product and the gates of each step are costed as separate kernels")
    return kernels


@costs(
    """
        aten::lstm aten::gru aten::rnn_tanh aten::rnn_relu aten::quantized_lstm aten::quantized_gru aten::_cudnn_rnn
        aten::miopen_rnn aten::mkldnn_rnn_layer aten::_lstm_mps
        npu::npu_lstm npu::npu_gru npu::_npu_lstm npu::npu_lstm_data
    """
)
def layers(op: OpView) -> Iterable[KernelCall]:
    """Return the forward kernels of all layers, directions and steps."""
    return _layers(op, factor=1)


@costs(
    """
        aten::_cudnn_rnn_backward aten::miopen_rnn_backward aten::mkldnn_rnn_layer_backward aten::lstm_mps_backward
        npu::npu_lstm_backward npu::npu_gru_backward npu::npu_lstm_data_backward
    """
)
def layers_backward(op: OpView) -> Iterable[KernelCall]:
    """Return twice the forward's products, for the gradients of the inputs and of the weights."""
    return _layers(op, factor=2)


@costs(
    """
        aten::lstm_cell aten::gru_cell aten::rnn_tanh_cell aten::rnn_relu_cell aten::quantized_lstm_cell
        aten::quantized_gru_cell aten::quantized_rnn_relu_cell aten::quantized_rnn_tanh_cell
        npu::npu_lstm_cell
    """
)
def cell(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of one step: the products with the input and the state, and the gates."""
    gates = _mode_gates(op)
    source, weight = op.meta("input", at=0), op.meta("w_ih", at=2)
    if source is None or weight is None or len(weight.shape) != 2:
        raise DoesNotFit("a cell needs an input and a weight")
    rows, hidden = prod(source.shape[:-1]), max(1, weight.shape[0] // gates)
    x, w = spec((rows, weight.shape[1]), source.dtype), spec(weight.shape, source.dtype)
    out = spec((rows, weight.shape[0]), source.dtype)
    product = kernel("MatMulV3", [x, w], [out], transpose_a=False, transpose_b=True)
    return [product, *_step(rows, hidden, gates, source.dtype, 1)]


@costs(
    """
        aten::_thnn_fused_lstm_cell aten::_thnn_fused_gru_cell aten::_thnn_fused_lstm_cell_backward
        aten::_thnn_fused_gru_cell_backward aten::_thnn_fused_lstm_cell_backward_impl
        aten::_thnn_differentiable_lstm_cell_backward aten::_thnn_differentiable_gru_cell_backward
    """
)
def gates_alone(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel of a cell's gates without its products. Every tensor is read or written once."""
    if not op.tensors:
        raise DoesNotFit("gates need tensors")
    inputs = [op.packed(t) for t in op.tensors]
    return [kernel("Sigmoid", inputs, op.outputs(inputs[0]))]
