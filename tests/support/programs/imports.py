"""What programs of the tests import: by the one process that they are forks of."""

# Without matplotlib, which looks when it is imported for where a notebook's pictures go.
import ipykernel.kernelapp  # noqa: F401
import pandas as pd  # noqa: F401
import papermill.cli  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch.distributed
import torch.nn.parallel
import torch.utils.data  # noqa: F401
from torchvision.transforms import v2  # noqa: F401

import wids.dataset
import wids.testing  # noqa: F401
