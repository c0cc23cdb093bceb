"""Table-batched lookups: each table gets its share of the weights, and every index is a row of its own table."""

from __future__ import annotations

import pytest
import torch

from opreplay.initializers.base import InitContext, InitializerError
from opreplay.initializers.rules.embedding_tables import TableBatchedInit
from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.tables.reference_tables import lookup


def arguments(tables: int, batch: int, bag: int, weights: int, total: int) -> dict[str, object]:
    long = torch.int64
    return {
        "dev_weights": torch.randn(weights),
        "weights_placements": torch.full((tables,), 7, dtype=torch.int32),
        "weights_offsets": torch.full((tables,), 99, dtype=long),
        "D_offsets": torch.full((tables + 1,), 99, dtype=torch.int32),
        "total_D": total,
        "hash_size_cumsum": torch.full((tables + 1,), 99, dtype=long),
        "indices": torch.full((tables * batch * bag,), 10**6, dtype=long),
        "offsets": torch.full((tables * batch + 1,), 10**6, dtype=long),
        "pooling_mode": 0,
    }


def initialized(args: dict[str, object]) -> dict[str, object]:
    generator = torch.Generator().manual_seed(3)
    op = "fbgemm::dense_embedding_codegen_lookup_function"
    TableBatchedInit().initialize(InitContext(op=op, args=args, metas={}, generator=generator, seed=3))
    return args


@pytest.mark.parametrize(("tables", "total"), [(1, 96), (3, 48), (5, 148), (2, 7)])
def test_the_lookup_reads_rows_of_every_table(tables: int, total: int) -> None:
    made = initialized(arguments(tables, batch=6, bag=4, weights=20_000, total=total))
    starts, hashes = made["D_offsets"].tolist(), made["hash_size_cumsum"].tolist()  # type: ignore[attr-defined]
    assert starts[0] == 0
    assert starts[-1] == total
    begins = made["weights_offsets"].tolist()  # type: ignore[attr-defined]
    for t in range(tables):
        width, rows = starts[t + 1] - starts[t], hashes[t + 1] - hashes[t]
        assert width > 0
        assert begins[t] + rows * width <= (begins[t + 1] if t + 1 < tables else 20_000)
        own = made["indices"][t * 24 : (t + 1) * 24]  # type: ignore[index]
        assert 0 <= int(own.min()) <= int(own.max()) < rows
    names = ("dev_weights", "weights_offsets", "D_offsets", "total_D", "hash_size_cumsum", "indices", "offsets")
    given = {name.removeprefix("dev_"): made[name] for name in names}
    out = lookup(Call(**given, pooling_mode=0, indice_weights=None))
    assert out.shape == (6, total)
    assert bool((out != 0).any(0).all()), "every column comes from a table"


def test_weights_too_few_for_a_row_of_each_table_are_an_error() -> None:
    with pytest.raises(InitializerError, match="too few"):
        initialized(arguments(2, batch=2, bag=1, weights=30, total=64))
