"""Results of SQL as plain Python and JSON values, for commands and pages that print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wids.columns.packages import import_arrow
from wids.errors import QueryError

if TYPE_CHECKING:
    from collections.abc import Iterator


def rows_of(table: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a ``pyarrow.Table``, with Python values.

    Raises:
        QueryError: it has values that cannot be printed.
    """
    for batch in table.to_batches():
        yield from zip(*map(_values, batch.columns), strict=True)


def _values(column: Any) -> list[Any]:
    """The values as Python objects; as text if Python cannot represent them, such as a date after the year 9999."""
    try:
        found: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        pa = import_arrow()
        try:
            found = column.cast(pa.string()).to_pylist()
        except pa.ArrowException as error:
            raise QueryError(f"{column.type} values cannot be printed ({error}); cast them to varchar") from error
    return found


def to_plain(value: Any) -> Any:
    """A value of a JSON type: dates, bytes and the like as text."""
    if isinstance(value, dict):
        return {str(name): to_plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(part) for part in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
