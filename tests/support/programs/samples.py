"""What programs of the tests read of a sample."""

import torch


def as_tensors(sample):
    """Number and input of a sample."""
    return {"index": sample["__index__"], "x": torch.tensor([float(sample[".cls"].read())])}


def as_marked(sample):
    """What a step is given, and whether the sample is there for the first time."""
    return {**as_tensors(sample), "valid": sample.get("__valid__", True)}
