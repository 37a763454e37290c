"""The command line, ``wids COMMAND``: one module or folder for each command group. Only this folder prints.

Rules: no command's module imports torch, numpy or PIL at the top, so that ``wids --help`` answers at once; a command
imports them when it runs. A command fails by raising a `WidsError`, which is printed as one line on stderr, with exit
code 1. To add a command: ``app.command(...)`` or ``app.add_typer(...)`` below.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from wids.cli.advice import with_advice
from wids.cli.cache import cache_app
from wids.cli.columns import columns_app
from wids.cli.demo import run_demo
from wids.cli.format import print_error
from wids.cli.index import index_app
from wids.cli.look import add_commands as add_look_commands
from wids.cli.pack import run_pack
from wids.cli.plain_help import App, CommandGroup
from wids.cli.query import run_query
from wids.cli.serve import run_serve
from wids.cli.signals import EndedBySignal
from wids.cli.simulate import run_simulate
from wids.cli.verify import add_command as add_verify_command
from wids.cli.view import run_view
from wids.errors import WidsError

# The order of the help: making data, looking at it, choosing from it, running a job.
_MAKING, _LOOKING = ("demo", "pack", "index"), ("info", "ls", "show", "cat", "locate", "at", "when", "serve", "verify")
_ORDER = (*_MAKING, *_LOOKING, "columns", "query", "view", "simulate", "cache")


class _Commands(CommandGroup):
    """The group of all commands; turns exceptions of a command into a line on stderr and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        # Not in main(): older releases of typer turn Ctrl-C into exit code 1 before it gets there.
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()  # here, where an error in writing can still be reported
        except WidsError as error:
            if _is_debug():
                raise
            print_error(with_advice(error))
            raise SystemExit(1) from None
        except MemoryError as error:  # for example an index with a huge count of samples
            if _is_debug():
                raise
            print_error(f"there is not enough memory for this ({str(error) or 'MemoryError'})")
            raise SystemExit(1) from None
        except OSError as error:
            if _is_debug() or error.errno == errno.EPIPE:  # the reader closed the pipe (| head): typer exits quietly
                raise
            _fail_output(error)
        except KeyboardInterrupt as interrupt:
            _end_interrupted(str(interrupt))
        except EndedBySignal as end:
            with contextlib.suppress(OSError):  # a terminal that is gone
                print_error("; ".join(filter(None, (f"ended by {end.name}", end.advice))))
            raise
        return done


app = App(
    name="wids",
    cls=_Commands,
    pretty_exceptions_enable=False,
    help="Random access to training samples in plain tar shards, for PyTorch.",
)
app.command("demo")(run_demo)
app.command("pack")(run_pack)
app.command("query")(run_query)
app.command("serve")(run_serve)
app.command("simulate")(run_simulate)
app.command("view")(run_view)
add_look_commands(app)
add_verify_command(app)
app.add_typer(cache_app, name="cache")
app.add_typer(index_app, name="index")
app.add_typer(columns_app, name="columns")


def _show_version(ctx: typer.Context, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:  # not while a shell completes the line
        from wids import __version__

        print(f"wids {__version__}", flush=True)  # here, where an error in writing can still be reported
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[  # noqa: ARG001 - main() removes it from the arguments; here it is for the help
        bool, typer.Option("--debug", help="Show the traceback of an error. Also: WIDS_DEBUG=1.")
    ] = False,
) -> None:
    """Options of ``wids`` itself."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed (one line on stderr), 2 wrong usage, 130 interrupted."""
    _open_standard_files()
    args = sys.argv[1:]
    if "--debug" in args:
        # Through the environment: it also works after the command's name, and in child processes.
        args.remove("--debug")
        os.environ["WIDS_DEBUG"] = "1"
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks must not make a command fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(args=args, prog_name="wids")
    except OSError as error:  # in writing the help or the version, before a command runs
        if _is_debug():
            raise
        _fail_output(error)
    except KeyboardInterrupt:  # while options are parsed, or after the command
        _end_interrupted()


def run_program() -> None:
    """As `main`, in a process of its own, which it ends.

    If Ray was used, Python does not shut down by itself: Ray's C++ threads can crash meanwhile, and the exit code be
    that of SIGSEGV.
    """
    try:
        main()
    except SystemExit as end:
        if sys.modules.get("ray") is None or not isinstance(end.code, int | None):
            raise
        atexit._run_exitfuncs()  # noqa: SLF001 - os._exit would leave them out
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(end.code or 0)


def _open_standard_files() -> None:
    """Open /dev/null as 0, 1 or 2 where that is closed: else a pipe could get the number, and receive the output."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python sets sys.stdout to None if 1 is closed, and sys.stdout.flush() would fail; likewise sys.stderr.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends


def _end_interrupted(advice: str = "") -> NoReturn:
    """Exit with 130; to be called in an ``except KeyboardInterrupt`` block."""
    if _is_debug():
        raise  # noqa: PLE0704 - the interrupt that is being handled
    print_error("; ".join(filter(None, ("interrupted", advice))))
    raise SystemExit(130) from None


def _fail_output(error: OSError) -> NoReturn:
    print_error(str(error))
    _drop_output()
    raise SystemExit(1) from None


def _drop_output() -> None:
    """Send buffered output to /dev/null: at exit, Python would try to write it again and fail again (a full disk)."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(os.devnull, os.O_WRONLY)
        os.dup2(fd, sys.stdout.fileno())
        os.close(fd)


def _is_debug() -> bool:
    return os.environ.get("WIDS_DEBUG", "0") not in ("", "0")
