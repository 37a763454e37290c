"""Functions of a job's caller: by name, ``MODULE:NAME``, or as they are; a class is made once in each process.

A name travels to other processes as a text, and is imported where it is used: the caller's directory is on the path of
imports there, as it is for ``python -m``.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import secrets
import sys
import threading
from typing import TYPE_CHECKING, Any

from wids.core.files import forks
from wids.errors import InputError, a_kind

if TYPE_CHECKING:
    from collections.abc import Callable

_FILE = ".py"


def import_function(name: str, text: str, *, directory: str | None = None) -> Callable[..., Any]:
    """The function or class that ``MODULE:NAME`` or ``path/to/file.py:NAME`` names.

    Args:
        name: of the argument, for messages.
        text: the name.
        directory: in which modules are found, too, and which a path is relative to; None: modules are found as always.

    Raises:
        InputError: it cannot be imported, or is none.
    """
    module, _, path = text.rpartition(":") if ":" in text else (text, "", "")
    is_file = module.endswith(_FILE)
    try:
        if is_file:
            directory, module = os.path.split(os.path.join(directory or os.getcwd(), os.path.expanduser(module)))
            module = module.removesuffix(_FILE)
        if directory is not None and directory not in sys.path:
            sys.path.insert(0, directory)
        value: Any = importlib.import_module(module)
        if is_file and not _is_file_of(value, os.path.join(str(directory), module + _FILE)):
            raise ImportError(f"another module is called {module}; give the file another name")  # noqa: TRY301
        for part in path.split("."):
            value = getattr(value, part)
    except (Exception, SystemExit) as error:  # of any kind: the module runs
        if type(error) is not SystemExit and isinstance(error, SystemExit):  # a signal of the command line
            raise
        raise InputError(
            f"{name} {text!r} cannot be imported ({type(error).__name__}: {error}); write it as module:function"
        ) from error
    if not callable(value):
        raise InputError(f"{name} {text!r} is not a function, but of type {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def _is_file_of(module: Any, path: str) -> bool:
    try:
        return os.path.samefile(str(getattr(module, "__file__", None)), path)
    except OSError:
        return False


class _Made:
    """The functions of this process's jobs, by their tokens."""

    def __init__(self) -> None:
        self.start_child()
        forks.reset_in_child(self)

    def start_child(self) -> None:
        """In a forked child: another thread of the parent may have had the lock."""
        self.lock, self.functions = threading.Lock(), dict[str, Any]()


_made = _Made()


class JobFunction:
    """A function for the tasks of one job; copies in other processes make it for themselves.

    Args:
        name: of the argument, for messages.
        function: a function, a class without arguments, or the name of one; see `import_function`.

    Attributes:
        text: its name, ``MODULE:NAME``.

    Raises:
        InputError: it is none of these.
    """

    text: str

    def __init__(self, name: str, function: Callable[..., Any] | str) -> None:
        self._name, self._function, self._token = name, function, secrets.token_hex(8)
        self._directory, self._pid = os.getcwd(), os.getpid()
        if isinstance(function, str):
            self.text = function
            if not all(function.rpartition(":")[::2]):
                raise InputError(f"{name}={function!r}: write it as module:function", parameter=name)
        elif callable(function):
            of: Any = function.func if isinstance(function, functools.partial) else function
            of = of if hasattr(of, "__qualname__") else type(of)
            self.text = f"{of.__module__}:{of.__qualname__}"
        else:
            raise InputError(
                f"{name} is {a_kind(function)}: give a function, a class, or the name of one, like 'module:function'",
                parameter=name,
            )

    def get(self) -> Callable[..., Any]:
        """The function; of a class, the instance of this process, which its threads share.

        Raises:
            InputError: it cannot be imported, or its instance cannot be made.
        """
        with _made.lock:
            if self._token not in _made.functions:
                if os.getpid() != self._pid:  # a worker, which an earlier job of its program may have used
                    _made.functions.clear()
                _made.functions[self._token] = self._make()
            return _made.functions[self._token]  # type: ignore[no-any-return]

    def check(self) -> None:
        """Import it, and make no instance.

        Raises:
            InputError: it cannot be imported.
        """
        if isinstance(self._function, str):
            import_function(self._name, self._function, directory=self._directory)

    def release(self) -> None:
        """Forget it in this process: the job has ended."""
        with _made.lock:
            _made.functions.pop(self._token, None)

    def _make(self) -> Callable[..., Any]:
        function = self._function
        if isinstance(function, str):
            function = import_function(self._name, function, directory=self._directory)
        if not isinstance(function, type):
            return function
        try:
            made = function()
        except Exception as error:
            raise InputError(
                f"{self._name} {self.text!r}: its instance cannot be made ({type(error).__name__}: {error})"
            ) from error
        if not callable(made):
            raise InputError(f"{self._name} {self.text!r} has no __call__, by which its instances take samples")
        return made  # type: ignore[no-any-return]

    @property
    def travels(self) -> bool:
        """True if a process of this machine can import it: it is at the top of a module, or of a script's file."""
        if isinstance(self._function, str):
            return True
        main = sys.modules.get("__main__")
        if self.text.startswith("__main__:") and not hasattr(main, "__file__"):
            return False
        try:
            pickle.dumps(self._function)
        except Exception:  # noqa: BLE001 - of any kind: its own attributes are pickled, too
            return False
        return True
