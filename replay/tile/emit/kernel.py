"""Run a program once with expressions in place of numbers, and record the statements of its kernel.

Loops stay loops. The body of `steps` is run twice. Values that the second iteration takes from the first become
loop-carried values.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from opreplay.replay.tile.emit.values import (
    Block,
    DType,
    Num,
    Ref,
    Refused,
    Tile,
    Value,
    atom,
    bases_of,
    bound_of,
    enclosed,
    merged,
    plain_known,
    product,
    same,
    user_line,
    value_of,
)

Parts = tuple[Any, ...]
"""Texts and values that form an expression."""
_RESERVED = {"pid", "tl", "triton", "torch", "grid", "min", "max", "range", "float", "int"}
MOST_STATEMENTS = 4_000
MOST_FORKS = 64
"""Maximum number of branches at a branch point, and of paths through a program."""


def _is_single(size: object) -> bool:
    return isinstance(size, int) and size == 1


class Statement(msgspec.Struct):
    """An assignment of an expression to a target, or a call without a target."""

    target: Value | None
    parts: Parts
    line: tuple[str, int]


class Loop(msgspec.Struct):
    """A loop on one core; `body` may contain other loops."""

    head: str
    body: list[Node]
    line: tuple[str, int]


class Fork(msgspec.Struct):
    """A branch point of a program; each run takes one branch."""

    conditions: list[str]
    choice: int
    line: tuple[str, int]


class Choice(msgspec.Struct):
    """The branches of a condition: (condition, body), with the else branch last."""

    branches: list[tuple[str, list[Node]]]
    line: tuple[str, int]


Node = Statement | Loop | Fork | Choice


class BlockSize(msgspec.Struct):
    """The power of two used as a kernel's block size along a dimension."""

    name: str
    size: str
    """Minimum of the block size, as an expression known to the launcher."""
    least: int = 1


