"""The submodules of wids 0.1 (``wids.wids``, ``wids.wids_cleanup``, ...) as thin layers over the new code.

``wids/__init__.py`` puts this folder on the package's path. New programs import from ``wids``. A name that is left out
on purpose raises an ImportError that says what to use instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def refuse(module: str, instead: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """A module's ``__getattr__``: names that the original had and that are left out on purpose say so.

    They raise ImportError: of an AttributeError, ``from module import name`` would drop the message.

    Args:
        module: the module's name.
        instead: name -> what to use instead, as a sentence's end.
    """

    def missing(name: str) -> NoReturn:
        if name in instead:
            raise ImportError(f"{module}.{name} is not part of wids any more: {instead[name]}", name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing
