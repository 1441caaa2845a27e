"""Scopes for the modules of flax nnx, which opens none itself.

flax linen and haiku run each module in a name scope, and the layers of equinox do so, too.
The modules of nnx are plain objects. So while lox traces a function to look inside, a call
of such a module opens a scope with the name that the module has in its parent:

    class Block(nnx.Module):                    scopes
        def __init__(self, rngs):
            self.norm = nnx.LayerNorm(...)      Block/norm
            self.layers = nnx.List([...])       Block/layers_0, Block/layers_1

The outermost module has the name of its class. lox never imports flax: a program with such
a module has already imported it. Its classes are changed only while a function is traced,
and only the thread that traces it opens scopes.
"""

import contextlib
import contextvars
import functools as ft
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from lox._jax import tracing
from lox._jax.types import PyTree


@contextlib.contextmanager
def open_module_scopes() -> Iterator[None]:
    """Trace functions in here with scopes for the modules that they call."""
    with _wrapped_classes(), tracing.setting(_names, _Names()):
        yield


class _Names:
    """The names of the modules that have been met so far in one trace."""

    def __init__(self):
        # A module is kept along with its name, or its id might be used again.
        self._names: dict[int, tuple[object, str]] = {}
        # The modules that are being called, the innermost last.
        self.active: list[object] = []

    def of(self, module: object) -> str:
        return self._names.get(id(module), (module, type(module).__name__))[1]

    def add_parts(self, value: object, name: str = "") -> None:
        """Give names to the modules that are attributes of a module, or in a list there."""
        for key, part in _parts(value):
            full = f"{name}_{key}" if name else str(key)
            if _is_module(part):
                # A module that several others share keeps its first name.
                self._names.setdefault(id(part), (part, full))
            if _is_container(part):
                self.add_parts(part, full)


def _parts(value: object) -> list[tuple[object, object]]:
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    attributes = value if isinstance(value, dict) else vars(value)
    return list(attributes.items())


def _is_module(value: object) -> bool:
    return isinstance(value, sys.modules["flax.nnx"].Module)


def _is_container(value: object) -> bool:
    """Return whether modules are in there that are called, but not it itself."""
    is_plain = isinstance(value, list | tuple | dict)
    return is_plain or (_is_module(value) and not callable(value))


_names = contextvars.ContextVar[_Names | None]("names", default=None)


def _scoped(call: Callable) -> Callable:
    """Return the `__call__` of a class of modules, which opens a scope if lox traces."""

    @ft.wraps(call)
    def called(module: object, *args: PyTree, **kwargs: PyTree) -> PyTree:
        names = _names.get()
        # A class may call that of its parent class: still the same module.
        if names is None or (names.active and names.active[-1] is module):
            return call(module, *args, **kwargs)
        names.add_parts(module)
        names.active.append(module)
        try:
            with jax.named_scope(names.of(module)):
                return call(module, *args, **kwargs)
        finally:
            names.active.pop()

    return called


@contextlib.contextmanager
def _wrapped_classes() -> Iterator[None]:
    """Let all classes of nnx modules open scopes, until the last thread has left."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        yield
        return
    global _threads
    with _lock:
        # Classes may have been defined since the last time, so look again each time.
        _threads += 1
        for cls in _subclasses(nnx.Module):
            call = cls.__dict__.get("__call__")
            if call is not None and cls not in _originals:
                _originals[cls] = call
                cls.__call__ = _scoped(call)
    try:
        yield
    finally:
        with _lock:
            _threads -= 1
            if not _threads:
                for cls, call in _originals.items():
                    cls.__call__ = call
                _originals.clear()


_lock = threading.Lock()
_threads = 0
_originals: dict[Any, Callable] = {}


def _subclasses(cls: type) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
