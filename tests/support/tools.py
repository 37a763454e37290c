"""Programs of the system that some tests need; without one they are skipped, and say what to install.

In CI they fail instead: all are installed there, and nobody would see a skip. ``$CI`` says where that is, as it does on
the services that run checks; ``.ci/run`` sets it.
"""

import os
import shutil
import subprocess

import pytest

# Program -> its package of Debian and Ubuntu, and of Homebrew (None: macOS does not have it).
PACKAGES = {
    "bash": ("bash", "bash"),
    "chromium": ("chromium", None),
    "bsdtar": ("libarchive-tools", "libarchive"),
    "ffmpeg": ("ffmpeg", "ffmpeg"),  # its libraries, which torchcodec loads
    "fusermount3": ("fuse3", None),
    "nginx": ("nginx-light", "nginx"),
    "tar": ("tar", "gnu-tar"),  # GNU's
}


def program(name):
    """The path of a program; a test that asks for one that is not installed ends here."""
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])  # where only root's path leads
    path = _gnu_tar(search) if name == "tar" else shutil.which(name, path=search)
    if path is None:
        debian, homebrew = PACKAGES[name]
        other = f", or brew install {homebrew}" if homebrew else ""
        missing(f"{'GNU tar' if name == 'tar' else name} is not installed: apt-get install {debian}{other}")
    return path


def missing(reason):
    """End a test that cannot be run here: it is skipped, or fails in CI."""
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{reason} (in CI no test is skipped for that: $CI is set)", pytrace=False)
    pytest.skip(reason)


def _gnu_tar(search):
    """GNU tar, which is ``gtar`` where ``tar`` is another one."""
    for name in ("tar", "gtar"):
        path = shutil.which(name, path=search)
        if path and b"GNU tar" in subprocess.run([path, "--version"], capture_output=True).stdout:
            return path
    return None
