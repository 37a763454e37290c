"""Attributes that are computed, once for each object (`Lazy`) or on each access (`Computed`), without a lock. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

T = TypeVar("T")


class Lazy(Generic[T]):
    """A decorator for a method whose result becomes the attribute of its name.

    Before Python 3.12, `functools.cached_property` has a lock, of all objects of a class. A process that is forked
    while another thread has it waits for ever. Without the lock, two threads may compute a value at the same time.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self._name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        """The value, which hides this method from then on."""
        if instance is None:
            return self
        value: T = self._compute(instance)
        vars(instance)[self._name] = value
        return value


class Computed(Generic[T]):
    """A decorator for a method that is read as an attribute, until a program assigns one of its name to the object.

    A property without a setter would refuse that, and subclasses of wids 0.1 and of torch's classes have attributes of
    their own by such names. What needs the computed value calls what the method calls, and never reads the attribute.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        """The value; an attribute of the object hides this method."""
        return self if instance is None else self._compute(instance)
