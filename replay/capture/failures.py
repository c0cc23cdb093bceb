# pyright: strict
"""Explains in the user's terms why a step could not be captured: the line, and what to do."""

from __future__ import annotations

import re
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses import fake_tensor as fakes

from opreplay.traces.errors import OpReplayError, UsageError

if TYPE_CHECKING:
    from opreplay.replay.capture.calls.recorder import Recorder

_OURS = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_DATA_DEPENDENT = (fakes.DataDependentOutputException, fakes.DynamicOutputShapeException)
_MISSING = (fakes.UnsupportedOperatorException, fakes.UnsupportedFakeTensorException)

_NO_GROUP = (
    "env:// rendezvous",
    "process group has not been initialized",
    "environment variable RANK expected",
)
"""Parts of torch.distributed's error messages for a process that is not a rank of a job."""


class _Tensors(NamedTuple):
    """A kind of tensor that fake tensors do not support, recognized by torch's error message."""

    words: tuple[str, ...]
    kind: str
    way: str


_UNSUPPORTED = (
    _Tensors(
        ("NestedTensorImpl",),
        "nested tensors with the strided layout cannot be captured: torch does not give their sizes",
        "Use layout=torch.jagged and --real, or pad them: torch.nested.to_padded_tensor(nested, 0.0).",
    ),
    _Tensors(
        ("_nested_", "shape_env must not be None"),
        "fake tensors cannot be nested: the lengths of the parts depend on values",
        "Use layout=torch.jagged and --real, which runs the step once on real tensors; or pad them: "
        "torch.nested.to_padded_tensor.",
    ),
    _Tensors(
        ("Creating a new Tensor subclass",),
        "fake tensors do not support subclasses made from other tensors (as_subclass)",
        "Use --real to run the step once on real tensors, or create the subclass with "
        "torch.Tensor._make_wrapper_subclass.",
    ),
    _Tensors(
        ("OpaqueTensorImpl",),
        "mkldnn tensors (to_mkldnn) have no storage, so fake tensors do not support them",
        "Remove to_mkldnn: models on an NPU or GPU do not use mkldnn.",
    ),
    _Tensors(
        ("is not allocated yet",),
        "code reads the memory of fake tensors, as DistributedDataParallel does in its own process group",
        "Remove init_process_group and use --set world_size=N to act as one rank of a job; or use --real to run the "
        "step once on real tensors.",
    ),
)


_NO_FORWARD_FORMULA = re.compile(r"Trying to use forward AD with (\S+) that does not support it")
_FORWARD_WAYS = (
    ("attention", "Wrap attention in torch.nn.attention.sdpa_kernel(SDPBackend.MATH), which has a forward derivative."),
    (
        "mkldnn",
        "Wrap it in torch.backends.mkldnn.flags(enabled=False): the other CPU kernels have a forward derivative.",
    ),
)
"""Words in the name of an op without a forward derivative, each with a hint that names an alternative with one."""


def user_line(error: BaseException) -> str:
    """Return file, line and text of the innermost frame that is outside torch and opreplay; "" if there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, _TORCH, "<"))
    ]
    if not frames:
        return ""
    last = frames[-1]
    text = f": {last.line}" if last.line else ""
    return f"{last.filename}, line {last.lineno}, in {last.name}{text}"


@contextmanager
def explained(recorder: Recorder | None, *, real: bool) -> Generator[None, None, None]:
    """Convert exceptions of a step into UsageError with the user's line and a hint."""
    try:
        yield
    except OpReplayError:
        raise
    except Exception as error:
        raise usage_error(error, recorder and recorder.running, real=real) from error


def usage_error(error: Exception, running: Any, *, real: bool) -> UsageError:
    """Return the error to show for a step's exception."""
    line = user_line(error)
    at = f"; at {line}" if line else ""
    cause = _cause(error, (*_DATA_DEPENDENT, *_MISSING))
    if isinstance(cause, _DATA_DEPENDENT):
        op = getattr(cause, "func", running)
        return UsageError(
            f"the step depends on the contents of a tensor ({_name(op)}), and fake tensors have none{at}",
            hint="Use --real to run the step once on real tensors, or pass sizes that do not depend on values.",
        )
    if (op := _NO_FORWARD_FORMULA.search(str(error))) is not None:
        ways = [way for word, way in _FORWARD_WAYS if word in op[1]]
        return UsageError(
            f"torch.func.jvp and jacfwd need a forward derivative of {op[1]}, but torch has none, not even for real "
            f"tensors{at}",
            hint=ways[0]
            if ways
            else "Write it with other ops, or leave it out of the function that is differentiated.",
        )
    name = _missing_kernel(cause or error, running)
    if "UninitializedParameter" in str(error):
        return UsageError(
            f"a lazy module has unknown sizes{at}",
            hint="Give it explicit sizes: nn.Linear instead of nn.LazyLinear.",
        )
    for tensors in _UNSUPPORTED:
        if any(word in f"{error} {name}" for word in tensors.words):
            return UsageError(f"{tensors.kind}{at}", hint=tensors.way)
    if name:
        return UsageError(
            f"{name} has no fake kernel, so torch does not know the shapes of its results{at}",
            hint=f'Register one, @torch.library.register_fake("{name}"), which takes the same arguments and returns '
            "torch.empty_like(...) or the like; or run the step with --real.",
        )
    if any(word in str(error) for word in _NO_GROUP):
        return UsageError(
            f"the step needs a process group, but a capture is a single process{at}",
            hint=(
                "Use --set world_size=N to act as one rank of a job of N ranks, with the environment "
                "that torchrun sets; no data is exchanged."
            ),
        )
    what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return UsageError(
        f"the step raised {what}{at}",
        hint="If the step runs in plain PyTorch, the capture cannot trace that part: leave that part out."
        if real
        else "If the step runs in plain PyTorch, capture it on real tensors with --real.",
    )


def is_of_fakes(error: Exception) -> bool:
    """Check whether a step failed because fake tensors have no values or because an op has no fake kernel."""
    return _cause(error, (*_DATA_DEPENDENT, *_MISSING)) is not None or bool(_missing_kernel(error, None))


def _cause(error: BaseException, kinds: tuple[type[BaseException], ...]) -> BaseException | None:
    """Return the first exception of one of these types among the error and its causes; None if there is none."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, kinds):
            return at
        at = at.__cause__ or at.__context__
    return None


def _missing_kernel(error: BaseException, running: Any) -> str:
    """Return the name of the op whose missing fake kernel caused an error; "" if the error has another cause."""
    if isinstance(error, _MISSING):
        return _name(getattr(error, "func", running))
    text = str(error)
    if isinstance(error, NotImplementedError) and ("meta" in text.lower() or "fake impl" in text.lower()):
        return _name(running)
    return ""


def _name(op: Any) -> str:
    schema = getattr(op, "_schema", None)
    return getattr(schema, "name", None) or str(op)
