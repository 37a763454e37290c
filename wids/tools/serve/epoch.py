"""The page of an epoch: the batch of any rank at any step, what changes over the steps, and when a sample is read.

Rules: the order is that of `wids.tools.simulate.schedule`, which ``wids at`` and ``wids when`` print. An answer takes
about half
a second at most: it then reports the missing rest, and the page asks again as long as it is visible.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from starlette.routing import Route

from wids.columns.spec import CLASS_COLUMNS
from wids.core.order.batching import BatchRule
from wids.core.order.packing import PackRule
from wids.core.place import Place
from wids.errors import SelectionError, shorten, without_secrets
from wids.tools.serve.answers import answer
from wids.tools.serve.epoch_settings import NAMES, Schedules, Settings, SettingsError, parse_integer, parse_settings
from wids.tools.serve.facets import class_names, words_for
from wids.tools.serve.rows import parse_indices
from wids.tools.simulate.figures import add_up, sum_batches
from wids.tools.simulate.job import RankBatches
from wids.tools.simulate.schedule import BatchTimetable, Timetable, pieces_of
from wids.tools.simulate.trace import open_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.templating import Jinja2Templates

    from wids.core.order.batch import Batch
    from wids.core.order.permutation import Indices
    from wids.tools.serve.epoch_settings import Schedule
    from wids.tools.serve.served import Served

# Points of a plot, ranks whose costs are shown, classes and sources that are named.
POINTS, _MAX_RANKS, _MAX_CLASSES, _MAX_SOURCES = 400, 64, 7, 24
# Of the steps in which open shards are looked for: those of batches of like length, and bands.
_OPEN_STEPS, _MAX_BANDS = 400, 600
_MAX_READINGS = 200
_NUMBERS, _NESTED = (
    ("int", "uint", "float", "double", "halffloat"),
    ("list", "struct", "map", "large_list", "fixed_size"),
)


class EpochLimits(NamedTuple):
    """Costs that one answer may have.

    Attributes:
        seconds: about so long it takes at most.
        open_samples: that are read to see which shards are open.
    """

    seconds: float = 0.5
    open_samples: int = 200_000


def routes(served: Served, templates: Jinja2Templates) -> list[Route]:
    """``/epoch``, and what it asks for."""
    schedules = Schedules(served)
    answers = Answers(served, schedules)

    def show(request: Request) -> Response:
        columns = schedules.columns()
        defaults = {name: "" if value is None else str(value) for name, value in asdict(Settings()).items()}
        context = {
            "given": {name: request.query_params.get(name, defaults[name]) for name in NAMES},
            "defaults": defaults,
            "columns": [name for name, kind in columns.items() if not kind.startswith(_NESTED)],
            "numbers": [name for name, kind in columns.items() if kind.startswith(_NUMBERS)],
            "is_mixture": schedules.parts is not None,
            "label": next((name for name in columns if name.casefold() in CLASS_COLUMNS), ""),
        }
        return templates.TemplateResponse(request, "epoch.html", context)

    def about(work: Callable[[Schedule, QueryParams], dict[str, Any]]) -> Callable[[Request], Response]:
        def run(request: Request) -> Response:
            end = time.monotonic() + Answers.limits.seconds
            try:
                schedule = schedules.find(parse_settings(request.query_params), lambda: time.monotonic() > end)
                with schedule.lock:
                    return answer(work(schedule, request.query_params))
            except SettingsError as error:
                return answer({"error": without_secrets(str(error)), "name": error.name}, 400)

        return run

    return [
        Route("/epoch", show),
        Route("/api/epoch", about(answers.describe)),
        Route("/api/epoch/batch", about(answers.show_batch)),
        Route("/api/epoch/open", about(answers.show_open)),
        Route("/api/epoch/looks", about(answers.look)),
        Route("/api/epoch/shares", about(answers.share)),
        Route("/api/epoch/find", about(answers.find)),
    ]


class Answers:
    """The answers about a schedule; see `routes`.

    Args:
        served: the dataset.
        schedules: its schedules.
    """

    limits: EpochLimits = EpochLimits()

    def __init__(self, served: Served, schedules: Schedules) -> None:
        self._served, self._schedules, self._labels = served, schedules, ClassLabels(served)

    def describe(self, schedule: Schedule, query: QueryParams) -> dict[str, Any]:
        """The number of steps; with ``more=1`` more of an epoch of batches of like length is cut."""
        table = schedule.table
        if not isinstance(table, Timetable) and not table.is_whole and query.get("more"):
            end = time.monotonic() + self.limits.seconds
            table.go_on(lambda _: time.monotonic() > end)
        return {**_describe(schedule), "sources": _names_of(self._schedules)}

    def show_batch(self, schedule: Schedule, query: QueryParams) -> dict[str, Any]:
        """The batch of a rank at a step: its samples, in order, with their classes by ``label=``."""
        rank, step = _place_in(schedule, query)
        samples, marks = schedule.table.batch(rank, step)
        shards = np.searchsorted(self._schedules.ends, samples, side="right")
        own = samples - np.append(0, self._schedules.ends)[shards]
        rows = zip(samples.tolist(), shards.tolist(), own.tolist(), marks, strict=True)
        names = ("index", "shard", "row", "is_repeated")
        told: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows]
        found: dict[str, Any] = {"step": step, "rank": rank, "samples": told}
        if isinstance(schedule.table, BatchTimetable):
            batch = schedule.table.contents(rank, step)
            found |= _cost(schedule, [batch])
            for one, piece in zip(told, pieces_of(batch), strict=schedule.table.has_packs):
                one.update(piece.told())
        if isinstance(schedule.rule, BatchRule) and schedule.rule.lengths is not None:
            found["lengths"] = schedule.rule.lengths_of(samples).tolist()
        if column := query.get("label", ""):
            labels = self._labels.of(column, self._schedules)
            found["labels"] = [labels.name_of(number) for number in labels.numbers[samples].tolist()]
        return {**_describe(schedule), **found}

    def show_open(self, schedule: Schedule, query: QueryParams) -> dict[str, Any]:
        """The shards that a rank has open in the steps around one, as bands from step to step."""
        rank, step = _place_in(schedule, query)
        table = schedule.table
        if isinstance(table, Timetable):
            passes = _MAX_BANDS * len(self._served.dataset)  # samples in so many: each pass has its own visits
            count = max(min(self.limits.open_samples, passes // table.world) // table.batch_size, 1)
        else:
            count = min(max(int(self.limits.open_samples // table.epochs.rule.per_batch), 1), _OPEN_STEPS)
        while True:
            first = max(min(step - count // 2, table.steps - count), 0)
            last = min(first + count, table.steps)
            visits = open_shards(table, self._schedules.ends, rank, first, last)
            if len(visits.shard) <= _MAX_BANDS or count == 1:
                break
            count = max(count // 2, 1)
        shards = self._served.dataset.shards
        bands = [
            {"first": begin, "last": end, "shard": k, "name": shorten(Place(shards[k]["url"]).name, most=80)}
            for begin, end, k in zip(*(column.tolist() for column in visits), strict=True)
        ]
        return {"first": first, "last": last, "steps": table.steps, "rank": rank, "bands": bands[:_MAX_BANDS]}

    def look(self, schedule: Schedule, query: QueryParams) -> dict[str, Any]:
        """The batches at the steps that are named, as many of them as there is time for."""
        table, end = schedule.table, time.monotonic() + self.limits.seconds
        rank, _ = _place_in(schedule, query)
        steps = [_step_in(schedule, text) for text in query.get("steps", "").split(",")[:POINTS] if text.strip()]
        column = query.get("label", "")
        labels = self._labels.of(column, self._schedules) if column else None
        names = [] if labels is None else [labels.name_of(k) for k in range(min(len(labels.values), _MAX_CLASSES))]
        looks: list[dict[str, Any]] = []
        for step in steps:
            if looks and time.monotonic() > end:
                break
            found = self._look_at(schedule, rank, step)
            if labels is not None:
                classes = Counter(labels.numbers[table.batch(rank, step)[0]].tolist())
                shown = [classes[number] for number in range(len(names))]
                found["classes"] = {"distinct": len(classes), "counts": shown}
            looks.append(found)
        return {"looks": looks, "names": names, "ranks": min(table.world, _MAX_RANKS)}

    def _look_at(self, schedule: Schedule, rank: int, step: int) -> dict[str, Any]:
        table, rule = schedule.table, schedule.rule
        own = table.batch(rank, step)[0]
        found: dict[str, Any] = {"step": step, "samples": len(own)}
        if not isinstance(table, BatchTimetable):
            return found
        batches = [table.contents(other, step) for other in range(min(table.world, _MAX_RANKS))]
        found |= _cost(schedule, batches)
        if isinstance(rule, BatchRule) and rule.lengths is not None and len(own):
            lengths = rule.lengths_of(own)
            found["lengths"] = [float(lengths.min()), float(lengths.mean()), float(lengths.max())]
        if self._schedules.parts is not None:
            samples = np.concatenate([batch.samples for batch in batches])
            found["sources"] = [
                int(np.count_nonzero((samples >= part.first) & (samples < part.last)))
                for part in self._schedules.parts[:_MAX_SOURCES]
            ]
        return found

    def share(self, schedule: Schedule, query: QueryParams) -> dict[str, Any]:
        """Number of samples of each source of a mixture that all ranks have read at some steps, counted exactly."""
        table, parts = schedule.table, self._schedules.parts
        if parts is None or not isinstance(table, Timetable):
            raise SelectionError("there are no sources whose turns could be counted")
        begin = parse_integer(query.get("from", "0"), "from", least=0, most=POINTS)
        end, edges = time.monotonic() + self.limits.seconds, _edges(table.steps)
        counts: list[list[int]] = []
        for step in edges[begin:].tolist():
            if counts and time.monotonic() > end:
                break
            found = table.counts(step)
            counts.append([found.get(part.name, 0) for part in parts[:_MAX_SOURCES]])
        return {"edges": edges.tolist(), "from": begin, "counts": counts}

    def find(self, schedule: Schedule, query: QueryParams) -> dict[str, Any]:
        """The readings of samples: by which ranks, at which steps, at which places."""
        numbers = parse_indices(query.get("samples", ""), len(self._served.dataset))
        found = schedule.table.find(numbers)
        samples = [
            {"index": number, "times": len(readings), "readings": [one.told() for one in readings[:_MAX_READINGS]]}
            for number, readings in found.items()
        ]
        return {**_describe(schedule), "samples": samples}


class Labels(NamedTuple):
    """A column of classes, of which the most frequent is number 0.

    Attributes:
        column: its name.
        numbers: of each sample's class, (n,).
        values: the column's value for each number.
        class_names: those of the index, if the values number them; else none.
    """

    column: str
    numbers: Indices
    values: np.ndarray[Any, Any]
    class_names: Sequence[str]

    def name_of(self, number: int) -> str:
        """The name of a class, for people."""
        value = self.values[number].item()
        if isinstance(value, float):  # as integers are where some are missing
            return "missing" if math.isnan(value) else f"{value:.10g}"
        return shorten(words_for(value, self.class_names), most=40)


class ClassLabels:
    """Columns of classes, numbered; the latest is kept."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._latest: Labels | None = None

    def of(self, column: str, schedules: Schedules) -> Labels:
        """The classes of a column.

        Raises:
            SettingsError: no such column exists, or its values are no classes.
        """
        latest = self._latest
        if latest is None or latest.column != column:
            values = schedules.read(column, "label")
            try:
                if values.dtype.kind not in "biuf":  # strings are compared fast if all are
                    values = np.array(["missing" if value is None else str(value) for value in values.tolist()])
                names, numbers, counts = np.unique(values, return_inverse=True, return_counts=True)
            except (TypeError, ValueError) as error:
                raise SettingsError(f"column {column!r} has no classes ({error})", "label") from error
            places = np.empty(len(names), np.int64)
            order = np.argsort(-counts, kind="stable")
            places[order] = np.arange(len(names))
            own = names[order]
            is_few = len(own) <= len(self._served.collection.shards.class_names)
            known = class_names(self._served, column, own.tolist()) if is_few else ()
            self._latest = latest = Labels(column, places[numbers.reshape(-1)], own, known)
        return latest


