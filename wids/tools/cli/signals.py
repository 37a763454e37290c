"""Signals that end a command, turned into exceptions at moments when they can be cleaned up after.

Rules: the first SIGINT, SIGTERM or SIGHUP raises in the main thread; later ones change nothing, because cleaning up is
already under way and is bounded. While `Signals.held`, nothing is raised. Signals that were ignored at the start stay
ignored.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

_AGAIN = "run it again to continue"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(SystemExit):
    """A signal ends the process; ``code`` is 128 + its number, ``name`` as ``"SIGTERM"``, ``advice`` what to do."""

    advice: str

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name, self.advice = signal.Signals(number).name, ""


@contextlib.contextmanager
def resumable(*, is_so: bool = True) -> Iterator[None]:
    """A signal that ends the block says that the same command goes on where this one was, if ``is_so``."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_AGAIN if is_so else "") from None
    except EndedBySignal as end:
        end.advice = _AGAIN if is_so else ""
        raise


class Signals:
    """Within the ``with`` block, a signal raises: SIGINT KeyboardInterrupt, others `EndedBySignal`."""

    def __init__(self) -> None:
        self._is_held = False
        self._pending: int | None = None
        self._raised: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background job
                self._before[number] = signal.signal(number, self.take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._raised is not None and kind is not None and not issubclass(kind, (KeyboardInterrupt, EndedBySignal)):
            self.end(self._raised)  # Ray, for one, makes another exception of it

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back while something is made and its removal is arranged; then raise the one that came."""
        self._is_held = True
        yield
        self._is_held = False
        if self._pending is not None:
            self.end(self._pending)

    def hold(self) -> None:
        """Hold signals back for good: only cleaning up is left to do."""
        self._is_held = True

    def end(self, number: int) -> NoReturn:
        """Raise what a signal raises, and hold later ones back."""
        self._is_held, self._raised = True, number
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise EndedBySignal(number)

    def take(self, number: int, _: Any) -> None:
        """Handle a signal, in the main thread."""
        if self._is_held:
            self._pending = number
        else:
            self.end(number)
