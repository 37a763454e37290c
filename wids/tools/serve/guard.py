"""The guard of every request and answer of the pages: who may ask, and what a browser may do with the answer.

Rules: a request names a host that is ours: a foreign name that resolves to this machine does not reach the pages. With
a token, nothing is answered without it. Any site may link to a page, which waits for a person before it runs SQL. What
pages consist of (answers to scripts, pictures, fields) is for our own pages alone: it takes work, which no other site
may give. So is what changes something. A page runs our script and loads from us, nothing else; contents of a shard are
shown and never executed.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
# Sent by our script with what changes something. Another site's page cannot send it without our leave, which none has.
OWN_HEADER = "x-wids"

_READING = frozenset({"GET", "HEAD"})
# A name or an address in brackets, and a port.
_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.IGNORECASE)
# Paths of what pages consist of; only the first ones run SQL.
_ANSWERS, _PARTS = "/api/", ("/api/", "/thumb/", "/field/", "/picture/")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'"
)
# Of bytes out of a shard, opened as a page of their own: no script, no form, no other file, a foreign origin.
SANDBOX = "sandbox; default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'"


class Guard:
    """An ASGI application around the pages.

    Args:
        app: the pages.
        hosts: names by which a browser may ask, lower case; None: any, for there is a token.
        token: what a browser must have; None: nothing. It comes once in the URL (``?token=``), then as a cookie.
        has_frames: pages of this machine (a notebook) may show ours in a frame.
        root_path: below which a proxy publishes the pages, as ``"/user/me/proxy/8437"``; requests may have it or not.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str] | None,
        token: str | None = None,
        has_frames: bool = False,
        root_path: str = "",
    ) -> None:
        self._root = root_path.strip("/")
        self._app, self._hosts, self._token, self._has_frames = app, hosts, token, has_frames
        ancestors = "'self' http://localhost:* http://127.0.0.1:*" if has_frames else "'none'"
        self._headers = {
            "content-security-policy": f"{_POLICY}; frame-ancestors {ancestors}",
            "x-content-type-options": "nosniff",
            "referrer-policy": "same-origin",  # by which old browsers say that our own pages ask
            "cross-origin-resource-policy": "same-origin",
            "cross-origin-opener-policy": "same-origin",
            "cache-control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it to the pages."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        scope = self._below_root(scope)
        has_begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope) or self._way_to_root(scope) or self._app
        try:
            await answer(scope, receive, send_guarded)
        except asyncio.CancelledError:  # the server ends, and waits no more for this answer
            if not has_begun:
                await _refuse("the server ends", 503)(scope, receive, send_guarded)

    def _below_root(self, scope: Scope) -> Scope:
        """A request whose path begins at the first page."""
        root, path = f"/{self._root}", scope["path"]
        if not self._root or not path.startswith(f"{root}/"):
            return scope
        return {**scope, "path": path.removeprefix(root), "raw_path": quote(path.removeprefix(root)).encode()}

    def _way_to_root(self, scope: Scope) -> ASGIApp | None:
        """The answer to a request for the root path without its last slash: relative links would lead elsewhere."""
        if not self._root or scope["path"] != f"/{self._root}":
            return None
        rest = scope["query_string"].decode("latin-1")
        return RedirectResponse(f"./{self._root.rpartition('/')[2]}/{'?' * bool(rest)}{rest}", 307)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """The answer to a request that goes no further."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if self._hosts is not None and _name_of(host) not in self._hosts:
            words = f"these pages are not {host!r}: ask by the address that wids serve has printed; behind a proxy"
            return _refuse(f"{words}, start it with --token", 421)
        if words := self._why_foreign(headers, host, scope["path"]):
            return _refuse(words, 403)
        if self._token is not None:
            cookie = f"wids-{(scope.get('server') or ('', 0))[1]}"
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            given = dict(query).get("token")
            if given is not None and _is_same(given, self._token):
                rest = urlencode([pair for pair in query if pair[0] != "token"])
                # Relative, as all links are; a name with a colon in it, alone, would begin with a scheme.
                folder, _, name = scope["path"].replace("\\", "/").rpartition("/")
                answer = RedirectResponse(f"./{name}{'?' * bool(rest)}{rest}", 303)
                # Without a path, a browser sends a cookie to the folder of the address that it was asked by: below a
                # proxy, to these pages alone.
                path = None if not folder else f"/{self._root}"
                answer.set_cookie(cookie, self._token, path=path, httponly=True, samesite="lax")
                return answer
            if not _is_same(_cookie_of(headers, cookie), self._token):
                return _refuse("the token is missing: open the whole address that wids serve has printed", 403)
        if scope["method"] not in _READING and not _is_own(headers, host):
            return _refuse("only these pages themselves may change anything", 403)
        return None

    def _why_foreign(self, headers: Headers, host: str, path: str) -> str:
        """The reason to refuse a request that another site's page may have caused; "": none."""
        if path.startswith(_PARTS):
            is_ours = _is_for_ours(headers, host, runs_sql=path.startswith(_ANSWERS))
            return "" if is_ours else "only these pages themselves ask for parts of them; programs send X-Wids: 1"
        is_foreign = _is_foreign(headers, has_frames=self._has_frames)
        return "another site's page may link to these pages, and no more" if is_foreign else ""


def _is_for_ours(headers: Headers, host: str, *, runs_sql: bool) -> bool:
    """True if one of our pages asks, or a person who opens a picture in a window of its own.

    Another site could not read the answer, but make us work: a query takes long. A browser that does not say who asks
    has to name a page of ours: by a header that only our script can send, or by its address.

    Args:
        headers: of the request.
        host: that it is for.
        runs_sql: an address that a person opens does not suffice: a mail may have it.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:  # a browser that loads in advance what another site's page lists says "none", too
        return site == "same-origin" or (site == "none" and not runs_sql and "sec-purpose" not in headers)
    source = headers.get("origin") or headers.get("referer")
    return OWN_HEADER in headers if source is None else _is_at(source, host)


def _is_foreign(headers: Headers, *, has_frames: bool) -> bool:
    """True if another site's page asks for a page, as browsers declare, except by a link that a person clicks on."""
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    is_page = headers.get("sec-fetch-mode") == "navigate"
    return not (is_page and (has_frames or headers.get("sec-fetch-dest") == "document"))


def _is_own(headers: Headers, host: str) -> bool:
    """True if a request comes from the script of our pages."""
    origin = headers.get("origin")
    return (
        OWN_HEADER in headers
        and headers.get("sec-fetch-site", "same-origin") == "same-origin"
        and (origin is None or _is_at(origin, host))
    )


def _is_at(url: str, host: str) -> bool:
    """True if an address, or the beginning of one, is of a host."""
    try:
        return bool(host) and urlsplit(url).netloc == host
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """A Host header without its port, in lower case; "": it is no such header."""
    found = _HOST.fullmatch(host)
    return found[1].lower() if found else ""


def _cookie_of(headers: Headers, name: str) -> str:
    """The value of a cookie. Cookies of other servers of this host arrive as well, with any contents."""
    pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
    return next((value for found, _, value in pairs if found == name), "")


def _is_same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _refuse(words: str, status: int) -> ASGIApp:
    return PlainTextResponse(f"{words}\n", status)
