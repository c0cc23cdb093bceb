"""Replays the ops of ops.json next to this file, one by one, and prints how long each takes. Needs only torch.

The ops are data. Each one names an ATen operator, which is looked up in torch's own table, and describes its arguments:
shapes, strides, types, plain values, and what kind of numbers the tensors hold. The numbers themselves are drawn from a
seed. Ops run in a child process: if one crashes or hangs, the others are not affected.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import multiprocessing
import os
import re
import signal
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)::([A-Za-z_][A-Za-z0-9_]*)")
IMPORT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([A-Za-z_][A-Za-z0-9_.]*)")
NAMESPACES = {"aten"}
"""Namespaces whose ops may be called. They are ATen's, those named by --import, and those that the bundle's plugins
define.
"""
OF_TORCH = frozenset({"aten", "prims", "torchvision"})
"""Namespaces of torch's own ops. The time of these ops does not depend on the values that they have written."""
OVERLOAD = re.compile(r"[A-Za-z0-9_]*")
TEXT = re.compile(r"[A-Za-z0-9_ .,>-]{0,200}")
REFUSED = re.compile(r"from_file|save|load|unsafe(?!_view|_chunk|_split)|unchecked|reinterpret")
BLOCK = 1_000_003
"""Number of random elements after which they repeat. Repeating them fills large tensors quickly."""
SAMPLE_S = 500e-6
"""Target duration of a sample. A sample consists of as many calls as fit, as in `opreplay run`."""
CLEAN = 8
"""Minimum number of uninterrupted samples. If there are fewer, interrupted samples count as well."""
REPEAT_S = 2.0
"""Maximum seconds for repeating samples that other programs interrupted."""
WAITED_SHARE = 0.2
"""Maximum fraction of the time for which threads may wait for CPUs, summed over threads. Above it, the result is
marked.
"""
PROBE_CALLS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of consecutive calls after which the arguments that an op writes are checked for non-finite values."""
PROBE_S = 0.1
"""Maximum seconds for the calls of `PROBE_CALLS`."""
VALUE_CALLS = 4
"""Number of consecutive calls that are timed. They show whether an op's time depends on the values that it
has written.
"""
VALUES_RATIO = 1.5
"""Minimum ratio of the times of later and first calls, in either direction, at which the op's time is taken to depend
on values.
"""
NO_DEVICE = (RuntimeError, ImportError, AssertionError, AttributeError, NotImplementedError, EOFError)
FORK: Any = multiprocessing.get_context("fork") if sys.platform == "linux" else None
THREAD, THREADS = Path("/proc/thread-self"), Path("/proc/self/task")
Json = dict[str, Any]
FUNCTIONS: dict[tuple[str, int], Any] = {}
"""Functions that the plugin being loaded registers, by (name, line)."""
RUNS: dict[str, Callable[..., Any]] = {}
"""Op id → function of a plugin that runs this op."""


class Nested(type):
    """Metaclass that makes any attribute of a class another ignored class, e.g. `tile.Out` of a tile program."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nested(name, (Ignored,), {})


class Ignored(metaclass=Nested):
    """Replaces everything that a plugin imports from opreplay but that this script does not use."""

    def __init__(self, *values: Any, **named: Any) -> None:
        pass

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Act as a decorator that returns the function unchanged."""
        return values[0] if values else self


class Stub(types.ModuleType):
    """Replaces opreplay and its modules. It records what a plugin registers to run ops, and ignores everything else."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return registered if name.startswith("register_") else Nested(name, (Ignored,), {})


def registered(*names: Any, **options: Any) -> Any:
    """Return a decorator that replaces opreplay's own. It records each of a plugin's functions by name and line."""

    def keep(function: Any) -> Any:
        if isinstance(function, types.FunctionType):
            FUNCTIONS[function.__name__, function.__code__.co_firstlineno] = function
        return function

    return names[0] if len(names) == 1 and isinstance(names[0], type) else keep


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that provides a stub for `opreplay` and all its modules, even if opreplay is installed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] == "opreplay":
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def plugins_loaded(folder: Path, executors: Json, namespaces: Json) -> None:
    """Run the plugins next to this script that ops of the bundle need. Find the function that runs each of these ops.

    `namespaces` are the namespaces of torch ops that a plugin defines. The ops in them may be called, too.
    """
    if not executors and not namespaces:
        return
    sys.meta_path.insert(0, Stubs())
    for file in sorted((folder / "plugins").glob("*.py")):
        FUNCTIONS.clear()
        spec = importlib.util.spec_from_file_location(f"bundle_plugin_{file.stem}", file)
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module
        spec.loader.exec_module(module)
        NAMESPACES.update(name for name, of in namespaces.items() if of == f"plugins/{file.name}")
        for id_, runs in executors.items():
            if runs["file"] == f"plugins/{file.name}" and (function := FUNCTIONS.get((runs["function"], runs["line"]))):
                RUNS[id_] = with_lists(function) if runs["lists"] else function


