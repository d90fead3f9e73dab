"""The learner's own library: what passes its check is kept in ``my_heads.py``, and later lessons go on with it.

The file lies beside ``my-progress.json``, in the folder of the learner's lessons. It is a module like any other:
imports on top, one function after the other in the order of the course, to be read, edited and imported elsewhere.
Above each function that a check has put there stands its exercise and a short digest of its text; a function whose text
has another digest was edited by hand, and is never replaced.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import inspect
import linecache
import symtable
import sys
import types
import warnings
from pathlib import Path
from typing import Any

from headtools._engine.store import write_bytes
from headtools.course.answered import progress_path
from headtools.course.exercises import all_exercises
from headtools.course.exercises.exercise import Exercise

FILE = "my_heads.py"
_REFERENCE = "headtools.course.my_heads"
HEADER = '"""My library of attention heads, written in the headtools course, one lesson after the other."""\n'
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def builds() -> dict[str, str]:
    """Return the functions of the library and the exercises in which they are written, in the order of the course.

    >>> builds()["switch_off"]
    '00.switch_off'
    """
    return {each.builds: each.name for each in all_exercises().values() if each.builds}


class MyHeads:
    """The functions of the course, the learner's where they are written, the course's own elsewhere.

    An attribute is a function: ``mine.gradient``. Its text says which are whose.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what IPython asks every object for
            raise AttributeError(name)
        for module in (_learners(library_path())[0], _reference()):
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"the course builds no {name!r}; it builds {', '.join(builds())}")

    def __dir__(self) -> list[str]:
        return list(builds())

    def __repr__(self) -> str:
        module, problem = _learners(library_path())
        own = [name for name in builds() if hasattr(module, name)]
        count = "1 function is" if len(own) == 1 else f"{len(own)} functions are"
        yours = f"{count} yours{': ' if own else ''}{', '.join(own)}"
        lines = [f"{yours} (the lessons build {len(builds())} so far)"]
        rest = {name: exercise[:2] for name, exercise in builds().items() if name not in own}
        for lesson in sorted(set(rest.values())):
            names = ", ".join(name for name, number in rest.items() if number == lesson)
            lines.append(f"the course's; write yours in lesson {lesson}: {names}")
        return "\n".join([*lines, problem] if problem else lines)


def my_heads() -> MyHeads:
    """Return the library that you write in this course: your functions, and the course's where yours are not written.

    Your functions come from ``my_heads.py`` in the working folder, where ``ht.check`` puts what has passed; the others
    from ``headtools/course/my_heads.py``. The file is read again whenever it has changed. Where it cannot be read, a
    warning says why, and the course's functions are used.

    >>> mine = my_heads()
    >>> mine.effective_rank.__name__
    'effective_rank'
    """
    return MyHeads()


def own(name: str) -> Any:
    """Return a function of the ``my_heads.py`` in the working folder, for graders: the course's does not stand in.

    Raises ``LookupError`` where the file is missing, stops or has no such function, or where the function calls the
    package's, or is imported from it, in place of being written.
    """
    module, problem = _learners(Path(FILE))
    if problem:
        raise LookupError(problem)
    exercise = all_exercises()[builds()[name]]
    function = getattr(module, name, None)
    if function is None:
        raise LookupError(f"there is no {name} in {FILE} beside this notebook: lesson {exercise.name[:2]} builds it")
    if _inner(function).__module__ != module.__name__:
        raise LookupError(f"{FILE} imports {name}, and it is to be written there: lesson {exercise.name[:2]} builds it")
    if said := peeks(exercise, function):
        raise LookupError(said)
    return function


# --- reading ----------------------------------------------------------------------------------------------------------

_read: dict[Path, tuple[tuple, types.ModuleType, str]] = {}  # file: (its state, the module, what is wrong with it)


def library_path() -> Path | None:
    """Return where the learner's library is, or would be; None where nothing is kept."""
    progress = progress_path()
    return None if progress is None else progress.with_name(FILE)


def _reference() -> types.ModuleType:
    return importlib.import_module(_REFERENCE)


def _learners(file: Path | None) -> tuple[types.ModuleType, str]:
    """Return the learner's module, empty where there is none, and what is wrong with it."""
    if file is None or not file.is_file():
        return types.ModuleType("my_heads"), ""
    status = file.stat()
    state = status.st_mtime_ns, status.st_size
    known = _read.get(file.resolve())
    if known is None or known[0] != state:
        module, problem = _run(file.read_text("utf-8"), file.name)
        if problem:
            warnings.warn(f"{problem} The course's functions are used until it is mended.", stacklevel=4)
        _read[file.resolve()] = known = state, module, problem
    return known[1], known[2]


