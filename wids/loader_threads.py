"""Batches of a DataLoader made by threads of this process in place of worker processes: see `wids.resumable`.

    loop --> indices --> tasks --> threads: dataset, collate_fn, pinned memory
      ^                               |
      +------ batches, in order <-----+

Rules: the loop alone draws indices, so the sampler counts as with worker processes. The threads hold no reference to
the iteration: one that is left is freed at once, and they end after the batch at hand. The end of the process
interrupts that batch, and waits: a thread that loses the interpreter within a call of torch would abort the process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import queue
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from wids.core.collection import seeds
from wids.core.files import forks
from wids.errors import InputError, StateError, a_kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import DataLoader

# Seconds that the end of the process waits for one call that cannot be interrupted; some wait for ever.
_END_SECONDS, _POLL_SECONDS = 30.0, 0.1
_PREFETCH_FACTOR = 2  # torch's, which is None where a loader has no workers
_running: dict[threading.Thread, _Work] = {}


class _ProcessEndError(BaseException):
    """The process ends: raised in threads, after the call at hand."""


class _Work:
    """State that the threads of an iteration share.

    Attributes:
        fetch: a batch of indices -> a batch.
        tasks: (indices, where the batch or its error goes); None: a thread is to end.
        device: the current CUDA device, if batches are to be pinned; else None.
        has_gradients: torch's mode of the loop's thread when the iteration began.
        is_inference: likewise.
        count: of threads.
        is_over: nothing more is asked for.
    """

    def __init__(self, fetch: Callable[[Any], Any], device: int | None, count: int) -> None:
        self.fetch, self.device, self.count = fetch, device, count
        self.has_gradients, self.is_inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self.tasks: queue.SimpleQueue[tuple[Any, queue.SimpleQueue[Any]] | None] = queue.SimpleQueue()
        self.is_over = False

    def run(self, started: queue.SimpleQueue[BaseException | None]) -> None:
        """Make batches, in a thread."""
        try:
            self._set_up()
        except BaseException as error:  # noqa: BLE001 - the loop raises it
            _running.pop(threading.current_thread(), None)
            started.put(error)
            return
        started.put(None)
        try:
            with torch.inference_mode(self.is_inference), torch.set_grad_enabled(self.has_gradients):
                while (task := self.tasks.get()) is not None and not self.is_over:
                    task[1].put(self._make(task[0]))
                    del task
        except _ProcessEndError:
            pass
        finally:
            _running.pop(threading.current_thread(), None)

    def _set_up(self) -> None:
        """Let this thread be as a worker process of torch's."""
        seeds.share_generators()
        torch.get_num_threads()  # else torch's first call of its own sets what is set for all
        torch.set_num_threads(1)  # of this thread
        if self.device is not None:
            torch.cuda.set_device(self.device)

    def end(self) -> None:
        """Let the threads end, each after the batch at hand."""
        self.is_over = True
        for _ in range(self.count):
            self.tasks.put(None)

    def _make(self, indices: Any) -> tuple[Any, BaseException | None]:
        try:
            batch = self.fetch(indices)
            return (batch if self.device is None else _pin(batch)), None
        except StopIteration as error:  # would end the loop, as if the epoch were over
            raised = RuntimeError("the dataset or collate_fn raised StopIteration")
            raised.__cause__ = error
            return None, raised
        except BaseException as error:  # noqa: BLE001 - the loop raises it
            return None, error


