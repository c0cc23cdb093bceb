# pyright: strict
"""Guesses arguments from the shape of the result.

The shape is shown by an `out=` argument, the gradient, or a tensor that is written or read next. Covers reductions,
padding, resampling, adaptive pooling, and lengths of new sequences. If nothing shows the result, a plain fallback is
used, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Relatives,
    Rule,
    Shape,
    by_shape,
    first_tensor_of,
    first_tensors,
    last_dim,
    names,
    tensor_shapes,
)
from opreplay.traces.model import OpSignature, TensorMeta

NOTHING = "the trace does not show the value"
_RESULTS = ("out", "values", "grad_output", "grad", "grad_out")
_WRITERS = ("aten::fill_", "aten::copy_", "aten::zero_", "aten::constant_pad_nd")
_NEXT_READERS = 4
NEXT_READERS_OF_SUMS = 6
MAX_RANK = 8
"""Maximum rank of a tensor for which all combinations of reduced dimensions are tried."""


def _results(known: Call, context: Context) -> Iterator[tuple[Shape, str]]:
    """Yield possible shapes of the result, each with its evidence; most certain first."""
    for name in _RESULTS:
        meta = known.tensor(name)
        if meta is not None:
            yield meta.shape, f"the shape of {name}"
    around = context.relatives()
    for meta, writer in first_tensors(around.inside, _WRITERS):
        yield meta.shape, f"the tensor that {writer} inside the op writes"
    for meta, reader in first_tensors(around.following[:_NEXT_READERS]):
        yield meta.shape, f"the tensor that {reader} reads next"


Reduction = tuple[tuple[int, ...], bool]
"""(reduced dimensions, keepdim)"""


def _reduced(shape: Shape, known: Call, context: Context) -> tuple[Reduction, str] | None:
    """Return the reduction of the input that gives the recorded output or a tensor read next, with the reason."""
    if len(shape) > MAX_RANK:
        return None
    out = known.shape("out", "values")
    if out is not None and out != (0,):  # torch gives an empty one its size later
        reduction = reduction_to(shape, out)
        return reduction and (reduction, "the shape of the output")
    around = context.relatives()
    if around.parent_name in _CONVOLUTIONS_BACK and len(shape) > 2:
        return (tuple(d for d in range(len(shape)) if d != 1), False), "the gradient of a bias"
    inside = _reduced_inside(shape, around.children)
    if inside is not None and inside[0]:
        return inside, "the calls inside the op"
    engine = around.parent_name.startswith("autograd::engine")
    viewed = next(first_tensors(around.following[:1], ("aten::view",)), None) if engine else None
    if viewed is not None and viewed[0].shape == shape and shape[:1] == (1,):
        return ((0,), True), "the gradient is summed over its leading dimensions and then viewed"
    read = _reduced_to_what_is_read(shape, around, one_dim=isinstance(known.value("dim"), int))
    if read is None and inside is not None and 1 in shape:
        dim = max(d for d, n in enumerate(shape) if n == 1)
        return ((dim,), inside[1]), "the last dimension of size 1, because the result has as many elements as the input"
    return read


def _reduced_to_what_is_read(shape: Shape, around: Relatives, *, one_dim: bool) -> tuple[Reduction, str] | None:
    for at, call in enumerate(around.following[:NEXT_READERS_OF_SUMS]):
        for result in tensor_shapes(call):
            # A number may be anything but the first argument of what is called at once.
            if result == shape or (result == () and (at or one_dim)):
                continue
            if (reduction := reduction_to(shape, result)) is not None and reduction[0]:
                return reduction, f"{call.name} reads sizes {list(result)} next"
    return None


def _reduced_inside(shape: Shape, children: Sequence[OpSignature]) -> Reduction | None:
    """Return the reduction shown by the nested view of its result and the zeros written to it."""
    view = next((meta.shape for meta, _ in first_tensors(children, ("aten::as_strided",))), None)
    filled = (meta.shape for meta, _ in first_tensors(children, ("aten::fill_",)))
    if not shape:
        return None
    if (zeros := next((size for size in filled if len(size) == len(shape)), None)) is not None:
        dims = tuple(d for d, (n, m) in enumerate(zip(shape, zeros, strict=True)) if n != m or view == ())
        return dims, view is None or len(view) == len(shape)
    return None if view is None else reduction_to(shape, view)


def reduction_to(shape: Shape, out: Shape) -> Reduction | None:
    """Return the reduction that turns `shape` into `out`; None if there is none."""
    if len(out) == len(shape):
        dims = tuple(d for d, (n, m) in enumerate(zip(shape, out, strict=True)) if n != m)
        return (dims, True) if all(out[d] == 1 for d in dims) else None
    # Of dimensions of one size the last: those of features are reduced more often than those of a batch.
    for dims in (
        reversed(tuple(combinations(range(len(shape)), len(shape) - len(out)))) if len(out) < len(shape) else ()
    ):
        if tuple(n for d, n in enumerate(shape) if d not in dims) == out:
            return dims, False
    return None


@by_shape
def _reduced_dims(shape: Shape, known: Call, context: Context) -> Guess | None:
    if (reduced := _reduced(shape, known, context)) is None:
        return None
    (dims, _), why = reduced
    whole = len(dims) == len(shape) and context.relatives().name != "aten::logsumexp"
    return Guess(value=() if whole else dims, why=why)


def _reduced_dim(known: Call, context: Context) -> Guess | None:
    shape = known.shape("self", "input")
    reduced = None if shape is None else _reduced(shape, known, context)
    if reduced is not None and len(reduced[0][0]) == 1:
        return Guess(value=reduced[0][0][0], why=reduced[1])
    return last_dim(known, context)


def node_gradient(around: Relatives) -> TensorMeta | None:
    """Return the gradient of a forward call's result; None if unknown. For the last call in a composite, it is the
    gradient of the composite's result.
    """
    node = around.following[0] if around.following else None
    return first_tensor_of(node) if node is not None and "Backward" in node.name and "::" not in node.name else None


def _summed_type(known: Call, context: Context) -> Guess | None:
    """Guess the dtype of a sum that was called with an explicit dtype. It is that of the result, as its view or its
    gradient shows it.
    """
    around = context.relatives()
    metas = [meta for meta, _ in first_tensors(around.children, ("aten::as_strided", "aten::fill_"))]
    dtype = next((meta.dtype for meta in (*metas, node_gradient(around)) if meta is not None and meta.dtype), None)
    return None if dtype is None else Guess(value=f"torch.{dtype}", why=f"{dtype}: dtype of the result")


@by_shape
def _loss_reduction(shape: Shape, known: Call, context: Context) -> Guess | None:
    """Guess the reduction code from the nested calls or the gradient of the result: 1 for a mean, 0 for none."""
    around = context.relatives()
    if any(call.name == "aten::mean" for call in around.inside):
        return Guess(value=1, why="1: the op calls aten::mean")
    node = node_gradient(around)
    if node is not None and node.shape and node.shape == shape[: len(node.shape)]:
        return Guess(value=0, why="0: the result is not reduced")
    return None


def _elementwise_loss_reduction(known: Call, context: Context) -> Guess | None:
    """Guess the reduction code from the nested calls: 2 if they include a sum, 0 if there are nested calls but neither
    a mean nor a sum among them.

    This does not work for losses over classes. They reduce in their kernel, and may call aten::sum for label smoothing,
    whatever the reduction.
    """
    inside = {call.name for call in context.relatives().inside}
    if not inside or "aten::mean" in inside:
        return _loss_reduction(known, context)
    if "aten::sum" in inside:
        return Guess(value=2, why="2: the op calls aten::sum")
    return Guess(value=0, why="0: the op calls neither aten::mean nor aten::sum")


def _loss_back(known: Call, context: Context) -> Guess | None:
    """Guess the reduction in the backward of a loss: 0 if the gradient has one value per element."""
    grad = known.tensor("grad_output")
    return Guess(value=0, why="0: the gradient has one value per element") if grad is not None and grad.shape else None


@by_shape
def _keepdim(shape: Shape, known: Call, context: Context) -> Guess | None:
    reduced = _reduced(shape, known, context)
    return reduced and Guess(value=reduced[0][1], why=reduced[1])


def _first_fit(known: Call, context: Context, fits: Callable[[Shape], bool]) -> tuple[Shape, str] | None:
    """Return the first possible shape of the result for which `fits` is true, with the evidence."""
    return next(((shape, why) for shape, why in _results(known, context) if fits(shape)), None)


def _padding(spatial: int | None, *, backward: bool = False) -> Rule:
    """Return the rule that guesses padding as pairs (before, after), last dimension first.

    The last `spatial` dimensions are padded. If `spatial` is None, these are all dimensions from the first one whose
    size changes.
    """

    @by_shape
    def rule(shape: Shape, known: Call, context: Context) -> Guess | None:
        same = 0 if spatial is None else len(shape) - spatial
        if not shape or same < 0:
            return None

        around = context.relatives()
        if spatial is None and [call.name for call in around.children] == ["aten::clone"]:
            return Guess(value=(0, 0) * len(shape), why="0: the op calls only aten::clone")
        forward = _padded_forward(around, len(shape)) if spatial is None else None
        padded = forward or _first_fit(known, context, lambda padded: _is_padded(padded, shape, same))
        if padded is None:
            return None if backward else Guess(value=(1, 1) * (spatial or 1), why=f"1 on each side: {NOTHING}")
        more = [n - m for n, m in zip(padded[0], shape, strict=True)]
        count = spatial or len(shape) - next((d for d, n in enumerate(more) if n), 0)
        return Guess(value=tuple(side for n in reversed(more[-count:]) for side in _sides(n)), why=padded[1])

    return rule


def _is_padded(padded: Shape, shape: Shape, same: int) -> bool:
    """Check whether `padded` is larger than `shape`, with the same rank and equal first `same` dimensions."""
    longer = len(padded) == len(shape) and all(n >= m for n, m in zip(padded, shape, strict=True))
    return longer and padded != shape and padded[:same] == shape[:same]


def _padded_forward(around: Relatives, rank: int) -> tuple[Shape, str] | None:
    """Return the input shape of the forward padding to which this backward belongs, with the evidence."""
    if around.forward is None or "pad" not in around.forward.name:
        return None
    source = first_tensor_of(around.forward)
    if source is None or len(source.shape) != rank:
        return None
    return source.shape, f"{around.forward.name} had sizes {list(source.shape)} in the forward pass"


def _sides(more: int) -> tuple[int, int]:
    """Return the numbers of elements added before and after a dimension. An odd number is added entirely after it."""
    return (0, more) if more % 2 else (more // 2, more // 2)


def _output_size(spatial: int, fallback: Callable[[int], int]) -> Rule:
    """Return the rule that guesses the last `spatial` sizes of a result whose other sizes equal the input's."""

    def rule(known: Call, context: Context) -> Guess | None:
        shape, grad = known.shape("self", "input"), known.shape("grad_output")
        if shape is None:  # the backward of a resampling has the gradient alone
            return None if grad is None else Guess(value=grad[-spatial:], why="the shape of grad_output")
        same = len(shape) - spatial
        if same < 0:
            return None

        def fits(result: Shape) -> bool:
            return len(result) == len(shape) and result[:same] == shape[:same] and result != shape

        if (resized := _first_fit(known, context, fits)) is not None:
            return Guess(value=resized[0][same:], why=resized[1])
        sizes = tuple(fallback(n) for n in shape[same:])
        return Guess(value=sizes, why=f"{list(sizes)}: {NOTHING}")

    return rule


