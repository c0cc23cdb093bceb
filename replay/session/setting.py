# pyright: strict
"""Settings shared by the ops of an opened trace: the ops' device, and the modules that may be imported for the ops."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opreplay.replay.execute.options import RunOptions
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.execute.executors.torch.device import TorchExecutor
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.traces import Trace

Read = TypeVar("Read", bound="Trace | ReplayPlan")
Path = str | os.PathLike[str]
DEFAULT_SOC = "910b3"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How ops are resolved and run."""

    device: str = "cpu"
    """torch device: "cpu", "cuda:0", "npu"."""
    allow_imports: dict[str, str] = {}
    """Namespace → module that the user allows to be imported."""
    plugins: tuple[str, ...] = ()
    """The user's files and modules that were run when the trace was opened."""

    def of_run(self, options: RunOptions | None) -> RunOptions:
        """Return the options with this setting's device, and with its imports and plugins added.

        Raises UsageError if the options name another device.
        """
        options = options or RunOptions()
        if options.device not in (RunOptions().device, self.device):
            raise UsageError(
                f"the ops were resolved for {self.device}, but the options name {options.device}",
                hint=f"Open the trace with device={options.device!r}.",
            )
        return msgspec.structs.replace(
            options,
            device=self.device,
            allow_imports={**self.allow_imports, **options.allow_imports},
            plugins=tuple(dict.fromkeys((*self.plugins, *options.plugins))),
        )


@contextmanager
def executor_on(options: RunOptions) -> Generator[TorchExecutor, None, None]:
    """Yield an executor for ops in this process; torch's threads and gradient mode are restored at the end.

    Raises EnvironmentRefused if the device is missing, UsageError for user code that cannot be loaded.
    """
    from opreplay.replay.execute.engines import worker_config
    from opreplay.replay.execute.executors.make import make_executor
    from opreplay.replay.execute.executors.torch.device import TorchExecutor

    executor = make_executor(worker_config(options))
    try:
        if not isinstance(executor, TorchExecutor):
            raise UsageError("ops in this process always run through torch", hint='Remove executor="fake".')
        yield executor
    finally:
        executor.close()


def warn_user(line: str) -> None:
    """Issue a Python warning with a line that the command line would print to stderr."""
    warnings.warn(line, stacklevel=2)


def warn_of_damage(read: Read) -> Read:
    """Warn about lost, wrong or unknown data in what was read from a file, and return it unchanged."""
    from opreplay.replay.plan.inputs import WARNING, warnings_of

    for line in warnings_of(read):
        warn_user(line.removeprefix(WARNING))
    return read


def several(given: Path | Sequence[Path]) -> tuple[str, ...]:
    """Return one string or path, or several, as a tuple of strings.

    Raises UsageError for anything else, such as None or a mapping.
    """
    if isinstance(given, (str, os.PathLike)):
        return (os.fspath(given),)
    try:
        if not isinstance(given, Mapping):
            return tuple(os.fspath(one) for one in given)
    except TypeError:
        pass
    raise UsageError(
        f"{given!r:.80} is neither a string nor a list of strings", hint="Give a string, a path, or a list."
    )


def devices_of(soc: str | Sequence[str], cluster: str | None = None) -> dict[str, DeviceProfile]:
    """Return simulated devices by name, given as names or device files. Raises UsageError for an unknown device."""
    from opreplay.replay.ascend.simulate.devices import load_socs

    return load_socs(several(soc), cluster)