def with_lists(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of (inputs, attrs) as a function that takes an op's arguments. The positional ones, which are
    tensors, become the list `inputs`. The keyword arguments become `attrs`.
    """

    def flat(values: Any) -> Iterator[Any]:
        for value in values:
            if isinstance(value, (list, tuple)):
                yield from flat(value)
            elif value is not None:
                yield value

    return lambda *tensors, **attrs: function(list(flat(tensors)), {k: v for k, v in attrs.items() if v is not None})


def operator(op: Json) -> Callable[..., Any]:
    """Return the function for an op. It is an overload of ATen or of an allowed namespace, or a plugin's function.
    Raises ValueError.
    """
    if op.get("resolved_by") == "executor":
        if op["id"] not in RUNS:
            raise ValueError(f"no plugin of this bundle contains the function that runs {op['name']}")
        return RUNS[op["id"]]
    # An equivalent has the arguments of the recorded op, which is therefore the one to call.
    name = op["name"] if op.get("resolved_by") == "equivalent" else op.get("via") or op["name"]
    match, overload = NAME.fullmatch(name), op.get("overload") or ""
    if match is None or not OVERLOAD.fullmatch(overload) or (match[1] == "aten" and REFUSED.search(match[2])):
        raise ValueError(f"{name!r} is not an operator that this script may call")
    library, base = match[1], match[2]
    if library not in NAMESPACES:
        raise ValueError(f"{name!r} is not an operator that this script may call without --import {library}=MODULE")
    known = [s.overload_name for s in torch._C._jit_get_schemas_for_operator(f"{library}::{base}")]
    if overload not in known:
        raise ValueError(f"torch {torch.__version__} has no {library}::{base}.{overload or 'default'}")
    return getattr(getattr(getattr(torch.ops, library), base), overload or "default")


def imported(parser: argparse.ArgumentParser, pairs: list[str]) -> None:
    """Import the modules that the user names. With each module, the user names a namespace whose ops may then be
    called.
    """
    for pair in pairs:
        match = IMPORT.fullmatch(pair)
        if match is None:
            parser.error(f"--import {pair}: write it like mylib=my_package.ops")
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # the module may lie where the user stands
        try:
            importlib.import_module(match[2])
        except ImportError as error:
            parser.error(f"--import {pair}: {error}")
        NAMESPACES.add(match[1])


def plain(arg: Json, value: Any, device: torch.device) -> Any:
    """Convert a value that is not a tensor: a number, list, string, dtype, device, layout or memory format."""
    kind = arg["type"].removesuffix("[]")
    if isinstance(value, list):
        return [plain(arg, item, device) for item in value]
    if kind == "float" and type(value) is int:
        return float(value)
    if not isinstance(value, str):
        return value
    if kind == "Device":
        return torch.device("cpu") if value.startswith("cpu") else device
    if kind in ("ScalarType", "Layout", "MemoryFormat"):
        constant = getattr(torch, value.removeprefix("torch."), None)
        if not isinstance(constant, (torch.dtype, torch.layout, torch.memory_format)):
            raise ValueError(f"torch has no {value}")
        return constant
    if kind == "str":
        if not TEXT.fullmatch(value):
            raise ValueError(f"the string value of argument {arg['name']} is not allowed")
        return value
    return float(value) if value in ("inf", "-inf", "nan") else complex(value)


def allocate(meta: Json, device: torch.device, memories: dict[int, torch.Tensor], least_elements: int) -> torch.Tensor:
    """Allocate a tensor with the recorded shape, strides and storage offset. If it shares memory with other tensors, it
    is allocated in that memory.
    """
    dtype = getattr(torch, meta["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {meta['dtype']}")
    shape, offset, number = meta["shape"], meta.get("storage_offset", 0), meta.get("storage")
    strides = meta.get("strides")
    if strides is None:
        strides = [math.prod(max(1, n) for n in shape[i + 1 :]) for i in range(len(shape))]
    reach = 0 if 0 in shape else offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    storage = (
        memories[number] if number is not None else torch.empty(max(reach, least_elements), dtype=dtype, device=device)
    )
    return torch.empty(0, dtype=dtype, device=device).set_(
        storage.untyped_storage(), offset if reach else 0, shape, strides
    )


def shared(op: Json, device: torch.device) -> dict[int, torch.Tensor]:
    """Allocate each memory that tensors of the op share; return the memories by number."""
    reach: dict[int, int] = {}
    metas = (m for arg in op["args"] for m in arg.get("tensors", ()) if m and m.get("storage") is not None)
    for meta in metas:
        tensor = allocate({**meta, "storage": None}, torch.device("meta"), {}, 0)
        size = tensor.untyped_storage().nbytes()
        reach[meta["storage"]] = max(reach.get(meta["storage"], 0), size)
    return {number: torch.empty(size, dtype=torch.uint8, device=device) for number, size in reach.items()}


def span(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's memory from its first to its last element as a 1-D tensor, including the gaps between
    elements.
    """
    if not tensor.numel():
        return tensor.new_empty(0)
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach,), (1,))


