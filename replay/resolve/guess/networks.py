# pyright: strict
"""Guesses for network layers: groups of a normalisation, layers of a recurrent network, heads, windows of a spectrum,
rows of an embedding, and small settings that most calls have in common.

`windows` handles convolutions and poolings, `embedding_tables` the tables of recommendation models.
"""

from __future__ import annotations

import math

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import Value
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Rule,
    Shape,
    always,
    by_shape,
    first_tensors,
    last_dim,
    names,
)

GROUPS = (32, 16, 8, 4, 2, 1)
"""Numbers of groups of a group normalisation; the first one that divides the channels is guessed."""
HEADS = (8, 12, 16, 4, 2, 1)
EMBEDDINGS = 1000
READERS = 4
"""Number of following calls that are searched for the result of a transform."""


def _common(constant: Value, why: str = "a common value") -> Rule:
    return always(constant, f"{constant!r} ({why})")


@by_shape
def _group_count(shape: Shape, known: Call, context: Context) -> Guess | None:
    mean = known.shape("mean")
    if mean is not None and len(mean) == 2:
        return Guess(value=mean[1], why="the shape of mean")
    if len(shape) < 2:
        return None
    count = next(n for n in GROUPS if shape[1] % n == 0)
    return Guess(value=count, why=f"{count} (a common value)")


def _of_input(which: str) -> Rule:
    @by_shape
    def rule(shape: Shape, known: Call, context: Context) -> Guess | None:
        if len(shape) < 2:
            return None
        sizes = {"N": shape[0], "C": shape[1], "HxW": math.prod(shape[2:])}
        return Guess(value=sizes[which], why="the shape of the input")

    return rule