def _run(text: str, name: str) -> tuple[types.ModuleType, str]:
    """Run a module's text; return the module, empty where it stops, and a sentence on where."""
    module = types.ModuleType("my_heads")
    linecache.cache[name] = len(text), None, text.splitlines(True), name  # so that tracebacks and inspect show the code
    imported = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # where dataclasses look up the module of a class
    try:
        exec(compile(text, name, "exec"), module.__dict__)
    except Exception as error:
        traceback, line = error.__traceback__, getattr(error, "lineno", None)
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == name:
                line = traceback.tb_lineno
            traceback = traceback.tb_next
        where = f" in line {line}" if line else ""
        return types.ModuleType("my_heads"), f"{name} stops{where} with {type(error).__name__}: {error}."
    finally:
        del sys.modules[module.__name__]
        if imported is not None:
            sys.modules[module.__name__] = imported
    return module, ""


# --- writing ----------------------------------------------------------------------------------------------------------


def peeks(exercise: Exercise, answer: Any) -> str:
    """Say so where an answer calls what it should be, as ``ht.gradient`` in a ``gradient``; '' where it does not."""
    source = source_of(answer) if exercise.builds else None
    if source is None:
        return ""
    names, given = _inner(answer).__globals__, {exercise.builds, *exercise.instead}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in given:
            owner = names.get(node.value.id)
            ours = getattr(owner, "__name__", "").partition(".")[0] == "headtools"
            ours |= isinstance(owner, MyHeads) and node.attr == exercise.builds
        elif isinstance(node, ast.Name) and node.id != exercise.builds:
            value = names.get(node.id)
            home = getattr(value, "__module__", None) or ""
            # the course's own my_heads is built from its own smaller parts
            ours = home.startswith("headtools.") and home != _REFERENCE and getattr(value, "__name__", "") in given
        else:
            continue
        if ours:
            return (
                f"{ast.unparse(node)} is right, and it is the one that you are about to write: build it from smaller "
                f'parts. ht.check.hint("{exercise.name}") says from which.'
            )
    return ""


def store(exercise: Exercise, answer: Any) -> str:
    """Put an answer that has passed into the learner's library; return a sentence on what came of it.

    The function comes with the imports, constants and helpers of the notebook that it uses. It is kept only if it
    passes its check as it stands in the file, on its own. What was edited by hand is not replaced.

    Raises OSError where the file cannot be written.
    """
    file, name, source = library_path(), exercise.builds, None
    if file is not None and name:
        source = source_of(answer)
    if source is None:
        return ""
    if _inner(answer).__code__.co_filename == FILE:
        return ""  # it comes from there
    if answer.__name__ != name:
        return f"Name it {name}, and check it again, to have it in {FILE}."
    before = file.read_text("utf-8") if file.is_file() else HEADER
    try:
        definitions, imports, constants = _needs(answer, source)
        text = _with(before, exercise.name, name, source, definitions, imports, constants)
    except _NotKept as reason:
        return str(reason)
    if text == before:
        return ""
    module, problem = _run(text, f"{FILE}, with {name}")  # another name: tracebacks show the file as it is
    if problem or exercise.judge(getattr(module, name)) is not None:
        return f"It is not in {FILE}, because it does not run there on its own. {problem}".strip()
    for helper in definitions.keys() & builds().keys():  # it would be kept as passed
        try:
            hint = all_exercises()[builds()[helper]].judge(getattr(module, helper))
        except Exception as error:
            hint = str(error) or type(error).__name__
        if hint is not None:
            return (
                f"It is not in {FILE}, because your {helper} has not passed {builds()[helper]}: check that one first."
            )
    write_bytes(file, text.encode())
    return f"{name} is in your {FILE}."


class _NotKept(Exception):
    """Why a function stays out of the library."""


def source_of(answer: Any) -> str | None:
    """Return the text of a function or class of a notebook, without indentation; None where it is not known."""
    code = getattr(_inner(answer), "__code__", None)
    if code is None:
        return None
    text = "".join(linecache.getlines(code.co_filename))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and node.name == answer.__name__:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first <= code.co_firstlineno <= node.end_lineno:
                lines = text.splitlines()[first - 1 : node.end_lineno]
                return inspect.cleandoc("\n".join(["", *lines])) if node.col_offset else "\n".join(lines)
    return None


def _inner(answer: Any) -> Any:
    """Return the function behind decorators, or a class's first method, which knows where the class was written."""
    if inspect.isclass(answer):  # inspect finds no class of a notebook
        members = (getattr(value, "__func__", value) for value in vars(answer).values())  # those of static methods too
        return next((value for value in members if isinstance(value, types.FunctionType)), answer)
    return inspect.unwrap(answer) if callable(answer) else answer


