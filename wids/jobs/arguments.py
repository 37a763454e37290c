"""What a caller gives a job: each argument is of its type, or an `InputError` names it before any work is done."""

from __future__ import annotations

import ast
import numbers
import os
from typing import TYPE_CHECKING, Any, TypeVar

from wids.errors import InputError
from wids.jobs.progress import check_progress
from wids.jobs.runner import run_options
from wids.transport.session import Session

if TYPE_CHECKING:
    import msgspec

    S = TypeVar("S", bound=msgspec.Struct)

# How annotations call the types of settings. Of others, nothing is checked here.
_KINDS: dict[str, Any] = {
    "None": type(None),
    "bool": bool,
    "int": numbers.Integral,
    "str": (str, os.PathLike),
    "slice": slice,
    "Session": Session,
}


def check_job(settings: S, kind: type[S], engine: Any, progress: Any, *, name: str = "settings") -> None:
    """See that what all jobs are given is of its type.

    Raises:
        InputError: it is not.
    """
    run_options(engine)
    check_progress(progress)
    check_struct(name, settings, kind)


def check_struct(name: str, value: S, kind: type[S]) -> None:
    """See that a value is a struct of this kind, and its fields are of their types.

    Raises:
        InputError: it is not.
    """
    check_kind(name, value, kind)
    for field in kind.__struct_fields__:
        given, words = getattr(value, field), str(kind.__annotations__[field])
        names = words.split(" | ")
        if words.startswith("Literal["):
            is_right = given in ast.literal_eval(words.removeprefix("Literal"))
        elif not all(each in _KINDS for each in names):
            continue
        else:
            is_right = any(isinstance(given, _KINDS[each]) for each in names)
            is_right = is_right and ("bool" in names or not isinstance(given, bool))
        if not is_right:
            raise InputError(f"{name}: {field}={given!r}: give {words}")


def check_kind(name: str, value: Any, kind: type) -> None:
    """See that an argument is of a type.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, kind):
        raise InputError(f"{name}={value!r}: give {kind.__name__}")


def text_of(name: str, value: Any) -> str:
    """An argument that is a path, a URL or a pattern: text, or a `Path`.

    Raises:
        InputError: it is neither, is empty, or holds a NUL.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{name}={value!r}: give a path, a URL or other text")
    return text


def texts_of(name: str, value: Any) -> list[str]:
    """An argument that is one of these, or several.

    Raises:
        InputError: it is neither.
    """
    if isinstance(value, (str, os.PathLike)):
        return [text_of(name, value)]
    try:
        return [text_of(name, each) for each in value]
    except TypeError as error:
        raise InputError(f"{name}={value!r}: give a path, a URL or other text, or several") from error
