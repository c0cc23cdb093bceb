# pyright: strict
"""Guesses for layers of networks: groups of a normalisation, layers of a recurrent network, heads, windows of a
spectrum, rows of an embedding, and small settings that most calls have.

Owns no convolutions and poolings (`windows`) nor tables of recommendation models (`embedding_tables`).
"""

from __future__ import annotations

import math

from opreplay.replay.ir.model import Value
from opreplay.replay.resolve.guess.lists import first_tensor_of
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Known,
    Rule,
    Shape,
    names,
    recorded_shape,
    tensor,
    value,
)

GROUPS = (32, 16, 8, 4, 2, 1)
"""Of a group normalisation, tried in this order."""
HEADS = (8, 12, 16, 4, 2, 1)
EMBEDDINGS = 1000
READERS = 4
"""Calls that may read the result of a transform."""


def _shape(known: Known, *names: str) -> Shape | None:
    return next((meta.shape for name in names if (meta := tensor(known, name)) is not None), None)


def _always(constant: Value, why: str = "a common value") -> Rule:
    return lambda known, context: Guess(value=constant, why=f"{constant!r} ({why})")


def _group_count(known: Known, context: Context) -> Guess | None:
    mean = _shape(known, "mean")
    if mean is not None and len(mean) == 2:
        return Guess(value=mean[1], why="the shape of mean")
    shape = _shape(known, "input", "self")
    if shape is None or len(shape) < 2:
        return None
    count = next(n for n in GROUPS if shape[1] % n == 0)
    return Guess(value=count, why=f"{count} (a common value)")


def _of_input(pick: str) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        shape = _shape(known, "input")
        if shape is None or len(shape) < 2:
            return None
        size = {"N": shape[0], "C": shape[1], "HxW": math.prod(shape[2:])}[pick]
        return Guess(value=size, why="the shape of the input")

    return rule


