# pyright: strict
"""Run an initializer on a call and check the result.

Errors of a user's initializer become an InitializerError. Unexpected errors of a built-in initializer become an
InternalError. `registry` decides which initializer a call gets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import msgspec

from opreplay.initializers.amounts import Amount, Work
from opreplay.initializers.amounts import work as counted
from opreplay.initializers.base import BatchLengths, CustomInit, InitContext, InitializerError, InitReport
from opreplay.initializers.user_code import failed_at
from opreplay.traces.errors import InternalError, strict

FINGERPRINT_BYTES = 1 << 24
"""Maximum bytes of a tensor whose contents are hashed. Of larger tensors, only torch's version counter is compared."""
TEXT_LENGTH = 400
"""Maximum number of characters that are kept of an initializer's message or of its note on one argument."""


def applies(rule: CustomInit, context: InitContext) -> bool:
    """Return whether the initializer applies to this call.

    Raises InitializerError if a user's `applies_to` fails, and InternalError if a built-in one raises anything but
    InitializerError.
    """
    try:
        with _as_built_in(rule, context):
            return bool(rule.applies_to(context))
    except (InitializerError, InternalError):
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise InitializerError(f"{rule.name}: applies_to: {_error_text(error)}") from error


def apply(rule: CustomInit, context: InitContext) -> InitReport:
    """Let the initializer fill the tensors and return its report.

    A str or None that it returns is converted to an InitReport. Raises InternalError if a built-in initializer raises
    anything but InitializerError. Raises InitializerError for any exception of a user's initializer, for a result of
    another type, and for tensors that were resized or replaced instead of filled.
    """
    before = list(_tensors(context.args))
    try:
        with _as_built_in(rule, context):
            result: Any = rule.initialize(context)
    except (InitializerError, InternalError):
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise InitializerError(_error_text(error)) from error
    after = list(_tensors(context.args))
    for name, tensor, shape, dtype in before:
        if not any(tensor is other and name == at for at, other, _, _ in after):
            raise InitializerError(f"{name} was replaced by another object; fill the tensor in place instead")
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise InitializerError(
                f"{name} was {dtype}{list(shape)} before and is {tensor.dtype}{list(tensor.shape)} now"
            )
    return _report(result)


def work_by(rule: CustomInit, context: InitContext) -> Work | None:
    """Return a call's work as the initializer's `work` method computes it; None if the method returns None.

    The call's tensors must already be filled. Raises InitializerError, naming the initializer, if the method fails or
    returns neither None nor a valid Work. The numbers of a valid Work are integers from 0 to 2**62.
    """
    try:
        with _as_built_in(rule, context):
            said: Any = rule.work(context)
    except InitializerError as error:
        raise InitializerError(f"{rule.name}: work: {error}") from error
    except InternalError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise InitializerError(f"{rule.name}: work: {_error_text(error)}") from error
    if said is not None and (wrong := _wrong_work(said)):
        raise InitializerError(f"{rule.name}: work: {wrong}")
    if said is None or said.idle or not said.amounts:
        return said
    return msgspec.structs.replace(said, idle=counted(*said.amounts).idle)


MAX_AMOUNT = 1 << 62
"""Largest number allowed in a Work; larger numbers do not fit into a result record."""


def _wrong_work(said: Any) -> str:
    """Return a message that says why a Work is invalid; "" if it is valid."""
    if not isinstance(said, Work):
        return f"it must return a Work, not {type(said).__name__}"
    # Users' code may have put anything into it.
    if not _all_of(said.amounts, Amount) or not _all_of([amount.what for amount in said.amounts], str):
        return "amounts must be a tuple of Amount, each with a string `what`"
    if not _all_of(said.warnings, str):
        return "warnings must be a tuple of strings"
    numbers: list[tuple[str, Any]] = [
        ("bytes_read", said.bytes_read),
        ("bytes_written", said.bytes_written),
        ("flops", said.flops),
        *((f"done of {_short(amount.what)}", amount.done) for amount in said.amounts),
        *((f"most of {_short(amount.what)}", amount.most) for amount in said.amounts),
    ]
    bad = [(name, value) for name, value in numbers if not _is_amount(name, value)]
    return f"{bad[0][0]} is {_short(repr(bad[0][1]))}, not an int from 0 to 2**62" if bad else ""


def _all_of(values: object, kind: type) -> bool:
    """Check whether `values` is a tuple or list whose items are all of one type."""
    return isinstance(values, tuple | list) and all(isinstance(value, kind) for value in cast("list[object]", values))


def _is_amount(name: str, value: object) -> bool:
    if value is None:
        return not name.startswith("done of ")
    return type(value) is int and 0 <= value <= MAX_AMOUNT


def fingerprints(context: InitContext, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return a fingerprint per argument that changes when a tensor of the argument is written.

    Writes that bypass torch (numpy, `.data`) also change it, except for tensors larger than `FINGERPRINT_BYTES`.
    """
    marks: dict[str, tuple[int, ...]] = dict.fromkeys(names, ())
    for name, tensor in context.tensors():
        if name in marks:
            small = tensor.numel() * tensor.element_size() <= FINGERPRINT_BYTES
            digest = crc32(tensor.detach().cpu().contiguous().flatten().numpy().tobytes()) if small else 0
            marks[name] += (tensor._version, digest)
    return marks


def _as_built_in(rule: CustomInit, context: InitContext) -> AbstractContextManager[None]:
    """Return a context that turns exceptions of a built-in initializer, except InitializerError, into InternalError.

    For a user's initializer, which may raise anything, the context has no effect.
    """
    if not type(rule).__module__.startswith("opreplay."):
        return nullcontext()
    return strict(f"initializer {rule.name} for {context.op}", InitializerError)


def _tensors(args: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[int, ...], Any]]:
    for name, value in args.items():
        items = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else (value,)
        for item in items:
            if hasattr(item, "data_ptr"):
                yield name, item, tuple(item.shape), item.dtype


def _report(result: Any) -> InitReport:
    if result is None or isinstance(result, str):
        return InitReport(summary=_short(result or ""))
    if not isinstance(result, InitReport):
        raise InitializerError(
            f"initialize returned {type(result).__name__}; it must return an InitReport or a line of text"
        )
    report: Any = result  # users' code may have put anything into it
    texts: object = report.assumed
    assumed = cast("Mapping[object, object]", texts) if isinstance(texts, Mapping) else None
    if assumed is None or not all(isinstance(text, str) for text in (report.summary, *assumed, *assumed.values())):
        raise InitializerError("the report's summary must be text, and its assumptions must be text by argument")
    if report.lengths is not None and not isinstance(report.lengths, BatchLengths):
        raise InitializerError("the report's lengths must be BatchLengths")
    return msgspec.structs.replace(
        result,
        summary=_short(result.summary),
        assumed={_short(name): _short(what) for name, what in result.assumed.items()},
    )


def _short(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH else text[: TEXT_LENGTH - 3] + "..."


def _error_text(error: BaseException) -> str:
    """Return "ValueError: message (file.py:12)"; the location is left out if the file belongs to opreplay."""
    first = (str(error).splitlines() or [""])[0]
    place = failed_at(error)
    package = Path(__file__).resolve().parents[1]
    shown = f" ({place})" if place and package not in Path(place.rpartition(":")[0]).resolve().parents else ""
    return _short(f"{type(error).__name__}{': ' if first else ''}{first}{shown}")
