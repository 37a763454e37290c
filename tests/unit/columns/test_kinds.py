"""Types of columns, against lists of Python: whatever shards are read together, and in whatever runs."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wids.columns import kinds

# Half characters, which JSON may have.
TEXTS = st.text() | st.sampled_from(["\ud800", "a\udfff", "\\ud800"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=2), SCALARS, max_size=2)
# Columns of one kind are the rule; of a mixture of any values nearly each is JSON.
PARTS = st.one_of(*(st.lists(st.none() | of, max_size=4) for of in (st.booleans(), st.integers(), st.floats(), TEXTS)))
PARTS |= st.lists(VALUES, max_size=4)
# Arrays, of which those of one type and length are vectors.
ARRAYS = st.lists(st.floats(width=16), max_size=2) | st.lists(st.integers(0, 100), max_size=2)
PARTS |= st.lists(
    st.none() | st.builds(np.array, ARRAYS, dtype=st.sampled_from(["float16", "float32", "float64"])), max_size=3
)


@pytest.mark.parametrize(
    ("values", "kind", "stored"),
    [
        ([], "string", []),
        ([None], "string", [None]),
        ([True, None], "bool", [True, None]),
        ([1, -(2**63), None], "int64", [1, -(2**63), None]),
        ([1, 2.5], "double", [1.0, 2.5]),
        ([2**53 + 1, 2.5], "json", ["9007199254740993", "2.5"]),
        ([2**63], "json", ["9223372036854775808"]),
        (["a", None], "string", ["a", None]),
        (["a", 1, 1.0, True, None], "json", ['"a"', "1", "1", "true", None]),
        ([True, 1], "json", ["true", "1"]),
        ([{"a": [1]}, None], "json", ['{"a": [1]}', None]),
        ([np.array([1, 2], np.int8), None], "int8[2]", [[1, 2], None]),
        ([np.array([0.5], np.float16)], "float16[1]", [[0.5]]),
        ([np.array([1.5]), np.array([1, 2])], "json", ["[1.5]", "[1, 2]"]),
        ([np.array([], bool), np.array([True]), 3], "json", ["[]", "[true]", "3"]),
        (["\ud800"], "string", ["\\ud800"]),
        (["\ud800", {"\udfff": 1}], "json", ['"\\\\ud800"', '{"\\\\udfff": 1}']),
    ],
)
def test_types(values, kind, stored):
    """The narrowest type that holds all values; else JSON."""
    array, found = kinds.make_array(values)
    assert (kinds.type_name(found), array.to_pylist()) == (kind, stored)
    assert array.type == kinds.arrow_type(found)


@given(st.lists(PARTS, min_size=1, max_size=4), st.lists(PARTS, max_size=2))
def test_parts_are_as_the_whole(parts, others):
    """Columns of shards that were read apart, and were part of another table before, are those of one list."""
    arrays = [kinds.make_array(part) for part in parts]
    before = kinds.join_kinds([found for _, found in arrays] + [kinds.make_array(part)[1] for part in others])
    whole, to = kinds.make_array([value for part in parts for value in part])
    assert to == kinds.join_kinds(found for _, found in arrays)
    stored = [kinds.convert(array, found, of=found, to=before) for array, found in arrays]
    again = [kinds.convert(array, found, of=before, to=to) for array, (_, found) in zip(stored, arrays, strict=True)]
    direct = [kinds.convert(array, found, of=found, to=to) for array, found in arrays]
    for converted in (direct, again):
        values = [value for array in converted for value in array.to_pylist()]
        assert repr(values) == repr(whole.to_pylist())  # NaN is itself, -0.0 is not 0.0
        assert all(array.type == whole.type for array in converted)


@given(st.floats() | st.integers())
def test_numbers_among_others_are_json(value):
    """They read back as what they were, 1.0 as 1."""
    found = repr(json.loads(kinds.to_json(value)))
    assert found in (repr(value), repr(value).removesuffix(".0"))
