"""The command line: ``wids COMMAND``; one module for each command group, and the only place that prints.

Rules: a command's module is light at import (no torch, numpy or PIL), so that ``wids --help`` answers at once; what is
heavy is imported where the command runs. A command says what went wrong by raising a `WidsError`: one line on stderr,
exit code 1. To add a group: ``app.add_typer(...)`` or ``app.command(...)`` below.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from wids.cli.cache import cache_app
from wids.cli.demo import run_demo
from wids.cli.format import complain
from wids.cli.index import index_app
from wids.cli.look import add_commands as add_look_commands
from wids.cli.pack import run_pack
from wids.cli.simulate import run_simulate
from wids.cli.verify import add_command as add_verify_command
from wids.errors import WidsError


class _Commands(TyperGroup):
    """The group of all commands; turns what a command raises into a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        # Here and not in main(): older releases of typer turn Ctrl-C into exit code 1 on the way out.
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()  # while an error of it can still be told
        except WidsError as error:
            if _is_debug():
                raise
            complain(str(error) or type(error).__name__)
            raise SystemExit(1) from None
        except MemoryError as error:  # what is asked for is too large, or the machine too small
            if _is_debug():
                raise
            complain(f"there is not enough memory for this ({str(error) or 'MemoryError'})")
            raise SystemExit(1) from None
        except OSError as error:
            if _is_debug() or error.errno == errno.EPIPE:  # who reads us has seen enough: typer leaves quietly
                raise
            _fail_output(error)
        except KeyboardInterrupt:
            _end_interrupted()
        return done


app = typer.Typer(
    name="wids",
    cls=_Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Random access to training samples in plain tar shards, for PyTorch.",
)
app.command("demo")(run_demo)
app.command("pack")(run_pack)
app.command("simulate")(run_simulate)
add_look_commands(app)
add_verify_command(app)
app.add_typer(cache_app, name="cache")
app.add_typer(index_app, name="index")


def _show_version(ctx: typer.Context, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:  # a shell that completes a line runs nothing of it
        from wids import __version__

        print(f"wids {__version__}", flush=True)  # while an error of it can still be told
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[  # noqa: ARG001 - main() takes it out wherever it stands; here it is for the help
        bool, typer.Option("--debug", help="Show the traceback of an error. Also: WIDS_DEBUG=1.")
    ] = False,
) -> None:
    """What every command has."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed (one line on stderr), 2 wrong usage, 130 interrupted."""
    _open_standard_files()
    args = sys.argv[1:]
    if "--debug" in args:
        # Through the environment, so that it also counts behind the command's name and in processes it starts.
        args.remove("--debug")
        os.environ["WIDS_DEBUG"] = "1"
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks must not end a command that has done its work.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(args=args, prog_name="wids")
    except OSError as error:  # of what is printed before a command runs: help, the version
        if _is_debug():
            raise
        _fail_output(error)
    except KeyboardInterrupt:  # before a command runs, while its options are made and read, or after it
        _end_interrupted()


def _open_standard_files() -> None:
    """Open those of 0, 1 and 2 that whoever started this had closed: a pipe would get the number, and the output."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python had looked before, and what prints would fail over None.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as this runs


def _end_interrupted() -> NoReturn:
    """For an ``except KeyboardInterrupt`` block."""
    if _is_debug():
        raise  # noqa: PLE0704 - the interrupt that is being handled
    complain("interrupted")
    raise SystemExit(130) from None


def _fail_output(error: OSError) -> NoReturn:
    complain(str(error))
    _drop_output()
    raise SystemExit(1) from None


def _drop_output() -> None:
    """Write what is left of the output nowhere: Python would fail once more over a full disk, at its exit."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(os.devnull, os.O_WRONLY)
        os.dup2(fd, sys.stdout.fileno())
        os.close(fd)


def _is_debug() -> bool:
    return os.environ.get("WIDS_DEBUG", "0") not in ("", "0")
