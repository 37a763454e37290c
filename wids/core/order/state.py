"""The state of a sampler (``state_dict()``): one position, and the settings without which it would mean another one.

::

    {"kind": "wids.sampler", "version": 2,
     "wids": "1.0.0",       the wids that wrote it, for messages
     "epoch": 3,            the epoch, or nominal epoch
     "position": 5120,      samples of its sequence that all ranks together have had
     "yielded": 640,        of them by each rank, in this epoch
     "lanes": 8,            lanes of the run, which any other world size takes over
     "order": {...}}        all other settings that the sequence depends on; the sampler that loads the state must
                            have the same

Every later 1.y reads the states of any 1.x. So the version is raised only if a reader of before would misread a state,
and then the earlier one is read as well. A value that is added to an order is left out of it while it is the one that
all versions before acted by. No key is added beside the order: `torch.distributed.checkpoint` refuses to load a
checkpoint that lacks a key of the loading program's state.

Plain ints, strings, lists, bools and None, so that JSON, `torch.save` and weights-only loaders take it; the same
on every rank. The state of a loader (`wids.resumable`) has its order as JSON text: `torch.distributed.checkpoint`
reads mappings and lists key by key, those alone that the state of the loading program has, and an order that is
longer (of weights that have changed) would be cut without a word.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from wids import __version__
from wids.core.files import json_text
from wids.errors import JsonError, StateError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND, VERSION = "wids.sampler", 2
# In an order: digests of the shards' contents, by kinds of checksums. A kind that only one side has does not count.
CONTENTS = "contents"
# Likewise, digests of the datasets that have further fields of the samples: another one is warned of.
COMPANIONS = "companions"
MAX_POSITION = 1 << 62  # numpy's integers have an end


class EpochPosition(NamedTuple):
    """The beginning of an iteration.

    Attributes:
        epoch: its epoch.
        position: samples of the epoch's sequence that all ranks together have had; of batches, the beginning of their
            block: at the epoch's end, nothing is left.
        yielded: samples, or batches, that each rank has had of the epoch before.
        offset: batches of the block that all ranks together have had; 0 of samples.
    """

    epoch: int
    position: int
    yielded: int = 0
    offset: int = 0


START = EpochPosition(0, 0)


def build_state(place: EpochPosition, *, lanes: int, order: dict[str, Any]) -> dict[str, Any]:
    """The state that `parse_state` reads."""
    epoch, position, yielded, _ = place
    place_values = {"epoch": epoch, "position": position, "yielded": yielded}
    return {"kind": KIND, "version": VERSION, "wids": __version__, **place_values, "lanes": lanes, "order": order}


@contextlib.contextmanager
def naming_writer(state: Any) -> Iterator[None]:
    """Let a StateError that is raised for a state name the wids that wrote it, if that is not this one."""
    try:
        yield
    except StateError as error:
        writer = state.get("wids") if isinstance(state, Mapping) else None
        if not isinstance(writer, str) or writer == __version__:
            raise
        raise StateError(f"{error}. wids {writer:.40} wrote the state, and this is wids {__version__}") from None


def flat_state(state: dict[str, Any]) -> dict[str, Any]:
    """A state with its order as JSON text, so that it has the same keys always."""
    return {**state, "order": json.dumps(state["order"])} if isinstance(state.get("order"), Mapping) else state


def nested_state(state: Any) -> Any:
    """The state that `flat_state` was given; anything else stays unchanged."""
    if isinstance(state, Mapping) and isinstance(state.get("order"), str):
        with contextlib.suppress(JsonError):
            return {**state, "order": json_text.parse(state["order"])}
    return state


def open_state(state: Any, kind: str, version: int, name: str) -> Mapping[str, Any]:
    """A state of a kind and version, with its order as a mapping; ``name`` says in a message what has such states.

    Raises:
        StateError: it is another one.
    """
    state = nested_state(state)
    if not isinstance(state, Mapping) or state.get("kind") != kind:
        raise StateError(f"not the state of a {name}: {state!r:.200}")
    if state.get("version") != version:
        raise StateError(
            f"the state's version is {state.get('version')!r} and this wids reads version {version}; resume with the "
            "wids that wrote it"
        )
    return state


def parse_state(state: Any) -> tuple[EpochPosition, int, dict[str, Any]]:
    """(place, lanes, order) of a state.

    Raises:
        StateError: it is not a sampler's, of a version that is not known, or damaged.
    """
    state = open_state(state, KIND, VERSION, "wids sampler")
    minimums = {"epoch": None, "position": 0, "yielded": 0, "lanes": 1}
    epoch, position, yielded, lanes = (read_int(state, name, minimum=least) for name, least in minimums.items())
    order = state.get("order")
    # After a change of the data, positions are those of the data of now.
    if yielded > position and not (isinstance(order, Mapping) and "amended" in order):
        raise StateError(f"the state's yielded is {yielded}, more than its position, {position}; it is damaged")
    if not isinstance(order, Mapping):
        raise StateError(f"the state's order is {order!r:.200}, not a mapping; it is damaged")
    return EpochPosition(epoch, position, yielded), lanes, dict(order)


def read_size(order: Mapping[str, Any]) -> int | None:
    """The ``epoch_size`` of a state's order.

    Raises:
        StateError: it is damaged.
    """
    if order.get("epoch_size") is None:
        return None
    return read_int(order, "epoch_size", minimum=1, maximum=MAX_POSITION)


def check_known(values: Mapping[Any, Any], known: set[str], name: str) -> None:
    """Check that values of a state, besides those that are compared, are all known.

    Raises:
        StateError: some are not: a later version may have added them, and the state may mean another order.
    """
    unknown = ", ".join(sorted(str(key) for key in values if key not in known))
    if unknown:
        raise StateError(f"the state's {name} has {unknown}, which this wids does not know")


def check_order(there: dict[str, Any], here: dict[str, Any], *, advice: str = "") -> None:
    """Raise StateError, naming all that differs, unless both orders are the same; ``advice`` ends its message.

    Where only companions have changed, which do not change the order, a warning names them.
    """
    there, here = _flatten(_without_companions(there, here)), _flatten(_without_companions(here))
    names = sorted(there.keys() & here.keys() | {name for name in there.keys() ^ here.keys() if not _is_content(name)})
    differing = [name for name in names if there.get(name, _ABSENT) != here.get(name, _ABSENT)]
    if differing:
        listed = "; ".join(f"{name}: {_show(there, name)} there, {_show(here, name)} here" for name in differing)
        is_other_data = not _DATA.isdisjoint(name.rpartition(".")[2] for name in differing)
        if all(map(_is_content, differing)):
            raise StateError(
                "the state belongs to other data: shards of the same names and counts had other checksums or sizes "
                f"({listed}), so they were rewritten, and positions may stand for other samples. Train on the "
                f"shards of before, {_GO_ON}, or begin an epoch. If the order of their samples is the same, delete "
                f"{CONTENTS!r} from state['order']"
            )
        raise StateError(
            f"the state belongs to another order ({listed}). Make the dataset and the sampler as they were when it "
            f"was saved, {f'{_GO_ON}, ' * is_other_data}or leave the state and begin an epoch{advice}"
        )


def _without_companions(order: Mapping[str, Any], now: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An order without its companions; those that have changed since then are warned of."""
    then, here = order.get(COMPANIONS), {} if now is None else now.get(COMPANIONS)
    if isinstance(then, Mapping) and isinstance(here, Mapping):
        for name in then.keys() & here.keys():
            if isinstance(then[name], Mapping) and isinstance(here[name], Mapping):
                kinds = then[name].keys() & here[name].keys()
                changed = sorted(kind for kind in kinds if then[name][kind] != here[name][kind])
                if changed:
                    logger.warning(
                        "the companion %s has changed since the state was saved (%s): the order goes on as it was, "
                        "with the fields of now",
                        name,
                        ", ".join(changed),
                    )
    return {key: value for key, value in order.items() if key != COMPANIONS}


