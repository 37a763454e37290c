"""Run commands and Python without some packages: stdin has plans in JSON, by name, and stdout what came of each.

A plan: ``packages`` that cannot be imported, ``lines`` of the command line after ``wids``, and ``doors``, Python.
"""

import json
import logging
import os
import shlex
import sys
import tempfile
import traceback
from importlib.abc import MetaPathFinder

import torch

import wids
from wids.errors import WidsError
from wids.tools.cli import main


class Missing(MetaPathFinder):
    """Finds no module of some packages, and no other finder is asked."""

    def __init__(self, packages):
        self._packages = packages

    def find_spec(self, name, path=None, target=None):
        """Refuse a module of theirs."""
        del path, target
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(work):
    """(exit code, what it wrote to stderr) of a function; what it prints is dropped."""
    with tempfile.TemporaryFile("w+") as errors, open(os.devnull, "w", encoding="utf-8") as nowhere:
        saved = os.dup(1), os.dup(2)
        sys.stdout.flush()
        os.dup2(nowhere.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        try:
            work()
            code = 0
        except SystemExit as left:
            code = left.code or 0
        except WidsError as error:
            code = 1
            sys.stderr.write(f"{error}\n")
        except BaseException:
            code = -1
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            for number in saved:
                os.close(number)
        errors.seek(0)
        return code, errors.read()


def follow(plan):
    """What came of all that a plan names."""
    names = {name for name in sys.modules if name.partition(".")[0] in plan["packages"]}
    assert not names, f"imported by wids itself: {names}"
    sys.meta_path.insert(0, Missing(plan["packages"]))
    found = {}
    for name, line in plan["lines"].items():
        sys.argv = ["wids", *shlex.split(line)]
        found[name] = run(main)
    for name, code in plan["doors"].items():
        found[name] = run(lambda code=code: exec(code, {"wids": wids, "torch": torch}))
    return found


def follow_apart(plan, folder):
    """The same in a fork, and a directory, of its own."""
    os.makedirs(folder)
    for name in os.listdir("."):
        if os.path.isfile(name):
            os.link(name, os.path.join(folder, name))
    path = os.path.join(folder, "found.json")
    child = os.fork()
    if not child:
        code = 1
        try:
            os.chdir(folder)
            found = follow(plan)
            with open("found.json", "w", encoding="utf-8") as file:
                json.dump(found, file)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.waitpid(child, 0)
    with open(path, encoding="utf-8") as file:
        return json.load(file)


if __name__ == "__main__":
    logging.raiseExceptions = False
    os.environ |= {"COLUMNS": "500", "WIDS_DEBUG": "0", "WIDS_CACHE": os.path.abspath("wids-cache")}
    plans = json.load(sys.stdin)
    outcomes = {extra: follow_apart(plan, os.path.abspath(f"in-{extra}")) for extra, plan in plans.items()}
    sys.stdout.write(json.dumps(outcomes))
