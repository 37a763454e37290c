"""Attributes that a subclass may assign before ``super().__init__()``, as those of torch's classes. Pure.

A class that has such attributes is `holding`, and its constructor calls `release` first::

    window = 8                    in the class: read before, and hidden by the constructor's value
    self.window = 8               before: held in the object, as any plain attribute
    super().__init__(...)         release: held values are dropped, and the constructor's values count
    self.window = 8               after: the property's setter
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_RELEASED = "_is_released"


class Held(property):
    """A property with a setter, in whose place the object holds a value until `release`.

    Args:
        read: its getter.
        write: its setter.
        doc: its description.
    """

    _name: str
    _hidden: tuple[Any] | None = None  # what a subclass has in its place

    def __init__(self, read: Callable[[Any], Any], write: Callable[[Any, Any], None], doc: str | None = None) -> None:
        super().__init__(read, write, None, doc)
        self.__doc__ = doc  # before Python 3.12 that of the class hides it

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None and self._hidden is None:
            return self
        if instance is not None and is_released(instance):
            return super().__get__(instance, owner)
        if instance is not None and self._name in vars(instance):
            return vars(instance)[self._name]
        if self._hidden is not None:
            bind = getattr(type(self._hidden[0]), "__get__", lambda value, *_: value)
            return bind(self._hidden[0], instance, owner)
        kind = type(instance).__name__
        raise AttributeError(
            f"{kind!r} object has no attribute {self._name!r} yet: its __init__ has to call super().__init__(...) first"
        )

    def __set__(self, instance: Any, value: Any) -> None:
        if is_released(instance):
            super().__set__(instance, value)
        else:
            vars(instance)[self._name] = value

    def hiding(self, value: Any) -> Held:
        """The same property, in whose place a subclass has a value."""
        held = Held(self.fget, self.fset, self.__doc__)  # type: ignore[arg-type]  # it has both
        held._name, held._hidden = self._name, (value,)
        return held


def holding(kind: type[T]) -> type[T]:
    """Let the properties of a class that have a setter be assigned before its constructor has run."""
    for name, value in list(vars(kind).items()):
        if type(value) is property and value.fget is not None and value.fset is not None:
            held = Held(value.fget, value.fset, value.__doc__)
            held.__set_name__(kind, name)
            setattr(kind, name, held)
    return kind


def is_released(instance: Any) -> bool:
    """True once an object's constructor has begun."""
    return _RELEASED in vars(instance)


def release(instance: Any) -> None:
    """Drop what an object holds; from here on its `Held` attributes are properties. A constructor does this first."""
    attributes = vars(instance)
    for name in _hide(type(instance)):
        attributes.pop(name, None)
    attributes[_RELEASED] = True


def _hide(kind: type) -> dict[str, Held]:
    """The `Held` attributes of a class, also of those that it has as a plain attribute or a method by such a name.

    The constructor of torch's class assigns them, which hides these. A property of the class stays its own.
    """
    hidden: dict[str, Held] = {}
    for base in reversed(kind.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Held):
                hidden[name] = value
            elif name in hidden and hasattr(type(value), "__set__"):
                del hidden[name]
            elif name in hidden:
                hidden[name] = hidden[name].hiding(value)
    for name, held in hidden.items():
        if inspect.getattr_static(kind, name) is not held:
            setattr(kind, name, held)
    return hidden