def _is_content(name: str) -> bool:
    return name.split(".")[-2:-1] == [CONTENTS]


def _show(order: Mapping[str, Any], name: str) -> str:
    return repr(order[name]) if name in order else "nothing"


def _flatten(order: Mapping[str, Any]) -> dict[str, Any]:
    """Values within values, with their path as the name."""
    flat: dict[str, Any] = {}
    for name, value in order.items():
        inner = _flatten(value) if isinstance(value, Mapping) and value else None
        name = str(name)  # noqa: PLW2901 - a damaged state may have others
        flat |= {name: value} if inner is None else {f"{name}.{key}": each for key, each in inner.items()}
    return flat


_ABSENT = object()
_DATA = {"dataset", "samples", "shards"}  # facts that a change of the data changes
_GO_ON = "go on over changed data by load_state_dict(state, old=the earlier dataset)"


def read_int(state: Mapping[str, Any], name: str, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """An integer of a state, of any type.

    Raises:
        StateError: it is none, or too small or large.
    """
    try:
        value = operator.index(state[name])
    except (KeyError, TypeError):
        raise StateError(f"the state's {name} is {state.get(name)!r}, not an integer; it is damaged") from None
    if minimum is not None and value < minimum:
        raise StateError(f"the state's {name} is {value}, below {minimum}; it is damaged")
    if maximum is not None and value > maximum:
        raise StateError(f"the state's {name} is {value}, above {maximum}; it is damaged")
    return value


def digest(*parts: bytes) -> str:
    """16 hexadecimal digits that differ where the parts do."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()
