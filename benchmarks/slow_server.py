"""A `wids.testing.Server` in a process of its own, with the latency and bandwidth of an object store.

    python benchmarks/slow_server.py DIR --delay-ms 30 --mbps 40
    python benchmarks/slow_server.py DIR --delay-ms 30 --mbps 40 --hub bench/jpegs    the Hub's stand-in, before it

It is a process of its own so that its CPU time is not counted as the contender's. It answers each line on stdin with
its figures since the previous line, and ends when stdin is closed, so that it does not outlive its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack

import envs

from wids.testing import Server


class SlowServer:
    """The server as a child process. ``with`` ends it.

    Args:
        root: the directory.
        delay_ms: from a request to the first byte of its reply.
        mbps: megabytes (1e6) a second for each connection.
        hub: the directory's files are those of this data set of the Hub (ORG/NAME); "": it is served as it is.

    Attributes:
        url: the URL of the directory, or of the Hub, without a slash at the end.
    """

    def __init__(self, root: str, *, delay_ms: float, mbps: float, hub: str = ""):
        command = [sys.executable, os.path.abspath(__file__), root, "--delay-ms", str(delay_ms), "--mbps", str(mbps)]
        command += ["--hub", hub] if hub else []
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.__exit__()
            raise SystemExit("the server did not start")

    def __enter__(self) -> SlowServer:  # noqa: PYI034  (typing.Self needs Python 3.11)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def stats(self) -> dict:
        """Return the server's figures since the last call.

        Returns:
            requests, bytes (of bodies), at_once (the largest number of GETs under way at a time), cpu_seconds (of the
            server).
        """
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the files of a directory slowly, on loopback.")
    parser.add_argument("root")
    parser.add_argument("--delay-ms", type=float, default=30.0, help="from a request to the first byte of its reply")
    parser.add_argument("--mbps", type=float, default=40.0, help="megabytes (1e6) a second for each connection")
    parser.add_argument("--hub", default="", help="serve the files as this data set of the Hub, ORG/NAME")
    given = parser.parse_args()
    speed = {"latency_seconds": given.delay_ms / 1e3, "bytes_per_second": given.mbps * 1e6}
    with ExitStack() as stack:
        hub = None
        if given.hub:
            sys.path.append(os.path.join(envs.REPOSITORY, "notebooks"))
            from hub import Hub

            hub = stack.enter_context(Hub(given.root, given.hub, **speed))
            os.sync()  # its store has copies, which would be flushed in a contender's turn
        server = hub.store if hub else stack.enter_context(Server(given.root, **speed))
        print(hub.url if hub else server.url, flush=True)
        cpu_begin = time.process_time()
        for _ in sys.stdin:
            cpu_seconds = time.process_time()
            asked = hub.take_counts() if hub else {"requests": 0, "bytes": 0}
            with server.lock:
                figures = {
                    "requests": len(server.requests) + len(server.heads) + asked["requests"],
                    "bytes": server.sent_bytes.total() + asked["bytes"],
                    "at_once": server.max_open,
                    "cpu_seconds": cpu_seconds - cpu_begin,
                }
                for counts in (server.requests, server.headers, server.heads, server.ranges, server.sent_bytes):
                    counts.clear()
                server.max_open = server.open
            cpu_begin = cpu_seconds
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
