"""What programs of the tests import: by the one process that they are forks of."""

import papermill.cli  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch.distributed
import torch.nn.parallel
import torch.utils.data  # noqa: F401
from torchvision.transforms import v2  # noqa: F401

import wids.dataset
import wids.testing  # noqa: F401
