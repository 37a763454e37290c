"""The form of a state: what is written is read back, and what is no state, or damaged, is named."""

import json
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wids
from wids.core.order.state import KIND, VERSION, EpochPosition, build_state, check_order, parse_state
from wids.errors import StateError

ORDER = {"seed": 0, "shards": None, "shuffle": True, "reshuffle": "fixed"}


def state(**changes):
    """A good state, some of it changed."""
    return {**build_state(EpochPosition(3, 5120, 640), lanes=8, order=dict(ORDER)), **changes}


def test_a_state_is_what_the_module_says():
    """The keys and their meaning are a format: states outlive the program that wrote them."""
    assert state() == {
        "kind": "wids.sampler",
        "version": 2,
        "wids": wids.__version__,
        "epoch": 3,
        "position": 5120,
        "yielded": 640,
        "lanes": 8,
        "order": ORDER,
    }
    assert (KIND, VERSION) == ("wids.sampler", 2)


@given(
    place=st.builds(
        EpochPosition, st.integers(), st.integers(min_value=0), st.integers(min_value=0), st.just(0)
    ).filter(lambda place: place.yielded <= place.position),
    lanes=st.integers(min_value=1),
    order=st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()),
)
def test_what_is_built_is_parsed(place, lanes, order):
    """Any place, lanes and order come back from a state and from its JSON, integers of any size among them."""
    built = build_state(place, lanes=lanes, order=order)
    for found in (built, json.loads(json.dumps(built)), MappingProxyType(built)):
        assert parse_state(found) == (place, lanes, order)


def test_a_parsed_order_is_a_copy():
    """What is done to it does not reach the state, which a checkpoint may hold."""
    built = state()
    parse_state(built)[2]["seed"] = 9
    assert built == state()


def test_integers_of_other_types():
    """A loader that makes numpy integers of ints does no harm: plain ints come out."""
    numbers = {name: np.int64(2) for name in ("epoch", "position", "yielded", "lanes")}
    place, lanes, _ = parse_state(state(**numbers))
    assert (place, lanes) == (EpochPosition(2, 2, 2), 2)
    assert {type(number) for number in (*place, lanes)} == {int}


@pytest.mark.parametrize(
    "found", [None, {}, [], "state", 5, {"kind": "torch"}, {"epoch": 1}, {"_index_sampler_state": 3}]
)
def test_what_is_no_state(found):
    """Anything else, a loader's own state say, is shown in the error."""
    with pytest.raises(StateError, match="not the state of a wids sampler: ") as caught:
        parse_state(found)
    assert repr(found) in str(caught.value)


def test_the_error_is_short():
    """A checkpoint given by mistake, weights and all, does not fill the screen."""
    with pytest.raises(StateError) as caught:
        parse_state({"weights": [0.5] * 100_000})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_other_versions(version):
    """A version that this package does not read is named, with the one that it reads."""
    with pytest.raises(
        StateError, match=rf"version is {version!r} and this wids reads version 2; resume with the wids"
    ):
        parse_state(state(version=version))


@pytest.mark.parametrize("name", ["epoch", "position", "yielded", "lanes"])
@pytest.mark.parametrize("value", [None, "5", 5.0, [5], {}])
def test_numbers_that_are_none(name, value):
    """Each number is an integer, or named; so is one that is missing."""
    with pytest.raises(StateError, match=rf"the state's {name} is .*, not an integer; it is damaged"):
        parse_state(state(**{name: value}))
    damaged = state()
    del damaged[name]
    with pytest.raises(StateError, match=f"the state's {name} is None, not an integer"):
        parse_state(damaged)


@pytest.mark.parametrize(("name", "least"), [("position", 0), ("yielded", 0), ("lanes", 1)])
def test_numbers_that_are_too_small(name, least):
    """Negative counts and no lanes are damage."""
    with pytest.raises(StateError, match=f"the state's {name} is {least - 1}, below {least}; it is damaged"):
        parse_state(state(**{name: least - 1}))


def test_no_rank_has_had_more_than_all():
    """A rank's count of the epoch is a part of the position."""
    position = state()["position"]
    assert parse_state(state(yielded=position))[0].yielded == position
    with pytest.raises(StateError, match=f"the state's yielded is {position + 1}, more than its position"):
        parse_state(state(yielded=position + 1))


def test_any_epoch_is_an_epoch():
    """Epochs are any integers, as `set_epoch` takes them."""
    assert parse_state(state(epoch=-7))[0].epoch == -7


@pytest.mark.parametrize("order", [None, [], "seed", 3])
def test_an_order_that_is_none(order):
    """The facts are a mapping, or damaged."""
    with pytest.raises(StateError, match=r"the state's order is .*, not a mapping; it is damaged"):
        parse_state(state(order=order))


def test_all_that_differs_is_told():
    """Every differing fact is listed with both values; what agrees is not mentioned."""
    with pytest.raises(StateError) as caught:
        check_order({**ORDER, "seed": 1, "shuffle": False}, ORDER)
    message = str(caught.value)
    assert "(seed: 1 there, 0 here; shuffle: False there, True here)" in message
    assert "reshuffle" not in message
    assert "Make the dataset and the sampler as they were" in message
    assert "old=" not in message


@pytest.mark.parametrize("name", ["samples", "shards", "sources.web.dataset"])
def test_of_changed_data_the_way_on_is_told(name):
    """A run may go on over data that differ."""
    with pytest.raises(StateError, match=r"load_state_dict\(state, old=the earlier dataset\)"):
        check_order({**ORDER, name: 1}, {**ORDER, name: 2})


def test_names_of_facts_that_are_no_strings_differ():
    """A state may be damaged in any way."""
    with pytest.raises(StateError, match=r"another order \(5: 1 there, nothing here; a\.6: 2 there, nothing here"):
        check_order({5: 1, "a": {6: 2}}, {"b": 3})


def test_a_fact_that_one_side_lacks_differs():
    """A missing fact is not None: a state of a later format, or a cut one, does not pass for a good one."""
    check_order(dict(ORDER), dict(reversed(ORDER.items())))
    without = {name: value for name, value in ORDER.items() if name != "shards"}
    for there, here in ((without, ORDER), (ORDER, without)):
        with pytest.raises(StateError, match=r"another order \(shards: "):
            check_order(there, here)
