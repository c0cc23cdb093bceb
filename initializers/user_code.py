# pyright: strict
"""Run the user's files and modules, each once, and remember which option or package loaded them.

The file and module names come only from the command line or from installed plugins, never from a trace.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Loaded = TypeVar("Loaded")

PROGRAM = "this program"
"""Source of a registration that was made while no file, module or plugin was being loaded."""

_allowed: ContextVar[bool] = ContextVar("allowed", default=True)
_loaded: dict[Path, ModuleType] = {}
_digests: dict[Path, bytes | None] = {}
"""File that was run → digest of its contents."""
_sources: dict[str, str] = {}
_source = PROGRAM


def current_source() -> str:
    """Return what is being loaded, e.g. "--plugin my_ops.py"; registries store it with each entry."""
    return _source


@contextmanager
def loading(source: str) -> Generator[None, None, None]:
    """Record `source` as the origin of all registrations made inside the context.

    If contexts are nested, the outermost source counts, because it is what the user named.
    """
    global _source
    before = _source
    if before == PROGRAM:
        _source = source
    try:
        yield
    finally:
        _source = before


@contextmanager
def without_user_code() -> Generator[None, None, None]:
    """Hide installed plugins inside the context, and raise UsageError for files and modules named by the user."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


def installed(group: str) -> Sequence[EntryPoint]:
    """Return the plugins that installed packages provide in an entry point group; empty in `without_user_code`."""
    return entry_points(group) if _allowed.get() else ()


def entry_points(group: str) -> Sequence[EntryPoint]:
    """Return the entry points of a group in all installed packages.

    Importing `importlib.metadata` and reading entry points takes 0.1 s. It is done only if a package may have the
    group.
    """
    groups = _groups(tuple(sys.path))
    if groups is not None and group not in groups:
        return ()
    from importlib.metadata import entry_points as read

    return tuple(read(group=group))


@lru_cache(maxsize=4)
def _groups(path: Sequence[str]) -> frozenset[str] | None:
    """Return the names of all entry point groups of installed packages; None if some may be missing.

    Only folders in `sys.path` are searched. Packages may also be elsewhere, such as in zip files, or be known to other
    finders of Python.
    """
    if any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path):
        return None
    groups: set[str] = set()
    for folder in filter(os.path.exists, (each or "." for each in path)):
        try:
            packages = [each for each in os.listdir(folder) if each.endswith((".dist-info", ".egg-info"))]
        except OSError:
            return None
        for package in packages:
            with (
                suppress(FileNotFoundError, NotADirectoryError),
                open(os.path.join(folder, package, "entry_points.txt"), encoding="utf-8") as lines,
            ):
                groups.update(line.strip().strip("[]") for line in lines if line.startswith("["))
    return frozenset(groups)


def load_user_code(name: str, *, flag: str) -> None:
    """Run a .py file, or import a module, unless it has already been loaded.

    Raises UsageError with the flag, the file and the line if the user's code fails.
    """
    if not _allowed.get():
        raise UsageError(f"{flag} {name}: user code is not run here", hint="Leave it out.")
    try:
        with loading(f"{flag} {name}"):
            if name.endswith(".py"):
                run_file(name)
            else:
                with _found_in(Path.cwd(), name):
                    _without_libraries(lambda: importlib.import_module(name))
    except UsageError as error:
        if hint := _imported_hint(name):
            raise UsageError(error.problem, hint=hint) from error
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        place = failed_at(error)
        hint = missing_op_hint(error) or _beside_hint(name, error) or _imported_hint(name)
        raise UsageError(
            f"{flag} {name} failed: {f'{place}: ' if place else ''}{type(error).__name__}: {error}",
            hint=hint or _fallback_hint(name, error),
        ) from error


