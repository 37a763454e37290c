"""Starts a program on several ranks of this machine, as torchrun does.

    python forked_ranks.py WORLD[,MODULE ...] PROGRAM [ARGUMENT ...]

Ranks are forks of a process that has imported torch and the modules. As with torchrun, SIGTERM is passed on to the
ranks, one that fails ends the others, and the exit code is then 1.
"""

import importlib
import os
import runpy
import signal
import sys
from datetime import timedelta

import torch.distributed

_END_SECONDS = 30


def start(world):
    """Fork the ranks: their process ids; an empty list in a rank, once its environment is complete."""
    pids, pipes = [], []
    for rank in range(world):
        receiving, sending = os.pipe()
        pid = os.fork()
        if pid == 0:
            for descriptor in [sending, *pipes]:
                os.close(descriptor)
            with open(receiving) as pipe:
                port = pipe.read()
            os.environ |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "GROUP_RANK": "0",
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "0",
            }
            return []
        os.close(receiving)
        pids.append(pid)
        pipes.append(sending)
    # After the forks: it has threads.
    store = torch.distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300)
    )
    for pipe in pipes:
        os.write(pipe, str(store.port).encode())
        os.close(pipe)
    wait.store = store  # lives as long as the ranks
    return pids


def wait(pids):
    """Wait for all ranks; the exit code."""
    left = set(pids)

    def end_all(*_):
        for pid in left:
            os.kill(pid, signal.SIGTERM)

    def kill_all(*_):
        for pid in left:
            os.kill(pid, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end_all)
    signal.signal(signal.SIGALRM, kill_all)
    code = 0
    while left:
        pid, status = os.wait()
        left.discard(pid)
        if status and not code:
            code = 1
            end_all()
            signal.alarm(_END_SECONDS)
    return code


def main():
    """See the module."""
    first, *command = sys.argv[1:]
    world, *modules = first.split(",")
    for module in modules:
        importlib.import_module(module)
    pids = start(int(world))
    if pids:
        sys.exit(wait(pids))
    sys.argv = command
    sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
