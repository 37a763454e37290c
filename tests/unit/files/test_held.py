"""Attributes that a subclass may assign before the constructor of its base has run."""

import copy
import pickle

import pytest

from wids.core.files.held import Held, holding, release


@holding
class Base:
    """Has a property with a setter, and one without."""

    def __init__(self, value):
        release(self)
        self._value = value

    @property
    def value(self):
        """A number."""
        return self._value

    @value.setter
    def value(self, value):
        self._value = 10 * value

    @property
    def fixed(self):
        """Cannot be assigned."""
        return self._value


class Early(Base):
    """Assigns, and reads, before its base does."""

    def __init__(self):
        self.value = 3
        self.seen = self.value
        super().__init__(5)


class Own(Base):
    """Has a property of its own by that name, which is not held."""

    def __init__(self):
        self.value = 3
        super().__init__(5)

    @property
    def value(self):
        """What was assigned."""
        return self.mine

    @value.setter
    def value(self, value):
        self.mine = value


def test_a_value_is_held_until_the_constructor_has_run():
    """Then the constructor's counts, and an assignment is the setter's; no trace is left in the object."""
    one = Early()
    assert (one.seen, one.value) == (3, 5)
    assert "value" not in vars(one)
    one.value = 7
    assert (one.value, one.fixed) == (70, 70)
    for copied in (copy.copy(one), pickle.loads(pickle.dumps(one))):
        assert copied.value == 70
        copied.value = 1
        assert (copied.value, one.value) == (10, 70)
    with pytest.raises(AttributeError):
        one.fixed = 1


def test_an_object_that_was_never_initialized():
    """It keeps what was assigned; what was not is an AttributeError that says what to call."""
    one = Early.__new__(Early)
    assert not hasattr(one, "value")
    with pytest.raises(AttributeError, match=r"'Early' object has no attribute 'value' yet: .* super\(\)\.__init__"):
        _ = one.value
    one.value = 3
    assert (one.value, vars(one)) == (3, {"value": 3})


def test_a_property_of_a_subclass_stays_its_own():
    """Its setter runs, before the constructor and after."""
    assert (Own().value, Own().fixed) == (3, 5)


def test_the_class_has_the_description():
    """As with any property."""
    assert isinstance(Base.value, Held)
    assert Base.value.__doc__ == "A number."


class Counting(Base):
    """Has a number in the class, and reads it before its base's constructor has run."""

    value = 4

    def __init__(self):
        self.seen = self.value
        super().__init__(5)


class Further(Counting):
    """A method by that name, of a subclass of one that has a number."""

    def value(self):
        """What the constructor's value hides."""
        return 6


def test_what_a_class_has_by_such_a_name_is_hidden_by_the_constructor_s_value():
    """As that of torch's class hides it; before, and of the class itself, it is read; an assignment is the setter's."""
    for one in (Counting(), Counting()):
        assert (one.seen, one.value, Counting.value) == (4, 5, 4)
        one.value = 7
        assert (one.value, copy.copy(one).value, "value" in vars(one)) == (70, 70, False)
    further = Further()
    assert (further.seen(), further.value, Further.value(None), Counting.value) == (6, 5, 6, 4)
    assert Further.__new__(Further).value() == 6
