# pyright: strict
"""Finds and reads a model's config file. It does not import torch, so that a missing file is reported immediately."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from opreplay.replay.host.needs_torch import require_torch
from opreplay.traces.errors import EnvironmentRefused, UsageError
from opreplay.traces.folders import read_regular

PREFIX = "hf:"
MAX_CONFIG_BYTES = 1 << 20
OLDEST_TRANSFORMERS = 5
"""Oldest supported major version of transformers, as in pyproject.toml."""


def config_file(text: str) -> Path:
    """Return a local file, or the config.json of a model in the hub's cache ("Qwen/Qwen2.5-0.5B"); never downloads."""
    path = Path(text)
    if path.exists() or text.count("/") != 1 or text.endswith(".json"):
        return path
    transformers_library()
    from huggingface_hub import try_to_load_from_cache  # pyright: ignore

    cached = try_to_load_from_cache(text, "config.json")
    if not isinstance(cached, str):
        raise UsageError(
            f"{text} is neither a file nor a model in the hub's cache",
            hint=f"opreplay downloads nothing: run `hf download {text} config.json`, or name a local file.",
        )
    return Path(cached)


def config_fields(path: Path) -> dict[str, Any]:
    """Return the contents of a config file, with a `model_type`. Raises UsageError for any other file."""
    try:
        fields = json.loads(read_regular(path, MAX_CONFIG_BYTES))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}",
            hint="Write hf:CONFIG.json, a local file, or a model in the hub's cache.",
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not a model config: not JSON", hint="Use the model's config.json.") from None
    known = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    if not isinstance(known.get("model_type"), str):
        raise UsageError(f"{path} is not a model config: it has no model_type", hint="Use the model's config.json.")
    return known


def transformers_library() -> Any:
    """Return the module transformers. Raises EnvironmentRefused if it is missing or too old."""
    try:
        import transformers  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        is_there = getattr(error, "name", None) != "transformers"
        why = f", which is installed and cannot be imported: {error}" if is_there else ""
        raise EnvironmentRefused(f"hf: needs transformers{why}", hint="pip install -U 'opreplay[hf]'") from None
    if int(transformers.__version__.partition(".")[0]) < OLDEST_TRANSFORMERS:
        raise EnvironmentRefused(
            f"hf: needs transformers {OLDEST_TRANSFORMERS} or newer, but {transformers.__version__} is installed",
            hint="pip install -U 'opreplay[hf]'",
        )
    if not transformers.utils.is_torch_available():  # pyright: ignore[reportPrivateImportUsage]
        require_torch()
        raise EnvironmentRefused(
            f"transformers {transformers.__version__} does not work with this torch",
            hint="Install a newer torch, or an older transformers 5.",
        )
    return transformers
