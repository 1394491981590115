"""Algorithms with one slip of the pen each: a sign, a factor, a weight, another vector."""

import ast
import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
APART = ("init", "coins")  # settings that are refused, and draws, which boxes take as they are


class Mutant(NamedTuple):
    where: str  # class and method
    was: str
    now: str
    source: ast.Module


def mutants(algorithm: type) -> Iterator[Mutant]:
    """Every single mutation of the algorithm's methods and of what its file has beside them."""
    tree = ast.parse(inspect.getsource(sys.modules[algorithm.__module__]))
    for place in range(len(_places(tree, algorithm))):
        where, node = _places(tree, algorithm)[place]
        for kind in range(len(_changes(node, where.body))):
            new = copy.deepcopy(tree)
            function, target = _places(new, algorithm)[place]
            was = ast.unparse(target)
            _changes(target, function.body)[kind]()
            yield Mutant(function.name, was, ast.unparse(target), ast.fix_missing_locations(new))


def _places(tree: ast.Module, algorithm: type) -> list[tuple[Any, Any]]:
    """Functions and the expressions in them that may be changed, in order."""
    found = []
    for part in tree.body:
        if isinstance(part, ast.ClassDef) and _is_other(part, algorithm):
            continue
        for function in ast.walk(part):
            if isinstance(function, ast.FunctionDef) and function.name not in APART:
                nodes = [node for line in function.body for node in ast.walk(line)]
                found += [(function, node) for node in nodes if node not in _same(nodes)]
    return found


def _same(nodes: list[Any]) -> set[Any]:
    """What may be anything: words of an error, leading dimensions, the bound below a flag."""
    flags = {
        bound
        for node in nodes
        if isinstance(node, ast.Compare) and "trained" in ast.unparse(node.left)
        for bound in node.comparators
    }
    words = [node for node in nodes if isinstance(node, ast.Raise | ast.Slice)]
    words += [node for node in nodes if isinstance(node, ast.keyword) and node.arg == "keepdim"]
    return flags.union(*(ast.walk(node) for node in words))


def _is_other(part: ast.ClassDef, algorithm: type) -> bool:
    """Whether it is another algorithm of the same file."""
    methods = {line.name for line in part.body if isinstance(line, ast.FunctionDef)}
    return "party" in methods and part.name != algorithm.__name__


def _changes(node: Any, body: list[ast.stmt]) -> list[Callable[[], None]]:
    """The ways to get an expression wrong."""
    out: list[Callable[[], None]] = []
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        out.append(partial(setattr, node, "op", SWAPPED[type(node.op)]()))  # sign, or 1 / factor
        out.append(partial(_become, node, node.left))  # a term or factor is missing
        out.append(partial(_become, node, node.right))
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        out.append(partial(setattr, node, "ops", [ast.LtE()]))  # one step more
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        out.append(partial(setattr, node, "value", value))  # a number, or the other weights
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "mean" and not node.keywords and not node.args:
            weighted = ast.keyword("by_examples", ast.Constant(True))
            out.append(partial(setattr, node, "keywords", [weighted]))
        if node.func.attr in ("grad", "descend"):
            out += [partial(_become, node.args[0], other) for other in _vectors(node, body)]
    return out


def _vectors(call: ast.Call, body: list[ast.stmt]) -> list[ast.expr]:
    """Other vectors of the function: what is subtracted from something, or something from it."""
    known = {}
    for node in (node for line in body for node in ast.walk(line)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            for side in (node.left, node.right):
                if isinstance(side, ast.Name | ast.Attribute):
                    known[ast.unparse(side)] = side
    known.pop(ast.unparse(call.args[0]), None)
    return list(known.values())


def _become(node: Any, other: Any) -> None:
    """Turn a node into a copy of another in place."""
    other = copy.deepcopy(other)
    node.__class__ = other.__class__
    node.__dict__.clear()
    node.__dict__.update(other.__dict__)


@contextmanager
def put_in_place(mutant: Mutant, algorithm: type) -> Iterator[None]:
    """Have the algorithm's class do what the mutant says."""
    module = ModuleType(algorithm.__module__)
    exec(compile(mutant.source, algorithm.__module__, "exec"), module.__dict__)
    changed = vars(module)[algorithm.__name__]
    written = [base for base in algorithm.__mro__ if base.__module__ == algorithm.__module__]
    kept = [(base, name, value) for base in written for name, value in vars(base).items()
            if inspect.isfunction(value) and not name.startswith("__")]  # fmt: skip
    bases = {base.__name__: base for base in changed.__mro__}
    try:
        for base, name, _ in kept:
            setattr(base, name, vars(bases[base.__name__])[name])
        yield
    finally:
        for base, name, value in kept:
            setattr(base, name, value)


def calls(test: Callable[..., None]) -> list[Callable[[], None]]:
    """A test with each of its sets of parameters; none where it is expected to fail or skipped."""
    marks = getattr(test, "pytestmark", [])
    if any(mark.name in ("xfail", "skipif") and mark.args[0] for mark in marks):
        return []
    sets = []
    for mark in marks:
        if mark.name == "parametrize":
            names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
            rows = [(row,) if len(names) == 1 else row for row in mark.args[1]]
            sets.append([dict(zip(names, row, strict=True)) for row in rows])
    chosen = product(*sets)
    return [partial(test, **{k: v for part in parts for k, v in part.items()}) for parts in chosen]


def survives(mutant: Mutant, algorithm: type, tests: list[Callable[[], None]]) -> bool:
    """Whether no test sees a difference."""
    with put_in_place(mutant, algorithm):
        for test in tests:
            try:
                test()
            except Exception:
                return False
    return True
