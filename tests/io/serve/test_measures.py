"""Statistics of arrays."""

import numpy as np
import pytest
import torch

from wids.tools.serve.measures import measure


def test_real_numbers():
    """Of those that are numbers; the others are counted."""
    found = measure(np.array([[1.0, np.nan, 3.0], [np.inf, -np.inf, 5.0]], np.float32))
    histogram = found.pop("histogram")
    assert found == {
        "shape": [2, 3],
        "dtype": "float32",
        "size": 6,
        "nans": 1,
        "infinities": 2,
        "min": 1.0,
        "max": 5.0,
        "mean": 3.0,
        "std": pytest.approx(np.std([1, 3, 5])),
    }
    assert (sum(histogram), histogram[0], histogram[20], histogram[-1]) == (3, 1, 1, 1)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (np.array([2**63 - 1, -(2**63)]), -(2**63), 2**63 - 1),
        (np.array([1e308, -1e308]), -1e308, 1e308),
        (np.array([True, False]), 0, 1),
        (np.float64(3.5), 3.5, 3.5),
        (torch.tensor([1.5, -2.0], dtype=torch.bfloat16), -2.0, 1.5),
        (torch.tensor([3, 4], requires_grad=False), 3, 4),
        (torch.tensor([3.0], requires_grad=True), 3.0, 3.0),
    ],
)
def test_ends(value, low, high):
    """The least and the greatest are exact, and each number is counted once, also where sums are too great."""
    found = measure(value)
    assert (found["min"], found["max"]) == (low, high)
    assert sum(found["histogram"]) == found["size"]


@pytest.mark.parametrize("value", [np.zeros(0), np.array(["a"]), np.array([1j]), np.array([np.nan])])
def test_what_has_no_ends(value):
    """It has a shape and a type."""
    assert "min" not in measure(value)
    assert measure(value)["shape"] == list(value.shape)
