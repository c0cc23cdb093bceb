# pyright: strict
"""Writes the three files of a bundle into a folder or a zip archive, and checks where they may be written."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from opreplay.replay.export.bundle import Bundle
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.sizes import tensors_of
from opreplay.traces.errors import UsageError
from opreplay.traces.names import plural

NAMES = ("ops.json", "replay.py", "README.md")
SCRIPT = Path(__file__).with_name("script.py")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time stamp of the files in an archive, constant so that equal bundles have equal bytes."""
SHOWN = 200
"""Maximum number of ops listed in the README; ops.json has all of them."""


def check_target(path: Path, *, force: bool) -> None:
    """Raise UsageError if the bundle may not be written, because the archive exists or the folder is not empty."""
    hint = "Name another file or folder, or overwrite the bundle's files with --force."
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}", hint="Name a file or folder in an existing folder.")
    if path.suffix.lower() == ".zip":
        if path.is_dir():
            raise UsageError(f"{path} is a folder", hint="Name a file.")
        if path.exists() and not force:
            raise UsageError(f"{path} exists", hint=hint)
    elif path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file", hint="Name a folder, or a file that ends in .zip.")
    elif path.is_dir() and any(path.iterdir()) and not force:
        raise UsageError(f"{path} is not empty", hint=hint)


def write_bundle(bundle: Bundle, path: Path, *, force: bool = False) -> None:
    """Write a bundle into a folder or into a .zip archive: ops.json, replay.py, README.md and the plugins' files.

    Raises UsageError in the same cases as `check_target`, and if a file cannot be written.
    """
    check_target(path, force=force)
    texts = (
        dict(zip(NAMES, (bundle.to_json(), SCRIPT.read_bytes(), readme(bundle).encode()), strict=True)) | bundle.files
    )
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, text in texts.items():
                    entry = zipfile.ZipInfo(f"{path.stem}/{name}", _EPOCH)
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                    archive.writestr(entry, text)
            return
        path.mkdir(exist_ok=True)
        if bundle.files:
            (path / "plugins").mkdir(exist_ok=True)
        for name, text in texts.items():
            (path / name).write_bytes(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Check the folder and its permissions."
        ) from None


def readme(bundle: Bundle) -> str:
    """Return the README: what the bundle is, how to run it, and which ops it contains and leaves out."""
    ops = bundle.plan.ops
    op_count = plural(len(ops), "op")
    parts = [
        "# Ops to replay\n",
        f"`replay.py` replays the {op_count} of `ops.json`, one by one, with random inputs of the recorded\n"
        "shapes, strides and types, and prints the median time of each. It needs Python 3.10 or newer and PyTorch,\n"
        "nothing else.\n",
        "```console\n$ python replay.py --device cuda\n$ python replay.py --op aten::mm --iterations 50 --json\n```\n",
        "Times are of one call, host and device together, in microseconds. The exit code is 1 when an op failed.\n"
        "An op that takes longer than `--time-limit` seconds (60) is given up.\n"
        "`ops.json` is also a plan: `opreplay run ops.json` measures and predicts the same ops.\n",
        "## Ops\n",
        "| id | calls | recorded µs a call | op | tensors | assumed |\n|---|---:|---:|---|---|---|",
        *map(_row, ops[:SHOWN]),
    ]
    if bundle.executors:
        named = _listed(bundle.files)
        parts.append(f"\n{len(bundle.executors)} of these ops are run by functions of {named}, which the script loads.")
    if bundle.namespaces:
        whose, named = _listed(bundle.namespaces), _listed(bundle.namespaces.values())
        parts.append(f"\nOps of {whose} are defined by {named}, which the script loads.")
    if len(ops) > SHOWN:
        parts.append(f"\nand {len(ops) - SHOWN} more in `ops.json`.")
    if bundle.instead:
        named = _listed(op.name for op in ops if op.id in bundle.instead)
        parts.append(f"\nIf the device has no kernel for these ops, the script calls others and says so: {named}.")
    if elsewhere := _listed(op.name for op in ops if op.resolved_by == "equivalent" and op.id not in bundle.instead):
        parts.append(f"\nThese ops run only where torch has a kernel for them: {elsewhere}.")
    if bundle.left_out:
        parts += ["\n## Left out\n", *left_out_lines(bundle, private=not bundle.keeps_names)]
    return "\n".join(parts) + "\n"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(set(names)))


def left_out_lines(bundle: Bundle, *, private: bool) -> list[str]:
    """Return one line for each pair of op name and reason among the ops left out of the bundle. With `private`, names
    that may reveal the model are hidden.
    """
    groups: Counter[tuple[str, str]] = Counter()
    for op in bundle.left_out:
        named = not private or op.is_public
        groups[op.name if named else "ops of other names", bundle.why(op) if private else op.reason] += 1
    return [f"* {count} × {_cell(name)}: {_cell(why)}" for (name, why), count in groups.most_common()]


def _row(op: ReplayOp) -> str:
    recorded = op.recorded
    time_us = (recorded.device_us_total or recorded.host_us_total) / op.count
    shown = f"{time_us:.1f}" if time_us else "–"
    tensors = " ".join(f"{meta.dtype}[{','.join(map(str, meta.shape))}]" for meta in tensors_of(op))
    notes = "; ".join(f"{note.argument}: {note.what}" for note in op.assumptions)
    return f"| {op.id} | {op.count} | {shown} | {_cell(op.name)} | {_cell(tensors[:80])} | {_cell(notes[:160])} |"


def _cell(text: str) -> str:
    """Return the text without characters that Markdown or a terminal would interpret."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
