"""The stand-in for the Hugging Face Hub, which is the notebooks' own, and runs of wids that know nothing of it yet."""

import contextlib
import os

from huggingface_hub import constants

from notebooks.hub import Hub, Repository
from tests.support.clocks import set_limits
from wids.hub import source as hub

__all__ = ["Hub", "Repository", "begin_run", "forget_login", "standing_in"]


@contextlib.contextmanager
def standing_in(patch, cache_dir, name="org/set", **options):
    """A Hub in the place of the real one, for this process; nobody is logged in.

    Args:
        patch: a monkeypatch.
        cache_dir: the default one of wids.
        name: of its first repository.
        **options: see `Hub`.
    """
    with Hub(name=name, **options) as stand_in:
        patch.setenv("HF_ENDPOINT", stand_in.url)
        patch.setenv("WIDS_CACHE", str(cache_dir))
        forget_login(patch, cache_dir)
        hub.forget()
        yield stand_in
        hub.forget()


def forget_login(patch, home):
    """Nobody is logged in, in this process and its children; huggingface_hub reads the environment at its import."""
    variables = "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN"
    for variable in (*variables, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        patch.delenv(variable, raising=False)
    patch.setenv("HF_HOME", str(home))
    patch.setattr(constants, "HF_TOKEN_PATH", os.path.join(home, "token"))
    patch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)


def begin_run(patch):
    """As a process that starts later: another commit may be the newest one."""
    hub.forget()
    set_limits(hub, patch.setattr, pin_seconds=0.0)
