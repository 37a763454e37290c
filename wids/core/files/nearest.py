"""The existing name that is most like a path that does not exist."""

from __future__ import annotations

import difflib
import itertools
import os
import re

# More names than these are not looked at: an error has to come soon.
_MAX_NAMES = 2000
_CUTOFF = 0.75
_DIGIT = re.compile(r"\d")


def name_nearest(path: str) -> str:
    """Words for an error: ``"; there is train.json"``, or ``""``.

    Args:
        path: does not exist. Of its parts, the first that is missing is compared with the names beside it.
    """
    head, missing = os.path.split(path.rstrip("/"))
    rest = ""
    while head and missing and not os.path.isdir(head):
        (head, missing), rest = os.path.split(head), f"{missing}/{rest}".rstrip("/")
    try:
        with os.scandir(head or ".") as entries:
            names = [entry.name for entry in itertools.islice(entries, _MAX_NAMES)]
    except OSError:
        return ""
    near = _nearest(missing, names)
    if near is None:
        return ""
    beside = os.path.join(head, near)
    whole = os.path.join(beside, rest) if rest else beside
    return f"; there is {whole if os.path.exists(whole) else beside}"


def _nearest(name: str, names: list[str]) -> str | None:
    # One of a series is missing, and the others were not meant.
    series = _DIGIT.sub("0", name)
    folded = {each.casefold(): each for each in sorted(names) if _DIGIT.sub("0", each) != series}
    matches = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=_CUTOFF)
    return folded[matches[0]] if matches else None