def _recurrent(which: str) -> Rule:
    """Return the rule that guesses a setting of a recurrent network from its list of weights.

    A layer has two matrices and two biases per direction.
    """

    def rule(known: Call, context: Context) -> Guess | None:
        shapes = known.shapes("params")
        matrices = [shape for shape in shapes if len(shape) == 2]
        if len(matrices) < 2:
            return None
        # The reverse direction of the first layer reads what the first direction reads.
        both = len(matrices) >= 4 and matrices[2] == matrices[0] and matrices[0][1] != matrices[1][1]
        settings: dict[str, Value] = {
            "has_biases": len(matrices) < len(shapes),
            "bidirectional": both,
            "num_layers": max(1, len(matrices) // (4 if both else 2)),
        }
        return Guess(value=settings[which], why="the shapes of the weights")

    return rule


def _head_count(known: Call, context: Context) -> Guess | None:
    shape = known.shape("query", "qkv", "src")
    if not shape:
        return None
    width = shape[-1] // 3 if "qkv" in known else shape[-1]
    count = next(n for n in HEADS if width % n == 0)
    return Guess(value=count, why=f"{count} (a common value)")


def _grouped_heads(known: Call, context: Context) -> Guess | None:
    query, key = known.shape("query"), known.shape("key")
    if query is None or key is None or len(query) < 4 or len(key) < 4:
        return None
    return Guess(value=query[-3] != key[-3], why="the heads of query and key")


@by_shape
def _spectrum_width(shape: Shape, known: Call, context: Context) -> Guess | None:
    window = known.shape("window")
    if window is not None and len(window) == 1 and window[0] > 0:
        return Guess(value=window[0], why="the length of the window")
    return Guess(value=max(1, min(400, shape[-1])), why="400, or the length of the signal") if shape else None


@by_shape
def _inverse_width(shape: Shape, known: Call, context: Context) -> Guess | None:
    return Guess(value=2 * (shape[-2] - 1), why="the number of frequencies") if len(shape) > 1 else None


def _table_rows(known: Call, context: Context) -> Guess | None:
    """Guess the number of rows of the embedding to which a gradient belongs. It is taken from the forward call or from
    a parameter of the same width.
    """
    grad, around = known.shape("grad_output", "grad"), context.relatives()
    if not grad:
        return None
    table = around.forward_shape or ()
    if around.forward is not None and "embedding" in around.forward.name and len(table) == 2:
        return Guess(value=table[0], why=f"{around.forward.name} had sizes {list(table)} in the forward pass")
    for dims in (call.dims[0] for call in around.gradients if call.dims):
        if len(dims) == 2 and dims[1] == grad[-1]:
            return Guess(value=dims[0], why=f"a parameter of {dims[0]} rows of this width")
    return Guess(value=EMBEDDINGS, why=f"{EMBEDDINGS}: the trace does not show the value")


def _one_each(known: Call, context: Context) -> Guess | None:
    """Guess a list of ones, one for each tensor of a list."""
    count = next((len(arg.tensors) for arg in known.values() if arg.type == "Tensor[]" and arg.tensors), None)
    return None if count is None else Guess(value=(1.0,) * count, why="1 for each tensor")


def _hidden_size(known: Call, context: Context) -> Guess | None:
    weight = known.shape("weight1")
    return Guess(value=weight[1], why="the shape of the weight") if weight and len(weight) == 2 else None


@by_shape
def _real_length(shape: Shape, known: Call, context: Context) -> Guess | None:
    return Guess(value=max(1, 2 * (shape[-1] - 1)), why="the number of frequencies") if shape else None


def _transform(context: Context) -> str:
    """Return the name of the enclosing `fft_*` op, without its namespace; "" if there is none."""
    around = context.relatives()
    names = [call.name.partition("::")[2] for call in around.ancestors]
    return next((name for name in names if name.startswith("fft_")), "")


def _scaling(known: Call, context: Context) -> Guess | None:
    """Guess the `fft_norm_mode` code (ATen/native/SpectralOpsUtils.h): inverse transforms divide by the number of
    elements.
    """
    name = _transform(context)
    inverse = name.startswith(("fft_i", "fft_hf"))
    why = f"the default of {name}" if name else "a common value"
    return Guess(value=2 if inverse else 0, why=why)


def _one_sided(known: Call, context: Context) -> Guess | None:
    """Guess whether a transform computes only one half of the spectrum: `fft` and `ifft` do not, real-input transforms
    do.
    """
    name = _transform(context)
    both = name.startswith(("fft_fft", "fft_ifft"))
    return Guess(value=not both, why=f"both halves, as {name} returns them" if both else "one of the mirrored halves")


@by_shape
def _transformed_dims(shape: Shape, known: Call, context: Context) -> Guess | None:
    """Guess the transformed dimensions from the transform's name: the last one, the last two, or all."""
    name, rank = _transform(context), len(shape)
    count = min(rank, rank if name.endswith("n") else 2 if name.endswith("2") else 1)
    if context.relatives().name == "aten::_fft_c2c" and name[4:5] == "i":
        count = 1
    return Guess(value=tuple(range(rank - count, rank)), why=f"the last {'dimension' if count == 1 else count}")


@by_shape
def _signal_length(shape: Shape, known: Call, context: Context) -> Guess | None:
    """Guess the length to which a transform pads its input, from the nested transform or from a following call."""
    around = context.relatives()
    if not shape or known.value("dim") not in (None, -1, len(shape) - 1):
        return None
    inverse = around.name.startswith(("aten::fft_ir", "aten::fft_hf"))
    usual, calls = shape[-1], around.children
    if inverse:
        usual, calls = 2 * (shape[-1] - 1), around.following[:READERS]
    for meta, name in first_tensors(calls):
        padded = not meta.dtype.startswith("complex") if inverse else name.startswith("aten::_fft_")
        if padded and len(meta.shape) == len(shape) and meta.shape[:-1] == shape[:-1]:
            length = meta.shape[-1]
            return None if length == usual else Guess(value=length, why=f"{name} reads {list(meta.shape)}")
    return None


@by_shape
def _halved(shape: Shape, known: Call, context: Context) -> Guess | None:
    """Guess the dimension of a gated unit. Its size is half as large in the gradient, or in the tensor read next."""
    if not shape:
        return None
    grad = known.shape("grad_output")
    read = [meta.shape for meta, _ in first_tensors(context.relatives().following[:2])]
    for half in read if grad is None else [grad]:
        dims = [d for d in range(len(shape)) if half == (*shape[:d], shape[d] // 2, *shape[d + 1 :])]
        if dims:
            return Guess(value=dims[-1], why="the dimension in which the result is half as large")
    return last_dim(known, context)


def _steps(known: Call, context: Context) -> Guess | None:
    sizes = known.shape("batch_sizes")
    return Guess(value=sizes[0], why="one step per batch size") if sizes else None


def _in_training(known: Call, context: Context) -> Guess | None:
    """Guess training mode if gradients are accumulated in the trace, otherwise evaluation mode."""
    trained = bool(context.relatives().gradients)
    why = "gradients are accumulated in this trace" if trained else "no gradient is accumulated in this trace"
    return Guess(value=trained, why=f"{trained}: {why}")


def _drops(known: Call, context: Context) -> Guess | None:
    """Guess whether a dropout is active; an inactive dropout makes no nested calls."""
    calls = bool(context.relatives().children)
    return Guess(value=calls, why=f"{calls}: the op calls {'other ops' if calls else 'no other op'}")


def _full_lengths(name: str, dim: int) -> Rule:
    """Return the rule that guesses the sequence lengths of a batch. Each length is the maximum that the shapes allow.

    Lengths need a guess because lists over 30 elements are not recorded.
    """

    def rule(known: Call, context: Context) -> Guess | None:
        scores, longest = known.shape("log_probs"), known.shape(name)
        if scores is None or len(scores) != 3 or longest is None or len(longest) <= dim:
            return None
        return Guess(value=(longest[dim],) * scores[1], why=f"the full length {longest[dim]} for each sequence")

    return rule


def _sparsely(known: Call, context: Context) -> Guess | None:
    """Guess whether the gradient of an embedding is sparse, from the calls inside its backward node."""
    around = context.relatives()
    names = [call.name for call in (*around.backward, *around.inside)]
    kind = next((name for name in names if name.endswith(("_sparse_backward", "_dense_backward"))), None)
    return None if kind is None else Guess(value="_sparse_" in kind, why=f"{kind} computes the gradient")


def _counts_the_end(known: Call, context: Context) -> Guess | None:
    """Guess whether the last offset is the number of indices. This is so if there is one bag fewer than offsets."""
    around, offsets = context.relatives(), known.shape("offsets")
    read = next((meta.shape for meta, _ in first_tensors(around.following)), None)
    if offsets is None or read is None or len(read) != 2 or len(offsets) != 1:
        return None
    return Guess(value=read[0] == offsets[0] - 1, why=f"{around.following[0].name} reads sizes {list(read)} next")


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
    **{(op, name): _common(0) for op in _GRIDS for name in ("interpolation_mode", "padding_mode")},
    **{(op, "num_weights"): _table_rows for op in _ROWS},
    **{(op, "input_lengths"): _full_lengths("log_probs", 0) for op in _CTC},
    **{(op, "target_lengths"): _full_lengths("targets", 1) for op in _CTC},
    **{(op, "sparse"): _sparsely for op in ("embedding", "embedding_backward", *_BAGS)},
    **{(op, "include_last_offset"): _counts_the_end for op in _BAGS},
    **{(op, "mode"): _common(0, "sum") for op in ("embedding_bag", "_embedding_bag", "_embedding_bag_backward",
                                                   "_embedding_bag_dense_backward", "_embedding_bag_forward_only")},
    **{(op, "epsilon"): _common(1e-5) for op in (*_NORMS, *(f"{norm}_backward" for norm in _NORMS))},
    **{(op, "exponential_average_factor"): _common(0.1) for op in _NORMS},
    **{(op, "dropout"): _common(0.0) for op in _NETWORKS},
    **{(op, "p"): _common(2.0, "the Euclidean one") for op in _DISTANCES},
    **{(op, "training"): _in_training for op in ("batch_norm", "_batch_norm_impl_index", "native_batch_norm")},
    **{(op, "train"): _drops for op in ("dropout", "feature_dropout", "alpha_dropout")},
    ("mkldnn_rnn_layer", "batch_sizes"): _common(()), ("mkldnn_rnn_layer", "mode"): _common(2, "LSTM"),
    ("mkldnn_rnn_layer", "hidden_size"): _hidden_size, ("mkldnn_rnn_layer", "num_layers"): _common(1),
    **{(f"grid_sampler_{rank}d_backward", "output_mask"): _common((True, True), "all gradients") for rank in (2, 3)},
    ("stft", "return_complex"): _common(True),
    ("_fft_c2r", "last_dim_size"): _real_length,
    **{(op, "dim"): _transformed_dims for op in _FFT},
    **{(op, "n"): _signal_length for op in ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft")},
    **{(op, "dim"): _halved for op in ("glu", "glu_backward")},
    ("_pad_packed_sequence", "total_length"): _steps,
    ("embedding_renorm_", "max_norm"): _common(1.0), ("embedding_renorm_", "norm_type"): _common(2.0),
    **{(op, name): _common(0) for op in _QUANTIZERS for name in ("zero_point", "axis")},
    **{(op, name): _common(given) for op in _QUANTIZERS for name, given in (("quant_min", 0), ("quant_max", 127))},
    ("_amp_update_scale_", "scale_growth_factor"): _common(2.0),
    ("_amp_update_scale_", "scale_backoff_factor"): _common(0.5),
    ("_amp_update_scale_", "growth_interval"): _common(2000),
    ("random_", "from"): _common(0), ("random_", "to"): _common(100),
    ("pixel_shuffle", "upscale_factor"): _common(2), ("pixel_unshuffle", "downscale_factor"): _common(2),
    ("multinomial", "num_samples"): _common(1), ("quantile", "q"): _common(0.5),
    ("repeat_interleave", "repeats"): _common(2), ("linalg_matrix_power", "n"): _common(2),
    ("linalg_matrix_norm", "dim"): _common((-2, -1)),
    ("flip", "dims"): _common((-1,)),
    **{(op, "source"): _common((0,)) for op in ("movedim", "moveaxis")},
    **{(op, "destination"): _common((-1,)) for op in ("movedim", "moveaxis")},
}  # fmt: skip
"""(op without namespace, argument) → rule that guesses the argument."""
PER_TENSOR: dict[tuple[str, str], Rule] = {("Scalar[]", name): _one_each for name in ("scalars", "weight", "exponent")}
"""(type, argument) → rule that guesses the argument."""
