"""States in files: what ``--state`` names, and what of a sampler a state does not say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wids.core.files import json_text
from wids.core.order.state import KIND, nested_state
from wids.core.place import Place
from wids.errors import InputError, JsonError
from wids.tools.cli.options import read_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.core.index.shardlist import ShardList
    from wids.core.transport.session import Session
    from wids.tools.simulate.resume import Resume

_DEPTH = 6  # of mappings and lists in a checkpoint


@dataclass(frozen=True, kw_only=True)
class SavedFlags:
    """Options of commands that take the state of a run."""

    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="FILE",
            help="A state of a sampler or a loader: JSON, or a checkpoint of torch.save that holds one.",
            show_default=False,
        ),
    ] = None
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="The sampler's seed; for the state of a mixture.")
    ] = 0
    tail: Annotated[
        str,
        typer.Option(
            "--tail", metavar="pad|drop|mask", help="The sampler's tail; for a state of batches by length or packs."
        ),
    ] = "pad"
    old_lengths: Annotated[
        str | None,
        typer.Option(
            "--old-lengths",
            metavar="FILE.npy",
            help="The length of each sample of OLD; for a state of batches by length or packs.",
            show_default=False,
        ),
    ] = None
    old_limit: Annotated[
        list[str] | None,
        typer.Option(
            "--old-limit",
            metavar="NAME=FILE.npy",
            help="Likewise, the values of a limit of batches; may be repeated.",
            show_default=False,
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """The options of `wids.jobs.diff_indexes`.

        Raises:
            InputError: a file cannot be read.
        """
        if self.tail not in ("pad", "drop", "mask"):
            raise typer.BadParameter(f"--tail {self.tail!r:.80} is none of pad, drop, mask")
        lengths = None if self.old_lengths is None else read_values("--old-lengths", self.old_lengths, _refuse)
        return {"seed": self.seed, "tail": self.tail, "old_lengths": lengths, "old_limits": _limits(self.old_limit)}


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """The state from which a job goes on."""

    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="FILE",
            help="The job goes on from this state, in its epoch and lanes: JSON, or a checkpoint of torch.save.",
            show_default=False,
        ),
    ] = None
    old: Annotated[
        str | None,
        typer.Option(
            "--old",
            metavar="INDEX",
            help="The index that the state was saved over, if data have changed.",
            show_default=False,
        ),
    ] = None
    old_lengths: Annotated[
        str | None,
        typer.Option(
            "--old-lengths",
            metavar="FILE.npy",
            help="The length of each of its samples; for a state of batches by length or packs.",
            show_default=False,
        ),
    ] = None
    old_limit: Annotated[
        list[str] | None,
        typer.Option(
            "--old-limit",
            metavar="NAME=FILE.npy",
            help="Likewise, the values of a limit of batches; may be repeated.",
            show_default=False,
        ),
    ] = None

    def find(self, shards: ShardList | None, session: Session) -> Resume | None:
        """The job that goes on, over these shards; None: it begins.

        Raises:
            typer.BadParameter: there is no index, or no state. InputError: the state cannot be read.
        """
        if self.state is None:
            if self.old is not None or self.old_lengths is not None or self.old_limit:
                raise typer.BadParameter("--old and --old-lengths are of a --state, which is missing")
            return None
        if shards is None:
            raise typer.BadParameter("--state is of a job on an INDEX, which is missing")
        from wids.core.collection.changes import find_earlier, open_earlier
        from wids.core.collection.shard_collection import load_shards
        from wids.tools.simulate.resume import Resume

        data, path, earlier = open_earlier(shards), self.old_lengths, None
        if self.old is not None:
            lengths = None if path is None else lambda: read_values("--old-lengths", path, _refuse)
            then = open_earlier(load_shards(self.old, session=session)[1])
            earlier = find_earlier(data, then, values={"lengths": lengths}, limits=_limits(self.old_limit))
        return Resume(data, read_state(self.state), earlier)


def _limits(texts: list[str] | None) -> dict[str, Any]:
    """The values of limits: name -> (nsamples,).

    Raises:
        InputError: a file cannot be read.
    """
    parts = (text.partition("=") for text in texts or ())
    return {name: read_values("--old-limit", path, _refuse) for name, _, path in parts}


def _refuse(name: str) -> Any:
    raise typer.BadParameter(f"{name!r:.80} is no FILE.npy")


def read_state(path: str) -> Any:
    """The state in a file of JSON, or in a checkpoint of `torch.save`, of which weights alone are loaded.

    Raises:
        InputError: the file cannot be read; it holds no state, or several that differ.
    """
    path = Place(path).path
    try:
        with open(path, "rb") as file:
            data = file.read(1 << 30)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error})", path=path) from error
    try:
        saved = json_text.parse(data)
    except (JsonError, UnicodeDecodeError):
        saved = _load(path)
    states = {json.dumps(state, sort_keys=True, default=repr): state for state in _states_in(saved, _DEPTH)}
    if len(states) != 1:
        what = "no state of a sampler or loader of wids" if not states else f"{len(states)} states that differ"
        raise InputError(f"{path}: holds {what}; save loader.state_dict(), as JSON or by torch.save", path=path)
    return next(iter(states.values()))


def _load(path: str) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # its unpickler raises anything
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{path}: is neither JSON nor a checkpoint of torch.save ({reason:.200})", path=path
        ) from error


def _states_in(value: Any, depth: int) -> Iterator[Any]:
    from wids.core.order.batch import SAMPLERS

    if isinstance(value, Mapping):
        if value.get("kind") in (KIND, *SAMPLERS):
            yield nested_state(value)
            return
        value = list(value.values())
    if isinstance(value, (list, tuple)) and depth:
        for each in value:
            yield from _states_in(each, depth - 1)
