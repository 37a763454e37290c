"""The arguments of a dataset: checks, defaults, the log line about them, advice in errors.

Without torch.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import numbers
import operator
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from wids.collection import error_log
from wids.collection.shard_collection import lists_shards
from wids.collection.substitutes import Substitutes
from wids.errors import without_secrets
from wids.events import fallback, format_size, logger, parse_size
from wids.files.own_folder import default_cache_dir
from wids.index.paths import absolute
from wids.order.validation import check_flag, parse_int
from wids.tables.table import find_groupings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.collection.shard_collection import OnCountMismatch, ShardCollection
    from wids.events import Hook
    from wids.index.spec import ShardList
    from wids.readers.provider import AutoProvider
    from wids.tables.table import MemberTable


MAX_ERRORS = 0.001


def parse_count_mismatch(value: OnCountMismatch) -> OnCountMismatch:
    """What to do about a shard that does not hold as many samples as the index says."""
    if value not in ("error", "warn"):
        raise ValueError(f"on_count_mismatch is {value!r}; it must be 'error' or 'warn'")
    return value


def parse_cache_size(size: Any) -> int | None:
    """Bytes that a cache may hold; None: no limit."""
    if size is None:
        return None
    if isinstance(size, str):
        return _parse_text(size, "cache_size")
    if isinstance(size, (bytes, bool)) or not 0 <= size < math.inf:
        raise ValueError(f"cache_size is {size!r}; it must be a number of bytes, a text like '200GB', or None")
    return int(size)


def _parse_text(size: str, name: str) -> int:
    try:
        return parse_size(size)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def check_flags(**flags: Any) -> None:
    """See that parameters which are true or false are no texts: ``allow_pickle="no"`` would allow it.

    Raises:
        ValueError: one is.
    """
    for name, value in flags.items():
        check_flag(name, value)


def check_lru_size(size: Any) -> None:
    """See that ``lru_size`` is a number of shards.

    Raises:
        ValueError: it is none.
    """
    if size is not None:
        parse_int("lru_size", size, minimum=0)


def parse_hooks(hooks: Any) -> tuple[Hook, ...]:
    """The hooks, each of which can be called; what one raises later is no error of reading.

    Raises:
        TypeError: one cannot, or they are not several.
    """
    found = tuple(hooks) if isinstance(hooks, Iterable) else (None,)
    if not all(map(callable, found)):
        raise TypeError(f"hooks is {hooks!r:.200}; it must be a list of functions, each of which takes an event")
    return found


def check_storage_options(options: Any) -> None:
    """See that ``storage_options`` are a dict.

    Raises:
        TypeError: they are not.
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"storage_options is a {type(options).__name__}; it must be a dict, as fsspec takes it")


def parse_prefetch(ahead: Any) -> bool | int:
    """Whether to download ahead, or how many bytes at most."""
    if isinstance(ahead, bool):
        return ahead
    if isinstance(ahead, str):
        return _parse_text(ahead, "prefetch")
    if not hasattr(ahead, "__index__") or operator.index(ahead) < 0:
        raise ValueError(
            f"prefetch is {ahead!r}; it must be True, False, or a maximal number of bytes to download ahead, also as a "
            "text like '2GB'"
        )
    return operator.index(ahead)


def choose_cache_dir(cache_dir: str | os.PathLike[str] | None, localname: Callable[[str], str] | None) -> str | None:
    """Where remote shards are kept; None: where ``localname`` says."""
    if cache_dir is not None:
        return os.path.expanduser(os.fspath(cache_dir))
    return None if localname is not None else default_cache_dir()


