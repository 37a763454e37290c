"""How tests start programs of several processes, alone or by torchrun, and end them whatever happens."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import wids

# How long a program may take: long, for the machine may be busy, and shorter than the time-out of a test.
LIMIT_SECONDS = 500
PROGRAMS = Path(__file__).parent / "programs"


def environment(**variables):
    """For child processes: this wids, loopback, one thread, and no rank from whatever launched the tests."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in launcher}
    path = [str(Path(wids.__file__).parents[1]), *filter(None, [kept.get("PYTHONPATH")])]
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(path),
        "GLOO_SOCKET_IFNAME": loopback,
        "TP_SOCKET_IFNAME": loopback,
        "OMP_NUM_THREADS": "1",
        **variables,
    }


def torchrun(world):
    """The command that starts a program on ``world`` ranks of this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=1", f"--nproc-per-node={world}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
        *("--local-addr=127.0.0.1", "--max-restarts=0"),
    ]


def forked_ranks(world):
    """The command that starts a program on ``world`` ranks faster than torchrun, which is for tests of just that."""
    return [sys.executable, str(PROGRAMS / "forked_ranks.py"), str(world)]


def run_all(commands, *, env, output, code=0, limit=LIMIT_SECONDS):
    """Run the commands at the same time; each must end with ``code``, well within ``limit`` s. None is left behind."""
    started = []
    try:
        with open(output, "wb") as stream:
            started.extend(
                # A session of its own: whatever it starts can be ended with it.
                subprocess.Popen(command, env=env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
                for command in commands
            )
        codes = [process.wait(limit) for process in started]
    finally:
        # A launcher ends its workers on SIGTERM; SIGKILL would orphan them.
        for process in started:
            if process.poll() is None:
                process.terminate()
        for process in started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert codes == [code] * len(commands), Path(output).read_text(errors="replace")