def _scale_factors(spatial: int) -> Rule:
    """Return the rule that guesses the scale factors of a resampling that was called without an output size."""

    @by_shape
    def rule(shape: Shape, known: Call, context: Context) -> Guess | None:
        size = _output_size(spatial, lambda n: 2 * n)(known, context)
        if known.value("output_size") is not None or size is None or not all(shape[-spatial:]):
            return None
        factors = tuple(n / m for n, m in zip(size.value, shape[-spatial:], strict=True))
        return Guess(value=factors, why=size.why)

    return rule


def _input_size(spatial: int) -> Rule:
    """Return the rule that guesses the input shape of a resampling whose backward reads only the gradient.

    The guess is the input shape of the forward call. If that is unknown, it is half the gradient's size.
    """

    def rule(known: Call, context: Context) -> Guess | None:
        grad, forward = known.shape("grad_output"), context.relatives().forward
        if grad is None or len(grad) <= spatial:
            return None
        source = None if forward is None else first_tensor_of(forward)
        if forward is not None and source is not None and source.shape[:-spatial] == grad[:-spatial]:
            return Guess(value=source.shape, why=f"{forward.name} had sizes {list(source.shape)} in the forward pass")
        halved = (max(1, n // 2) for n in grad[-spatial:])
        return Guess(value=(*grad[:-spatial], *halved), why=f"half of the gradient: {NOTHING}")

    return rule


def _length(known: Call, context: Context) -> Guess | None:
    """Guess the length of a new sequence from its output, or from the first vector that is written or read next."""
    sequence = _first_fit(known, context, lambda shape: len(shape) == 1)
    if sequence is not None:
        return Guess(value=sequence[0][0], why=sequence[1])
    for call in context.relatives().following[:_NEXT_READERS]:
        listed = (meta for arg in recorded_args(call) for meta in arg.tensors or () if meta is not None)
        vector = next((meta.shape for meta in listed if len(meta.shape) == 1), None)
        if vector is not None:
            return Guess(value=vector[0], why=f"the tensor that {call.name} reads next")
    return Guess(value=100, why=f"100: {NOTHING}")


def _side_of_matrix(side: int) -> Rule:
    """Return the rule that guesses the rows (`side` 0) or columns (1) of an identity matrix."""

    def rule(known: Call, context: Context) -> Guess | None:
        matrix = _first_fit(known, context, lambda shape: len(shape) == 2)
        return (
            Guess(value=matrix[0][side], why=matrix[1]) if matrix is not None else Guess(value=16, why=f"16: {NOTHING}")
        )

    return rule


def _resized(known: Call, context: Context) -> Guess | None:
    """Guess the shape to which an op resizes its result, from the calls that read it, in the same op or later."""
    source, around = known.tensor("self"), context.relatives()
    parent = around.parent_name
    if parent == "aten::resize_as_" and around.parent is not None:
        template = first_tensor_of(around.parent, 1)
        return template and Guess(value=template.shape, why="the size of the template")
    if source is not None and (shown := _resized_result(source.shape, around)) is not None:
        return shown
    unchanged = source and Guess(value=source.shape, why="as it is")
    if source is not None and source.shape != (0,) and not parent.startswith("aten::_fft_"):
        return unchanged
    if parent in _VECTORS:
        return _vector(around, source.dtype if source is not None else "")
    return _read_whole(around, copies_only="_slow_conv" in parent) or unchanged


def _resized_result(shape: Shape, around: Relatives) -> Guess | None:
    """Guess the final shape of a result that has another shape at first.

    The first shape can be that of unreduced losses, of the input (`im2col`, `col2im`), or of all elements
    (`unique_consecutive`).
    """
    parent = around.parent_name
    levels = list(zip(around.following, around.levels, strict=False))
    inside = [call for call, level in levels if level == 0]
    if parent.endswith("_loss") and any(call.name in ("aten::mean", "aten::sum") for call in inside):
        return Guess(value=(), why=f"[]: {parent} reduces its losses next")
    if parent in ("aten::im2col", "aten::col2im"):
        made = (meta.shape for meta, _ in first_tensors(inside) if meta.shape != shape)
        return next((Guess(value=size, why=f"the tensor that a call inside {parent} writes") for size in made), None)
    if parent == "aten::unique_consecutive" and len(shape) == 1:
        later = first_tensors(call for call, level in levels if level)
        kept = ((meta.shape, name) for meta, name in later if len(meta.shape) == 1 and 0 < meta.shape[0] < shape[0])
        return next((Guess(value=size, why=f"{name} reads sizes {list(size)} next") for size, name in kept), None)
    return None


_CONVOLUTIONS_BACK = frozenset({"aten::_slow_conv2d_backward", "aten::convolution_backward", "ConvolutionBackward0"})


def _read_whole(around: Relatives, *, copies_only: bool) -> Guess | None:
    """Guess the shape of the first argument of a following call.

    With `copies_only`, only copies count. This is for slow convolutions, which copy their bias to the result.
    """
    for at, (call, level) in enumerate(zip(around.following, around.levels, strict=False)):
        if (level and at >= _NEXT_READERS) or (copies_only and call.name != "aten::copy_"):
            continue
        meta = first_tensor_of(call)
        if meta is not None and meta.shape != (0,):
            return Guess(value=meta.shape, why=f"{call.name} reads sizes {list(meta.shape)} next")
    return None


def _vector(around: Relatives, dtype: str) -> Guess | None:
    """Guess the shape of the first vector that is read next. Vectors of `dtype` are preferred, or integer vectors if
    `dtype` is "".
    """
    metas = [(arg.tensor, call.name) for call in around.following for arg in recorded_args(call)]
    vectors = [(meta, reader) for meta, reader in metas if meta and len(meta.shape) == 1 and meta.shape != (0,)]
    vectors.sort(key=lambda vector: vector[0].dtype not in ((dtype,) if dtype else ("int64", "int32")))
    return next((Guess(value=m.shape, why=f"{name} reads sizes {list(m.shape)} next") for m, name in vectors), None)


_VECTORS = frozenset(f"aten::{name}" for name in ("arange", "range", "linspace", "logspace", "randperm"))


@by_shape
def _largest_count(shape: Shape, known: Call, context: Context) -> Guess | None:
    """Guess the `k` of topk. It is the size of the result's last dimension, the only one that may be smaller than the
    input's.
    """

    def fits(result: Shape) -> bool:
        return len(result) == len(shape) > 0 and result[:-1] == shape[:-1] and result[-1] <= shape[-1]

    smaller = _first_fit(known, context, lambda result: fits(result) and result != shape)
    largest = smaller or _first_fit(known, context, fits)
    return largest and Guess(value=largest[0][-1], why=largest[1])


@by_shape
def _repeats(shape: Shape, known: Call, context: Context) -> Guess | None:
    def fits(result: Shape) -> bool:
        if len(result) != len(shape) or result == shape:
            return False
        return all(m and n % m == 0 for n, m in zip(result, shape, strict=True))

    if (repeated := _first_fit(known, context, fits)) is not None:
        return Guess(value=tuple(n // m for n, m in zip(repeated[0], shape, strict=True)), why=repeated[1])
    return Guess(value=(2, *(1,) * max(0, len(shape) - 1)), why=f"twice along dimension 0: {NOTHING}")


REDUCTIONS = names(
    "sum mean amax amin linalg_vector_norm norm std var logsumexp nansum all any prod argmax argmin max min "
    "median mode nanmean count_nonzero std_mean var_mean quantile nanquantile"
)
_INTREDUCTIONS = frozenset(names("argmax argmin max min median mode prod all any count_nonzero quantile nanquantile"))
_RESAMPLED = {
    1: names("upsample_nearest1d _upsample_nearest_exact1d upsample_linear1d"),
    2: names(
        "upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa "
        "_upsample_bicubic2d_aa"
    ),
    3: names("upsample_nearest3d _upsample_nearest_exact3d upsample_trilinear3d"),
}
_ADAPTIVE = {
    rank: (f"adaptive_avg_pool{rank}d", f"_adaptive_avg_pool{rank}d", f"adaptive_max_pool{rank}d") for rank in (1, 2, 3)
}

_CLASS_LOSSES = names("nll_loss nll_loss2d nll_loss_nd nll_loss_forward nll_loss2d_forward cross_entropy_loss")
_ELEMENTWISE_LOSSES = names(
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div"
)
_LENGTHS = (
    ("linspace", "steps"),
    ("logspace", "steps"),
    ("randperm", "n"),
    ("fft_fftfreq", "n"),
    *((f"{kind}_window", "window_length") for kind in ("hann", "hamming", "blackman", "bartlett", "kaiser")),
)

RESULT_RULES: dict[tuple[str, str], Rule] = {
    **{(op, "dim"): _reduced_dim if op in _INTREDUCTIONS else _reduced_dims for op in REDUCTIONS},
    **{(op, "keepdim"): _keepdim for op in REDUCTIONS},
    **{(op, "pad"): _padding(None) for op in ("pad", "constant_pad_nd", "_pad_circular", "_pad_enum")},
    **{(f"{kind}_pad{rank}d{suffix}", "padding"): _padding(rank, backward=bool(suffix))
       for kind in ("reflection", "replication") for rank in (1, 2, 3) for suffix in ("", "_backward")},
    **{(op, "output_size"): _output_size(rank, lambda n: 2 * n) for rank, ops in _RESAMPLED.items() for op in ops},
    **{(f"{op}_backward", "output_size"): _output_size(rank, lambda n: n)
       for rank, ops in _RESAMPLED.items() for op in ops},
    **{(f"{op}_backward", "input_size"): _input_size(rank) for rank, ops in _RESAMPLED.items() for op in ops},
    **{(op, "output_size"): _output_size(rank, lambda n: 1) for rank, ops in _ADAPTIVE.items() for op in ops},
    **dict.fromkeys(_LENGTHS, _length),
    **{(op, "scale_factors"): _scale_factors(rank) for rank, ops in _RESAMPLED.items() for op in ops},
    **{(f"max_unpool{rank}d", "output_size"): _output_size(rank, lambda n: 2 * n) for rank in (2, 3)},
    ("eye", "n"): _side_of_matrix(0), ("eye", "m"): _side_of_matrix(1),
    ("topk", "k"): _largest_count,
    **{(op, "dtype"): _summed_type for op in ("sum", "mean", "prod", "nansum", "cumsum", "cumprod")},
    **{(op, "reduction"): _loss_reduction for op in _CLASS_LOSSES},
    **{(op, "reduction"): _elementwise_loss_reduction for op in _ELEMENTWISE_LOSSES},
    **{(f"{op}_backward", "reduction"): _loss_back for op in (*_CLASS_LOSSES, *_ELEMENTWISE_LOSSES)},
    ("resize_", "size"): _resized,
    ("repeat", "repeats"): _repeats,
}  # fmt: skip
"""(op without namespace, argument) → rule that guesses the argument."""
