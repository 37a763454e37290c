"""The list of samples that a page shows: those of a filter, those with a tag alone if asked, and their order.

Rules: an order is one of the whole list, made once by SQL and kept. Samples without a value come last in both
directions, NaN too; those of equal values follow each other by index. What would take too long is not sorted, and it is
said why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wids.columns.spec import nearest
from wids.errors import InputError, SelectionError, shown
from wids.tools.serve.facets import describe_columns, quoted
from wids.tools.serve.tags import TAGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wids.core.index.selection import Integers
    from wids.tools.serve.served import Served

MAX_SORTED = 10_000_000
_TAGS = ["any", *map(str, range(1, TAGS + 1))]
_FLOATS = frozenset({"double", "float", "halffloat"})


class Listing(NamedTuple):
    """A list as a page asks for it.

    Attributes:
        where: a predicate in SQL; "": all.
        tag: only those with it; 0: with any; None: all.
        sort: the column that they are sorted by; "": by index.
        is_descending: from the largest value to the smallest.
    """

    where: str = ""
    tag: int | None = None
    sort: str = ""
    is_descending: bool = False


def parse_listing(query: Mapping[str, str]) -> Listing:
    """The list of ``where=``, ``tag=2`` or ``tag=any``, ``sort=`` and ``desc=1`` in a request.

    Raises:
        InputError: there is no such tag.
    """
    text = query.get("tag", "")
    if text and text not in _TAGS:
        raise InputError(f"tag is {shown(text)}; it is any or 1 to {TAGS}")
    tag = _TAGS.index(text) if text else None
    return Listing(query.get("where", "").strip(), tag, query.get("sort", ""), query.get("desc") == "1")


def choose(served: Served, listing: Listing) -> Integers | None:
    """The indices of a list, in its order; None: all there are, ascending.

    Raises:
        InputError, SelectionError: it cannot be sorted so.
        QueryError, ColumnsError, DependencyError: see `wids.ShardListDataset.find_rows`.
    """
    found = served.rows.find(listing.where)
    if listing.sort:
        found = _sorted(served, listing, found)
    if listing.tag is None:
        return found
    tagged = served.tags.indices(listing.tag)
    return tagged if found is None else found[np.isin(found, tagged)]


def _sorted(served: Served, listing: Listing, found: Integers | None) -> Integers | None:
    name, is_descending = listing.sort, listing.is_descending
    if name == "index" and not is_descending:
        return found
    count = len(served.dataset) if found is None else len(found)
    if count > MAX_SORTED:
        raise InputError(f"{count:,} samples are too many to sort; up to {MAX_SORTED:,} are: filter them first")
    if name == "index":
        return (np.arange(count) if found is None else found)[::-1]
    columns = {each["name"]: each for each in describe_columns(served)["columns"]}
    column = columns.get(name)
    if column is None:
        raise SelectionError(f"there is no column {shown(name)} to sort by{nearest(name, columns)}")
    if column["unsortable"]:
        raise InputError(column["unsortable"])
    value = quoted(name)
    is_none = f"{value} is null or isnan({value})" if column["type"] in _FLOATS else f"{value} is null"
    return served.rows.order(listing.where, f'{is_none}, {value} {"desc" if is_descending else "asc"}, "index"')
