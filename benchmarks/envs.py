"""The script, the interpreter and the virtual environment of each contender.

To add a contender: write ``contenders/NAME.py`` (see ``contenders/worker.py``) and name it in ``CONTENDERS``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field, replace

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(HERE)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A contender. One without requirements runs in its base, or the benchmark's own interpreter.

    Attributes:
        name: of the contender and of its environment.
        requirements: what pip installs.
        environ: environment variables of its process.
        worker: name of its script, if it is not ``name``.
        directory: where ``contenders/`` is.
        base: another environment, whose packages this one sees behind its own.
    """

    name: str
    requirements: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    worker: str = ""
    directory: str = HERE
    base: Entry | None = None

    @property
    def script(self) -> str:
        """Path of the contender's worker script, ``contenders/WORKER.py``; WORKER is its name if it has no other."""
        return os.path.join(self.directory, "contenders", f"{self.worker or self.name}.py")

    def of_checkout(self, checkout: str) -> Entry:
        """The same contender as another checkout of this repository has it, called ``before``."""
        checkout = os.path.abspath(checkout)
        return replace(
            self,
            name="before",
            worker=self.worker or self.name,
            directory=os.path.join(checkout, "benchmarks"),
            environ={**self.environ, "PYTHONPATH": checkout},
        )


CONTENDERS = {
    entry.name: entry
    for entry in (
        Entry(name="ours", environ={"PYTHONPATH": REPOSITORY}),
        Entry(name="original", requirements=("wids==0.1.11", "torch", "numpy", "pillow", "braceexpand")),
        Entry(name="bare"),
    )
}


def default_directory() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "wids-benchmarks")


def interpreter(entry: Entry, directory: str) -> str:
    """Return the Python that runs ``entry``; a missing environment is made under ``directory`` with pip.

    A marker file, written last, distinguishes a complete environment from an interrupted installation.
    """
    if not entry.requirements:
        return interpreter(entry.base, directory) if entry.base else sys.executable
    home = os.path.join(directory, entry.name)
    python = os.path.join(home, "bin", "python")
    marker = os.path.join(home, "requirements.txt")
    wanted = "\n".join(entry.requirements) + "\n"
    if os.path.exists(marker):
        with open(marker, encoding="utf-8") as stream:
            if stream.read() == wanted:
                return python
    print(f"making {home}: {' '.join(entry.requirements)}", file=sys.stderr)
    base = interpreter(entry.base, directory) if entry.base else None
    venv.create(home, clear=True, with_pip=True)
    if base:
        with open(os.path.join(_site_packages(python), "base.pth"), "w", encoding="utf-8") as stream:
            stream.write(_site_packages(base) + "\n")
    if subprocess.run([python, "-m", "pip", "install", "--quiet", *entry.requirements], check=False).returncode:
        raise SystemExit(f"{home} could not be made; give --python {entry.name}=PATH, or leave it out of --only")
    with open(marker, "w", encoding="utf-8") as stream:
        stream.write(wanted)
    return python


def _site_packages(python: str) -> str:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
