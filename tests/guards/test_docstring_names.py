"""A name in backticks in a docstring is a name of the source: modules move, and prose must move with them."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.guards.conftest import Source

pytestmark = pytest.mark.slow

QUOTED = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
"""One name, perhaps with dots and empty brackets, in single backticks."""
HEAD = 3
"""Lines of a file in which the docstring of a module begins."""
WORD = re.compile(r"\w+")
OF_OTHERS = frozenset(
    {
        "CollectiveCommType",  # Chakra, as the next
        "AttributeProto",
        "GlobalMetadata",
        "IOInfo",
        "data_deps",
        "NAME.0.et",
        "FunctionSchema",  # torch, as the next
        "accumulate",
        "inference",
        "bfloat16",
        "c10d",
        "custom_op",
        "fft_norm_mode",
        "isTensorSubclassLike",
        "record_function",
        "record_param_comms",
        "wait_tensor",
        "_default_to_fused_or_foreach",
        "numpy.ma",
        "numpy.typing",
        "HFP8",  # FBGEMM
        "aiv_icache_miss_rate",  # msprof
        "contextvars",
        "capture_32_FULL",  # vLLM, as the next
        "capture_8192_PIECEWISE",
        "cuda_stream",  # flashinfer, as the next
        "enable_pdl",
        "q_len",  # keys of attrs, as the next
        "kv_len",
        "event_replay_ir.json",  # TraceLens
        "confidence_SOC",
        "simulated_us_SOC",
        "since_YYYYMMDD",
    }
)
"""Names of other projects, and patterns of names, that the source speaks of and does not use."""


def docstrings(nodes: Sequence[ast.AST]) -> Iterator[ast.Constant]:
    """Docstrings of a module, its classes, functions and variables."""
    for node in nodes:
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def words(nodes: Sequence[ast.AST]) -> set[str]:
    """All names and the words of all strings in a file, docstrings apart."""
    prose = {id(text) for text in docstrings(nodes)}
    names: set[str] = set()
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names |= {*name.split("."), other or name}
            case ast.Constant(value=str(text)) if id(node) not in prose:
                names |= set(WORD.findall(text))
            case _:
                pass
    return names


def declared(nodes: Sequence[ast.AST]) -> set[str]:
    """Functions, classes, parameters, fields and other assigned names of a file."""
    names: set[str] = set()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    return names


def unknown(sources: Sequence[Source]) -> list[str]:
    """Where a docstring names what nothing declares; below the head of a module any word of a string counts too."""
    known = {part for source in sources for part in source.module.split(".")} | set(dir(builtins)) | set(keyword.kwlist)
    nodes_of = [list(ast.walk(source.tree)) for source in sources]
    known |= {name for nodes in nodes_of for name in declared(nodes)} | OF_OTHERS
    words_of = [words(nodes) for nodes in nodes_of]
    spoken = set().union(*words_of)
    problems: list[str] = []
    for source, nodes, here in zip(sources, nodes_of, words_of, strict=True):
        for text in docstrings(nodes):
            also = here if text.lineno <= HEAD else spoken
            for name in QUOTED.findall(str(text.value)):
                if name not in OF_OTHERS and not all(part in known or part in also for part in name.split(".")):
                    problems.append(f"{source.path}:{text.lineno}: `{name}` is no name of the source")
    return problems


def test_names_in_docstrings_exist(sources: Sequence[Source]) -> None:
    assert not (problems := unknown(sources)), "\n".join(problems)


@pytest.mark.parametrize(("name", "problems"), [("there", 0), ("moved_away", 1), ("there.moved_away", 1)])
def test_a_name_that_is_gone_is_found(name: str, problems: int) -> None:
    text = f'def there() -> None:\n    """As `{name}` says."""\n'
    source = Source(path=Path("example.py"), module="example", text=text, tree=ast.parse(text))
    assert len(unknown([source])) == problems
