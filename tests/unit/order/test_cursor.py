"""A sampler's cursor: every cell of the tables in its module, and the notes below them."""

import pytest

from wids.core.order.cursor import (
    Chosen,
    Finished,
    Loaded,
    NotStarted,
    Running,
    choose,
    current_run,
    finish,
    load,
    next_place,
    without_run,
)
from wids.core.order.epoch import Plan
from wids.core.order.rank_epochs import RankEpochs
from wids.core.order.state import EpochPosition

N = 10
PLAN = Plan(hi=N, chunksize=4, window=1, lanes=1, is_shuffled=True, seed=0)


def epochs_of(**options):
    """The epochs of ten samples; one rank reads them."""
    return RankEpochs(plan=PLAN, **options)


def run_of(epoch, position=0, **options):
    """A run that began at a place of an epoch, and of which nothing was drawn."""
    return epochs_of(**options).begin(EpochPosition(epoch, position, position))


RUN = run_of(3)
STATE = Loaded(EpochPosition(5, 4, 4), {})
CURSORS = {
    "NotStarted": NotStarted(),
    "Chosen": Chosen(3),
    "Chosen while it ran": Chosen(4, Running(RUN)),
    "Chosen after it": Chosen(3, Finished(3, RUN)),
    "Loaded": Loaded(EpochPosition(3, 4, 4), {}),
    "Loaded, named": Loaded(EpochPosition(3, 4, 4), {}, is_named=True),
    "Running": Running(RUN),
    "Running, named": Running(RUN, is_named=True),
    "Finished": Finished(3, RUN),
    "Finished, named": Finished(3, RUN, is_named=True),
    "Finished elsewhere": Finished(3, None),
}

# cursor -> after set_epoch(3), set_epoch(7), a load, the end of its run, in a copy
TRANSITIONS = {
    "NotStarted": (Chosen(3), Chosen(7), STATE, NotStarted(), NotStarted()),
    "Chosen": (Chosen(3), Chosen(7), STATE, Chosen(3), Chosen(3)),
    "Chosen while it ran": (
        Running(RUN, is_named=True),
        Chosen(7, Running(RUN)),
        STATE,
        Chosen(4, Finished(3, RUN)),
        Chosen(4),
    ),
    "Chosen after it": (
        Chosen(3, Finished(3, RUN)),
        Chosen(7, Finished(3, RUN)),
        STATE,
        Chosen(3, Finished(3, RUN)),
        Chosen(3),
    ),
    "Loaded": (CURSORS["Loaded, named"], Chosen(7), STATE, CURSORS["Loaded"], CURSORS["Loaded"]),
    "Loaded, named": (*[CURSORS["Loaded, named"], Chosen(7), STATE], *[CURSORS["Loaded, named"]] * 2),
    "Running": (Running(RUN, is_named=True), Chosen(7, Running(RUN)), STATE, Finished(3, RUN), Finished(3, None)),
    "Running, named": (
        Running(RUN, is_named=True),
        Chosen(7, Running(RUN, is_named=True)),
        STATE,
        Finished(3, RUN, is_named=True),
        Chosen(3),
    ),
    "Finished": (
        Chosen(3, Finished(3, RUN)),
        Chosen(7, Finished(3, RUN)),
        STATE,
        Finished(3, RUN),
        Finished(3, None),
    ),
    "Finished, named": (
        Chosen(3, Finished(3, RUN, is_named=True)),
        Chosen(7, Finished(3, RUN, is_named=True)),
        STATE,
        Finished(3, RUN, is_named=True),
        Chosen(3),
    ),
    "Finished elsewhere": (
        Chosen(3, Finished(3, None)),
        Chosen(7, Finished(3, None)),
        STATE,
        Finished(3, None),
        Finished(3, None),
    ),
}

# cursor -> the epoch it says, where the next iteration begins, whether the state is the run's
MEANINGS = {
    "NotStarted": (0, EpochPosition(0, 0), False),
    "Chosen": (3, EpochPosition(3, 0), False),
    "Chosen while it ran": (4, EpochPosition(4, 0), False),
    "Chosen after it": (3, EpochPosition(3, 0), False),
    "Loaded": (3, EpochPosition(3, 4, 4), False),
    "Loaded, named": (3, EpochPosition(3, 4, 4), False),
    "Running": (3, EpochPosition(4, 0), True),
    "Running, named": (3, EpochPosition(3, 0), True),
    "Finished": (3, EpochPosition(4, 0), True),
    "Finished, named": (3, EpochPosition(3, 0), True),
    "Finished elsewhere": (3, EpochPosition(4, 0), False),
}


@pytest.mark.parametrize("name", CURSORS)
def test_what_each_call_makes_of_a_cursor(name):
    """set_epoch with the run's epoch and with another one, a load, the end of the run, and a copy."""
    cursor = CURSORS[name]
    found = (choose(cursor, 3), choose(cursor, 7), load(cursor, STATE), finish(cursor, RUN), without_run(cursor))
    assert found == TRANSITIONS[name]


@pytest.mark.parametrize("name", CURSORS)
def test_what_a_cursor_means(name):
    """The epoch that it says, where the next iteration begins, and whose the state is."""
    cursor = CURSORS[name]
    run = current_run(cursor)
    assert (cursor.epoch, next_place(cursor, epochs_of()), run is RUN) == MEANINGS[name]
    assert run in (None, RUN)


@pytest.mark.parametrize("name", CURSORS)
def test_the_end_of_another_run_changes_nothing(name):
    """Two iterations at once: the one that began first ends, and the sampler is where the other is."""
    assert finish(CURSORS[name], run_of(3)) == CURSORS[name]


@pytest.mark.parametrize("name", CURSORS)
def test_a_load_is_named_by_the_epoch_that_was_named_just_before(name):
    """Chosen or named, the same epoch as the state's: the state's place, even if nothing is left of it."""
    cursor = CURSORS[name]
    loaded = load(cursor, Loaded(EpochPosition(cursor.epoch, N, N), {}))
    assert loaded.is_named == (name.startswith("Chosen") or name.endswith("named"))
    place = next_place(loaded, epochs_of())
    assert place == (loaded.place if loaded.is_named else EpochPosition(cursor.epoch + 1, 0))


def test_a_loop_that_counts_means_the_run_before():
    """An epoch is chosen after workers drew all of it; only that epoch, and only if something was received."""
    assert current_run(Chosen(3, Finished(3, RUN)), is_counted=True) is RUN
    for cursor in (Chosen(4, Finished(3, RUN)), Chosen(3), Chosen(3, Finished(3, None)), Chosen(4, Running(RUN))):
        assert current_run(cursor, is_counted=True) is None


def test_without_an_end_an_iteration_goes_on_where_the_last_one_is():
    """Not in the next pass, and not after an epoch was chosen or in a copy."""
    run, epochs = run_of(1, 14, passes=None), epochs_of(passes=None)
    assert next_place(Running(run), epochs) == EpochPosition(1, 14)
    assert next_place(Running(run, is_named=True), epochs) == EpochPosition(1, 10)
    assert next_place(without_run(Running(run)), epochs) == EpochPosition(2, 20)
