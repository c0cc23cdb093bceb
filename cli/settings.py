# pyright: strict
"""Read options from `opreplay.toml` or `[tool.opreplay]` in pyproject.toml.

This module finds and checks the file and passes its options to click. It decides which file is used, what the names in
it mean, and which options only a file trusted by the user may set. Each option checks its own values. The command line
takes precedence.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import click

from opreplay.cli.options.types import Assignments, ByteSize, FileName, SocName

if TYPE_CHECKING:
    from opreplay.traces.errors import UsageError

OWN, SHARED = "opreplay.toml", "pyproject.toml"
NONE = "none"
"""Value of --config that disables options files."""
MOST_BYTES = {OWN: 16 << 10, SHARED: 256 << 10}
"""Name of an options file → maximum size in bytes. A file of any other name has the limit of `OWN`."""
PER_PROCESSOR = 4
"""Maximum number of threads or processes that an untrusted options file may request for each processor."""
LONGEST_S = 60.0
"""Maximum time per op or case that an untrusted options file may set, in seconds."""
_PARALLEL = frozenset({"threads", "workers", "ranks"})
_PER_OP = frozenset({"op_time", "speed_time"})
_SIZES = frozenset({"batch", "context", "world_size", "cores"}) | {
    f"{kind}_parallel" for kind in ("expert", "tensor", "pipeline")
}
MOST_DEVICE_BYTES = 1 << 20
"""Maximum device file size in bytes: a copy of `devices.file.MAX_FILE_BYTES`, whose module is slow to import."""
MOST_SIZE = 1 << 24
"""Largest size or count of a simulated step that an untrusted options file may set."""
_SHOWN = 200
"""Maximum number of characters that a message quotes from the file."""
_NO_OPTIONS = frozenset({"help", "version", "config", "set"})
SETS = "Write each setting by its own name: op_time = 0.5 instead of set = ['op_time=0.5']."
_WORD = re.compile(r"[A-Z]+")
_SUFFIX = re.compile(r"\.[a-z]")
_REACHING = frozenset({"FILE", "FOLDER", "DIR", "MODULE", "TRACE", "ADDRESS", "SIZE"}) | {
    "allow",
    "force",
    "overwrite",
    "trust",
    "limit",
    "keep",
    "real",
}
"""If an option has one of these words in its metavar or flag, only a trusted file may set it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked contents of an options file; empty if there is no file."""

    path: Path | None = None
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Command → parameter → value, in the form of click's `default_map`."""
    places: tuple[tuple[str, str, str], ...] = ()
    """(name as written in the file, value, file) of each setting."""
    used: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Command → settings that apply to it, as written in the file."""
    untrusted: Mapping[str, str] = field(default_factory=dict[str, str])
    """Setting, as in an untrusted file, that needs trust → why its value needs trust; "" if every value does."""
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    """Setting, as written in an untrusted file, that names a device file → why the device file cannot be read."""
    problem: str = ""
    """Reason why the options file is invalid. Some commands report it and continue."""


def find_file(start: Path) -> Path | None:
    """Return the nearest options file in `start` or its parents.

    The search ends at a repository's root, the home folder or the root folder. Raises UsageError if a folder has two
    files with options, and for a file of another user.
    """
    home = Path(os.path.expanduser("~"))
    for folder in (start, *start.parents):
        own_file, shared_file = folder / OWN, folder / SHARED
        files = [path for path in (own_file, shared_file) if path.is_file() and (path is own_file or _speaks(path))]
        if len(files) > 1:
            raise _wrong(
                f"{own_file} and {shared_file} both have options", "Keep the options in only one of the files."
            )
        if files:
            return _own(files[0])
        if folder == home or (folder / ".git").exists():
            return None
    return None


def irregular_file(start: Path, found: Path | None) -> Path | None:
    """Return the nearest `opreplay.toml` that is ignored because it is a folder, pipe or device; None if there is none.

    The search covers the folders that `find_file` searches. It ends at the folder of `found`, the result of
    `find_file`.
    """
    home = Path(os.path.expanduser("~"))
    for folder in (start, *start.parents):
        path = folder / OWN
        if os.path.lexists(path) and not path.is_file():
            return path
        if folder == home or (found is not None and folder == found.parent) or (folder / ".git").exists():
            return None
    return None


def _own(path: Path) -> Path:
    """Return the path. Raises UsageError unless the file belongs to the current user or root."""
    owner = path.stat().st_uid
    if owner not in (os.getuid(), 0):
        raise _wrong(f"{path} belongs to another user", f"Name it with --config, or give --config {NONE}.")
    return path


def _speaks(path: Path) -> bool:
    try:
        with path.open("rb") as file:  # a regular file, as `find_file` knows
            return b"tool.opreplay" in file.read(MOST_BYTES[SHARED] + 1)
    except OSError:
        return False


def read_settings(path: Path, commands: Mapping[str, click.Command], *, named: bool = True) -> Settings:
    """Return the settings of a file for the existing commands.

    `named` means that the user named the file. Any other file must be trusted for all its settings to be used. Raises
    UsageError for an unreadable file, unknown options or commands, and values of a wrong type.
    """
    content = content_of(path)
    table = _table(path, content)
    trusted = named or is_trusted(path, content)
    untrusted: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    values: dict[str, dict[str, Any]] = {}
    places: list[tuple[str, str, str]] = []
    used: dict[str, tuple[str, ...]] = {}
    for written, value, options in _assigned(path, table, commands):
        for command, option in options.items():
            _take(values, path, command, option, value, written)
            used[command] = (*used.get(command, ()), written)
            if trusted:
                continue
            placed = values[command][option.name or ""]
            why = excess_of(option, placed, path.parent)
            if why or needs_trust(option):
                untrusted[written] = why
            elif isinstance(option.type, SocName) and (problem := _unreadable(placed)):
                unreadable[written] = problem
        places.append((written, _shown(value), str(path)))
    return Settings(
        path=path, values=values, places=tuple(places), used=used, untrusted=untrusted, unreadable=unreadable
    )


def _assigned(
    path: Path, table: Mapping[str, Any], commands: Mapping[str, click.Command]
) -> Iterator[tuple[str, Any, dict[str, click.Option]]]:
    """Yield each setting of a file: (its name, its value, {command: the option it sets there}).

    Raises UsageError for unknown names.
    """
    known = {name: _options(command) for name, command in commands.items()}
    everywhere = sorted({flag for options in known.values() for flag in options})
    for name, value in table.items():
        if isinstance(value, dict) and name in known:
            for flag, inner in cast("dict[str, Any]", value).items():
                if flag not in known[name]:
                    raise _unknown(path, f"{name} has no option {flag!r}", flag, sorted(known[name]))
                yield f"{name}.{flag}", inner, {name: known[name][flag]}
        elif name in everywhere:
            having = {command: options[name] for command, options in known.items() if name in options}
            yield name, value, {command: having[command] for command in having if name not in table.get(command, {})}
        else:
            if name in known:
                raise _wrong(
                    f"{path}: {name} is a command, but its value is not a table of options",
                    f"Write the command's options in one table [{name}].",
                )
            what = f"there is no command {name!r}" if isinstance(value, dict) else f"no command has an option {name!r}"
            raise _unknown(path, what, name, [*known, *everywhere])


def needs_trust(option: click.Option) -> bool:
    """Check whether only a trusted file may set an option, because it affects more than the numbers of a run.

    These options name code, files or machines, overwrite files, or raise limits that protect against hostile files.
    Options for simulated devices are exempt: devices are data, which is checked.
    """
    if isinstance(option.type, SocName):
        return False
    words = set(_WORD.findall(option.metavar or "")) | {word for flag in option.opts for word in flag.split("-")}
    named = isinstance(option.type, FileName | Assignments | ByteSize) or _SUFFIX.search(option.metavar or "")
    return bool(named or words & _REACHING)


def refuse_untrusted(settings: Settings, command: str) -> None:
    """Raise UsageError if a command would use an unreadable device file, or an untrusted setting that needs trust."""
    used, reasons = settings.used.get(command, ()), settings.untrusted
    unreadable = next((f"{name}: {settings.unreadable[name]}" for name in used if name in settings.unreadable), None)
    if unreadable is not None:
        raise _wrong(
            f"{settings.path}: {unreadable}",
            "A device file must be a regular file in the folder of the options file, or below it.",
        )
    wrong = [f"{name} ({reasons[name]})" if reasons[name] else name for name in used if name in reasons]
    if wrong:
        raise _wrong(
            f"{settings.path} was found automatically and sets {', '.join(wrong)}, which only a trusted file may set",
            f"Read the file, then run: opreplay trust {settings.path}. Or ignore the file: opreplay --config {NONE} "
            f"{command} ...",
        )


def excess_of(option: click.Option, value: Any, folder: Path) -> str:
    """Return why a value in an untrusted file needs trust although its option does not; "" if it needs no trust.

    A value needs trust if it names a file outside `folder`, asks for more threads or processes than the machine can run
    well, or makes a run very long or large.
    """
    texts = [str(text) for text in cast("list[Any]", value)] if isinstance(value, list) else [str(value)]
    if isinstance(option.type, SocName) or option.name == "init_arg":
        files = texts if isinstance(option.type, SocName) else [text.partition("=")[2] for text in texts]
        outside = next((file for file in files if _is_outside(file, folder)), None)
        return "" if outside is None else f"{outside[:_SHOWN]} is a file outside of {folder}"
    converted = option.type_cast_value(click.Context(click.Command("")), value)
    if option.name in _PARALLEL and not option.is_flag and converted > (most := PER_PROCESSOR * (os.cpu_count() or 1)):
        return f"{converted:,} is more than {most} ({PER_PROCESSOR} per processor)"
    if option.name in _PER_OP and converted > LONGEST_S:
        return f"{converted:g} s is more than {LONGEST_S:g} s"
    if option.name in _SIZES and converted > MOST_SIZE:
        return f"{converted:,} is more than {MOST_SIZE:,}"
    return ""


def _unreadable(value: Any) -> str:
    """Return why one of the given device files cannot be read; "" if all can be read. Device names are not checked."""
    from opreplay.traces.folders import open_regular

    names = cast("list[Any]", value) if isinstance(value, list) else [value]
    for name in map(str, names):
        if os.sep in name or name.endswith(".toml"):
            try:
                open_regular(name, MOST_DEVICE_BYTES).close()
            except OSError as error:
                return f"cannot read {name[:_SHOWN]}: {error.strerror}"
    return ""


def _is_outside(text: str, folder: Path) -> bool:
    """Check whether a text may be the name of a file outside a folder. Links are resolved first."""
    if os.sep not in text and not text.lower().endswith(".toml") and not os.path.lexists(text):
        return False
    from opreplay.traces.folders import is_inside

    try:
        return not is_inside(os.path.realpath(text), (os.path.realpath(folder),))
    except (OSError, ValueError):
        return True


def content_of(path: Path) -> bytes:
    """Return the contents of an options file. Raises UsageError if it cannot be read or is too large."""
    from opreplay.traces.folders import read_regular

    try:
        return read_regular(path, MOST_BYTES.get(path.name, MOST_BYTES[OWN]))
    except OSError as error:
        raise _wrong(f"cannot read {path}: {error.strerror}", f"Name a file of options, or {NONE}.") from None


def _table(path: Path, content: bytes) -> dict[str, Any]:
    from opreplay.traces.toml_text import parse_toml

    try:
        table: Any = parse_toml(content)
    except ValueError as error:
        raise _wrong(f"{path} is not valid TOML: {error}", "Options are written like soc = ['910b3'].") from None
    for key in ("tool", "opreplay") if path.name == SHARED else ():
        table = cast("dict[str, Any]", table).get(key, {})
        if not isinstance(table, dict):
            raise _wrong(f"{path}: {key} is not a table", "Write the options below [tool.opreplay].")
    return _dashed(path, cast("dict[str, Any]", table))


def _dashed(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with names written like flags: `op_time`, the form for --set, becomes `op-time`.

    Raises UsageError if a name occurs in both forms.
    """
    names = [name.replace("_", "-") for name in table]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise _wrong(f"{path}: {twice[:_SHOWN]} is given twice", "Write it once, with - or with _.")
    values = (
        _dashed(path, cast("dict[str, Any]", value)) if isinstance(value, dict) else value for value in table.values()
    )
    return dict(zip(names, values, strict=True))


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by flag, without the leading dashes."""
    by_flag: dict[str, click.Option] = {}
    for option in command.params:
        if isinstance(option, click.Option):
            for flag in option.opts:
                if flag.startswith("--") and flag[2:] not in _NO_OPTIONS:
                    by_flag[flag[2:]] = option
    return by_flag


def _take(
    values: dict[str, dict[str, Any]], path: Path, command: str, option: click.Option, value: Any, written: str
) -> None:
    """Add a value to `values`, from which click takes it. Raises UsageError if the option does not accept the value."""
    texts = _texts(value, option)
    hint = f"Write the value as for --{written.rpartition('.')[2]} of `opreplay {command}`."
    if texts is None:
        kind = (
            "true or false" if option.is_flag else "a list, text or number" if option.multiple else "a text or number"
        )
        raise _wrong(
            f"{path}: {written} = {_shown(value)} is not {kind}", f"Write the value as for --{written.split('.')[-1]}."
        )
    placed = [_placed(text, option, path.parent) for text in texts] if isinstance(texts, list) else texts
    option_value = placed if option.is_flag or option.multiple else cast("list[Any]", placed)[0]
    try:
        option.type_cast_value(click.Context(click.Command(command)), option_value)
    except click.BadParameter as error:
        raise _wrong(f"{path}: {written}: {_shown(error.message)}", hint) from None
    except (ValueError, OverflowError) as error:
        raise _wrong(f"{path}: {written}: {_shown(error)}", hint) from None
    assert option.name is not None
    values.setdefault(command, {})[option.name] = option_value


def _texts(value: Any, option: click.Option) -> bool | list[Any] | None:
    """Return the value of a flag, or the list of values of another option; None if the type is wrong."""
    if option.is_flag:
        return value if isinstance(value, bool) else None
    if isinstance(value, dict) and option.multiple:
        return [f"{name}={item}" for name, item in cast("dict[str, Any]", value).items()]
    if isinstance(value, list) and option.multiple:
        items = cast("list[Any]", value)
        return items if all(map(_is_plain, items)) else None
    return [value] if _is_plain(value) else None


def _is_plain(value: Any) -> bool:
    """Check whether a value is a string or a finite number."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _placed(value: Any, option: click.Option, folder: Path) -> Any:
    """Resolve a file name relative to the folder of the options file, if the file exists there."""
    metavar = option.metavar or ""
    if isinstance(value, str) and ("FILE" in metavar or "FOLDER" in metavar) and os.path.exists(folder / value):
        return str(folder / value)
    return value


