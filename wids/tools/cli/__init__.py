"""The command line, ``wids COMMAND``: one module or folder for each command group. Only this folder prints.

Rules: no command's module imports torch, numpy or PIL at the top, so that ``wids --help`` answers at once; a command
imports them when it runs. A command fails by raising a `WidsError`, which is printed as one line on stderr, with exit
code 1. To add a command: a module with an ``app``, and a line of `COMMANDS`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import importlib
import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from wids.errors import WidsError
from wids.tools.cli.advice import with_advice
from wids.tools.cli.format import is_debug, print_error
from wids.tools.cli.plain_help import App, CommandGroup, PlainCommand
from wids.tools.cli.signals import EndedBySignal

# Name -> (module with its ``app``, first paragraph of its help), in the order of the help: making data, looking at it,
# choosing from it, running a job. The modules are imported when a command is run, or its own help is shown.
COMMANDS = {
    "demo": (
        "demo",
        "Show distributed training on this machine: shards over HTTP, a cache, DDP ranks with equal shares.",
    ),
    "pack": ("pack", "Pack a folder, a manifest or a dataset into shards, with their index and member tables."),
    "index": (
        "index",
        "Make indexes of shards; update, merge, join, split, move and compile them, pack their member tables.",
    ),
    "info": (
        "look.info",
        "Summarize a dataset: name, shards, samples, bytes, sub-datasets, the fields of its first sample.",
    ),
    "ls": (
        "look.listing",
        "List the samples: index, shard, row in the shard, key, and the size in bytes of each field.",
    ),
    "show": (
        "look.show",
        "Show samples: each field's type and size, image sizes, array shapes, the beginning of texts, small images.",
    ),
    "cat": ("look.show", "Write the bytes of one field to stdout, as they are in the shard."),
    "locate": ("look.show", "Find samples by key: the index, the shard and the row of each sample that has the key."),
    "at": ("look.schedule", "Show which samples made up a batch: of which rank, at which step of which epoch."),
    "when": (
        "look.schedule",
        "Show when samples are read: by which rank, at which step of an epoch, at which place in the batch.",
    ),
    "serve": (
        "serve",
        "Look at a dataset in the browser: samples, SQL, the batches of an epoch, the cache while jobs run.",
    ),
    "verify": ("verify", "Look for faults of shards: missing, cut short, damaged, not what the index says."),
    "columns": ("columns", "Columns of a dataset's samples, as a table beside its index."),
    "query": (
        "query",
        "Ask the columns of a dataset's samples by SQL, as `wids columns create` wrote them beside the index.",
    ),
    "view": ("view", "Save a part of a dataset as an index: which samples of which shards, and no data."),
    "rewrite": (
        "rewrite",
        "Write shards anew, without the samples that a view leaves out, or a dataset into new ones.",
    ),
    "map": (
        "map",
        "Compute new fields for each sample, in shards beside those of INDEX; the shards of INDEX stay as they are.",
    ),
    "simulate": (
        "simulate",
        "Say how a training job would go: its batches, downloads, cache, stalls and mixing. No byte is read.",
    ),
    "bench": (
        "bench",
        "Measure how well a loader feeds emulated accelerators: their utilisation, as MLPerf Storage has it.",
    ),
    "cache": ("cache", "List, clean, fill and limit cache directories."),
}


@functools.cache
def load(name: str) -> Any:
    """The command or group of commands of this name, from its module."""
    group = typer.main.get_group(importlib.import_module(f"wids.tools.cli.{COMMANDS[name][0]}").app)
    return group.commands.get(name, group)


class _Commands(CommandGroup):
    """The group of all commands; turns exceptions of a command into a line on stderr and an exit code."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        listed = {name: PlainCommand(name, short_help=words) for name, (_, words) in COMMANDS.items()}
        self.commands = {**listed, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        is_listed = command is not None and command.callback is None
        return name, load(name) if is_listed else command, rest

    def invoke(self, ctx: Any) -> Any:
        # Not in main(): older releases of typer turn Ctrl-C into exit code 1 before it gets there.
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()  # here, where an error in writing can still be reported
        except WidsError as error:
            if is_debug():
                raise
            print_error(with_advice(error))
            raise SystemExit(1) from None
        except MemoryError as error:  # for example an index with a huge count of samples
            if is_debug():
                raise
            print_error(f"there is not enough memory for this ({str(error) or 'MemoryError'})")
            raise SystemExit(1) from None
        except OSError as error:
            if is_debug() or error.errno == errno.EPIPE:  # the reader closed the pipe (| head): typer exits quietly
                raise
            _fail_output(error)
        except KeyboardInterrupt as interrupt:
            _end_interrupted(str(interrupt))
        except EndedBySignal as end:
            with contextlib.suppress(OSError):  # a terminal that is gone
                print_error("; ".join(filter(None, (f"ended by {end.name}", end.advice))))
            raise
        return done


app: App = App(
    name="wids",
    cls=_Commands,
    pretty_exceptions_enable=False,
    help="Random access to training samples in plain tar shards, for PyTorch.",
)


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
        if is_debug():
            raise
        _fail_output(error)
    except KeyboardInterrupt:  # while options are parsed, or after the command
        _end_interrupted()


def run_program() -> None:
    """`main` in a process of its own, which it ends.

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
    if is_debug():
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
