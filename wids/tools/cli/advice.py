"""Advice about command-line flags, added to errors of the library.

The library's messages name Python parameters. Where a flag of the command line helps, the error has a
``hint``, and the table below has the words for it, which may quote attributes of the error. Where an argument is wrong,
the error has a ``parameter``, and its message may begin with that name, in whose place the option's stands here.
"""

import re

from wids.errors import WidsError

_ADVICE = {
    "base": "make the index again from the shards, with --base",
    "output": "say where with -o",
    "index": "`wids index create` makes one",
    "skip_errors": "--skip-errors leaves out what cannot be packed",
    "number_keys": "--number-keys numbers them",
    "form": "say what it is with --format",
    "manifest": "for a manifest with another suffix say --format manifest",
    "format_files": "for other files use --format files",
    "format_files_too": "or say --format files",
    "format_files_each": "if each file is a sample, say --format files",
    "format_either": "--format folder, or --format files",
    "condition": "a condition alone is for `wids view INDEX --where`; a query is a whole SELECT",
    "samples": "cut shards by --samples",
    "missing": "with --missing null, what cannot be parsed is null",
    "classes": "--classes FILE is such a list",
    "jobs": "--jobs says how many",
    "fetch": "--fetch allows that, --cache-dir says where they are or go",
    "cache_dir": "--cache-dir says which",
    "max_errors": "after a correction, --retry-errors computes the shards anew in which samples failed",
    "cache_size": "take a larger --cache-size",
    "fewer_shards": "take fewer{fitting} or a larger --cache-size",
    "disk": "take fewer with --shards, or another --cache-dir",
}


# The words of a message that name a parameter, and the flag that stands for it.
_FLAGS = {
    "overwrite": ("overwrite=True", "--overwrite"),
    "max_errors": ("max_errors=", "--max-errors "),
    "too_long": ("too_long='skip'", "--too-long skip"),
    "jsons": ("to jsons", "to --json"),
}


# Parameters whose option has another name than theirs.
_OPTIONS = {"fields": "--field", "jsons": "--json", "texts": "--text", "sources": "SOURCE"}


def with_advice(error: WidsError) -> str:
    """Return the error's message, with advice about a flag that helps, if there is one."""
    message = str(error) or type(error).__name__
    message = message.replace(*_FLAGS.get(error.hint or "", ("", "")))
    if error.parameter is not None:
        option = _OPTIONS.get(error.parameter, f"--{error.parameter.replace('_', '-')}")
        message = re.sub(rf"^(\w+: )?{error.parameter}\b", option, message)
    advice = _ADVICE.get(error.hint or "")
    return f"{message}; {advice.format_map({'fitting': '', **vars(error)})}" if advice else message