def _shown(value: Any) -> str:
    """Return a value as text for a message; the middle of a long text is left out."""
    text = ", ".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}"


def is_usage_error(error: Exception) -> TypeGuard[UsageError]:
    """Check whether an error while reading an options file was caused by the user (UsageError)."""
    from opreplay.traces.errors import UsageError

    return isinstance(error, UsageError)


def _wrong(message: str, hint: str) -> UsageError:
    from opreplay.traces.errors import UsageError

    return UsageError(message, hint=hint)


def _unknown(path: Path, what: str, name: str, known: list[str]) -> UsageError:
    if name in _NO_OPTIONS:
        hint = SETS if name == "set" else f"Give --{name} on the command line only."
        return _wrong(f"{path}: {what[:_SHOWN]}", hint)
    near = get_close_matches(name[:_SHOWN], known, n=1)
    return _wrong(
        f"{path}: {what[:_SHOWN]}",
        f"Did you mean {near[0]}?" if near else "Names are like the flags, without leading dashes.",
    )


def folder() -> Path:
    """Return the folder of trust marks: `opreplay/trusted` in `$XDG_STATE_HOME`, by default in `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the specification: relative ones are ignored
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "opreplay" / "trusted"


def trust(path: Path, content: bytes) -> None:
    """Record that the user trusts a file with its current contents. Raises OSError if this cannot be stored safely."""
    place = folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _private(place):
        raise PermissionError(0, "other users can write there", str(place))
    mark = os.open(place / _key(path, content), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(mark, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{path.resolve()}\n")


def is_trusted(path: Path, content: bytes) -> bool:
    """Check whether the user has trusted exactly this content at this path."""
    with suppress(OSError):
        return _private(folder()) and (folder() / _key(path, content)).is_file()
    return False


def _private(place: Path) -> bool:
    """Check that only this user can write to a folder."""
    status = place.stat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _key(path: Path, content: bytes) -> str:
    return sha256(os.fsencode(path.resolve()) + b"\0" + content).hexdigest()
