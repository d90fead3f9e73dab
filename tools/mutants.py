"""Small mistakes that could be in a file: what ``mutate.py`` puts in, one at a time, to see whether a test notices.

A mutant is told by the file's source and its number among all mistakes of that file, in the order of the syntax tree.
Messages of errors, docstrings, annotations and decorators are left alone: no number depends on them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARE = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
            ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip
_ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
               ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr}  # fmt: skip
_LEFT_ALONE = {"annotation", "returns", "decorator_list", "bases"}


@dataclass(frozen=True)
class Mutant:
    """One mistake: its number in the file, what kind it is, the lines it touches, and the code before and after."""

    number: int
    kind: str
    first: int
    last: int
    scope: tuple[int, int] | None  # lines of the function around it; None at the level of the module or a class
    header: bool  # in the first lines of a function: run when the function is made, felt when it is called
    before: str
    after: str


@dataclass
class _Change:
    kind: str
    node: ast.AST
    after: str
    apply: Callable[[], None]
    scope: ast.AST | None
    header: bool


def mutants(source: str) -> list[Mutant]:
    """Return all mistakes for a file, in order.

    >>> [(mutant.kind, mutant.before, mutant.after) for mutant in mutants("def f(n):\\n    return n + 1")]
    [('return', 'return n + 1', 'return None'), ('arithmetic', 'n + 1', 'n - 1'), ('constant', '1', '2')]
    """
    found = []
    for number, change in enumerate(_changes(ast.parse(source))):
        span = None if change.scope is None else (change.scope.lineno, change.scope.end_lineno)
        node = change.node
        text = ast.unparse(node).split("\n")[0]
        found.append(Mutant(number, change.kind, node.lineno, node.end_lineno, span, change.header, text, change.after))
    return found


def mutated(source: str, number: int) -> ast.Module:
    """Return the syntax tree of a file with one mistake in it; raise ``IndexError`` for a number that is not there.

    >>> ast.unparse(mutated("def f(n):\\n    return n + 1", 1))
    'def f(n):\\n    return n - 1'
    """
    tree = ast.parse(source)
    for count, change in enumerate(_changes(tree)):
        if count == number:
            change.apply()
            return ast.fix_missing_locations(tree)
    raise IndexError(f"the file has no mistake number {number}")


def _changes(tree: ast.Module) -> Iterator[_Change]:
    yield from _inside(tree, None, False)


def _inside(node: ast.AST, scope: ast.AST | None, header: bool) -> Iterator[_Change]:
    """Yield the mistakes below a node: first those that replace a child, then those inside it."""
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for name, value in ast.iter_fields(node):
        if name in _LEFT_ALONE or (isinstance(node, ast.ClassDef) and name == "keywords"):
            continue
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _is_docstring(node, name, place, child) or _is_name_list(child):
                continue
            here = node if function and not isinstance(node, ast.Lambda) else scope
            head = (function and name == "args") or (header and not isinstance(node, ast.stmt))

            def put(new: ast.AST, name: str = name, value: object = value, place: int = place) -> None:
                if isinstance(value, list):
                    value[place] = new
                else:
                    setattr(node, name, new)

            for kind, new in _instead_of(child, name):
                after = ast.unparse(new).split("\n")[0]
                yield _Change(kind, child, after, lambda new=new, put=put: put(new), here, head)
            if not isinstance(child, ast.Raise | ast.JoinedStr):  # no test should hang on the words of a message
                yield from _inside(child, here, head)


def _instead_of(node: ast.AST, field: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield what could stand in a node's place, each with the kind of mistake that it is."""
    if isinstance(node, ast.stmt):
        yield from _statements(node)
        return
    if field in ("test", "ifs"):
        yield "negated", ast.UnaryOp(ast.Not(), node)
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            new = copy.deepcopy(node)
            new.ops[place] = _COMPARE[type(op)]()
            yield "comparison", new
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        texts = (ast.JoinedStr, ast.Constant)
        if not any(isinstance(s, texts) and not _is_number(s) for s in (node.left, node.right)):
            yield "arithmetic", ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "sign", node.operand
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        for place, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                yield "keyword", ast.Call(node.func, node.args, node.keywords[:place] + node.keywords[place + 1 :])


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif _is_number(node):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node.value, str):
        yield "text", ast.Constant(node.value + "X")


def _statements(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Return) and not (node.value is None or _is_none(node.value)):
        yield "return", ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Raise | ast.Delete) or _is_deed(node):
        yield "deleted", ast.Pass()
    elif isinstance(node, ast.AugAssign):
        yield "deleted", ast.Pass()
        if type(node.op) in _ARITHMETIC:
            yield "arithmetic", ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)
    elif isinstance(node, ast.Break | ast.Continue):
        yield "loop", ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _is_deed(node: ast.stmt) -> bool:
    """Tell statements that change something and name nothing: without them what follows can still run."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_name_list(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


def _is_docstring(node: ast.AST, name: str, place: int, child: ast.AST) -> bool:
    holder = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
    return holder and name == "body" and place == 0 and text
