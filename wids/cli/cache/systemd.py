"""What a service says to systemd: that it is ready, that it is alive, that it ends; see sd_notify(3).

Where no supervisor listens, nothing is said. Also whether stderr is the journal, which keeps time and level itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys


class Supervisor:
    """Who started this process and wants to know how it is.

    Attributes:
        alive_seconds: how often it wants a sign of life (``WatchdogSec`` of the unit); infinity: never.
    """

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        is_ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Twice within the time after which it gives us up.
        self.alive_seconds = int(microseconds) / 2e6 if is_ours and microseconds.isdecimal() else math.inf

    def tell(self, **state: str) -> None:
        """Say ``READY="1"``, ``STATUS="..."`` and the like."""
        if not self._address.startswith(("/", "@")):
            return
        text = "\n".join(f"{name}={value}" for name, value in state.items())
        # A name with @ is an abstract one, which begins with a zero byte.
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(text.encode(errors="backslashreplace"), address)


def is_journal() -> bool:
    """Whether stderr goes to systemd's journal."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"
