# pyright: strict
"""The target of a capture as given on the command line. It is usually a function in the user's file. The file is
executed, as with `python FILE.py`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from opreplay.replay.capture.config_file import PREFIX, config_fields, config_file
from opreplay.replay.ir.captured import Via
from opreplay.traces.errors import UsageError

FORM = "Write FILE.py:make, where make() returns (callable, args) or (module, inputs, {...}): docs/capture.md."


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a capture runs: a function that makes a step, with facts about it."""

    make: Callable[[], Any]
    source: str
    """Readable name of the target."""
    world_size: int | None = None
    """Number of ranks that the target requires; None if the user may choose it."""
    stages: int = 1
    """Number of pipeline stages of the model; a capture has one of them."""
    notes: tuple[str, ...] = ()
    via: Via | None = None
    """The only method by which the target can be captured; None if the user may choose it."""
    of_config: bool = False
    """Whether a library builds the model from its config. Servers have fused kernels for such a model."""


def check_target(text: str) -> None:
    """Raise UsageError if the target's file is missing or its config is invalid. This check does not load torch."""
    if text.startswith(PREFIX):
        config_fields(config_file(text.removeprefix(PREFIX)))
    elif not Path(path := text if text.endswith(".pt2") else text.rpartition(":")[0] or text).is_file():
        raise UsageError(f"file {path} does not exist", hint=FORM)


def target_of(text: str, shape: Mapping[str, Any], *, trust: bool = False) -> Target:
    """Return the target for "FILE.py:make", "hf:CONFIG.json" or "FILE.pt2"; `shape` has fields of `from_config.Shape`.

    Without `trust`, no .pt2 file is opened, because torch executes its contents. Raises UsageError, and
    EnvironmentRefused if a library is missing.
    """
    from opreplay.replay.capture.experts import NOTE
    from opreplay.replay.capture.from_config import Shape, has_context, maker, notes_of

    if not text.startswith(PREFIX):
        if shape:
            raise UsageError(
                f"--{next(iter(shape)).replace('_', '-')} needs hf:CONFIG.json",
                hint="The make() of a file sets its own sizes.",
            )
        if text.endswith(".pt2"):
            if not trust:
                raise UsageError(
                    f"loading {Path(text).name} executes any code that it contains: torch unpickles parts of a .pt2",
                    hint=("Add --trust if you know its author; otherwise export the model yourself with --via export."),
                )
            from opreplay.replay.capture.graphs import step_of_file

            return Target(make=step_of_file(text), source=Path(text).name, via="export")
        make, source = load_function(text)
        return Target(make=make, source=source)
    path = text.removeprefix(PREFIX)
    wanted = Shape(**shape)
    reads_text = wanted.phase != "prefill" or has_context(path)
    if "context" in shape and not reads_text:
        raise UsageError(
            f"{Path(path).name} has no context length: its config gives the sizes of the inputs",
            hint="Leave context out.",
        )
    size = f"{wanted.batch} x {wanted.context}" if reads_text else f"batch {wanted.batch}"
    form = f"{wanted.phase}, {size}, {wanted.dtype}"
    return Target(
        make=maker(path, wanted),
        source=f"{Path(path).name} ({form})",
        world_size=wanted.ranks if wanted.ranks > 1 else None,
        stages=wanted.pipeline_parallel,
        notes=(*notes_of(path, wanted), *((NOTE,) if wanted.expert_parallel > 1 else ())),
        of_config=True,
    )


def load_function(text: str) -> tuple[Callable[[], Any], str]:
    """Return the function for "FILE.py:name", and a readable name for what it returns.

    The file is executed. Raises UsageError for a missing file or function, and if running the file fails.
    """
    path_text, separator, name = text.rpartition(":")
    if not separator or not name.isidentifier():
        raise UsageError(f"{text} does not name a function", hint=FORM)
    path = Path(path_text)
    if not path.is_file():
        raise UsageError(f"file {path_text} does not exist", hint=FORM)
    module = _run(path)
    function = getattr(module, name, None)
    if not callable(function):
        public = [each for each in dir(module) if not each.startswith("_") and callable(getattr(module, each))]
        raise UsageError(
            f"{path.name} has no function {name}", hint=f"Its functions: {', '.join(public[:8]) or 'none'}."
        )
    return function, f"{path.name}:{name}"


def _run(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path.name} is not a Python file", hint=FORM)
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    # What lies beside the file can be imported, after all that is installed; classes find their module.
    sys.path.append(folder)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if before is not None:
            sys.modules[path.stem] = before
        raise UsageError(f"{path.name} cannot be run: {type(error).__name__}: {error}", hint="Run it alone.") from error
    finally:
        sys.path.reverse()
        sys.path.remove(folder)  # the one of above, which may stand before it as well
        sys.path.reverse()
    return module