def _imported_hint(name: str) -> str:
    """Return a hint if the program has already imported this file, which made its registrations; otherwise ""."""
    if not name.endswith(".py"):
        return ""
    file = Path(name).resolve()
    for module, known in tuple(sys.modules.items()):
        origin = getattr(known, "__dict__", {}).get("__file__")
        if module != "__main__" and isinstance(origin, str) and Path(origin) == file:
            return (
                f"The program has already imported this file as {module}. Remove that import, because "
                "opreplay runs the file itself."
            )
    return ""


def _beside_hint(name: str, error: BaseException) -> str:
    """Return a hint if a missing module is in the same folder as the file that imports it; otherwise "".

    Python searches that folder only if the file is run as a script.
    """
    if not name.endswith(".py") or not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    folder, module = Path(name).resolve().parent, error.name.partition(".")[0]
    if not (folder / f"{module}.py").is_file() and not (folder / module).is_dir():
        return ""
    return f"{module} is next to {Path(name).name}, but not on Python's path: set PYTHONPATH={folder}."


def _fallback_hint(name: str, error: BaseException) -> str:
    if not name.endswith(".py"):
        return (
            "Give a .py file, a folder of .py files, or a module that Python can import or that is in "
            "the current folder."
        )
    if isinstance(error, ModuleNotFoundError):
        return f"Install {(error.name or '').partition('.')[0]}: Python cannot find it."
    return "" if Path(name).is_file() else "Give an existing .py file."


def load_entry_point(entry: EntryPoint) -> Any:
    """Load an entry point. Raises UsageError if loading fails."""
    try:
        with loading(f"entry point {entry.name} = {entry.value}"):
            return entry.load()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise UsageError(f"plugin {entry.name} = {entry.value} fails: {type(error).__name__}: {error}") from error


def run_file(path: str | Path) -> bool:
    """Run a Python file unless it ran before; return whether it ran now.

    Raises UsageError if the file has changed since it ran, and whatever the file raises.
    """
    whole = Path(path).resolve()
    if _ran(whole):
        return False
    _remember(whole, _execute(_unique_name(whole, whole.stem), whole))
    return True


def import_package(folder: str | Path) -> list[Path]:
    """Import a folder that has an __init__.py as a package; return the files that were run by this call.

    The package gets the name of the folder, by which its files can import it. If Python has another module of that
    name, it gets a unique name. Raises whatever the package raises.
    """
    init = Path(folder).resolve() / "__init__.py"
    if _ran(init):
        return []
    name = init.parent.name
    if not name.isidentifier() or not _is_free(name, init):
        name = _unique_name(init, "package")
    _remember(init, _execute(name, init))
    return [init, *_remember_parts(name)]


def import_from_package(file: str | Path) -> list[Path]:
    """Import a file of a package imported by `import_package`; return the files that were run by this call.

    Raises whatever the file raises.
    """
    whole = Path(file).resolve()
    if _ran(whole):
        return []
    package = _loaded[whole.parent / "__init__.py"].__name__
    _without_libraries(lambda: importlib.import_module(f"{package}.{whole.stem}"))
    return _remember_parts(package)


def _execute(name: str, file: Path) -> ModuleType:
    """Run a file as the module `name`, as a package if the file is an __init__.py."""
    return _without_libraries(lambda: _execute_once(name, file))