def _describe(schedule: Schedule) -> dict[str, Any]:
    table, rule = schedule.table, schedule.rule
    described = {"epoch": table.epoch, "steps": table.steps, "world_size": table.world}
    if isinstance(table, Timetable):
        return {**described, "batch_size": table.batch_size, "is_whole": True}
    first = table.epochs.first_place(table.epoch)
    total = (table.epochs.end(first) or 0) - first.position
    described |= {"is_whole": table.is_whole, "done": table.done - first.position, "total": total}
    described["too_long"] = table.too_long
    if isinstance(rule, PackRule):
        packs = {
            "pack_tokens": rule.pack_tokens,
            "packs": rule.batch_size,
            "max_tokens": rule.pack_tokens * rule.batch_size,
        }
        return {**described, **packs, "limits": [], "has_lengths": True, "is_padded": False}
    assert isinstance(rule, BatchRule)  # noqa: S101 - for the type checker: there are no others
    return {
        **described,
        "max_tokens": rule.max_cost,
        "limits": [{"name": limit.name, "most": limit.most} for limit in rule.limits],
        "has_lengths": rule.lengths is not None,
        "is_padded": rule.is_padded,
    }


def _names_of(schedules: Schedules) -> list[dict[str, Any]]:
    parts = schedules.parts or []
    total = sum(part.weight for part in parts)
    return [{"name": shorten(part.name, most=40), "share": part.weight / total} for part in parts[:_MAX_SOURCES]]