def _needs(
    answer: Any, source: str, met: frozenset[str] = frozenset()
) -> tuple[dict[str, str], set[str], dict[str, str]]:
    """Return the helpers {name: source}, import lines and constants {name: text} that a definition needs.

    ``met`` are the definitions on the way to this one, which may call each other.
    """
    met |= {answer.__name__}
    names, helpers, imports, constants = _inner(answer).__globals__, {}, set(), {}
    for name in sorted(_globals(symtable.symtable(source, FILE, "exec")) - met):
        if name not in names:
            if hasattr(builtins, name):
                continue
            raise _NotKept(f"It is not in {FILE}, because it uses {name}, which is defined nowhere.")
        value = names[name]
        home = sys.modules.get(getattr(value, "__module__", None) or "")
        if isinstance(value, types.ModuleType):
            top = value.__name__ == name
            imports.add(f"import {name}" if top else _import_as(value.__name__, name))
        elif isinstance(value, MyHeads):
            imports.add("import headtools as ht")
            constants[name] = "ht.my_heads()"
        elif isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(v, _PLAIN) for v in value)):
            constants[name] = repr(value)
        elif home is not None and home.__name__ not in ("__main__", "my_heads") and _found_in(home, value):
            imports.add(_import_from(home.__name__, value.__name__, name))
        elif (text := source_of(value)) is not None:
            more, lines, also = _needs(value, text, met)
            helpers |= more | {name: text}
            imports |= lines
            constants |= also
        else:
            raise _NotKept(
                f"It is not in {FILE}, because it uses {name}, {type(value).__name__} of this notebook: make it an "
                "argument of the function."
            )
    return helpers, imports, constants


def _globals(table: symtable.SymbolTable) -> set[str]:
    """Return the names that a piece of code takes from its module or from Python."""
    own = table.get_type() == "module"
    found = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (s.is_global() or own)}
    found -= {s.get_name() for s in table.get_symbols() if own and s.is_assigned()}
    return found.union(*(_globals(child) for child in table.get_children()))


def _import_as(module: str, name: str) -> str:
    package, _, last = module.rpartition(".")
    return f"from {package} import {last}" if package and last == name else f"import {module} as {name}"


def _import_from(module: str, name: str, alias: str) -> str:
    public = module.partition(".")[0]
    if getattr(sys.modules.get(public), name, None) is getattr(sys.modules[module], name):
        module = public  # torch.Tensor, and not where it happens to be written
    return f"from {module} import {name}" + (f" as {alias}" if alias != name else "")


def _found_in(home: types.ModuleType, value: Any) -> bool:
    return getattr(home, getattr(value, "__name__", ""), None) is value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _with(
    text: str,
    exercise: str,
    name: str,
    source: str,
    helpers: dict[str, str],
    imports: set[str],
    constants: dict[str, str],
) -> str:
    """Return a module's text with a definition and what it needs; raise ``_NotKept`` where a hand has been."""
    text = _with_imports(text, imports)
    for helper, code in constants.items():
        text = _placed(text, helper, f"{helper} = {code}", None)
    for helper, code in helpers.items():
        # a helper that is itself one of the course's functions keeps its own exercise
        text = _placed(text, helper, code, builds().get(helper))
    return _placed(text, name, source, exercise)


def _with_imports(text: str, imports: set[str]) -> str:
    tree, lines = _parsed(text), text.splitlines()
    there = {ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)}
    new = sorted(imports - there, key=lambda line: (line.startswith("from"), line))
    if not new:
        return text
    ends = [node.end_lineno for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if ends:
        lines[max(ends) : max(ends)] = new
    else:
        start = tree.body[0].end_lineno if tree.body and ast.get_docstring(tree) else 0
        lines[start:start] = ["", *new]
    return "\n".join(lines) + "\n"


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise _NotKept(f"Your {FILE} cannot be read, line {error.lineno}: mend it, and check again.") from None


def _placed(text: str, name: str, source: str, exercise: str | None) -> str:
    """Return a module's text in which ``name`` is defined by ``source``, replaced in place or put where it belongs."""
    tree, lines = _parsed(text), text.splitlines()
    places = {n: node for node in tree.body for n in _defined(node)}
    constant = source.startswith(f"{name} = ")
    block = [source] if constant else [f"# {exercise or 'helper'}, checked ({_digest(source)})", *source.splitlines()]
    if name in places:
        node = places[name]
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]) - 1
        old = "\n".join(lines[first : node.end_lineno])
        if old == source:
            return text
        above = lines[first - 1] if first else ""
        if f"checked ({_digest(old)})" not in above:
            raise _NotKept(
                f"Your {FILE} has another {name}, written or edited by hand, and it stays: delete it there, and check "
                "again, to have this one."
            )
        start = first - 1 if above.startswith("# ") and "checked (" in above else first
        lines[start : node.end_lineno] = block
        return "\n".join(lines) + "\n"
    order = list(builds())
    later = order[order.index(name) + 1 :] if name in order else order
    after = [node for node in tree.body if set(_defined(node)) & set(later)]
    if not after:
        return "\n".join([*lines, "", "", *block]) + "\n"
    start = min([after[0].lineno, *(each.lineno for each in getattr(after[0], "decorator_list", ()))]) - 1
    while start and lines[start - 1].startswith("#"):
        start -= 1
    lines[start:start] = [*block, "", ""]
    return "\n".join(lines) + "\n"


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