def repeat(tensor: torch.Tensor, draw: Callable[[int], torch.Tensor]) -> None:
    """Fill the tensor with copies of one block of random numbers."""
    flat = span(tensor)
    if tensor.is_complex():
        flat = torch.view_as_real(flat).reshape(-1) if tensor.dtype != torch.complex32 else flat.view(torch.float16)
    done = min(BLOCK, flat.numel())
    if done:
        flat[:done].copy_(draw(done))
    while done < flat.numel():
        step = min(done, flat.numel() - done)
        flat[done : done + step].copy_(flat[:step])
        done += step


def fill(tensor: torch.Tensor, spec: Json, generator: torch.Generator) -> None:
    """Fill the tensor with the kind of numbers that `spec` describes."""
    kind, low, high, device = spec["fill"], spec.get("low", 0), spec.get("high", 1), tensor.device

    def draw(count: int) -> torch.Tensor:
        if kind == "integers":
            return torch.randint(low, max(high, low + 1), (count,), generator=generator, device=device)
        if kind == "coins":
            return torch.rand(count, generator=generator, device=device) < spec.get("density", 0.5)
        if kind == "signs":
            return torch.randint(0, 2, (count,), generator=generator, device=device) * 2 - 1
        values = torch.empty(count, device=device)
        values = (
            values.uniform_(low, high, generator=generator)
            if kind == "uniform"
            else values.normal_(generator=generator)
        )
        return values.round().clamp(-1, 1).exp2() if "e8m0" in str(tensor.dtype) else values

    if "float4" in str(tensor.dtype):  # two numbers a byte
        tensor = tensor.view(torch.uint8)
        kind, low, high = "integers", 0, 256
    if kind in ("normal", "uniform", "integers", "coins", "signs"):
        repeat(tensor, draw)
    else:
        assign(tensor, ARRANGED[kind](tensor, spec, generator))


