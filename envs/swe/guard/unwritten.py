"""Names that stand in no line of the code: what reaches modules, their parts, and code, by values made while it runs.

Everything that the guard reads in a patch rests on names that are written down. Code that takes them from elsewhere (a
data file, a loop over characters) could reach anything, so reaching for parts of *modules* in such a way is told as
such. For objects of the program itself it is ordinary Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator

_PARTS = {"getattr", "setattr", "delattr", "attrgetter", "methodcaller"}
_ALWAYS = {"sys", "os", "builtins", "importlib", "types", "logging", "traceback", "inspect", "warnings", "contextlib"}
"""Taken for modules although their import may stand outside of what was added."""
_BY_NAME = {"import_module", "resolve_name", "locate", "__import__", "find_spec", "find_loader"}
# Loaders and runners of code that does not stand in a module's own file.
RUNS_TEXT = {
    *("SourceFileLoader", "SourcelessFileLoader", "ExtensionFileLoader", "exec_module", "load_module", "zipimporter"),
    *("spec_from_loader", "spec_from_file_location", "module_from_spec", "run_path", "run_module", "timeit", "Timer"),
    *("InteractiveInterpreter", "InteractiveConsole", "runsource", "runcode", "runctx", "runeval"),
}
_TEXT_MODULES = {"timeit", "code", "codeop", "cProfile", "profile", "bdb", "pdb", "runpy", "zipimport", "zipapp"}


def unwritten(node: ast.AST, modules: Collection[str], fold: Callable[[ast.AST], object]) -> Iterator[tuple[str, str]]:
    """(name, what) for a call or a subscript. `modules`: names that imports bind to modules."""
    known = _ALWAYS.union(modules)
    if isinstance(node, ast.Subscript):
        if _ends(node.value, "sys.modules") and not isinstance(fold(node.slice), str):
            yield "modules", "takes a module by a name that is not written"
        if _ends(node.value, ".__dict__") and _is_module(node.value, known) and not isinstance(fold(node.slice), str):
            yield "__dict__", "takes a module's part by a name that is not written"
    if not isinstance(node, ast.Call):
        return
    called = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
    last = called.rpartition(".")[2]
    if called.endswith(("sys.modules.get", "sys.modules.pop", "sys.modules.values", "sys.modules.items")):
        name = fold(node.args[0]) if node.args else None
        if not isinstance(name, str):
            yield "modules", "looks through the loaded modules"
    if last in _BY_NAME and node.args and not isinstance(fold(node.args[0]), str):
        yield last, f"calls {last} with a name that is not written"
    if last in _PARTS and len(node.args) > 1 and not isinstance(fold(node.args[1]), str):
        if _is_module(node.args[0], known) or isinstance(node.args[0], ast.Constant):
            yield last, f"calls {last} on {ast.unparse(node.args[0])[:40]} with a name that is not written"
    elif last == "vars" and node.args and _is_module(node.args[0], known):
        yield last, "looks through a module's parts"
    elif last not in ("reload", "print", "repr", "str", "isinstance", "type", "id", *_PARTS):
        for each in (*node.args, *(word.value for word in node.keywords)):
            if isinstance(each, ast.Name) and each.id in {"sys", "os", "builtins", "importlib"}:
                yield each.id, f"hands {each.id} over to {last or 'a call'}"


def _is_module(node: ast.AST, known: Collection[str]) -> bool:
    """A module, or something that is reached through one by attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    if isinstance(node, ast.Subscript):
        return _ends(node.value, "sys.modules")
    return isinstance(node, ast.Name) and node.id in known


def _ends(node: ast.AST, ending: str) -> bool:
    return isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node).endswith(ending)


def runs_text(module: str) -> bool:
    return module.split(".")[0] in _TEXT_MODULES