def parse_on_error(
    on_error: Literal["raise", "substitute"],
    max_errors: float,
    log: str | os.PathLike[str] | None,
    hooks: Sequence[Hook],
    has_failed: Callable[[], bool],
) -> Substitutes | None:
    """The rule for samples that fail; None: their errors are raised."""
    if on_error not in ("raise", "substitute"):
        raise ValueError(f"on_error is {on_error!r}; it must be 'raise' or 'substitute'")
    if on_error == "raise":
        if max_errors != MAX_ERRORS:
            raise ValueError("max_errors is for on_error='substitute'; otherwise the first error is raised")
        if log is not None:
            raise ValueError("error_log is for on_error='substitute'; errors that are raised are not logged")
        return None
    if not isinstance(max_errors, numbers.Real) or not 0 <= max_errors <= 1:
        raise ValueError(f"max_errors is {max_errors!r}; it is a share of the samples, from 0 to 1")
    path = None if log is None else error_log.check(os.fspath(log), "a log of errors")
    return Substitutes(max_errors=float(max_errors), log=path, hooks=hooks, has_failed=has_failed)


def place_of(shards: Any, base: Any, options: Any, found: ShardList) -> str | None:
    """The URL or path of the index that lists the shards as they are; None: there is none."""
    if found.selection is not None and base is None and set(options or ()) <= {"view_of"}:
        return found.header.get("view_of")
    if not isinstance(shards, (str, os.PathLike)) or base is not None or options:
        return None
    place = os.fspath(shards)
    return None if lists_shards(place) else absolute(place)


def choose_name(name: str | None, shards: Any, found: ShardList) -> str:
    """The name of a dataset: the given one, the index's, else a digest of the index's path or of the list of shards."""
    text = str(shards)
    if not isinstance(shards, (str, os.PathLike)):  # what an open file or a generator says of itself is its address
        text = "\n".join(f"{url} {count}" for url, count in zip(found.urls, found.nsamples, strict=True))
    return name or found.header.get("name") or digest_name(text)


def digest_name(input_string: str) -> str:
    """16 letters that differ where the text does."""
    digest = hashlib.sha256(input_string.encode("utf-8", "surrogatepass")).digest()
    return base64.urlsafe_b64encode(digest)[:16].decode()


def announce(shards: Any, found: ShardList, *, base: str | None, name: str, cache_dir: str | None) -> None:
    """Say in the log what a dataset consists of; on stderr if ``$WIDS_VERBOSE`` asks for it."""
    if os.environ.get("WIDS_VERBOSE", "0") not in ("", "0"):
        _log_to_stderr()
    if logger.isEnabledFor(logging.INFO):
        size = sum(size for size in found.filesizes if size > 0)
        facts = [f"{len(found):,} shards", f"{sum(found.lengths):,} samples", *([format_size(size)] if size else [])]
        more = {"name": name, "base": base, "cache": cache_dir}
        facts += [f"{what} {value}" for what, value in more.items() if value]
        # In this order: half a password is not seen to be one.
        logger.info("%s: %s", without_secrets(str(shards))[:50], ", ".join(facts))


def _log_to_stderr() -> None:
    """Let the ``wids`` logger speak without the program having set up logging."""
    fallback.setLevel(logging.INFO)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)


def advise(collection: ShardCollection, table: MemberTable, expected: int) -> str:
    """What to do about a shard that does not hold as many samples as the index says."""
    if collection.on_count_mismatch == "warn":
        return ". There is none to repeat: leave the shard out (dataset.shards = [...])"
    return (
        f"{_other_grouping(collection.provider, table, expected)}. Write the index again (wids index create); if it is "
        "not yours to write, on_count_mismatch='warn' repeats such a shard's samples, or leaves out its last ones"
    )


def _other_grouping(provider: AutoProvider, table: MemberTable, nsamples: int) -> str:
    """How members would have to be grouped to be so many samples, for a message; ``""`` if there is no such way."""
    own_rule, own_group = provider.files.rule, provider.files.group
    if callable(own_rule):  # it may give keys and extensions that are no parts of a name
        return ""
    for rule, group in find_groupings(table, nsamples):
        wanted = {"key_rule": (rule, own_rule), "group": (group, own_group)}
        options = [f"{name}={value!r}" for name, (value, own) in wanted.items() if value != own]
        return f"; with {', '.join(options)} it would be as many"
    return ""
