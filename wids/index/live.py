"""``dataset.shards`` and ``dataset.spec``: dicts whose changes the dataset follows, and a list that refuses changes.

Pure. Copies and pickles of them are plain dicts and lists. The shards of a mapped list are a sequence that makes its
dicts when they are asked for: a million of them would take a gigabyte.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from weakref import WeakValueDictionary

from wids.index.mapped_columns import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from weakref import WeakMethod

    from typing_extensions import Self

    from wids.index.spec import ShardList

    # Called with a list, the number of a shard in it, and the shard as it would be after a change.
    TakeShard: TypeAlias = Callable[[ShardList, int, dict[str, Any]], None]


def live_shard(shards: ShardList, k: int, take: WeakMethod[TakeShard]) -> LiveDict:
    """Shard ``k`` of a list as a dict; a change of it is handed to ``take``.

    Which is held weakly: who keeps the dict keeps no dataset, and no open files.
    """
    return LiveDict(shards.describe(k), partial(_call, take, shards, k))


def live_spec(
    shards: ShardList, listed: Sequence[dict[str, Any]], take: WeakMethod[Callable[[dict[str, Any]], None]]
) -> LiveDict:
    """An index as a dict, ``listed`` its shards; a change of it is handed to ``take``."""
    return LiveDict({**shards.header, "shardlist": listed}, partial(_call, take))


def _call(method: WeakMethod[Any], *args: Any) -> None:
    """Call a method whose object is still there."""
    if (call := method()) is not None:
        call(*args)


class LiveDict(dict[str, Any]):
    """A dict of which each change is handed to its owner first.

    Args:
        items: what it holds.
        take: called with the dict as it would be after a change; raises to refuse it, and then nothing is changed.
    """

    __slots__ = ("__weakref__", "_take")

    def __init__(self, items: Mapping[str, Any], take: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(items)
        self._take = take

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        self.update(other)
        return self


class FixedList(list[dict[str, Any]]):
    """A list that is replaced as a whole: what would change it raises TypeError.

    Args:
        items: what it holds.
        name: what the owner calls it, for the message.
    """

    __slots__ = ("_name",)

    def __init__(self, items: Iterable[dict[str, Any]], *, name: str) -> None:
        super().__init__(items)
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __setitem__(self, k: Any, value: Any) -> None:
        if not isinstance(k, int) or value is not self[k]:  # which is what items[k] |= {...} ends with
            _refuse(self)


class LazyShards(Column[dict[str, Any]]):
    """The shards of a mapped list: as a `FixedList`, whose items are made when they are asked for.

    Args:
        count: how many there are.
        make: gives one by its number.
        name: what the owner calls it, for messages.
    """

    def __init__(self, count: int, make: Callable[[int], LiveDict], *, name: str) -> None:
        super().__init__(count)
        self._make, self._name = make, name
        # While one is in use, others get the same one.
        self._made: WeakValueDictionary[int, LiveDict] = WeakValueDictionary()

    def _item(self, k: int) -> dict[str, Any]:
        found = self._made.get(k)
        if found is None:
            found = self._made[k] = self._make(k)
        return found

    def __setitem__(self, k: Any, value: Any) -> None:
        if not isinstance(k, int) or value is not self[k]:
            _refuse(self)


def _taken_over(method: str) -> Callable[..., Any]:
    def change(self: LiveDict, *args: Any, **kwargs: Any) -> Any:
        changed = dict(self)
        result = getattr(changed, method)(*args, **kwargs)
        self._take(changed)
        dict.clear(self)
        dict.update(self, changed)
        return result

    return change


def _refuse(self: FixedList | LazyShards, *_: Any, **__: Any) -> NoReturn:
    name = self._name
    raise TypeError(f"{name} cannot be changed in place; assign a new list, as in {name} = {name}[:10]")


for _method in ("__setitem__", "__delitem__", "update", "setdefault", "pop", "popitem", "clear"):
    setattr(LiveDict, _method, _taken_over(_method))
for _method in (
    *("__delitem__", "__iadd__", "__imul__"),
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
):
    setattr(FixedList, _method, _refuse)
    setattr(LazyShards, _method, _refuse)
