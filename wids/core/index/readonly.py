"""``dataset.shards`` and ``dataset.spec``: dicts and lists that raise TypeError on changes.

Pure. Copies and pickles of them are plain dicts and lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from wids.core.index.packed_columns import Column

if TYPE_CHECKING:
    from collections.abc import Callable

_ASSIGN_SHARDS = (
    "dataset.shards is read-only, and so are its rows; assign a new list, as in "
    "dataset.shards = [{**row, ...} for row in dataset.shards]"
)
_ASSIGN_SPEC = "dataset.spec is read-only; assign a new one, as in dataset.spec = {**dataset.spec, ...}"


class ShardRow(dict[str, Any]):
    """A shard as a dict."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class Spec(ShardRow):
    """An index as a dict."""

    __slots__ = ()


class ShardRows(list[ShardRow]):
    """The shards of an index as dicts."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class LazyShardRows(Column[ShardRow]):
    """The same, each made on access: a million of them would take a gigabyte.

    Args:
        count: their number.
        describe: returns one by its number.
    """

    def __init__(self, count: int, describe: Callable[[int], dict[str, Any]]) -> None:
        super().__init__(count)
        self._describe = describe

    def _item(self, k: int) -> ShardRow:
        return ShardRow(self._describe(k))


def _refuse(advice: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise TypeError(advice)

    return refuse


_DICT = ("__setitem__", "__delitem__", "__ior__", "update", "setdefault", "pop", "popitem", "clear")
_LIST = (
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
)
for _kind, _methods, _advice in (
    (ShardRow, _DICT, _ASSIGN_SHARDS),
    (Spec, _DICT, _ASSIGN_SPEC),
    (ShardRows, _LIST, _ASSIGN_SHARDS),
    (LazyShardRows, _LIST, _ASSIGN_SHARDS),
):
    for _method in _methods:
        setattr(_kind, _method, _refuse(_advice))
