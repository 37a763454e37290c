"""Opens URLs: credentials by server, hooks for events, permission to run programs. Made once, and passed down.

Pure. All sessions of a process share its connections and measurements of hosts (`wids.core.transport.filesystems`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wids.core.place import SERVICE_ORIGINS, Place
from wids.errors import a_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.events import Hook


@dataclass(frozen=True)
class Session:
    """The settings for opening the URLs of a dataset, a job or a command; picklable if its hooks are.

    Attributes:
        storage_options: for fsspec. A key that is a URL itself (``"https://cdn.example.com"``) has all options of that
            server; the other keys apply to all other servers.
        hooks: called with events.
        allow_pipe: let ``pipe:`` URLs run their program (without a shell).
        cache_dir: keeps answers of stores for all processes of this machine; None: the default one.

    Example:
        >>> session = jobs.Session({"anon": True})  # options of fsspec
        >>> jobs.verify("train.json", jobs.VerifySettings(session=session)).wrong
        []
    """

    storage_options: dict[str, Any] | None = field(default=None, repr=False)
    hooks: Sequence[Hook] = ()
    allow_pipe: bool = False
    cache_dir: str | None = None

    def __hash__(self) -> int:
        return hash(frozenset(self.storage_options or ()))

    def check(self) -> None:
        """Check the types of the fields; an error has no value of a storage option, which may be a secret.

        Raises:
            ValueError: one does not fit.
        """
        options: Any = self.storage_options
        hooks: Any = self.hooks
        if options is not None and not (isinstance(options, dict) and all(isinstance(key, str) for key in options)):
            what = f"storage_options is {a_kind(options)}"
            raise ValueError(f"{what}: give a dict, with texts for keys, as fsspec takes it")
        self._split()
        if isinstance(hooks, (str, bytes)) or not isinstance(hooks, Iterable) or not all(map(callable, hooks)):
            raise ValueError(f"hooks={hooks!r:.200}: give a list of functions, each of which takes an event")
        if self.allow_pipe not in (True, False):
            raise ValueError(f"allow_pipe={self.allow_pipe!r:.200}: give True or False")
        is_path = isinstance(self.cache_dir, str) or hasattr(self.cache_dir, "__fspath__")
        if self.cache_dir is not None and not (self.cache_dir and is_path):
            raise ValueError(f"cache_dir={self.cache_dir!r:.200}: give text or None")

    @property
    def has_options(self) -> bool:
        """True if it has any storage options."""
        return bool(self.storage_options)

    def options_for(self, place: Place) -> dict[str, Any]:
        """The options that apply to a place.

        Args:
            place: a URL or path.

        Raises:
            ValueError: the options of a server are not a dict.
        """
        general, servers = self._split()
        if not servers:
            return general
        options = [servers.get(origin) for origin in place.origins]
        if options and options[0] is not None and options.count(options[0]) == len(options):
            return dict(options[0])
        return general

    def narrowed(self, origins: Iterable[str]) -> Session:
        """The same, with options restricted to these servers and those that the options name.

        The URL of a bucket does not name its server, so the options apply to buckets as well.

        Args:
            origins: scheme, host and port of each server: ``"https://cdn.example.com"``.
        """
        general, servers = self._split()
        if not general:
            return self
        here = {origin: general for origin in {*origins, *SERVICE_ORIGINS} if origin}
        return replace(self, storage_options={**here, **servers})

    def with_hooks(self, hooks: Sequence[Hook]) -> Session:
        """The same with these hooks, which are called with events.

        Args:
            hooks: functions of an event.
        """
        return replace(self, hooks=hooks)

    def kept_in(self, cache_dir: str | None) -> Session:
        """The same with this cache directory, unless it has one, or None is given.

        Args:
            cache_dir: a directory of this machine.
        """
        return self if cache_dir is None or self.cache_dir is not None else replace(self, cache_dir=cache_dir)

    def endpoint_of(self, place: Place) -> str:
        """The server that options name: the same bucket and key may be different shards on two servers.

        Args:
            place: a URL or path.
        """
        if not self.storage_options:
            return ""
        options = self.options_for(place)
        client = options.get("client_kwargs") or {}
        return str(
            options.get("endpoint_url")
            or client.get("endpoint_url")
            or options.get("endpoint")  # the name of the Hub's client
            or options.get("host")
            or ""
        )

    def _split(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        general: dict[str, Any] = {}
        servers: dict[str, dict[str, Any]] = {}
        for key, value in (self.storage_options or {}).items():
            if "://" not in key:
                general[key] = value
            elif isinstance(value, dict):
                servers[Place(key).origin] = value
            else:
                origin = Place(key).origin
                raise ValueError(f"storage_options[{origin!r}] is not a dict; give the options of that server")
        return general, servers


PLAIN = Session()