def _recurrent(which: str) -> Rule:
    """What the list of weights tells: a layer has two matrices and two biases in each direction."""

    def rule(known: Known, context: Context) -> Guess | None:
        listed = known.get("params")
        metas = [m.shape for m in listed.tensors if m is not None] if listed is not None else []
        matrices = [shape for shape in metas if len(shape) == 2]
        if len(matrices) < 2:
            return None
        # The reverse direction of the first layer reads what the first direction reads.
        both = len(matrices) >= 4 and matrices[2] == matrices[0] and matrices[0][1] != matrices[1][1]
        known_value: dict[str, Value] = {
            "has_biases": len(matrices) < len(metas),
            "bidirectional": both,
            "num_layers": max(1, len(matrices) // (4 if both else 2)),
        }
        return Guess(value=known_value[which], why="the shapes of the weights")

    return rule


def _head_count(known: Known, context: Context) -> Guess | None:
    meta = next((m for n in ("query", "qkv", "src") if (m := tensor(known, n)) is not None), None)
    if meta is None or not meta.shape:
        return None
    width = meta.shape[-1] // 3 if "qkv" in known else meta.shape[-1]
    count = next(n for n in HEADS if width % n == 0)
    return Guess(value=count, why=f"{count} (a common value)")


def _grouped_heads(known: Known, context: Context) -> Guess | None:
    query, key = _shape(known, "query"), _shape(known, "key")
    if query is None or key is None or len(query) < 4 or len(key) < 4:
        return None
    return Guess(value=query[-3] != key[-3], why="the heads of query and key")


def _spectrum_width(known: Known, context: Context) -> Guess | None:
    shape, window = _shape(known, "self"), _shape(known, "window")
    if shape is None or len(shape) < 1:
        return None
    if window is not None and len(window) == 1 and window[0] > 0:
        return Guess(value=window[0], why="the length of the window")
    return Guess(value=max(1, min(400, shape[-1])), why="400, or the length of the signal")


def _inverse_width(known: Known, context: Context) -> Guess | None:
    shape = _shape(known, "self")
    if shape is None or len(shape) < 2:
        return None
    return Guess(value=2 * (shape[-2] - 1), why="the number of frequencies")


def _table_rows(known: Known, context: Context) -> Guess | None:
    """Rows of the embedding that a gradient is for: those of a parameter as wide."""
    grad, forward = _shape(known, "grad_output", "grad"), context.relatives().forward
    if not grad:
        return None
    table = None if forward is None else recorded_shape(forward)
    if forward is not None and table is not None and len(table) == 2 and "embedding" in forward.name:
        return Guess(value=table[0], why=f"{forward.name} was given {list(table)} forward")
    for call in context.relatives().gradients:
        dims = call.dims[0] if call.dims else ()
        if len(dims) == 2 and dims[1] == grad[-1]:
            return Guess(value=dims[0], why=f"a parameter of {dims[0]} rows of this width")
    return Guess(value=EMBEDDINGS, why=f"{EMBEDDINGS}: nothing in the trace tells it")


def _one_each(known: Known, context: Context) -> Guess | None:
    """A number for each tensor of a list."""
    count = next((len(arg.tensors) for arg in known.values() if arg.type == "Tensor[]" and arg.tensors), None)
    return None if count is None else Guess(value=(1.0,) * count, why="1 for each tensor")


def _hidden_size(known: Known, context: Context) -> Guess | None:
    weight = _shape(known, "weight1")
    return Guess(value=weight[1], why="the shape of the weight") if weight and len(weight) == 2 else None


def _real_length(known: Known, context: Context) -> Guess | None:
    shape = _shape(known, "self")
    return Guess(value=max(1, 2 * (shape[-1] - 1)), why="the number of frequencies") if shape else None


def _transform(context: Context) -> str:
    """The name of the Fourier transform that makes a call, without its namespace; "" for none."""
    around = context.relatives()
    names = [call.name.partition("::")[2] for call in around.ancestors]
    return next((name for name in names if name.startswith("fft_")), "")


def _scaling(known: Known, context: Context) -> Guess | None:
    """Codes of `fft_norm_mode` (ATen/native/SpectralOpsUtils.h): an inverse divides by the number of elements."""
    name = _transform(context)
    inverse = name.startswith(("fft_i", "fft_hf"))
    why = f"as {name} does it without `norm`" if name else "a common value"
    return Guess(value=2 if inverse else 0, why=why)


def _one_sided(known: Known, context: Context) -> Guess | None:
    """Only a transform that was not told that its input is real makes both halves."""
    name = _transform(context)
    both = name.startswith(("fft_fft", "fft_ifft"))
    return Guess(value=not both, why=f"both halves, as {name} does" if both else "the half that is not repeated")


def _transformed_dims(known: Known, context: Context) -> Guess | None:
    """The last dimension, the last two, or all of them, as the name of the transform says."""
    shape, name = _shape(known, "self"), _transform(context)
    if shape is None:
        return None
    count = len(shape) if name.endswith("n") else 2 if name.endswith("2") else 1
    count = min(count, len(shape)) if context.relatives().name != "aten::_fft_c2c" or name[4:5] != "i" else 1
    return Guess(
        value=tuple(range(len(shape) - count, len(shape))), why=f"the last {'dimension' if count == 1 else count}"
    )


def _signal_length(known: Known, context: Context) -> Guess | None:
    """To how many elements a transform pads its input: what the transform inside is given, or what is read next has."""
    shape, around = _own_signal(known), context.relatives()
    if shape is None:
        return None
    inverse = around.name.startswith(("aten::fft_ir", "aten::fft_hf"))
    usual = 2 * (shape[-1] - 1) if inverse else shape[-1]
    for call in around.following[:READERS] if inverse else around.children:
        meta = first_tensor_of(call)
        if meta is None or meta.shape[:-1] != shape[:-1]:
            continue
        if call.name.startswith("aten::_fft_") if not inverse else not meta.dtype.startswith("complex"):
            length = meta.shape[-1]
            return None if length == usual else Guess(value=length, why=f"{call.name} is given {list(meta.shape)}")
    return None


def _own_signal(known: Known) -> Shape | None:
    shape, dim = _shape(known, "self"), value(known, "dim")
    return shape if shape and dim in (None, -1, len(shape) - 1) else None


def _halved(known: Known, context: Context) -> Guess | None:
    """The dimension of a gated unit: where its gradient, or what is read next, is half as large."""
    source_shape, around = _shape(known, "self"), context.relatives()
    if not source_shape:
        return None
    grad = _shape(known, "grad_output")
    read = [meta.shape for call in around.following[:2] if (meta := first_tensor_of(call)) is not None]
    for shape in read if grad is None else [grad]:
        dims = [
            d
            for d in range(len(source_shape))
            if shape == (*source_shape[:d], source_shape[d] // 2, *source_shape[d + 1 :])
        ]
        if dims:
            return Guess(value=dims[-1], why="where the result is half as large")
    return Guess(value=-1, why="the last dimension")


def _steps(known: Known, context: Context) -> Guess | None:
    sizes = _shape(known, "batch_sizes")
    return Guess(value=sizes[0], why="one step for each size of a batch") if sizes else None


def _in_training(known: Known, context: Context) -> Guess | None:
    """A model that accumulates gradients is trained; one in a trace without any is not."""
    trained = bool(context.relatives().gradients)
    why = "gradients are accumulated in this trace" if trained else "no gradient is accumulated in this trace"
    return Guess(value=trained, why=f"{trained}: {why}")


def _drops(known: Known, context: Context) -> Guess | None:
    """A dropout that drops nothing calls nothing."""
    calls = bool(context.relatives().children)
    return Guess(value=calls, why=f"{calls}: it calls {'others' if calls else 'nothing'} inside")


def _full_lengths(name: str, dim: int) -> Rule:
    """A length for each sequence of a batch, as long as the shapes allow: lists of more than 30 are not recorded."""

    def rule(known: Known, context: Context) -> Guess | None:
        scores, longest = _shape(known, "log_probs"), _shape(known, name)
        if scores is None or len(scores) != 3 or longest is None or len(longest) <= dim:
            return None
        return Guess(value=(longest[dim],) * scores[1], why=f"the full length {longest[dim]} of each")

    return rule


def _sparsely(known: Known, context: Context) -> Guess | None:
    """Whether the gradient of an embedding is sparse: by the calls inside the node that makes it."""
    around = context.relatives()
    calls = [call.name for call in (*around.backward, *around.children, *around.inner)]
    kinds = [name for name in calls if name.endswith(("_sparse_backward", "_dense_backward"))]
    return Guess(value="_sparse_" in kinds[0], why=f"{kinds[0]} makes the gradient") if kinds else None


def _counts_the_end(known: Known, context: Context) -> Guess | None:
    """Whether offsets end with the number of indices: then there is a bag less than offsets."""
    around, offsets = context.relatives(), _shape(known, "offsets")
    read = next((m.shape for call in around.following if (m := first_tensor_of(call)) is not None), None)
    if offsets is None or read is None or len(read) != 2 or len(offsets) != 1:
        return None
    return Guess(value=read[0] == offsets[0] - 1, why=f"{around.following[0].name} reads {list(read)} next")


_DISTANCES = names(
    "cdist _cdist_forward _cdist_backward pdist _pdist_forward _pdist_backward norm dist renorm pairwise_distance"
)
_QUANTIZERS = names(
    "quantize_per_tensor quantize_per_channel fake_quantize_per_tensor_affine "
    "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine "
    "fake_quantize_per_channel_affine_cachemask"
)
_FFT = ("_fft_r2c", "_fft_c2r", "_fft_c2c")
_GRIDS = ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "grid_sampler_2d_backward", "grid_sampler_3d_backward")
_NETWORKS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_ROWS = names(
    "embedding_dense_backward embedding_backward embedding_sparse_backward _embedding_bag_backward "
    "_embedding_bag_dense_backward _embedding_bag_sparse_backward"
)

_CTC = ("ctc_loss", "_ctc_loss", "_ctc_loss_backward")
_BAGS = ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_backward")

_NORMS = ("cudnn_batch_norm", "miopen_batch_norm")

NETWORK_RULES: dict[tuple[str, str], Rule] = {
    ("group_norm", "num_groups"): _group_count,
    **{(op, "group"): _group_count for op in ("native_group_norm", "native_group_norm_backward")},
    **{(op, name): _of_input(name) for op in ("native_group_norm", "native_group_norm_backward")
       for name in ("N", "C", "HxW")},
    **{(op, name): _recurrent(name) for op in _NETWORKS for name in ("has_biases", "num_layers", "bidirectional")},
    ("scaled_dot_product_attention", "enable_gqa"): _grouped_heads,
    ("_scaled_dot_product_attention_math", "enable_gqa"): _grouped_heads,
    ("_native_multi_head_attention", "num_head"): _head_count,
    ("_transform_bias_rescale_qkv", "num_heads"): _head_count,
    ("stft", "n_fft"): _spectrum_width,
    ("istft", "n_fft"): _inverse_width,
    **{(op, "normalization"): _scaling for op in _FFT},
    ("_fft_r2c", "onesided"): _one_sided,
    **{(op, name): _always(0) for op in _GRIDS for name in ("interpolation_mode", "padding_mode")},
    **{(op, "num_weights"): _table_rows for op in _ROWS},
    **{(op, "input_lengths"): _full_lengths("log_probs", 0) for op in _CTC},
    **{(op, "target_lengths"): _full_lengths("targets", 1) for op in _CTC},
    **{(op, "sparse"): _sparsely for op in ("embedding", "embedding_backward", *_BAGS)},
    **{(op, "include_last_offset"): _counts_the_end for op in _BAGS},
    **{(op, "mode"): _always(0, "sum") for op in ("embedding_bag", "_embedding_bag", "_embedding_bag_backward",
                                                   "_embedding_bag_dense_backward", "_embedding_bag_forward_only")},
    **{(op, "epsilon"): _always(1e-5) for op in (*_NORMS, *(f"{norm}_backward" for norm in _NORMS))},
    **{(op, "exponential_average_factor"): _always(0.1) for op in _NORMS},
    **{(op, "dropout"): _always(0.0) for op in _NETWORKS},
    **{(op, "p"): _always(2.0, "the Euclidean one") for op in _DISTANCES},
    **{(op, "training"): _in_training for op in ("batch_norm", "_batch_norm_impl_index", "native_batch_norm")},
    **{(op, "train"): _drops for op in ("dropout", "feature_dropout", "alpha_dropout")},
    ("mkldnn_rnn_layer", "batch_sizes"): _always(()), ("mkldnn_rnn_layer", "mode"): _always(2, "LSTM"),
    ("mkldnn_rnn_layer", "hidden_size"): _hidden_size, ("mkldnn_rnn_layer", "num_layers"): _always(1),
    **{(f"grid_sampler_{rank}d_backward", "output_mask"): _always((True, True), "all gradients") for rank in (2, 3)},
    ("stft", "return_complex"): _always(True),
    ("_fft_c2r", "last_dim_size"): _real_length,
    **{(op, "dim"): _transformed_dims for op in _FFT},
    **{(op, "n"): _signal_length for op in ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft")},
    **{(op, "dim"): _halved for op in ("glu", "glu_backward")},
    ("_pad_packed_sequence", "total_length"): _steps,
    ("embedding_renorm_", "max_norm"): _always(1.0), ("embedding_renorm_", "norm_type"): _always(2.0),
    **{(op, name): _always(0) for op in _QUANTIZERS for name in ("zero_point", "axis")},
    **{(op, name): _always(given) for op in _QUANTIZERS for name, given in (("quant_min", 0), ("quant_max", 127))},
    ("_amp_update_scale_", "scale_growth_factor"): _always(2.0),
    ("_amp_update_scale_", "scale_backoff_factor"): _always(0.5),
    ("_amp_update_scale_", "growth_interval"): _always(2000),
    ("random_", "from"): _always(0), ("random_", "to"): _always(100),
    ("pixel_shuffle", "upscale_factor"): _always(2), ("pixel_unshuffle", "downscale_factor"): _always(2),
    ("multinomial", "num_samples"): _always(1), ("quantile", "q"): _always(0.5),
    ("repeat_interleave", "repeats"): _always(2), ("linalg_matrix_power", "n"): _always(2),
    ("linalg_matrix_norm", "dim"): _always((-2, -1)),
    ("flip", "dims"): _always((-1,)),
    **{(op, "source"): _always((0,)) for op in ("movedim", "moveaxis")},
    **{(op, "destination"): _always((-1,)) for op in ("movedim", "moveaxis")},
}  # fmt: skip
"""(op without namespace, argument) → rule."""
PER_TENSOR: dict[tuple[str, str], Rule] = {("Scalar[]", name): _one_each for name in ("scalars", "weight", "exponent")}
"""(type, argument) → rule."""
