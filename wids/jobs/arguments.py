"""The arguments of jobs: each is of its type and in its range, or an `InputError` names it before any work is done."""

from __future__ import annotations

import numbers
import os
import types
from collections.abc import Iterable, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from wids.core.collection.shard_collection import words_of_misuse
from wids.core.transport.session import Session
from wids.errors import InputError
from wids.jobs.progress import check_progress
from wids.jobs.runner import RunOptions, run_options

if TYPE_CHECKING:
    from collections.abc import Callable

    S = TypeVar("S", bound=msgspec.Struct)

# The name of a dataset; "": it has none.
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=0)]
_WORDS: dict[Any, str] = {
    type(None): "None",
    bool: "True or False",
    int: "a whole number",
    str: "text",
    slice: "a slice of whole numbers",
}


def check_job(settings: S, kind: type[S], engine: Any, progress: Any, *, name: str = "settings") -> None:
    """Check the arguments that all jobs have.

    Raises:
        InputError: one does not fit.
    """
    check_struct("engine", run_options(engine), RunOptions)
    check_progress(progress)
    check_struct(name, settings, kind)


def check_struct(name: str, value: S, kind: type[S]) -> None:
    """Check that a value is a struct of this kind, and that each field fits its annotation.

    Raises:
        InputError: it is not, or one does not.
    """
    if not isinstance(value, kind):
        raise InputError(f"{name}={value!r:.200}: give {kind.__name__}")
    for field, wanted in get_type_hints(kind, include_extras=True).items():
        given = getattr(value, field)
        if wanted is Session:
            check_session(f"{name}: {field}", given)
        else:
            check_value(f"{name}: {field}", given, wanted)


def check_session(name: str, session: Any) -> None:
    """Check that a value is a `Session`, and its fields.

    Raises:
        InputError: it is not, or one does not fit.
    """
    if not isinstance(session, Session):
        raise InputError(f"{name}={session!r:.200}: give a wids.jobs.Session")
    check_by(f"{name}: ", session.check)


def check_value(name: str, value: Any, kind: Any) -> None:
    """Check that an argument fits an annotation: a type, a union, a `Literal`, texts; with bounds of `msgspec.Meta`.

    A text is not empty unless ``Meta(min_length=0)`` allows it. Other annotations accept any value.

    Raises:
        InputError: it does not fit.
    """
    if not _fits(value, kind):
        raise InputError(f"{name}={value!r:.200}: give {_words(kind)}", parameter=_last(name))


def check_index(index: Any) -> None:
    """Check that an argument may be an index or shards; `load_shards` finds errors within it.

    Raises:
        InputError: it may not.
    """
    if isinstance(index, (str, os.PathLike)):
        text_of("index", index)
    elif words := words_of_misuse(index):
        raise InputError(f"index {words}")
    elif isinstance(index, (bytes, dict)) or not (isinstance(index, Iterable) or hasattr(index, "read")):
        raise InputError(f"index={index!r:.200}: give an index (a path, a URL or an open file) or a list of shards")
    elif isinstance(index, (list, tuple)) and not index:
        raise InputError(f"index={index!r}: there are no shards; give at least one")


def check_by(name: str, check: Callable[[], Any]) -> None:
    """Run the check of another module; its error names the argument and the value.

    Raises:
        InputError: it failed.
    """
    try:
        check()
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}{error}") from error


def text_of(name: str, value: Any) -> str:
    """The text of a path, a URL or a pattern, which may be a `Path`.

    Raises:
        InputError: it is neither, is empty, or has a NUL.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{name}={value!r:.200}: give a path, a URL or other text", parameter=_last(name))
    return text


def texts_of(name: str, value: Any) -> list[str]:
    """The texts of one argument or of several; see `text_of`.

    Raises:
        InputError: one is no text.
    """
    if isinstance(value, (str, bytes, os.PathLike)):  # bytes would be a list of numbers
        return [text_of(name, value)]
    try:
        return [text_of(name, each) for each in value]
    except TypeError as error:
        raise InputError(
            f"{name}={value!r:.200}: give a path, a URL or other text, or several", parameter=_last(name)
        ) from error


def _last(name: str) -> str:
    """The parameter in ``settings: output``."""
    return name.rpartition(": ")[2]


def _fits(value: Any, kind: Any) -> bool:
    bounds, kind = _bounds(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        is_right = any(_fits(value, part) for part in parts)
    elif origin is Literal:
        is_right = any(type(value) is type(part) and value == part for part in parts)
    elif origin in (tuple, Sequence):
        is_right = isinstance(value, (list, tuple) if origin is tuple else Sequence) and not isinstance(value, bytes)
        is_right = is_right and len(value) >= (bounds.min_length or 0) and all(_fits(each, parts[0]) for each in value)
    elif kind is int:
        is_right = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        is_right = is_right and (bounds.ge is None or value >= bounds.ge)
    elif kind is str:
        text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        is_right = isinstance(text, str) and len(text) >= (bounds.min_length is None) and "\0" not in text
    elif kind is slice:
        is_right = isinstance(value, slice) and value.step != 0
        is_right = is_right and all(_fits(part, int | None) for part in (value.start, value.stop, value.step))
    else:
        is_right = kind is Any or not isinstance(kind, type) or isinstance(value, kind)
    return is_right


def _words(kind: Any) -> str:
    bounds, kind = _bounds(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType, Literal):
        *firsts, last = (repr(part) if origin is Literal else _words(part) for part in parts)
        return f"{', '.join(firsts)} or {last}"
    if origin in (tuple, Sequence):
        each = "text" if _bounds(parts[0])[1] is str else parts[0].__name__
        many = f"at least {bounds.min_length} {each}" if bounds.min_length else f"{each}s"
        return f"a {'tuple' if origin is tuple else 'list'} of {many}"
    words: str = _WORDS[kind] if kind in _WORDS else getattr(kind, "__name__", str(kind))
    return words if bounds.ge is None else f"{words} of at least {bounds.ge}"


def _bounds(kind: Any) -> tuple[msgspec.Meta, Any]:
    """(bounds of an annotation, the annotation without them)."""
    if get_origin(kind) is not Annotated:
        return msgspec.Meta(), kind
    bare, bounds = get_args(kind)
    return bounds, bare
