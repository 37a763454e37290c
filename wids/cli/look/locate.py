"""``wids locate``: index, shard and row of samples, found by their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wids.cli.format import print_json, print_table, printable, shown_url
from wids.cli.look.keys import Search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.cli.look.listed import Listed


def show_places(listed: Listed, keys: Sequence[str], *, is_json: bool) -> None:
    """Print all samples that have one of the keys.

    Raises:
        WidsError: a key was not found (the found ones are printed), or a member table cannot be read.
    """
    search = Search(listed, list(keys), is_first=False)
    search.run()
    found = {key: [listed.place(index) for index in indices] for key, indices in search.found.items()}
    if is_json:
        print_json(
            [
                {"key": key, "found": places, **({} if places else {"near": search.nearest(key)})}
                for key, places in found.items()
            ]
        )
    elif any(found.values()):
        rows = [
            (printable(key), str(place["index"]), str(place["shard"]), str(place["row"]), shown_url(place["url"]))
            for key, places in found.items()
            for place in places
        ]
        print_table(("key", ">index", ">shard", ">row", "url"), rows)
    search.check()
