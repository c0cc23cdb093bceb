# pyright: strict
"""Configs of models, and how few of their layers tell of all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).with_name("configs")
PERIODS = {"gemma3_text": 6, "gpt_oss": 2, "qwen3_next": 4}
"""Model type → layers after which kinds of layers come again."""


def config_of(name: str) -> dict[str, Any]:
    """A config of the folder by its name."""
    return json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))


def layers_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """Two numbers of layers of which one has a whole period more: what a step gains from one to the other, all others
    bring too. Layers that come once, as dense ones before those of experts, are in both."""
    period = PERIODS.get(config["model_type"], 1)
    few = max(1, period, config.get("first_k_dense_replace", 0) + 1)
    return few, few + period