def assign(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write values into a tensor whose elements may share memory."""
    values = values.to(tensor.dtype).to(tensor.device).expand(tensor.shape)
    places = torch.arange(span(tensor).numel(), device=tensor.device).as_strided(tensor.shape, tensor.stride())
    span(tensor)[places.reshape(-1)] = values.reshape(-1)


def listed(tensor: torch.Tensor, spec: Json, _: torch.Generator) -> torch.Tensor:
    numbers = [float(v) if isinstance(v, str) else v for v in spec["values"]]
    return torch.tensor(numbers).reshape(tensor.shape)


def ramp(tensor: torch.Tensor, spec: Json, _: torch.Generator) -> torch.Tensor:
    """Return values that ascend from `low` to `high` along the last dimension."""
    count = tensor.shape[-1]
    steps = torch.arange(count, dtype=torch.float64) * (spec["high"] - spec["low"]) / max(1, count - 1) + spec["low"]
    return steps if tensor.dtype.is_floating_point else steps.floor()


def softmax(tensor: torch.Tensor, spec: Json, generator: torch.Generator) -> torch.Tensor:
    scores = torch.empty(tensor.shape, device=tensor.device).normal_(generator=generator)
    return scores.log_softmax(spec["dim"]) if spec.get("log") else scores.softmax(spec["dim"])


def positive_definite(tensor: torch.Tensor, _: Json, generator: torch.Generator) -> torch.Tensor:
    size = tensor.shape[-1]
    half = torch.empty(tensor.shape, device=tensor.device).normal_(generator=generator) / (2 * size)
    return half + half.mT + 2 * torch.eye(size, device=tensor.device)


def chosen(tensor: torch.Tensor, spec: Json, generator: torch.Generator) -> torch.Tensor:
    """Return a mask with exactly `count` true elements."""
    order = torch.randperm(tensor.numel(), generator=generator, device=tensor.device)
    return (order < spec["count"]).reshape(tensor.shape)


def causal(tensor: torch.Tensor, spec: Json, _: torch.Generator) -> torch.Tensor:
    """Return a causal mask. It is 0 or true for the keys that a query attends to, and `low` or false elsewhere."""
    rows, columns = tensor.shape[-2:]
    seen = torch.ones(rows, columns, dtype=torch.bool, device=tensor.device).tril(columns - rows)
    return seen if tensor.dtype is torch.bool else torch.where(seen, 0.0, float(spec["low"]))


ARRANGED: dict[str, Callable[..., torch.Tensor]] = {
    "values": listed,
    "ramp": ramp,
    "softmax": softmax,
    "positive definite": positive_definite,
    "chosen": chosen,
    "causal": causal,
}


class Call:
    """An op with its arguments, ready for repeated calls."""

    def __init__(self, op: Json, inputs: Json, device: torch.device, seed: int) -> None:
        self.function, self.device = operator(op), device
        generator = torch.Generator(device).manual_seed(seed)
        torch.manual_seed(seed)
        memories, least_elements = shared(op, device), inputs.get("*", 0)
        self.positional: list[Any] = []
        self.by_name: Json = {}
        written: list[torch.Tensor] = []
        for arg in op["args"]:
            value: Any = plain(arg, arg.get("value"), device)
            if arg.get("tensors"):
                tensors = [
                    m and allocate(m, device, memories, 0 if i else least_elements)
                    for i, m in enumerate(arg["tensors"])
                ]
                least_elements = 0
                for tensor, spec in zip(tensors, inputs.get(arg["name"], ()), strict=False):
                    if tensor is not None and spec is not None:
                        fill(tensor, spec, generator)
                value = tensors if arg["type"] == "Tensor[]" else tensors[0]
                written += [t for t in tensors if t is not None and arg.get("mutated")]
            if arg.get("keyword_only"):
                self.by_name[arg["name"]] = value
            else:
                self.positional.append(value)
        self.saved = [(span(t), span(t).clone()) for t in written]
        self.most_calls: int | None = None
        """Maximum number of calls in a row after which the values that the op writes are still finite.

        None if any number of calls is possible without a reset of the values.
        """
        self.by_values = False
        """Whether the op's time depends on values that it has written. If so, the values are reset before
        each sample.
        """
        self.since_reset = 0
        self.arguments = [span(t) for t in spread([*self.positional, *self.by_name.values()])]
        self.gradients = bool(op.get("gradients"))
        if self.gradients:
            self.require_gradients([arg["name"] for arg in op["args"]])

    def __call__(self) -> Any:
        if not self.gradients:
            return self.function(*self.positional, **self.by_name)
        with torch.enable_grad():  # as recorded: the op takes another way then
            return self.function(*self.positional, **self.by_name)

    def require_gradients(self, names: Sequence[str]) -> None:
        """Require gradients of all floating-point arguments that the op can differentiate.

        Some arguments have no gradient, such as running means and the weights of a loss.
        """
        by_name = dict(zip(names, self.positional, strict=False)) | self.by_name
        for value in by_name.values():
            for tensor in value if isinstance(value, list) else [value]:
                if isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
                    tensor.requires_grad_()
        for _ in by_name:
            try:
                self()
            except RuntimeError as error:
                match = re.search(r"not differentiable with respect to argument '(\w+)'", str(error))
                tensor = by_name.get(match[1]) if match else None
                if not isinstance(tensor, torch.Tensor):
                    raise
                tensor.requires_grad_(False)
            else:
                return

    def reset(self) -> None:
        """Restore the initial values of the arguments that the op writes to."""
        for tensor, saved in self.saved:
            tensor.copy_(saved)
        self.since_reset = 0

    def find_resets(self, of_torch: bool) -> None:
        """Find how many consecutive calls are possible before values must be reset.

        Resets are avoided because they evict arguments from caches. `of_torch` says that the op is one of torch's own;
        the time of such an op does not depend on values. Its number of calls is unlimited if a second call leaves the
        same bytes as the first. In all other cases, the number is that of the calls that keep the values finite.
        """
        if not self.saved:
            return
        generator: Any = torch if self.device.type == "cpu" else getattr(torch, self.device.type)
        state = generator.get_rng_state()
        self.reset()
        self()
        left = [tensor.detach().clone() for tensor, _ in self.saved]
        generator.set_rng_state(state)
        self()
        if of_torch and all(same_bytes(tensor, other) for (tensor, _), other in zip(self.saved, left, strict=True)):
            return
        self.reset()
        self.most_calls, done, start = 1, 0, time.perf_counter()
        for wanted in PROBE_CALLS:
            for _ in range(wanted - done):
                self()
            done = wanted
            if not all(is_finite(tensor) for tensor, _ in self.saved):
                break
            self.most_calls = wanted
            if time.perf_counter() - start > PROBE_S:
                break
        self.by_values = not of_torch and (self.most_calls < VALUE_CALLS or self.goes_by_values())
        self.reset()

    def goes_by_values(self) -> bool:
        """Check whether calls on values that the op has written take longer or shorter than calls on the initial
        values.
        """
        first, later = [], []
        for times, resets in ((first, True), (later, False)):
            for _ in range(VALUE_CALLS - 1):
                if resets:
                    self.reset()
                    self.touch()
                start = time.perf_counter()
                self()
                times.append(time.perf_counter() - start)
        return max(min(first), min(later)) > VALUES_RATIO * min(*first, *later)

    def touch(self) -> None:
        """Read the arguments, which brings them back into the caches."""
        for tensor in self.arguments:
            if tensor.numel() and not tensor.is_quantized:
                tensor.detach().view(torch.uint8)[::64].max()

    def calls_a_sample(self, fitting: int) -> int:
        """Return the number of calls in one sample. `fitting` is the number of calls that would fill the target
        duration.
        """
        if self.most_calls is None:
            return fitting
        return 1 if self.by_values else max(1, min(fitting, self.most_calls - 1))

    def ready(self, calls: int) -> None:
        """Prepare a sample of `calls` calls. Values are reset if they could become non-finite during the sample. Then
        caches are filled as a previous call would have filled them.
        """
        if self.most_calls is None:
            return
        again = not self.by_values and self.most_calls > 1
        if self.by_values or self.since_reset + again + calls > self.most_calls:
            self.reset()
            self.touch()
        if again:
            self()
        self.since_reset += again + calls


def spread(values: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensors in `values`, including those in lists."""
    flat = [item for value in values for item in (value if isinstance(value, (list, tuple)) else [value])]
    return [item for item in flat if isinstance(item, torch.Tensor)]


def same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Check whether two tensors hold the same bytes; NaN then equals NaN."""
    if first.is_quantized:
        return torch.equal(first, second)
    return torch.equal(first.detach().view(torch.uint8), second.view(torch.uint8))


def is_finite(tensor: torch.Tensor) -> bool:
    """Check whether all floats are finite; floats of 8 bits or fewer are not checked."""
    if not tensor.is_floating_point() or tensor.element_size() < 2 or not tensor.numel():
        return True
    return bool(torch.stack(tensor.detach().aminmax()).isfinite().all())


def shapes(result: Any) -> list[list[int]]:
    if isinstance(result, torch.Tensor):
        return [list(result.shape)]
    return [shape for item in result for shape in shapes(item)] if isinstance(result, (list, tuple)) else []


def switches() -> int:
    """Return how often other programs preempted a thread of this process; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def waited_s(folder: Path) -> float:
    """Return for how many seconds threads that could run had to wait for a CPU (proc(5), schedstat). 0 if the system
    does not report it.
    """
    waited_ns = 0
    for file in folder.glob("*/schedstat") if folder.name == "task" else [folder / "schedstat"]:
        try:
            waited_ns += int(file.read_text(encoding="ascii").split()[1])
        except (OSError, ValueError, IndexError):  # another system, or a thread that has ended
            continue
    return waited_ns * 1e-9


def sample(call: Call, calls: int, synchronize: Callable[[], None]) -> tuple[float, float, bool]:
    """Return (µs per call, µs per call for which this thread waited for a CPU, whether it was preempted)."""
    call.ready(calls)
    synchronize()
    before, waited, used = switches(), waited_s(THREAD), time.thread_time()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize()
    took = time.perf_counter() - start
    used, waited = time.thread_time() - used, waited_s(THREAD) - waited
    return took / calls * 1e6, max(0.0, min(waited, took - used)) / calls * 1e6, switches() != before


def measure(call: Call, iterations: int, synchronize: Callable[[], None], on_cpu: bool) -> Json:
    """Return the median, minimum and spread of the time per call. Median and minimum are in microseconds.

    A sample during which other programs took a CPU is repeated, for at most `REPEAT_S` in all. If too few undisturbed
    samples remain, all samples count, and the result is marked. In this case, the time that a single thread waited for
    a CPU is subtracted.
    """
    for _ in range(3):
        call()
        call.reset()
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    fitting = max(1, min(1000, round(SAMPLE_S / max(time.perf_counter() - start, 1e-7))))
    call.reset()
    calls = call.calls_a_sample(fitting)
    samples: list[tuple[float, float, bool]] = []
    start, threads_waited, alone = time.perf_counter(), waited_s(THREADS), torch.get_num_threads() == 1
    while len(samples) < iterations or (
        sum(not taken for *_, taken in samples) < iterations
        and len(samples) < 3 * iterations
        and time.perf_counter() - start < REPEAT_S
    ):
        samples.append(sample(call, calls, synchronize))
    took, threads_waited = time.perf_counter() - start, waited_s(THREADS) - threads_waited
    clean = [us for us, _, taken in samples if not taken]
    few = len(clean) < min(CLEAN, iterations)
    times = sorted([us - waited if on_cpu and alone else us for us, waited, _ in samples] if few else clean)
    middle = statistics.median(times)
    quarters = statistics.quantiles(times, method="inclusive") if times[1:] else None
    return {
        "median_us": middle,
        "min_us": times[0],
        "spread": (quarters[2] - quarters[0]) / middle if quarters and middle > 0 else None,
        "samples": len(times),
        "repeated": len(samples) - len(times),
        "interrupted": few or (on_cpu and not alone and threads_waited > WAITED_SHARE * took),
    }


def replay(op: Json, bundle: Json, options: argparse.Namespace, device: torch.device) -> Json:
    """Replay one op. Return its times and the shapes of its results, or the reason why it did not run."""
    seed = (int(op["id"], 16) + options.seed) % 2**63
    tries = [(op, bundle["inputs"].get(op["id"], {}))]
    if op["id"] in bundle["instead"]:
        substitute = bundle["instead"][op["id"]]
        tries.append((substitute["op"], substitute["inputs"]))
    result: Json = {"id": op["id"], "name": op["name"], "count": op["count"], "status": "failed"}
    for candidate, inputs in tries:
        try:
            call = Call(candidate, inputs, device, seed)
            outputs = shapes(call())
            call.find_resets(candidate["name"].partition("::")[0] in OF_TORCH)
            synchronize = getattr(torch, device.type).synchronize
            times = measure(call, options.iterations, synchronize, device.type == "cpu")
        except Exception as error:  # no kernel for this device, perhaps: then another op may do the same
            result.setdefault("reason", f"{type(error).__name__}: {first_line(error)}")
        else:
            result.pop("reason", None)
            via = None if candidate is op else candidate["name"]
            return {**result, "status": "replayed", "via": via, "outputs": outputs, **times}
    return result


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def recorded_text(op: Json) -> str:
    """Return the recorded mean time of one call in µs: the device time if there is any, otherwise the host time. "-" if
    not recorded.
    """
    recorded = op["recorded"]
    total = recorded.get("device_us_total") or recorded["host_us_total"]
    return f"{total / op['count']:.1f}" if total else "-"


def described(op: Json) -> str:
    metas = [meta for arg in op["args"] for meta in arg.get("tensors", ()) if meta]
    return " ".join(f"{meta['dtype']}[{','.join(map(str, meta['shape']))}]" for meta in metas)[:60]


HEAD = f"{'id':12}  {'count':>6}  {'recorded us':>12}  {'median us':>12}   {'min us':>12}  {'spread':>6}  op"
"""Table header. "spread" is the interquartile range of the samples divided by their median. A * means that other
programs took CPUs during the samples.
"""


def row(op: Json, result: Json) -> str:
    """Return a line of the table: recorded time, measured times, and what ran."""
    times = f"{'failed':>12}   {'':12}  {'':6}"
    if result["status"] == "replayed":
        spread = f"{100 * result['spread']:.0f} %" if result["spread"] is not None else "-"
        mark = "*" if result["interrupted"] else " "
        times = f"{result['median_us']:12.1f}{mark}  {result['min_us']:12.1f}  {spread:>6}"
    said = f"via {result['via']}" if result.get("via") else result.get("reason", "")
    what = f"{op['name']}  {described(op)}  {said}".rstrip()
    return f"{op['id']}  {op['count']:6}  {recorded_text(op):>12}  {times}  {what}"


def idle_processors(look_s: float = 0.2) -> float | None:
    """Return how many of the CPUs available to this process are idle (proc(5), /proc/stat). None if the system does not
    report it.
    """

    def ticks() -> tuple[int, int]:
        mine = {f"cpu{index}" for index in os.sched_getaffinity(0)}
        rows = [line.split() for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()]
        numbers = [[int(n) for n in row[1:9]] for row in rows if row and row[0] in mine]
        return sum(row[3] + row[4] for row in numbers), sum(map(sum, numbers))

    try:
        idle, total = ticks()
        time.sleep(look_s)
        later, whole = ticks()
    except (OSError, AttributeError, ValueError):
        return None
    return len(os.sched_getaffinity(0)) * (later - idle) / (whole - total) if whole > total else None


def threads_to_use(wanted: int, idle: float | None) -> int:
    """Return the number of threads to use. If `wanted` is positive, it is `wanted`.

    Otherwise it is torch's default, halved until it fits into the idle CPUs. Threads that wait for a CPU would distort
    times.
    """
    if wanted > 0:
        return wanted
    threads = torch.get_num_threads()
    while idle is not None and threads > 1 and idle < 0.9 * threads:
        threads //= 2
    return threads


def opened(name: str, threads: int = 0) -> torch.device:
    """Return the device after checking that it works. Raises an exception of NO_DEVICE."""
    if threads:
        torch.set_num_threads(threads)
    if name.partition(":")[0] == "npu":
        importlib.import_module("torch_npu")  # torch knows no npu before
    torch.set_grad_enabled(False)
    device = torch.device(name)
    if device.index is not None and device.type != "cpu":
        getattr(torch, device.type).set_device(device)
    getattr(torch, device.type).synchronize()
    torch.empty(1, device=device).fill_(0)
    return device


def replay_here(plan: Json, options: argparse.Namespace) -> Iterator[Json]:
    """Yield the result of each op, replayed in this process. Raises an exception of NO_DEVICE."""
    device = opened(options.device, options.threads)
    yield from (replay(op, plan["bundle"], options, device) for op in plan["ops"])


def serve(theirs: Any, mine: Any, plan: Json, options: argparse.Namespace, first: int) -> None:
    """Run the child process, which replays ops from number `first` on. If an op takes too long, the operating system
    ends the process.
    """
    theirs.close()  # else it would not end with the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    os.dup2(2, 1)  # what an op prints is no result
    try:
        device = opened(options.device, options.threads)
    except NO_DEVICE as error:
        mine.send_bytes(first_line(error).encode() or b"it failed")
        return
    mine.send_bytes(b"")
    for op in plan["ops"][first:]:
        signal.setitimer(signal.ITIMER_REAL, options.time_limit)
        mine.send_bytes(json.dumps(replay(op, plan["bundle"], options, device)).encode())


def started(plan: Json, options: argparse.Namespace, first: int) -> tuple[Any, Any]:
    """Start a child process; return it and the channel to it. Raises an exception of NO_DEVICE."""
    channel, theirs = FORK.Pipe()
    child = FORK.Process(target=serve, args=(channel, theirs, plan, options, first), daemon=True)
    child.start()
    theirs.close()
    if problem := channel.recv_bytes():
        raise RuntimeError(problem.decode())
    return child, channel


def replay_in_child(plan: Json, options: argparse.Namespace) -> Iterator[Json]:
    """Yield the result of each op, replayed in a child process. If an op ends the child, only that op fails."""
    running: tuple[Any, Any] | None = None
    for number, op in enumerate(plan["ops"]):
        child, channel = running = running or started(plan, options, number)
        try:
            yield json.loads(channel.recv_bytes())
        except (EOFError, OSError):
            child.join()
            late, running = child.exitcode == -signal.SIGALRM, None
            why = (
                f"no result after {options.time_limit:g} s"
                if late
                else f"its process ended with exit code {child.exitcode}"
            )
            yield {"id": op["id"], "name": op["name"], "count": op["count"], "status": "failed", "reason": why}


def asked() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Parse the command line; return the parser, for errors, and the options."""
    parser = argparse.ArgumentParser(description="Replay ops.json with random inputs of the recorded shapes.")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, npu, ... (default: cpu)")
    parser.add_argument("--iterations", type=int, default=20, help="samples per op (default: 20)")
    parser.add_argument("--op", default="", help="only ops with this text in their name, or with this id")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs' values (default: 0)")
    parser.add_argument(
        "--threads", type=int, default=0, help="CPU threads that an op may use (default: as many as are idle)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=60.0,
        help="time limit of an op in seconds; 0: no limit and no child process",
    )
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="NS=MODULE",
        help="import MODULE, which defines the ops of namespace NS; repeatable",
    )
    options = parser.parse_args()
    imported(parser, options.imports)
    if options.iterations < 1:
        parser.error("--iterations must be at least 1")
    return parser, options


def facts_of(results: list[Json], options: argparse.Namespace, idle: float | None) -> Json:
    return {
        "torch": torch.__version__,
        "device": options.device,
        "threads": options.threads or None,
        "idle_processors": idle,
        "seed": options.seed,
        "results": results,
    }


def conclude(results: list[Json], options: argparse.Namespace, idle: float | None, threads: int) -> None:
    """Print how many ops were replayed on which device, and any reasons to doubt their times."""
    failed = sum(result["status"] == "failed" for result in results)
    on = f" with {options.threads} thread{'s' if options.threads > 1 else ''}" if options.threads else ""
    print(f"replayed {len(results) - failed} of {len(results)} ops on {options.device}{on}, torch {torch.__version__}")
    if idle is not None and idle < max(1.0, 0.9 * threads):
        print(f"only {idle:.1f} processors were idle at the start: times on a busy machine may differ in the next run")
    marked = sum(bool(result.get("interrupted")) for result in results)
    if marked:
        ops = f"{marked} op{'s' if marked > 1 else ''}"
        print(f"* {ops}: other programs took processors away in most samples; times may be far too long")


def loaded(parser: argparse.ArgumentParser, name: str) -> Json:
    """Load the plan with the ops whose name contains `name` or whose id starts with it. Also load the plugins of these
    ops.
    """
    folder = Path(__file__).resolve().parent
    plan = json.loads((folder / "ops.json").read_text(encoding="utf-8"))
    plugins_loaded(folder, plan["bundle"].get("executors", {}), plan["bundle"].get("namespaces", {}))
    plan["ops"] = [op for op in plan["ops"] if name in op["name"] or op["id"].startswith(name)]
    if not plan["ops"]:
        parser.error(f"no op matches {name!r}")
    return plan


def main() -> int:
    parser, options = asked()
    plan = loaded(parser, options.op)
    idle, threads = None, torch.get_num_threads()
    if options.device == "cpu":
        idle = idle_processors()
        options.threads = threads_to_use(options.threads, idle)
    replay_ops = replay_in_child if options.time_limit > 0 and FORK else replay_here
    replayed, results = replay_ops(plan, options), []
    for op in plan["ops"]:
        try:
            result = next(replayed)
        except NO_DEVICE as error:
            parser.error(f"no device {options.device!r} here: {first_line(error)}")
        results.append(result)
        if not options.json:
            if not results[1:]:
                print(HEAD)
            print(row(op, result), flush=True)
    if options.json:
        print(json.dumps(facts_of(results, options, idle), indent=1))
    else:
        conclude(results, options, idle, threads)
    return int(any(result["status"] == "failed" for result in results))


if __name__ == "__main__":
    sys.exit(main())