class ThreadIterator(_BaseDataLoaderIter):
    """An iteration of a DataLoader, with ``num_workers`` threads that make ``prefetch_factor`` batches each ahead.

    Args:
        loader: its settings mean the same as with worker processes.

    Raises:
        InputError: a setting has no meaning for threads.
    """

    _work: _Work | None = None

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        fetcher = _DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
            self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn, self._drop_last
        )
        is_pinning = self._pin_memory and torch.cuda.is_available()
        self._work = _Work(fetcher.fetch, torch.cuda.current_device() if is_pinning else None, self._num_workers)
        self._ahead = self._num_workers * (loader.prefetch_factor or _PREFETCH_FACTOR)
        self._answers: deque[queue.SimpleQueue[Any]] = deque()
        # One for each batch that was asked for and that the loop has not had, as torch's iterations with processes.
        self._task_info: list[None] = []
        self._is_drawn, self._pid = False, os.getpid()
        _start(self._work)

    def _next_data(self) -> Any:
        if self._pid != os.getpid():
            raise StateError("the threads of this iteration are in the process that began it; begin another one here")
        self._ask()
        if not self._answers:
            self._shutdown_workers()
            raise StopIteration
        try:
            batch, error = self._answers[0].get(timeout=self._timeout or None)
        except queue.Empty:
            self._shutdown_workers()
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
        self._answers.popleft()
        self._task_info.pop()
        if error is not None:
            self._shutdown_workers()
            try:
                raise error
            finally:
                del error  # whose traceback refers to this frame
        self._ask()  # threads go on while the loop has this batch
        return batch

    def _ask(self) -> None:
        """Let as many batches be made ahead as may be."""
        while len(self._answers) < self._ahead and not self._is_drawn and self._work is not None:
            answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
            try:
                indices = self._next_index()  # type: ignore[no-untyped-call]
            except StopIteration:
                self._is_drawn = True
                return
            except KeyboardInterrupt:
                self._shutdown_workers()
                raise
            except BaseException as error:  # noqa: BLE001 - raised in its turn, after the batches before it
                self._is_drawn = True
                answer.put((None, error))
            else:
                self._work.tasks.put((indices, answer))
            self._answers.append(answer)
            self._task_info.append(None)

    def _shutdown_workers(self) -> None:
        """End the threads, each after the batch at hand; the iteration has no more batches."""
        work, self._work, self._is_drawn = self._work, None, True
        self._answers.clear()
        if work is not None:
            work.end()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending() and self._work is not None:
            self._work.end()


def check(loader: Any) -> None:
    """Raise unless threads can make the batches of a loader as its worker processes would.

    Raises:
        InputError: they cannot; the message says what to do.
    """
    if type(loader).__iter__ is not torch.utils.data.DataLoader.__iter__:
        raise InputError(
            f"the loader is {a_kind(loader)}, which has an iteration of its own, and workers='threads' needs a plain "
            "torch.utils.data.DataLoader: prepare(wids.resumable(loader, workers='threads')), if something wraps it"
        )
    if loader.num_workers < 1:
        raise InputError("workers='threads' needs num_workers of at least 1 in the DataLoader: how many threads it has")
    if loader.worker_init_fn is not None:
        raise InputError(
            "worker_init_fn is called in worker processes, and workers='threads' starts none; what it sets up belongs "
            "into the program, before the loop"
        )


def _start(work: _Work) -> None:
    """Start threads, and wait until each is set up: torch takes over, for new threads, what was set last."""
    torch_threads = torch.get_num_threads()
    started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    try:
        for _ in range(work.count):
            thread = threading.Thread(target=work.run, args=(started,), daemon=True, name="wids-loader")
            _running[thread] = work
            thread.start()
        for _ in range(work.count):
            if (error := started.get()) is not None:
                raise error  # noqa: TRY301 - as one that could not be started
    except BaseException:
        work.end()
        for thread, of_work in list(_running.items()):
            if of_work is work and not thread.is_alive():
                _running.pop(thread, None)
        raise
    finally:
        torch.set_num_threads(torch_threads)


def _pin(batch: Any) -> Any:
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)  # type: ignore[no-untyped-call]


def _end(seconds: float = _END_SECONDS) -> None:
    """At the end of the process: end the work of the threads, and wait for them; also after another Ctrl-C."""
    until, running = time.monotonic() + seconds, list(_running.items())
    for _, work in running:
        work.end()
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    for thread, _ in running:
        if thread.ident is not None:
            raise_in(ctypes.c_ulong(thread.ident), ctypes.py_object(_ProcessEndError))
    while running and time.monotonic() < until:
        with contextlib.suppress(KeyboardInterrupt):
            running[-1][0].join(min(_POLL_SECONDS, seconds))
            if not running[-1][0].is_alive():
                running.pop()


atexit.register(_end)
forks.call_in_child(_running.clear)