def _execute_once(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses, pickles and type hints look a module up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        _forget_module(name)
        raise
    return module


class _AbsentOp:
    """Placeholder for torch.ops.library.op. With it, user code can register for the op without the library."""

    def __init__(self, name: str) -> None:
        self._qualified_op_name = name

    def __getattr__(self, overload: str) -> _AbsentOp:
        if overload.startswith("_"):
            raise AttributeError(overload)
        return self

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError(f"{self._qualified_op_name} is not registered here")


def _without_libraries(run: Callable[[], Loaded]) -> Loaded:
    """Run user code, with placeholders for ops whose library is not installed.

    If the code fails because torch.ops.library.op is missing, it is run again with a placeholder for this op. Other ops
    get no placeholder. The user can thus register for the op without the library. Raises whatever the code raises.
    """
    absent: dict[str, _AbsentOp] = {}
    first: AttributeError | None = None
    while True:
        try:
            with _as_ops(absent):
                return run()
        except AttributeError as error:
            match = _NO_OP.search(str(error))
            name = match and f"{match['library']}::{match['op']}"
            if name is None or name in absent or len(absent) >= _MOST_ABSENT or _is_there(name):
                raise
            first = first or error
            absent[name] = _AbsentOp(name)
        except RuntimeError as error:  # as of a definition that was made before
            if first is None:
                raise
            raise first from error


_MOST_ABSENT = 100
"""Maximum number of ops without a library that one file may use. The file is run once more for each of them."""


def _is_there(op: str) -> bool:
    """Check whether the library of an op is loaded. A missing op is then misspelt or of another version."""
    import torch

    namespace = f"{op.partition('::')[0]}::"
    names = torch._C._dispatch_get_all_op_names()  # pyright: ignore[reportPrivateUsage]
    return any(name.startswith(namespace) for name in names)


@contextmanager
def _as_ops(absent: Mapping[str, _AbsentOp]) -> Generator[None, None, None]:
    """Add placeholder ops to torch.ops inside the context."""
    placed: list[tuple[Any, str]] = []
    try:
        for name, op in absent.items():
            import torch

            namespace, _, base = name.partition("::")
            library = getattr(torch.ops, namespace)
            setattr(library, base, op)
            placed.append((library, base))
        yield
    finally:
        for library, base in placed:
            delattr(library, base)


def _unique_name(file: Path, shown: str) -> str:
    """Return a module name that is unique to the file's path."""
    return f"opreplay_user_{shown}_{blake2b(bytes(file), digest_size=4).hexdigest()}"


def _is_free(name: str, init: Path) -> bool:
    """Check that no module uses the name, other than the package of this __init__.py."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None) == str(init)
    spec = importlib.util.find_spec(name)
    return spec is None or spec.origin == str(init)


def _ran(file: Path) -> bool:
    """Check whether this process ran a file.

    Raises UsageError if the file has changed since then: workers run the new version, but this process keeps the
    registrations of the earlier version.
    """
    if file in _loaded and _digests[file] not in (None, _digest(file)):
        raise UsageError(
            f"{file} has changed since this process ran it", hint="Restart Python, or the notebook's kernel."
        )
    return file in _loaded


def _digest(file: Path) -> bytes | None:
    """Return a digest of a file's contents; None if the file is not there."""
    try:
        return blake2b(file.read_bytes(), digest_size=16).digest()
    except OSError:
        return None


def _remember(file: Path, module: ModuleType) -> None:
    _loaded[file], _digests[file], _sources[str(file)] = module, _digest(file), _source


def _remember_parts(package: str) -> list[Path]:
    """Record the files of a package that were imported since the last call, and return these files."""
    files: list[Path] = []
    for name, module in tuple(sys.modules.items()):
        origin = getattr(module, "__file__", None) if name.startswith(f"{package}.") else None
        if origin is not None and (file := Path(origin).resolve()) not in _loaded:
            _remember(file, module)
            files.append(file)
    return files


def _forget_module(name: str) -> None:
    """Remove a module and its submodules from sys.modules, so that Python imports them again."""
    for known in tuple(sys.modules):
        if known == name or known.startswith(f"{name}."):
            del sys.modules[known]


@contextmanager
def _found_in(folder: Path, name: str) -> Generator[None, None, None]:
    """Let Python import a module from `folder` inside the context. The folder is searched last."""
    root = name.partition(".")[0]
    here = (folder / f"{root}.py").is_file() or (folder / root / "__init__.py").is_file()
    if not here or not root.isidentifier() or root in sys.modules or importlib.util.find_spec(root) is not None:
        yield
        return
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def user_module(path: str | Path) -> ModuleType:
    """Return the module that was made by running a file. Raises KeyError if the file was not run."""
    return _loaded[Path(path).resolve()]


def loaded_files() -> dict[str, str]:
    """Map the full path of each file that was run to the option or plugin that loaded it."""
    return dict(_sources)


def forget_loaded() -> None:
    """Allow files to run again; for tests and long-running programs that clear a registry."""
    for module in _loaded.values():
        _forget_module(module.__name__)
    _loaded.clear()
    _digests.clear()
    _sources.clear()


def place_of(function: Callable[..., Any]) -> str:
    """Return "file:line" of a function's definition."""
    code = inspect.unwrap(function).__code__ if hasattr(inspect.unwrap(function), "__code__") else None
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def redefines(function: Callable[..., Any], earlier: Callable[..., Any]) -> bool:
    """Check whether a function is a new version of an earlier one.

    It is if the same file was run again, or if a notebook cell was edited. Each edit gives a notebook cell another file
    name.
    """
    place, before = place_of(function), place_of(earlier)
    if place == before:
        return True
    files = place.rpartition(":")[0], before.rpartition(":")[0]
    return files[0] != files[1] and _qualified(function) == _qualified(earlier)


def redefines_class(kind: Any, earlier: Any) -> bool:
    """Check whether a class with a method `initialize` is a new version of an earlier one, like `redefines`."""
    if (kind.__module__, kind.__qualname__) != (earlier.__module__, earlier.__qualname__):
        return False
    method, before = place_of(kind.initialize), place_of(earlier.initialize)
    return method == before or method.rpartition(":")[0] != before.rpartition(":")[0]


def _qualified(function: Callable[..., Any]) -> tuple[str, str]:
    inner = inspect.unwrap(function)
    return getattr(inner, "__module__", ""), getattr(inner, "__qualname__", repr(inner))


def place_of_class(kind: type) -> str:
    """Return "file:line" of a class's definition, or the name of its module if no source file is found."""
    try:
        return f"{inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):
        return kind.__module__


_INSTEAD = {
    "torch_ir": "Import NodeInfo, OpNode, register_executor and register_op from opreplay.torch_ir.",
    "tensor_cast": (
        "Import OpInvokeInfo, PerformanceModel and register_op_estimator from opreplay.replay.ascend.custom, in place "
        "of tensor_cast's modules."
    ),
}
"""Missing project → what to import instead. opreplay accepts files written for the project except for this import."""
_NO_OP = re.compile(r"'_OpNamespace' '(?P<library>\w+)' object has no attribute '(?P<op>\w+)'")


def missing_op_hint(error: BaseException) -> str | None:
    """Return a hint for a missing torch.ops.library.Op or for an import of a known project that is not installed."""
    if isinstance(error, ModuleNotFoundError):
        return _INSTEAD.get((error.name or "").partition(".")[0])
    match = _NO_OP.search(str(error)) if isinstance(error, AttributeError) else None
    if match is None:
        return None
    library, op = match["library"], match["op"]
    return (
        f'Write "{library}::{op}" in place of torch.ops.{library}.{op}: a name works without the library. '
        f"Or import the package that defines {library}'s ops first."
    )


def shown_place(function: Callable[..., Any]) -> str:
    """Return "name (file.py:line)", without the folder, for results."""
    return f"{getattr(function, '__name__', 'a callable')} ({PurePath(place_of(function)).name})"


def failed_at(error: BaseException, own_files: Sequence[str] = ()) -> str:
    """Return "file:line" of the place where user code failed; "" if there is none.

    It is the innermost frame outside installed packages and `own_files`. For a syntax error, it is the location of the
    error.
    """
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    hidden = {__file__, *own_files}
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if f.filename not in hidden and "importlib" not in f.filename
    ]
    user_frames = [f for f in frames if "site-packages" not in f.filename]
    chosen = (user_frames or frames)[-1:]
    return f"{chosen[0].filename}:{chosen[0].lineno}" if chosen else ""