class Kernel(msgspec.Struct):
    """The recorded statements of one run of a program."""

    statements: list[Node] = msgspec.field(default_factory=list["Node"])
    sizes: dict[str, BlockSize] = msgspec.field(default_factory=dict[str, BlockSize])
    """Size expression → block size that is at least this size."""
    conditions: dict[str, frozenset[str]] = msgspec.field(default_factory=dict[str, frozenset[str]])
    """Condition that the launcher checks → arguments that it depends on."""
    fixed: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Argument → value that the argument must have."""
    dtypes: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Condition on a dtype → argument whose dtype the condition tests."""
    contiguous: set[str] = msgspec.field(default_factory=set[str])
    hoisted: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Expression → name of the kernel argument that the launcher computes from it."""
    grid: str = "1"


class Tracer:
    """Records the operations of one program."""

    def __init__(self, names: Sequence[str], kernel: Kernel, path: Sequence[int] = ()) -> None:
        self.kernel, self._path = kernel, path
        self.statements: list[Node] = []
        self._bodies: list[list[Node]] = [self.statements]
        self._names = {*names, *_RESERVED, *kernel.hoisted.values(), *(size.name for size in kernel.sizes.values())}
        self.forks: list[Fork] = []
        self._written: set[str] = set()
        self._dealt = ""
        self._count = 0

    # Sizes

    def decided(self, first: Any, how: str, second: Any, outcome: bool, difference: Num) -> bool:
        """Return the outcome of a comparison, and record it as a condition of the kernel.

        If the comparison depends on block positions, it becomes a branch of the kernel instead. Raises Refused if that
        is impossible.
        """
        if not difference.known:
            text = f"{first} {how} {second}"
            return self._forked(f"control flow depends on the position of a block: {text}", [text, f"not {text}"]) == 0
        text = f"{first} {how} {second}"
        self.kernel.conditions[text if outcome else f"not {text}"] = difference.bases
        return outcome

    def required(self, first: Any, how: str, second: Any) -> None:
        """Require a comparison to be true: add it to the conditions of the kernel's launch.

        It is not added if the launcher does not know both sides. Raises Refused if the comparison is false in the
        current case.
        """
        if same(first, second) or not plain_known(first) or not plain_known(second):
            return
        holds = value_of(first) == value_of(second) if how == "==" else value_of(first) <= value_of(second)
        if not holds:
            raise Refused(f"sizes do not match: {first} {how} {second}")
        if bases := bases_of(first) | bases_of(second):
            self.kernel.conditions[f"{first} {how} {second}"] = bases

    def _agreed(self, size: Any, others: Sequence[Any]) -> None:
        """Require that each of `others` equals `size` or 1."""
        for other in others:
            if plain_known(size) and plain_known(other) and not (isinstance(other, int) and other == 1):
                self.required(other, "==", size if value_of(other) == value_of(size) else 1)

    def fixed(self, number: Num) -> Any:
        """Return a size as a plain Python value, which makes the kernel valid only for this value.

        For a block position, the kernel gets one branch per possible value. Raises Refused if that is not possible.
        """
        text = str(number)
        if not number.known:
            return self._place(text, number)
        if text.isidentifier():
            self.kernel.fixed[text] = number.value
        else:
            self.kernel.conditions[f"{text} == {number.value}"] = number.bases
        return number.value

    def _place(self, text: str, number: Num) -> int:
        """Return a block's position as a plain number. Raises Refused if that is impossible.

        The kernel gets one branch per possible position. This run takes one of them.
        """
        reason = f"the position of a block is used as a plain number: {text}"
        total = bound_of(number)
        count = value_of(total)
        if not text.isidentifier() or number.constant or count > MOST_FORKS:
            raise Refused(reason)
        if isinstance(total, Num):
            self.fixed(total)
        return self._forked(reason, [f"{text} == {place}" for place in range(count)])

    def _forked(self, reason: str, conditions: list[str]) -> int:
        """Return the index of the branch that this run takes at a branch point. Raises Refused within loops."""
        for fork in self.forks:
            if fork.conditions == conditions:
                return fork.choice
        if len(self._bodies) > 1 or self._dealt != "now" or not conditions:
            raise Refused(reason)
        at = len(self.forks)
        self.forks.append(Fork(conditions, self._path[at] if at < len(self._path) else 0, user_line()))
        self.add(self.forks[-1])
        return self.forks[-1].choice

    def of_dtype(self, dtype: DType, other: str) -> bool:
        """Return whether a dtype equals another, and record the outcome as a condition."""
        is_it = str.__eq__(dtype, other)
        self.kernel.dtypes[f"{dtype.origin}.dtype {'==' if is_it else '!='} torch.{other}"] = dtype.origin
        return is_it

    def contiguous(self, ref: Ref) -> None:
        """Record that the launcher must check that the tensor is contiguous."""
        self.kernel.contiguous.add(ref.name)

    def hoisted(self, text: str, value: Any, bases: frozenset[str]) -> Num:
        """Return a number that the launcher computes and passes to the kernel."""
        if text not in self.kernel.hoisted:
            self.kernel.hoisted[text] = self.name("scalar")
        return atom(self.kernel.hoisted[text], value, bases)

    # Names and statements

    def name(self, wanted: str) -> str:
        """Return an unused name based on `wanted`; branches have separate names."""
        wanted = "_".join([wanted, *(str(fork.choice) for fork in self.forks if wanted.islower())])
        name, number = wanted, 1
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def _hint(self) -> str:
        text = linecache.getline(*user_line())
        match = re.match(r"\s*([a-z_]\w*)(?:, \w+)* \+?= ", text)
        return match[1] if match else "t"

    def note(self, parts: Parts, hint: str = "", *, at: list[Node] | None = None) -> Value:
        """Add a statement that computes a value, and return the value."""
        value = Value(self.name(hint or self._hint()))
        self.add(Statement(value, parts, user_line()), at)
        return value

    def add(self, node: Node, at: list[Node] | None = None) -> None:
        """Add a statement. Raises Refused if there are too many."""
        self._count += 1
        if self._count > MOST_STATEMENTS:
            raise Refused(f"more than {MOST_STATEMENTS:,} statements")
        if isinstance(node, Statement) and any(isinstance(part, Value) and part.over for part in node.parts):
            raise Refused("a value of one loop iteration is used after later iterations")
        (self._bodies[-1] if at is None else at).append(node)

    def named(self, hint: str, text: str, value: Any, bound: Any) -> Num:
        """Add a statement that assigns a position or a block size to a new name; return that name as a number."""
        return atom(self.note((text,), hint).name, value, frozenset(), bound)

    # Blocks of dimensions

    def size_of(self, size: Any, least: int = 1) -> str:
        """Return the name of the block size (a power of two) that is used for a size; "1" if the size is 1."""
        if _is_single(size) and least == 1:
            return "1"
        bound = str(bound_of(size))
        entry = self.kernel.sizes.get(bound)
        if entry is None:
            hint = bound.upper() if bound.isidentifier() else f"BLOCK_{bound}" if bound.isdigit() else "BLOCK"
            entry = self.kernel.sizes[bound] = BlockSize(self.name(hint), bound)
        entry.least = max(entry.least, least)
        return entry.name

    def index(self, size: Any, dim: int, rank: int) -> str:
        """Return an expression for the indices along a dimension: a vector that broadcasts along other dimensions."""
        name = self.size_of(size)
        return f"at_{name.lower()}" + _expanded(dim, rank)

    def mask(self, shape: Sequence[Any], *, only: int | None = None) -> str:
        """Return an expression for the mask of a block's valid elements; "" if all elements are valid."""
        return " & ".join(
            f"({self.index(size, dim, len(shape))} < {size})"
            for dim, size in enumerate(shape)
            if not _is_single(size) and only in (None, dim)
        )

    def pointer(self, ref: Ref, shape: Sequence[Any]) -> str:
        """Return an expression for the addresses of a block of this shape in `ref`, a part of a tensor."""
        terms = [f"{ref.name}_ptr"]
        if str(ref.offset) != "0":
            terms.append(str(ref.offset))
        where = _matched(ref, shape)
        for dim, size in enumerate(shape):
            if _is_single(size):
                if len(shape) == 1:
                    terms.append("tl.arange(0, 1)")
                elif all(_is_single(n) for n in shape):
                    terms.append(f"tl.arange(0, 1){_expanded(dim, len(shape))}")
                continue
            terms += _terms(self.index(size, dim, len(shape)), where[dim])
        return " + ".join(terms)

    def shape_text(self, shape: Sequence[Any]) -> str:
        """Return the sizes of a block as text."""
        return f"({', '.join(self.size_of(n) for n in shape)}{',' if len(shape) == 1 else ''})"

    # What programs do

    def loaded(self, ref: Ref, *, fill: float | None = None, shape: Sequence[Any] | None = None) -> Tile:
        """Load a part of a tensor; elements of the tile beyond this part are 0 or `fill`."""
        if ref.cell is not None:
            ref.cell.check(ref)
            if ref.cell.tile is None or shape is not None:
                raise Refused("tile.scratch is loaded with padding or before a store")
            return Tile(ref.cell.tile.value, ref.shape, ref.dtype)
        sizes = ref.shape or (1,)
        source = ref if ref.dims else Ref(ref.name, ref.role, ref.dtype, [(1, 1)], ref.offset)
        want = tuple(shape) if shape is not None else sizes
        mask = " & ".join(
            f"({self.index(block, dim, len(want))} < {size})"
            for dim, (size, block) in enumerate(zip(sizes, want, strict=True))
            if not (isinstance(block, int) and block == 1)
        )
        dims = [(n, stride) for n, (_, stride) in zip(want, source.dims, strict=True)]
        target = Ref(source.name, source.role, source.dtype, dims, source.offset)
        tail = f", mask={mask}, other={fill or 0.0})" if mask else ")"
        assigned = re.match(r"\s*([a-z_]\w*) = tile\.load\(", linecache.getline(*user_line()))
        name = assigned[1] if assigned else f"{ref.name}_block"
        value = self.note((f"tl.load({self.pointer(target, want)}{tail}",), name)
        return Tile(value, want, ref.dtype, source if shape is None else None)

    def gathered(self, ref: Ref, rows: Tile) -> Tile:
        """Load rows of a tensor by row number. Raises Refused if it is not a matrix."""
        many = [size for size in rows.shape if not _is_single(size)]
        if ref.cell is not None or len(ref.dims) != 2 or len(many) > 1:
            raise Refused("rows are loaded by index, but the tensor is not a matrix")
        count = many[0] if many else 1
        shape, (_, stride) = (count, ref.dims[1][0]), ref.dims[0]
        numbers = self.note(_filled(f"tl.reshape({{}}, ({self.size_of(count)}, 1))", (rows,)), "rows")
        rest = self.pointer(Ref(ref.name, ref.role, ref.dtype, [(1, 0), ref.dims[1]], ref.offset), (1, shape[1]))
        mask = self.mask(shape)
        tail = f", mask={mask}, other=0.0)" if mask else ")"
        parts = (f"tl.load({rest} + ", numbers, f" * {enclosed(stride)}{tail}")
        return Tile(self.note(parts, f"{ref.name}_block"), shape, ref.dtype)

    def scalar(self, ref: Ref, most: Any, value: Any) -> Num:
        """Return an integer that the kernel reads from an argument."""
        at = "" if str(ref.offset) == "0" else f" + {ref.offset}"
        return self.named(self._hint(), f"tl.load({ref.name}_ptr{at}).to(tl.int32)", value_of(value), most)

    def loaded_again(self, ref: Ref) -> Tile:
        """Load a part of a loaded tile from its tensor again. Raises Refused if the tensor was written since."""
        if ref.name in self._written:
            raise Refused(f"a part of a tile is read after a store to its tensor {ref.name}")
        return self.loaded(ref)

    def stored(self, ref: Ref, tile: Tile, *, add: bool, relu: bool) -> None:
        """Store a tile to a part of a tensor or, if `add` is set, add it to that part."""
        if self._dealt == "over":
            raise Refused("a store follows the loop over blocks")
        if relu:
            tile = self.computed("tl.maximum({}, 0)", (tile,))
        if ref.cell is not None:
            ref.cell.check(ref)
            ref.cell.tile = tile.to(ref.dtype)
            return
        wanted = [size for size in tile.shape if not _is_single(size)]
        there = [size for size in ref.shape if not _is_single(size)]
        for size, target in zip(wanted, there, strict=False) if len(wanted) == len(there) else ():
            self.required(size, "==", target)
        mask = self.mask(tile.shape)
        self._written.add(ref.name)
        call = "tl.atomic_add" if add else "tl.store"
        tail = f", mask={mask})" if mask else ")"
        self.add(Statement(None, (f"{call}({self.pointer(ref, tile.shape)}, ", tile.value, tail), user_line()))

    def computed(self, template: str, operands: Sequence[Any], dtype: str | None = None) -> Tile:
        """Return the result of an elementwise expression. In the template, `{}` or `{0}` stands for an operand."""
        tiles = [operand for operand in operands if isinstance(operand, Tile)]
        shape = _broadcast([tile.shape for tile in tiles])
        for dim in range(-len(shape), 0):
            self._agreed(shape[dim], [tile.shape[dim] for tile in tiles if len(tile.shape) >= -dim])
        value = self.note(_filled(template, operands))
        return Tile(value, shape, tiles[-1].dtype if dtype is None else dtype)

    def reduced(self, call: str, tile: Tile, axis: int, neutral: str) -> Tile:
        """Return a reduction along a dimension, over valid elements only."""
        shape = list(tile.shape)
        mask = self.mask(tile.shape, only=axis)
        value = self.note(("tl.where(", mask, ", ", tile.value, f", {neutral})")) if mask else tile.value
        shape[axis] = 1
        return Tile(self.note((f"{call}(", value, f", axis={axis}, keep_dims=True)")), shape, tile.dtype)

    def product(self, a: Tile, b: Tile, acc: Tile | None) -> Tile:
        """Return a matrix product, added to `acc` if given."""
        for size in (a.shape[0], a.shape[1], b.shape[1]):
            if not _is_single(size):
                self.size_of(size, 16)
        shape = (a.shape[0], b.shape[1])
        self.required(a.shape[1], "==", b.shape[0])
        total = acc.value if acc is not None else self._zeros(shape)
        parts = ("dot(", self._operand(a, 1), ", ", self._operand(b, 0), ", ", total, ")")
        return Tile(self.note(parts, "acc"), shape, "float32")

    def _operand(self, tile: Tile, depth: int) -> Value:
        """Return a factor of a matrix product with invalid elements set to zero. In loaded tiles they already are."""
        mask = "" if tile.source is not None else self.mask(tile.shape, only=depth)
        return self.note(("tl.where(", mask, ", ", tile.value, ", 0)")) if mask else tile.value

    def _zeros(self, shape: Sequence[Any]) -> Value:
        """Return a block of zeros, created before the current loop because the first iteration starts with it."""
        parts = (f"tl.zeros({self.shape_text(shape)}, tl.float32)",)
        at = self._bodies[-2] if len(self._bodies) > 1 else self._bodies[-1]
        for node in reversed(at):
            if isinstance(node, Statement) and node.parts == parts and node.target is not None:
                return node.target
        return self.note(parts, "acc", at=at)

    def transposed(self, tile: Tile) -> Tile:
        """Return the tile with rows and columns swapped."""
        if len(tile.shape) != 2:
            raise Refused(f"transpose needs 2 dimensions, not {len(tile.shape)}")
        return Tile(self.note(("tl.trans(", tile.value, ")")), tile.shape[::-1], tile.dtype)

    def reshaped(self, tile: Tile, shape: Sequence[Any]) -> Tile:
        """Return a loaded tile in another shape.

        Its first dimensions may be merged, or dimensions of size 1 added or removed. Raises Refused for other shapes.
        """
        rest = [n for n in tile.shape if not _is_single(n)]
        wanted = [n for n in shape if not _is_single(n)]
        if len(rest) == len(wanted):
            sizes = iter(rest)
            sizes_of = [n if _is_single(n) else next(sizes) for n in shape]
            text = f"tl.reshape({{}}, {self.shape_text(sizes_of)})"
            return Tile(self.note(_filled(text, (tile,))), sizes_of, tile.dtype)
        count = len(rest) - len(wanted) + 1
        if tile.source is None or count < 2 or len(tile.source.dims) != len(rest):
            raise Refused("a computed tile cannot change its shape: Triton keeps whole blocks in registers")
        return self.loaded_again(merged(tile.source, count))

    # Loops

    def _loop_names(self, count: int) -> list[str]:
        match = re.search(r"for\s+(.+?)\s+in\s", linecache.getline(*user_line()))
        names = re.findall(r"[A-Za-z_]\w*", match[1]) if match else []
        return names if len(names) == count else [f"b{at}" for at in range(count)]

    def dealt(self, shape: Sequence[Any], steps: Sequence[Any], drops: Sequence[bool]) -> Iterator[tuple[Block, ...]]:
        """Yield the blocks of the loop whose iterations become program instances. A kernel has only one such loop."""
        if self._dealt or len(self._bodies) > 1:
            raise Refused("a second loop over blocks: a kernel can have only one")
        self._dealt = "now"
        names = self._loop_names(len(shape))
        counts = [(total + (step - 1)) // step for total, step in zip(shape, steps, strict=True)]
        self.kernel.grid = str(product(counts))
        pid = self.note(("tl.program_id(0)",), "program").name
        blocks: list[Block] = []
        for dim, (total, step, drop, name) in enumerate(zip(shape, steps, drops, names, strict=True)):
            below = product(counts[dim + 1 :])
            text = pid if same(below, 1) else f"({pid} // {enclosed(below)})"
            if dim:  # the last is the fastest
                text = f"({text} % {enclosed(counts[dim])})"
            start = self.named(name, text if same(step, 1) else f"{text} * {enclosed(step)}", 0, total)
            blocks.append(self._block(name, start, total, step, drop=drop))
        yield tuple(blocks)
        self._dealt = "over"

    def _block(self, name: str, start: Num, total: Any, step: Any, *, drop: bool) -> Block:
        if drop or same(step, 1):
            return Block(start, 1, step, total, drop=drop)
        rest = total - start
        value = min(value_of(step), value_of(total) - start.value)
        return Block(start, self.named(f"{name}_size", f"tl.minimum({step}, {rest})", value, step), step, total)

    def turns(self, first: Any, last: Any, step: Any, *, drop: bool) -> Iterator[Block]:
        """Yield the blocks of a loop on one core. Its body is run twice, and the two iterations are compared."""
        line = user_line()
        (name,) = self._loop_names(1)
        bound = bound_of(last)
        name = self.name(name)
        start = atom(name, value_of(first), frozenset(), bound)
        before = set(self._names)
        bodies: list[list[Node]] = []
        for _ in range(2):
            self._names = set(before)
            bodies.append([])
            self._bodies.append(bodies[-1])
            yield self._block(name, start, last, step, drop=drop)
            self._bodies.pop()
        loop = Loop(f"for {name} in range({first}, {last}, {step}):", bodies[0], line)
        self._closed(loop, bodies[1])

    def _closed(self, loop: Loop, second: list[Node]) -> None:
        pairs = list(_paired(loop.body, second, loop.line[1]))
        carried = _carried(pairs)
        for a, b in pairs:
            if a.target is not None and b.target is not None:
                b.target.alias, a.target.over = a.target, True
        outer = self._bodies[-1]
        names: list[tuple[Value, Value]] = []
        for start, update in carried.values():
            value = Value(self.name(start.name))
            outer.append(Statement(value, (start,), loop.line))
            _replaced(loop.body, start, value)
            names.append((value, update))
        outer.append(loop)
        for value, update in names:
            _update(loop, value, update)


def _carried(pairs: Sequence[tuple[Statement, Statement]]) -> dict[int, tuple[Value, Value]]:
    """Return the loop-carried values, by the id of the initial value.

    Each is (initial value, value after an iteration). Raises Refused if the iterations differ.
    """
    targets = {id(a.target) for a, _ in pairs if a.target is not None}
    first_of = {id(b.target): a.target for a, b in pairs if a.target is not None}
    carried: dict[int, tuple[Value, Value]] = {}
    for a, b in pairs:
        if len(a.parts) != len(b.parts):
            raise Refused("the iterations of the loop differ", a.line[1])
        for one, other in zip(a.parts, b.parts, strict=True):
            if one is other or one == other or first_of.get(id(other)) is one:
                continue
            is_carried = isinstance(one, Value) and id(other) in targets and id(one) not in targets
            if not is_carried or carried.setdefault(id(one), (one, other))[1] is not other:
                raise Refused("the iterations of the loop differ", a.line[1])
    return carried


def _update(loop: Loop, value: Value, update: Value) -> None:
    """Assign an iteration's result to the loop-carried value. They share a name if the old value is not used later."""
    at = next((i for i, node in enumerate(loop.body) if isinstance(node, Statement) and node.target is update), None)
    if at is not None and not any(_uses(node, value) for node in loop.body[at + 1 :]):
        update.alias = value
    else:
        loop.body.append(Statement(value, (update,), loop.line))


def statements_of(body: Sequence[Node]) -> Iterator[Statement]:
    """Yield all statements, including those in loops and branches."""
    for node in body:
        if isinstance(node, Loop):
            yield from statements_of(node.body)
        elif isinstance(node, Choice):
            for _, branch in node.branches:
                yield from statements_of(branch)
        elif isinstance(node, Statement):
            yield node


def _uses(node: Node, value: Value) -> bool:
    return any(part is value for each in statements_of([node]) for part in each.parts)


def _replaced(body: Sequence[Node], old: Value, new: Value) -> None:
    for node in statements_of(body):
        node.parts = tuple(new if part is old else part for part in node.parts)


def _paired(first: list[Node], second: list[Node], line: int) -> Iterator[tuple[Statement, Statement]]:
    if len(first) != len(second):
        raise Refused("the iterations of the loop differ: the first one differs from the others", line)
    for a, b in zip(first, second, strict=True):
        if isinstance(a, Loop) and isinstance(b, Loop) and a.head == b.head:
            yield from _paired(a.body, b.body, line)
        elif isinstance(a, Statement) and isinstance(b, Statement):
            yield a, b
        else:
            raise Refused("the iterations of the loop differ", line)


def _filled(template: str, operands: Sequence[Any]) -> Parts:
    out: list[Any] = []
    order = iter(range(len(operands)))
    for piece in re.split(r"(\{\d?\})", template):
        if re.fullmatch(r"\{\d?\}", piece):
            operand = operands[int(piece[1]) if len(piece) == 3 else next(order)]
            out.append(operand.value if isinstance(operand, Tile) else number_text(operand))
        elif piece:
            out.append(piece)
    return tuple(out)


def number_text(number: Any) -> str:
    """Return a number as an operand. Raises Refused for other values."""
    if isinstance(number, Num):
        return enclosed(number)
    if not isinstance(number, int | float):
        raise Refused(f"an operand has type {type(number).__name__}")
    text = repr(number)
    return f'float("{text}")' if "inf" in text or "nan" in text else f"({text})" if number < 0 else text


def _expanded(dim: int, rank: int) -> str:
    if rank == 1:
        return ""
    return "[" + ", ".join(":" if at == dim else "None" for at in range(rank)) + "]"


def _broadcast(shapes: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    rank = max(len(shape) for shape in shapes)
    out: list[Any] = []
    for dim in range(-rank, 0):
        sizes = [shape[dim] for shape in shapes if len(shape) >= -dim]
        out.append(max(sizes, key=lambda n: (isinstance(n, Num), value_of(n)) if value_of(n) == 1 else (True, 2)))
    return tuple(out)


def _terms(index: str, stride: Any) -> list[str]:
    """Return the terms of an address along one block dimension. A tuple `stride` combines several tensor dimensions."""
    if not isinstance(stride, tuple):
        return [index if same(stride, 1) else f"{index} * {enclosed(stride)}"]
    out: list[str] = []
    for at, (size, each) in enumerate(stride):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        below = product([n for n, _ in stride[at + 1 :]])  # pyright: ignore[reportUnknownVariableType]
        place = index if same(below, 1) else f"({index} // {enclosed(below)})"
        if at:
            place = f"({place} % {enclosed(size)})"
        out.append(place if same(each, 1) else f"{place} * {enclosed(each)}")
    return out


def _matched(ref: Ref, shape: Sequence[Any]) -> dict[int, Any]:
    """Map each block dimension to its stride in `ref`. One block dimension may combine several dimensions of `ref`."""
    dims = [(size, stride) for size, stride in ref.dims if not _is_single(size)]
    wanted = [dim for dim, size in enumerate(shape) if not _is_single(size)]
    if len(dims) == len(wanted):
        return {dim: stride for dim, (_, stride) in zip(wanted, dims, strict=True)}
    count = len(dims) - len(wanted) + 1
    if count < 2 or not wanted:
        raise Refused(f"a tile with {len(wanted)} dimensions is stored to {len(dims)} dimensions of {ref.name}")
    for at, dim in enumerate(wanted):
        if same(product([n for n, _ in dims[at : at + count]]), shape[dim]):
            joint = [*(s for _, s in dims[:at]), tuple(dims[at : at + count]), *(s for _, s in dims[at + count :])]
            return dict(zip(wanted, joint, strict=True))
    raise Refused(f"a tile is stored to {ref.name} in another shape")
