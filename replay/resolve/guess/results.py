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
    own = _own(known)
    if own is None or len(own) > MAX_RANK:
        return None
    out = next((m for n in ("out", "values") if (m := tensor(known, n)) is not None), None)
    if out is not None and out.shape != (0,):  # torch gives an empty one its size later
        found = reduction_to(own, out.shape)
        return None if found is None else (*found, "the shape of the output")
    if (inside := _reduced_inside(own, context)) is not None:
        return inside
    around = context.relatives()
    engine = around.parent is not None and around.parent.name.startswith("autograd::engine")
    viewed = first_tensor_of(around.following[0]) if engine and around.following else None
    if viewed is not None and viewed.shape == own and own[:1] == (1,) and around.following[0].name == "aten::view":
        return (0,), True, "the sum of a gradient over dimensions in front, viewed next"
    one = "dim" in known and isinstance(value(known, "dim"), int)
    for at, call in enumerate(context.relatives().following[:NEXT_READERS_OF_SUMS]):
        for arg in recorded_args(call):
            shape = arg.tensor.shape if arg.tensor is not None else None
            # A number may be anything but the first argument of what is called at once.
            if shape is None or shape == own or (shape == () and (at or one)):
                continue
            found = reduction_to(own, shape)
            if found is not None and found[0]:
                return *found, f"{call.name} reads {list(shape)} next"
    return None


def _reduced_inside(own: Shape, context: Context) -> tuple[tuple[int, ...], bool, str] | None:
    """What the view of its result that a reduction makes, and the zeros that it writes there, tell."""
    around = context.relatives()
    views = [
        meta.shape for call in around.children if call.name == "aten::as_strided" and (meta := first_tensor_of(call))
    ]
    filled = [meta.shape for call in around.children if call.name == "aten::fill_" and (meta := first_tensor_of(call))]
    for shape in filled if own else ():
        if len(shape) == len(own):
            dims = tuple(d for d, (n, m) in enumerate(zip(own, shape, strict=True)) if n != m)
            dims = tuple(range(len(own))) if views and not views[0] else dims
            return dims, not views or len(views[0]) == len(own), "the calls inside"
    if not views or not own:
        return None
    found = reduction_to(own, views[0])
    return None if found is None else (*found, "the calls inside")


def reduction_to(own: Shape, out: Shape) -> tuple[tuple[int, ...], bool] | None:
    """(dimensions, keepdim) of a reduction of `own` to `out`."""
    if len(out) == len(own):
        dims = tuple(d for d, (n, m) in enumerate(zip(own, out, strict=True)) if n != m)
        return (dims, True) if all(out[d] == 1 for d in dims) else None
    # Of dimensions of one size the last: those of features are reduced more often than those of a batch.
    for dims in reversed(tuple(combinations(range(len(own)), len(own) - len(out)))) if len(out) < len(own) else ():
        if tuple(n for d, n in enumerate(own) if d not in dims) == out:
            return dims, False
    return None


def _reduced_dims(known: Known, context: Context) -> Guess | None:
    found = _reduced(known, context)
    own = _own(known)
    if found is None:
        return None
    whole = own is not None and len(found[0]) == len(own) and context.relatives().name != "aten::logsumexp"
    return Guess(value=() if whole else found[0], why=found[2])


def _reduced_dim(known: Known, context: Context) -> Guess | None:
    found = _reduced(known, context)
    if found is not None and len(found[0]) == 1:
        return Guess(value=found[0][0], why=found[2])
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
    around, own = context.relatives(), _own(known)
    names = {call.name for call in (*around.children, *around.inner)}
    if "aten::mean" in names:
        return Guess(value=1, why="1: a mean inside")
    node = node_gradient(around)
    if node is not None and node.shape and own is not None and node.shape == own[: len(node.shape)]:
        return Guess(value=0, why="0: the result is not reduced")
    return None


