"""`frozen`: values whose classes are quick to define. No JAX.

`dataclasses.dataclass(frozen=True)` writes seven methods as text, and compiles them when
the module is imported. For the classes of lox, that was almost half of `import lox`. Here
only `__init__` is compiled; the other methods are closures.

Type checkers reject an assignment to a field, as with `frozen=True`. Python does not, so
this is for values that lox keeps to itself. Those that users get are true frozen
dataclasses.
"""

import dataclasses
import operator
import typing
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: type[T]) -> type[T]:
    """Make a dataclass of values that are not changed, with equality and a hash.

    Example:
        >>> @frozen
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(1) == Point(1, 0), {Point(1): "a"}[Point(1)]
        (True, 'a')
        >>> dataclasses.replace(Point(1), y=2)
        Point(x=1, y=2)
    """
    cls = dataclasses.dataclass(eq=False, repr=False)(cls)
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    compared = _values([f.name for f in fields if f.compare])
    hashed = _values([f.name for f in fields if (f.compare if f.hash is None else f.hash)])
    shown = [f.name for f in fields if f.repr]

    def __eq__(self: T, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or compared(self) == compared(other)

    def __hash__(self: T) -> int:
        return hash(hashed(self))

    def __repr__(self: T) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({values})"

    for method in (__eq__, __hash__, __repr__):
        if not vars(cls).get(method.__name__):  # a class may have its own
            setattr(cls, method.__name__, method)
    return cls


def _values(names: list[str]) -> Callable[[object], object]:
    """Return the function that returns the values of these attributes."""
    return operator.attrgetter(*names) if names else lambda self: ()
