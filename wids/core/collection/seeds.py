"""Augmentation that repeats exactly: the seed of a sample's randomness, and who draws from it.

A sampler with ``sample_seeds=True`` gives every sample ``__seed__``. `seeded` lets what draws from the generators of
Python, numpy and torch begin with it, `rng` is a generator for code of one's own. Without torch.
"""

from __future__ import annotations

import functools
import inspect
import operator
import random
import sys
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from wids.core.files import forks
from wids.core.order.permutation import GENERATORS, GLOBALS, random_words
from wids.errors import InputError, a_kind, note_sample, shown

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class _Generators:
    """Only one thread at a time has the generators of the process."""

    def __init__(self) -> None:
        self.start_child()
        forks.reset_in_child(self)

    def start_child(self) -> None:
        """Make a lock of this process; see `wids.core.files.forks.Inherited`."""
        self.lock = threading.RLock()


_generators = _Generators()
_thread = threading.local()


def share_generators() -> None:
    """Say that this thread has a loop beside it, which draws from the generators of the process as well."""
    _thread.is_beside_loop = True


def seeded(transform: Callable[[Any], T]) -> Callable[[Any], T]:
    """A function of a sample whose random numbers depend on the sample alone: ``add_transform(wids.seeded(augment))``.

    Python's ``random``, the functions of ``numpy.random`` and torch's CPU generator (if torch is imported) begin with
    the sample's ``__seed__``, and are put back afterwards, also after an error. Each of the three has numbers of
    its own. Two such functions draw the same numbers for a sample: put steps that shall differ into one. The
    threads of a process take turns; those of ``wids.resumable(loader, workers="threads")`` get an `InputError`, for
    the loop draws from these generators, too. Other generators are left alone: CUDA's, and those that libraries make
    for themselves; give these `rng`, or ``sample["__seed__"]``. A sample without ``__seed__`` is a
    `wids.errors.InputError` when the function is called.

    Args:
        transform: takes a sample with ``__seed__``, a dict. Workers that are spawned need one that can be pickled.

    Raises:
        TypeError: it is no function, or a generator function, which would draw after it has returned.

    Example:
        >>> import random
        >>> jitter = wids.seeded(lambda sample: random.random())
        >>> jitter({"__seed__": 7}) == jitter({"__seed__": 7})
        True
    """
    if not callable(transform):
        raise TypeError(f"transform is {shown(transform)}; it must be a function of a sample")
    if any(inspect.isgeneratorfunction(each) for each in (transform, getattr(transform, "__call__", None))):  # noqa: B004
        raise TypeError(
            f"transform is {shown(transform)}, a generator function: it draws its numbers after it has returned; "
            "return a list, or the transformed sample"
        )
    return _Seeded(transform)


class _Seeded(Generic[T]):
    """The function that `seeded` returns."""

    def __init__(self, transform: Callable[[Any], T]) -> None:
        functools.update_wrapper(self, transform)
        self._transform = transform

    def __call__(self, sample: Any) -> T:
        words = random_words(4, seed=_seed_of(sample), epoch=0, stream=GLOBALS)
        if getattr(_thread, "is_beside_loop", False):
            raise note_sample(
                InputError(
                    "wids.seeded sets the generators of the process for a while, and the loop beside this thread draws "
                    "from them, too: with workers='threads' use wids.rng(sample), or worker processes"
                ),
                sample,
            )
        tensors = getattr(sys.modules.get("torch"), "default_generator", None)
        with _generators.lock:
            python, arrays = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002 - theirs
            tensor = None if tensors is None else tensors.get_state()
            try:
                random.seed(int(words[0]))
                np.random.seed(words[1:3].astype("<u8").view("<u4"))  # noqa: NPY002
                if tensors is not None:
                    tensors.manual_seed(int(words[3]))
                return self._transform(sample)
            finally:
                random.setstate(python)
                np.random.set_state(arrays)  # noqa: NPY002
                if tensors is not None:
                    tensors.set_state(tensor)

    def __get__(self, instance: object, owner: type | None = None) -> _Seeded[T]:
        """Bind to an object, so that it is also a decorator of methods."""
        return self if instance is None else _Seeded(self._transform.__get__(instance, owner))

    def __reduce__(self) -> str | tuple[Any, ...]:
        name = getattr(self, "__qualname__", "")
        if getattr(sys.modules.get(self.__module__), name, None) is self:  # a decorator's, which hides the function
            return name
        return seeded, (self._transform,)

    def __repr__(self) -> str:
        return f"wids.seeded({getattr(self, '__qualname__', self._transform)})"


def rng(sample: Any) -> np.random.Generator:
    """A new numpy generator whose numbers depend on the sample alone; each call for a sample gives the same numbers.

    The bits (Philox) never change; what numpy's methods make of them may change with a release of numpy.

    Args:
        sample: a dict with ``__seed__``.

    Raises:
        InputError: it has none, or one that no sampler gives.

    Example:
        >>> sample = {"__seed__": 7}  # as a sampler with sample_seeds=True makes it
        >>> bool(wids.rng(sample).random() == wids.rng(sample).random())
        True
    """
    key = np.array([_seed_of(sample), GENERATORS], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _seed_of(sample: Any) -> int:
    try:
        value = sample["__seed__"]
    except (KeyError, TypeError, IndexError):
        what = "the sample" if isinstance(sample, dict) else f"the argument is {a_kind(sample)}, and"
        raise note_sample(
            InputError(
                f"{what} has no __seed__; wids.DistributedChunkedSampler(dataset, sample_seeds=True) gives each sample "
                "one. Put wids.seeded(...) and wids.rng(sample) where samples are still dicts; windows have a seed, "
                "and their samples none: windows.add_transform(...)"
            ),
            sample,
        ) from None
    try:
        seed = operator.index(value)
    except TypeError:
        seed = -1
    if not 0 <= seed < 1 << 63:
        raise note_sample(
            InputError(f"__seed__ is {shown(value)}; it must be an integer, 0 to 2**63 - 1, as the sampler gave it"),
            sample,
        )
    return seed