def _place_in(schedule: Schedule, query: QueryParams) -> tuple[int, int]:
    """(rank, step) of a request.

    Raises:
        SettingsError: no such rank or step exists.
    """
    rank = parse_integer(query.get("rank") or "0", "rank", least=0)
    world = schedule.table.world
    if rank >= world:
        raise SettingsError(f"there is no rank {rank}; of {world:,}, the last one is {world - 1:,}", "rank")
    return rank, _step_in(schedule, query.get("step") or "0")


def _step_in(schedule: Schedule, text: str) -> int:
    step, steps = parse_integer(text, "step"), schedule.table.steps
    if not -steps <= step < steps:
        right = f"steps are 0 to {steps - 1:,}" if steps else "the epoch has none"
        raise SettingsError(f"there is no step {step}; {right}", "step")
    return step % steps


def _edges(steps: int) -> Indices:
    """Beginnings of the stretches of an epoch, and the end of the last one."""
    return np.unique(np.linspace(0, steps, min(POINTS, steps) + 1).astype(np.int64))


def _cost(schedule: Schedule, batches: list[Batch]) -> dict[str, Any]:
    """Costs of batches, one of each rank, and those with padding for each token; of packs, their tokens."""
    rule, own = schedule.rule, RankBatches.of(batches)
    if isinstance(rule, PackRule):
        return {"costs": sum_batches(own.tokens, own.edges).tolist()}
    assert isinstance(rule, BatchRule)  # noqa: S101 - for the type checker: there are no others
    longest, sums, counts = add_up(rule, own)
    found: dict[str, Any] = {"costs": rule.cost_of(longest, sums, counts).tolist()}
    found["sums"] = [sum_batches(limit.of(own.samples), own.edges).tolist() for limit in rule.limits]
    if rule.lengths is not None and float(sums.sum()):
        found["padding"] = float((longest * counts).sum() / sums.sum())
    return found
