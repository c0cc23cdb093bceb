"""Models of a config file: what they are called with."""

from __future__ import annotations

from typing import Any

import pytest

from opreplay.replay.capture.from_config import cache_inputs


class Newer:
    def forward(self, input_ids: Any, cache: Any = None, use_cache: bool = False, logits_to_keep: int = 0) -> Any: ...


class Older:
    def forward(self, input_ids: Any, past_key_values: Any = None, **others: Any) -> Any: ...


@pytest.mark.parametrize(("model", "name"), [(Newer(), "cache"), (Older(), "past_key_values")])
def test_the_cache_is_named_as_the_model_names_it(model: Any, name: str) -> None:
    cache = object()
    assert cache_inputs(model, cache) == {name: cache, "use_cache": True, "logits_to_keep": 1}
