"""Compares a symbol with SGLang's source, as syntax: nothing is imported."""

from __future__ import annotations

import ast
from functools import cache

from jetspec_sglang.sources import module_source

from .symbol import Symbol


def problem_with(symbol: Symbol) -> str | None:
    """How the installed symbol differs from the row, None if it does not."""
    node = _find(symbol.path)
    if node is None:
        return "does not exist"
    if symbol.params is not None:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return "is not a function"
        found = _params(node)
        if found != symbol.params:
            return f"takes ({', '.join(found)}), expected ({', '.join(symbol.params)})"
    if symbol.members:
        if not isinstance(node, ast.ClassDef):
            return "is not a class"
        missing = sorted(set(symbol.members) - set(_members(node)))
        if missing:
            return f"lacks {', '.join(missing)}"
    return None


def _find(path: str) -> ast.AST | None:
    """The definition of a dotted path, followed through ``from … import …``."""
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        tree = _module(".".join(parts[:split]))
        if tree is None:
            continue
        node: ast.AST | None = tree
        for depth, name in enumerate(parts[split:], start=split):
            node = _definitions(node).get(name) if node is not None else None
            if isinstance(node, ast.ImportFrom) and node.module:
                original = next(a.name for a in node.names if (a.asname or a.name) == name)
                return _find(".".join([node.module, original, *parts[depth + 1 :]]))
        return node
    return None


@cache
def _module(name: str) -> ast.Module | None:
    source = module_source(name)
    return None if source is None else ast.parse(source)


def _definitions(node: ast.AST) -> dict[str, ast.AST]:
    """Names bound by the statements of a module or class, those under ``if`` and ``try`` included."""
    found: dict[str, ast.AST] = {}
    for child in getattr(node, "body", []):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[child.name] = child
        elif isinstance(child, ast.ImportFrom):
            found |= {alias.asname or alias.name: child for alias in child.names}
        elif isinstance(child, (ast.Assign, ast.AnnAssign)):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            found |= {target.id: child for target in targets if isinstance(target, ast.Name)}
        elif isinstance(child, (ast.If, ast.Try)):
            found = _definitions(child) | found
    return found


def _params(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    args = node.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    names += [f"*{args.vararg.arg}"] if args.vararg else []
    names += [arg.arg for arg in args.kwonlyargs]
    names += [f"**{args.kwarg.arg}"] if args.kwarg else []
    return tuple(names)


def _members(node: ast.ClassDef) -> set[str]:
    """Fields, methods and attributes that the class's body or its methods (``self.x = …``) define."""
    names = set(_definitions(node))
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            owner = part.value
            if isinstance(owner, ast.Name) and owner.id == "self":
                names.add(part.attr)
    return names