def _loss_back(known: Known, context: Context) -> Guess | None:
    """Of the backward of a loss: its gradient is a number, or one for each element."""
    grad = tensor(known, "grad_output")
    return Guess(value=0, why="0: a gradient for each element") if grad is not None and grad.shape else None


def _keepdim(known: Known, context: Context) -> Guess | None:
    found = _reduced(known, context)
    return None if found is None else Guess(value=found[1], why=found[2])


def _first_fit(known: Known, context: Context, fits: Callable[[Shape], bool]) -> tuple[Shape, str] | None:
    return next(((shape, why) for shape, why in _results(known, context) if fits(shape)), None)


def _padding(spatial: int | None, *, backward: bool = False) -> Rule:
    """Pairs of a padding, the last dimension first; `spatial` dimensions, or all that differ."""

    def rule(known: Known, context: Context) -> Guess | None:
        own = _own(known)
        if not own:
            return None
        same = 0 if spatial is None else len(own) - spatial
        if same < 0:
            return None

        def fits(shape: Shape) -> bool:
            longer = len(shape) == len(own) and all(n >= m for n, m in zip(shape, own, strict=True))
            return longer and shape != own and shape[:same] == own[:same]

        inside = [call.name for call in context.relatives().children]
        if inside == ["aten::clone"] and spatial is None:
            return Guess(value=(0, 0) * len(own), why="0: a copy alone inside")
        found = _first_fit(known, context, fits)
        forward = context.relatives().forward
        source = None if forward is None or "pad" not in forward.name else first_tensor_of(forward)
        if forward is not None and source is not None and spatial is None and len(source.shape) == len(own):
            found = source.shape, f"{forward.name} was given {list(source.shape)} forward"
        if found is None:
            return None if backward else Guess(value=(1, 1) * (spatial or 1), why=f"1 on each side: {NOTHING}")
        more = [n - m for n, m in zip(found[0], own, strict=True)]
        count = spatial or len(own) - next((d for d, n in enumerate(more) if n), 0)
        # An odd number is no padding of both sides.
        sides = [
            (abs(n) // 2 * (n % 2 == 0), abs(n) - abs(n) // 2 * (n % 2 == 0), 1 if n > 0 else -1)
            for n in more[len(own) - count :]
        ]
        pairs = tuple(sign * side for *both, sign in reversed(sides) for side in both)
        return Guess(value=pairs, why=found[1])

    return rule


def _output_size(spatial: int, fallback: Callable[[int], int]) -> Rule:
    """Sizes of the last dimensions of a result that keeps all others."""

    def rule(known: Known, context: Context) -> Guess | None:
        own = _own(known)
        if own is None:  # the backward of a resampling has the gradient alone
            meta = tensor(known, "grad_output")
            return None if meta is None else Guess(value=meta.shape[-spatial:], why="the shape of grad_output")
        if len(own) < spatial:
            return None
        same = len(own) - spatial
        found = _first_fit(
            known, context, lambda shape: len(shape) == len(own) and shape[:same] == own[:same] and shape != own
        )
        if found is not None:
            return Guess(value=found[0][same:], why=found[1])
        sizes = tuple(fallback(n) for n in own[same:])
        return Guess(value=sizes, why=f"{list(sizes)}: {NOTHING}")

    return rule


def _scale_factors(spatial: int) -> Rule:
    """Of a resampling that was not told the size of its result."""

    def rule(known: Known, context: Context) -> Guess | None:
        own = _own(known)
        if value(known, "output_size") is not None or own is None or len(own) < spatial:
            return None
        size = _output_size(spatial, lambda n: 2 * n)(known, context)
        if size is None or not all(own[-spatial:]):
            return None
        factors = tuple(n / m for n, m in zip(size.value, own[-spatial:], strict=True))
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
    found = _first_fit(known, context, lambda shape: len(shape) == 1)
    for call in context.relatives().following[:_NEXT_READERS] if found is None else ():
        listed = (meta for arg in recorded_args(call) for meta in arg.tensors or () if meta is not None)
        vector = next((meta.shape for meta in listed if len(meta.shape) == 1), None)
        if vector is not None:
            return Guess(value=vector[0], why=f"what {call.name} is given next")
    return Guess(value=found[0][0], why=found[1]) if found is not None else Guess(value=100, why=f"100: {NOTHING}")


def _side_of_matrix(side: int) -> Rule:
    """Rows or columns of a unit matrix."""

    def rule(known: Known, context: Context) -> Guess | None:
        found = _first_fit(known, context, lambda shape: len(shape) == 2)
        return Guess(value=found[0][side], why=found[1]) if found is not None else Guess(value=16, why=f"16: {NOTHING}")

    return rule


def _resized(known: Known, context: Context) -> Guess | None:
    """Of a result that an op makes large enough: what the same op, or a later call, is given next."""
    own = tensor(known, "self")
    around = context.relatives()
    parent = "" if around.parent is None else around.parent.name
    if parent == "aten::resize_as_" and around.parent is not None:
        template = first_tensor_of(around.parent, 1)
        return None if template is None else Guess(value=template.shape, why="the size of the template")
    if own is not None and own.shape != (0,) and not parent.startswith("aten::_fft_"):
        return Guess(value=own.shape, why="as it is")
    if parent in _VECTORS:
        found = _vector(around, own.dtype if own is not None and own.dtype else None)
        return None if found is None else Guess(value=found[0], why=f"{found[1]} is given {list(found[0])} next")
    for at, (call, level) in enumerate(zip(around.following, around.levels, strict=False)):
        meta = first_tensor_of(call)
        if "_slow_conv" in parent and call.name != "aten::copy_":  # the bias is copied to the result
            continue
        if meta is not None and (level == 0 or at < _NEXT_READERS) and meta.shape != (0,):
            return Guess(value=meta.shape, why=f"{call.name} is given {list(meta.shape)} next")
    return None if own is None else Guess(value=own.shape, why="as it is")


def _vector(around: Relatives, dtype: str | None) -> tuple[Shape, str] | None:
    """The first vector that is read next, of this element type, or of integers, before others."""
    metas = [
        (arg.tensor, call.name) for call in around.following for arg in recorded_args(call) if arg.tensor is not None
    ]
    vectors = [one for one in metas if len(one[0].shape) == 1 and one[0].shape != (0,)]
    types = ("int64", "int32") if dtype is None else (dtype,)
    found = next((one for one in vectors if one[0].dtype in types), vectors[0] if vectors else None)
    return None if found is None else (found[0].shape, found[1])


_VECTORS = frozenset(f"aten::{name}" for name in ("arange", "range", "linspace", "logspace", "randperm"))


def _largest_count(known: Known, context: Context) -> Guess | None:
    """How many of topk: the size of the only dimension in which the result is smaller."""
    own = _own(known)
    if not own:
        return None

    def fits(shape: Shape) -> bool:
        return shape[:-1] == own[:-1] and len(shape) == len(own) and shape[-1] <= own[-1]

    found = _first_fit(known, context, lambda shape: fits(shape) and shape != own) or _first_fit(known, context, fits)
    return None if found is None else Guess(value=found[0][-1], why=found[1])


def _repeats(known: Known, context: Context) -> Guess | None:
    own = _own(known)
    if own is None:
        return None

    def fits(shape: Shape) -> bool:
        return (
            len(shape) == len(own) and shape != own and all(m and n % m == 0 for n, m in zip(shape, own, strict=True))
        )

    found = _first_fit(known, context, fits)
    if found is not None:
        return Guess(value=tuple(n // m for n, m in zip(found[0], own, strict=True)), why=found[1])
    return Guess(value=(2, *(1,) * max(0, len(own) - 1)), why=f"twice along dimension 0: {NOTHING}")


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
