"""The arguments of jobs: each is of its type and in its range, or an `InputError` names it before any work is done."""

from __future__ import annotations

import numbers
import operator
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from wids.core.collection.shard_collection import words_of_misuse
from wids.core.transport.session import Session
from wids.errors import InputError, a_kind
from wids.jobs.progress import check_progress
from wids.jobs.runner import RunOptions, run_options

if TYPE_CHECKING:
    from collections.abc import Callable

    S = TypeVar("S", bound=msgspec.Struct)

Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


def check_job(settings: S, kind: type[S], engine: Any, progress: Any, *, name: str = "settings") -> S:
    """Check the arguments that all jobs have.

    Returns:
        The settings; see `check_struct`.

    Raises:
        InputError: one does not fit.
    """
    check_struct("engine", run_options(engine), RunOptions)
    check_progress(progress)
    return check_struct(name, settings, kind)


def check_struct(name: str, value: S, kind: type[S]) -> S:
    """Check that a value is a struct of this kind, and that each field fits its annotation.

    Returns:
        The struct, with texts in place of paths and Python's integers in place of those of other libraries.

    Raises:
        InputError: it is not, or one does not.
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} is {a_kind(value)}: give {kind.__name__}")  # its value may have secrets
    changed = dict[str, Any]()
    for field, wanted in get_type_hints(kind, include_extras=True).items():
        given = getattr(value, field)
        if wanted is Session:
            check_session(f"{name}: {field}", given)
        else:
            check_value(f"{name}: {field}", given, wanted)
            if (plain := _plain(given)) is not given:
                changed[field] = plain
    return msgspec.structs.replace(value, **changed) if changed else value


def check_session(name: str, session: Any) -> None:
    """Check that a value is a `Session`, and its fields.

    Raises:
        InputError: it is not, or one does not fit.
    """
    if not isinstance(session, Session):
        raise InputError(f"{name} is {a_kind(session)}: give a wids.jobs.Session")  # its value may have secrets
    check_by(f"{name}: ", session.check)


# Names of JSON -> of Python, in messages of msgspec.
_NAMES = {"array": "list", "null": "None", "`object`": "`dict`"}


def check_value(name: str, value: Any, kind: Any) -> None:
    """Check that an argument fits an annotation, by `msgspec.convert`; a `Path` is as its text, which has no NUL.

    Raises:
        InputError: it does not fit.
    """
    try:
        msgspec.convert(_plain(value), kind, dec_hook=_as_given)
    except msgspec.ValidationError as error:
        words = str(error).partition(" - at ")[0].replace("Expected", "expected")
        for theirs, ours in _NAMES.items():
            words = words.replace(theirs, ours)
        if get_origin(kind) is Literal:
            words = f"give one of {', '.join(map(repr, get_args(kind)))}"
        raise InputError(f"{name}={_shown(value)}: {words}", parameter=_last(name)) from None


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
        raise InputError(f"index={_shown(index)}: give an index (a path, a URL or an open file) or a list of shards")
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
        raise InputError(f"{name}={_shown(value)}: give a path, a URL or other text", parameter=_last(name))
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
            f"{name}={_shown(value)}: give a path, a URL or other text, or several", parameter=_last(name)
        ) from error


def _shown(value: Any) -> str:
    """A value for a message; of a dict, which may have secrets, what it is."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    return a_kind(value) if any(isinstance(part, Mapping) for part in parts) else f"{value!r:.200}"


def _last(name: str) -> str:
    """The parameter in ``settings: output``."""
    return name.rpartition(": ")[2]


def _plain(value: Any) -> Any:
    """A value as msgspec knows it: a path as text, an integer of another library as Python's."""
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if not isinstance(text, str):
            raise msgspec.ValidationError("Expected `str`, got `bytes`")
        if "\0" in text:
            raise msgspec.ValidationError("it has a NUL")
        return text
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, (set, frozenset)):
        raise msgspec.ValidationError("Expected `array`, got a set, which has no order")
    if isinstance(value, (list, tuple)):
        parts = list(map(_plain, value))
        return value if all(map(operator.is_, parts, value)) else parts
    return value


def _as_given(kind: type, value: Any) -> Any:
    """A value of a type that msgspec does not know."""
    if kind is slice and isinstance(value, slice):
        for part in (value.start, value.stop, value.step):
            if part is not None:
                operator.index(part)
        if value.step == 0:
            raise ValueError("the step of a slice is not 0")
    return value
