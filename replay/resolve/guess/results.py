# pyright: strict
"""Guesses that follow from the size of the result: of an `out=`, of its gradient, of what is written or read next.

Owns reductions, padding, resampling, adaptive pooling, and lengths of new sequences. A result that nothing shows has a
plain fallback, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.lists import first_tensor_of
from opreplay.replay.resolve.guess.values import Context, Guess, Known, Relatives, Rule, Shape, names, tensor, value
from opreplay.traces.model import TensorMeta

NOTHING = "nothing in the trace tells it"
_RESULTS = ("out", "values", "grad_output", "grad", "grad_out")
_WRITERS = ("aten::fill_", "aten::copy_", "aten::zero_", "aten::constant_pad_nd")
_NEXT_READERS = 4
NEXT_READERS_OF_SUMS = 6
MAX_RANK = 8
"""Of tensors whose reduced dimensions are searched for."""


def _own(known: Known) -> Shape | None:
    for name in ("self", "input"):
        meta = tensor(known, name)
        if meta is not None:
            return meta.shape
    return None


def _results(known: Known, context: Context) -> Iterator[tuple[Shape, str]]:
    """Shapes that the result may have and what shows them, the surest first."""
    for name in _RESULTS:
        meta = tensor(known, name)
        if meta is not None:
            yield meta.shape, f"the shape of {name}"
    around = context.relatives()
    for call in (*around.children, *around.inner):
        meta = first_tensor_of(call) if call.name in _WRITERS else None
        if meta is not None:
            yield meta.shape, f"what {call.name} inside writes to"
    for call in around.following[:_NEXT_READERS]:
        meta = first_tensor_of(call)
        if meta is not None:
            yield meta.shape, f"what {call.name} reads next"


def _reduced(known: Known, context: Context) -> tuple[tuple[int, ...], bool, str] | None:
    """(dimensions, keepdim, why) that make the recorded output, or what is read next, of what goes in."""
    source_shape = _own(known)
    if source_shape is None or len(source_shape) > MAX_RANK:
        return None
    out = next((m for n in ("out", "values") if (m := tensor(known, n)) is not None), None)
    if out is not None and out.shape != (0,):  # torch gives an empty one its size later
        reduction = reduction_to(source_shape, out.shape)
        return None if reduction is None else (*reduction, "the shape of the output")
    if (inside := _reduced_inside(source_shape, context)) is not None:
        return inside
    around = context.relatives()
    engine = around.parent is not None and around.parent.name.startswith("autograd::engine")
    viewed = first_tensor_of(around.following[0]) if engine and around.following else None
    if (
        viewed is not None
        and viewed.shape == source_shape
        and source_shape[:1] == (1,)
        and around.following[0].name == "aten::view"
    ):
        return (0,), True, "the sum of a gradient over dimensions in front, viewed next"
    one_dim = "dim" in known and isinstance(value(known, "dim"), int)
    for at, call in enumerate(context.relatives().following[:NEXT_READERS_OF_SUMS]):
        for arg in recorded_args(call):
            shape = arg.tensor.shape if arg.tensor is not None else None
            # A number may be anything but the first argument of what is called at once.
            if shape is None or shape == source_shape or (shape == () and (at or one_dim)):
                continue
            reduction = reduction_to(source_shape, shape)
            if reduction is not None and reduction[0]:
                return *reduction, f"{call.name} reads {list(shape)} next"
    return None


def _reduced_inside(source_shape: Shape, context: Context) -> tuple[tuple[int, ...], bool, str] | None:
    """What the view of its result that a reduction makes, and the zeros that it writes there, tell."""
    around = context.relatives()
    views = [
        meta.shape for call in around.children if call.name == "aten::as_strided" and (meta := first_tensor_of(call))
    ]
    filled = [meta.shape for call in around.children if call.name == "aten::fill_" and (meta := first_tensor_of(call))]
    for shape in filled if source_shape else ():
        if len(shape) == len(source_shape):
            dims = tuple(d for d, (n, m) in enumerate(zip(source_shape, shape, strict=True)) if n != m)
            dims = tuple(range(len(source_shape))) if views and not views[0] else dims
            return dims, not views or len(views[0]) == len(source_shape), "the calls inside"
    if not views or not source_shape:
        return None
    reduction = reduction_to(source_shape, views[0])
    return None if reduction is None else (*reduction, "the calls inside")


def reduction_to(shape: Shape, out: Shape) -> tuple[tuple[int, ...], bool] | None:
    """(dimensions, keepdim) of a reduction of `own` to `out`."""
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


def _reduced_dims(known: Known, context: Context) -> Guess | None:
    reduction = _reduced(known, context)
    shape = _own(known)
    if reduction is None:
        return None
    whole = shape is not None and len(reduction[0]) == len(shape) and context.relatives().name != "aten::logsumexp"
    return Guess(value=() if whole else reduction[0], why=reduction[2])


def _reduced_dim(known: Known, context: Context) -> Guess | None:
    reduction = _reduced(known, context)
    if reduction is not None and len(reduction[0]) == 1:
        return Guess(value=reduction[0][0], why=reduction[2])
    return Guess(value=-1, why="the last dimension")


def node_gradient(around: Relatives) -> TensorMeta | None:
    """The gradient of what a forward call, or the composite of which it is the last call, makes; None where unknown."""
    node = around.following[0] if around.following else None
    return first_tensor_of(node) if node is not None and "Backward" in node.name and "::" not in node.name else None


def _summed_type(known: Known, context: Context) -> Guess | None:
    """The element type of a sum that was told one: that of the view of its result, or of its gradient."""
    around = context.relatives()
    metas = [first_tensor_of(call) for call in around.children if call.name in ("aten::as_strided", "aten::fill_")]
    metas.append(node_gradient(around))
    meta = next((meta for meta in metas if meta is not None and meta.dtype), None)
    return None if meta is None else Guess(value=f"torch.{meta.dtype}", why=f"{meta.dtype}: that of the result")


def _loss_reduction(known: Known, context: Context) -> Guess | None:
    """0 for none, 1 for a mean, 2 for a sum: by what is called inside, or the gradient of the result."""
    around, shape = context.relatives(), _own(known)
    names = {call.name for call in (*around.children, *around.inner)}
    if "aten::mean" in names:
        return Guess(value=1, why="1: a mean inside")
    node = node_gradient(around)
    if node is not None and node.shape and shape is not None and node.shape == shape[: len(node.shape)]:
        return Guess(value=0, why="0: the result is not reduced")
    return None


def _loss_back(known: Known, context: Context) -> Guess | None:
    """Of the backward of a loss: its gradient is a number, or one for each element."""
    grad = tensor(known, "grad_output")
    return Guess(value=0, why="0: a gradient for each element") if grad is not None and grad.shape else None


def _keepdim(known: Known, context: Context) -> Guess | None:
    reduction = _reduced(known, context)
    return None if reduction is None else Guess(value=reduction[1], why=reduction[2])


def _first_fit(known: Known, context: Context, fits: Callable[[Shape], bool]) -> tuple[Shape, str] | None:
    return next(((shape, why) for shape, why in _results(known, context) if fits(shape)), None)


def _padding(spatial: int | None, *, backward: bool = False) -> Rule:
    """Pairs of a padding, the last dimension first; `spatial` dimensions, or all that differ."""

    def rule(known: Known, context: Context) -> Guess | None:
        source_shape = _own(known)
        if not source_shape:
            return None
        same = 0 if spatial is None else len(source_shape) - spatial
        if same < 0:
            return None

        def fits(shape: Shape) -> bool:
            longer = len(shape) == len(source_shape) and all(n >= m for n, m in zip(shape, source_shape, strict=True))
            return longer and shape != source_shape and shape[:same] == source_shape[:same]

        inside = [call.name for call in context.relatives().children]
        if inside == ["aten::clone"] and spatial is None:
            return Guess(value=(0, 0) * len(source_shape), why="0: a copy alone inside")
        padded = _first_fit(known, context, fits)
        forward = context.relatives().forward
        source = None if forward is None or "pad" not in forward.name else first_tensor_of(forward)
        if forward is not None and source is not None and spatial is None and len(source.shape) == len(source_shape):
            padded = source.shape, f"{forward.name} was given {list(source.shape)} forward"
        if padded is None:
            return None if backward else Guess(value=(1, 1) * (spatial or 1), why=f"1 on each side: {NOTHING}")
        more = [n - m for n, m in zip(padded[0], source_shape, strict=True)]
        count = spatial or len(source_shape) - next((d for d, n in enumerate(more) if n), 0)
        # An odd number is no padding of both sides.
        sides = [
            (abs(n) // 2 * (n % 2 == 0), abs(n) - abs(n) // 2 * (n % 2 == 0), 1 if n > 0 else -1)
            for n in more[len(source_shape) - count :]
        ]
        pairs = tuple(sign * side for *both, sign in reversed(sides) for side in both)
        return Guess(value=pairs, why=padded[1])

    return rule


def _output_size(spatial: int, fallback: Callable[[int], int]) -> Rule:
    """Sizes of the last dimensions of a result that keeps all others."""

    def rule(known: Known, context: Context) -> Guess | None:
        source_shape = _own(known)
        if source_shape is None:  # the backward of a resampling has the gradient alone
            meta = tensor(known, "grad_output")
            return None if meta is None else Guess(value=meta.shape[-spatial:], why="the shape of grad_output")
        if len(source_shape) < spatial:
            return None
        same = len(source_shape) - spatial
        resized = _first_fit(
            known,
            context,
            lambda shape: (
                len(shape) == len(source_shape) and shape[:same] == source_shape[:same] and shape != source_shape
            ),
        )
        if resized is not None:
            return Guess(value=resized[0][same:], why=resized[1])
        sizes = tuple(fallback(n) for n in source_shape[same:])
        return Guess(value=sizes, why=f"{list(sizes)}: {NOTHING}")

    return rule


def _scale_factors(spatial: int) -> Rule:
    """Of a resampling that was not told the size of its result."""

    def rule(known: Known, context: Context) -> Guess | None:
        source_shape = _own(known)
        if value(known, "output_size") is not None or source_shape is None or len(source_shape) < spatial:
            return None
        size = _output_size(spatial, lambda n: 2 * n)(known, context)
        if size is None or not all(source_shape[-spatial:]):
            return None
        factors = tuple(n / m for n, m in zip(size.value, source_shape[-spatial:], strict=True))
        return Guess(value=factors, why=size.why)

    return rule


def _input_size(spatial: int) -> Rule:
    """What a resampling was given, of which its backward reads the gradient alone: half the size."""

    def rule(known: Known, context: Context) -> Guess | None:
        meta = tensor(known, "grad_output")
        if meta is None or len(meta.shape) <= spatial:
            return None
        forward = context.relatives().forward
        source = None if forward is None else first_tensor_of(forward)
        if forward is not None and source is not None and source.shape[:-spatial] == meta.shape[:-spatial]:
            return Guess(value=source.shape, why=f"{forward.name} was given {list(source.shape)} forward")
        same = len(meta.shape) - spatial
        halved = tuple(max(1, n // 2) for n in meta.shape[same:])
        return Guess(value=(*meta.shape[:same], *halved), why=f"half of the gradient: {NOTHING}")

    return rule


def _length(known: Known, context: Context) -> Guess | None:
    """Elements of a new sequence: of its output, or of the first vector that is written or read next."""
    sequence = _first_fit(known, context, lambda shape: len(shape) == 1)
    for call in context.relatives().following[:_NEXT_READERS] if sequence is None else ():
        listed = (meta for arg in recorded_args(call) for meta in arg.tensors or () if meta is not None)
        vector = next((meta.shape for meta in listed if len(meta.shape) == 1), None)
        if vector is not None:
            return Guess(value=vector[0], why=f"what {call.name} is given next")
    return (
        Guess(value=sequence[0][0], why=sequence[1])
        if sequence is not None
        else Guess(value=100, why=f"100: {NOTHING}")
    )


def _side_of_matrix(side: int) -> Rule:
    """Rows or columns of a unit matrix."""

    def rule(known: Known, context: Context) -> Guess | None:
        matrix = _first_fit(known, context, lambda shape: len(shape) == 2)
        return (
            Guess(value=matrix[0][side], why=matrix[1]) if matrix is not None else Guess(value=16, why=f"16: {NOTHING}")
        )

    return rule


def _resized(known: Known, context: Context) -> Guess | None:
    """Of a result that an op makes large enough: what the same op, or a later call, is given next."""
    source = tensor(known, "self")
    around = context.relatives()
    parent = "" if around.parent is None else around.parent.name
    if parent == "aten::resize_as_" and around.parent is not None:
        template = first_tensor_of(around.parent, 1)
        return None if template is None else Guess(value=template.shape, why="the size of the template")
    if source is not None and source.shape != (0,) and not parent.startswith("aten::_fft_"):
        return Guess(value=source.shape, why="as it is")
    if parent in _VECTORS:
        vector = _vector(around, source.dtype if source is not None and source.dtype else None)
        return None if vector is None else Guess(value=vector[0], why=f"{vector[1]} is given {list(vector[0])} next")
    for at, (call, level) in enumerate(zip(around.following, around.levels, strict=False)):
        meta = first_tensor_of(call)
        if "_slow_conv" in parent and call.name != "aten::copy_":  # the bias is copied to the result
            continue
        if meta is not None and (level == 0 or at < _NEXT_READERS) and meta.shape != (0,):
            return Guess(value=meta.shape, why=f"{call.name} is given {list(meta.shape)} next")
    return None if source is None else Guess(value=source.shape, why="as it is")


def _vector(around: Relatives, dtype: str | None) -> tuple[Shape, str] | None:
    """The first vector that is read next, of this element type, or of integers, before others."""
    metas = [
        (arg.tensor, call.name) for call in around.following for arg in recorded_args(call) if arg.tensor is not None
    ]
    vectors = [candidate for candidate in metas if len(candidate[0].shape) == 1 and candidate[0].shape != (0,)]
    types = ("int64", "int32") if dtype is None else (dtype,)
    first = next((candidate for candidate in vectors if candidate[0].dtype in types), vectors[0] if vectors else None)
    return None if first is None else (first[0].shape, first[1])


_VECTORS = frozenset(f"aten::{name}" for name in ("arange", "range", "linspace", "logspace", "randperm"))


def _largest_count(known: Known, context: Context) -> Guess | None:
    """How many of topk: the size of the only dimension in which the result is smaller."""
    source_shape = _own(known)
    if not source_shape:
        return None

    def fits(shape: Shape) -> bool:
        return shape[:-1] == source_shape[:-1] and len(shape) == len(source_shape) and shape[-1] <= source_shape[-1]

    largest = _first_fit(known, context, lambda shape: fits(shape) and shape != source_shape) or _first_fit(
        known, context, fits
    )
    return None if largest is None else Guess(value=largest[0][-1], why=largest[1])


def _repeats(known: Known, context: Context) -> Guess | None:
    source_shape = _own(known)
    if source_shape is None:
        return None

    def fits(shape: Shape) -> bool:
        return (
            len(shape) == len(source_shape)
            and shape != source_shape
            and all(m and n % m == 0 for n, m in zip(shape, source_shape, strict=True))
        )

    repeated = _first_fit(known, context, fits)
    if repeated is not None:
        return Guess(value=tuple(n // m for n, m in zip(repeated[0], source_shape, strict=True)), why=repeated[1])
    return Guess(value=(2, *(1,) * max(0, len(source_shape) - 1)), why=f"twice along dimension 0: {NOTHING}")


REDUCTIONS = names(
    "sum mean amax amin linalg_vector_norm norm std var logsumexp nansum all any prod argmax argmin max min "
    "median mode nanmean count_nonzero std_mean var_mean quantile nanquantile"
)
_INTREDUCTIONS = frozenset(names("argmax argmin max min median mode prod all any count_nonzero quantile nanquantile"))
_RESAMPLED = {
    1: ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"),
    2: (
        "upsample_nearest2d",
        "_upsample_nearest_exact2d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    ),
    3: ("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
}
_ADAPTIVE = {
    rank: (f"adaptive_avg_pool{rank}d", f"_adaptive_avg_pool{rank}d", f"adaptive_max_pool{rank}d") for rank in (1, 2, 3)
}

_LOSSES = names(
    "nll_loss nll_loss2d nll_loss_nd nll_loss_forward nll_loss2d_forward cross_entropy_loss mse_loss l1_loss "
    "smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div"
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
    **{(op, "reduction"): _loss_reduction for op in _LOSSES},
    **{(f"{op}_backward", "reduction"): _loss_back for op in _LOSSES},
    ("resize_", "size"): _resized,
    ("repeat", "repeats"): _repeats,
}  # fmt: skip
"""(op without namespace, argument) → rule."""
