"""Functions for `wids.jobs.map`, which processes of tests import by name."""

import os

import numpy as np


def count_letters(sample):
    """A vector and a text; of every fourth sample nothing."""
    number = int(sample[".cls"])
    if number % 4 == 3:
        return None
    return {"len.npy": np.full(3, number, np.float32), ".upper.txt": sample[".txt"].upper()}


def name_all(sample):
    """A text that says which sample it is."""
    return {"name.txt": f"{sample['__key__']} is {sample['__index__']}"}


def fail_some(sample):
    """As `count_letters`; every fifth sample fails."""
    if int(sample[".cls"]) % 5 == 2:
        raise ValueError(f"no {sample['.cls']}")
    return count_letters(sample)


def count_batch(samples):
    """As `count_letters`, of a batch."""
    return [count_letters(sample) for sample in samples]


def fail_batch(samples):
    """As `fail_some`, of a batch, which one bad sample spoils; samples are changed before it fails."""
    results = []
    for sample in samples:
        results.append(fail_some(sample))
        sample.clear()
    return results


def measure(sample):
    """Values for a table."""
    number = int(sample[".cls"])
    return {
        "letters": len(sample[".txt"]),
        "half": number / 2,
        "vector": [number, number] if number % 2 else [0.5, number],
        "tag": None if number % 3 else f"tag {number}",
    }


class Model:
    """As `count_letters`; each instance writes a line into a file."""

    def __init__(self):
        if log := os.environ.get("WIDS_TEST_LOG"):
            with open(log, "a") as file:
                file.write(f"{os.getpid()}\n")

    def __call__(self, sample):
        """As `count_letters`."""
        return count_letters(sample)


class Broken:
    """No instance can be made."""

    def __init__(self):
        raise RuntimeError("no weights")


class Mute:
    """Its instances take no samples."""


constant = 3
