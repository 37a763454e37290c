"""Reads what other tools and other people wrote: YAML within bounds, and keys that wids does not know.

Pure. A key that could take samples away, or repeat them, is named in a warning: none does so unnoticed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from wids.errors import DependencyError, SpecError, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Values in YAML, including those that aliases repeat: half a minute of Python, a few seconds of libyaml.
_MAX_NODES = 1 << 18
# Numbers in base 60 are read in quadratic time.
_LONG_NUMBER = re.compile(r"[-+0-9_:.]{1000,}")
_CHOOSES = re.compile(
    r"exclu|skip|omit|subset|filter|weight|repeat|blend|ignore|drop|deny|denied|block|black|remove|delete|disable|"
    r"opt_?out|withdrawn|invalid|corrupt|broken|keep|include|only|range|slice|limit"
)


def warn_of_keys(raw: Mapping[str, Any], known: Collection[str], where: str, *, is_strict: bool = False) -> None:
    """Warn of unknown keys that say, by their names, which samples there are, and that have a value.

    Args:
        raw: an object of a file.
        known: the keys that are read, or that are known to mean something else.
        where: of the object, for the message.
        is_strict: the format is known completely: warn of each unknown key.
    """
    odd = [
        shown(str(key))
        for key, value in raw.items()
        if key not in known and value not in (None, False, 0, "", [], {}) and (is_strict or is_choice(str(key)))
    ]
    if odd:
        logger.warning(
            "%s: wids does not read %s, which could change which samples there are", where, ", ".join(odd[:10])
        )


def is_choice(key: str) -> bool:
    """True if a key chooses the samples, by its name."""
    return _CHOOSES.search(key.lower()) is not None


def load_yaml(data: bytes, path: str, name: str) -> dict[str, Any]:
    """The mapping that a YAML text is; {}: it is something else.

    Args:
        data: the text.
        path: of the file, for messages.
        name: of the data set, likewise.

    Raises:
        SpecError: malformed, or too large with its aliases written out. DependencyError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise DependencyError(f"{name}: its {path} assigns files to splits: pip install 'wids[hub]'") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_size(yaml.parse(data, loader))
        mapping = yaml.load(data, loader)  # noqa: S506 - it is a safe one
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise SpecError(f"{name}: {path}: not valid YAML ({str(error)[:200]})", path=path, url=name) from error
    return mapping if isinstance(mapping, dict) else {}


def _check_size(events: Any) -> None:
    """Count the values, those of an alias at each use, also of aliases within aliases.

    Raises:
        ValueError: they are too many, or one of them takes long to read.
    """
    count, sizes = 0, dict[str, int]()
    open_nodes: list[tuple[str | None, int]] = []
    for event in events:
        kind, anchor = type(event).__name__, getattr(event, "anchor", None)
        if kind == "AliasEvent":
            count += sizes.get(anchor or "", 1)
        elif kind == "ScalarEvent":
            count += 1
            if anchor is not None:
                sizes[anchor] = 1
            if _LONG_NUMBER.fullmatch(event.value):
                raise ValueError(f"a number of {len(event.value):,} letters")
        elif kind in ("SequenceStartEvent", "MappingStartEvent"):
            open_nodes.append((anchor, count))
            count += 1
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        if count > _MAX_NODES:
            raise ValueError(f"it has more than {_MAX_NODES:,} values, with its aliases written out")
