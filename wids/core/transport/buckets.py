"""The byte sources of S3 and Google Cloud Storage: the requests of s3fs and gcsfs, sent by the HTTP source of wids.

Bytes go into the file as they arrive, so a connection that breaks loses none. The clients of s3fs and gcsfs still make
the requests, with all of their options, credentials and environment, and do all else: listing, writing, and reading
with options that concern their own connections.

A signature of S3 is in the headers, and not in a presigned URL: it is what s3fs sends, so that each server that s3fs
can read takes it, and errors and logs of servers and clients show URLs. To make one by the whole way of botocore takes
0.45 ms (presigned 0.13 ms, by the bare signer 0.05 ms, but without regions, access points, and keys of S3 Express).
It does not sign the range, so the ranges of an object share it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import ssl
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from wids.core.transport import filesystems
from wids.core.transport.failures import InterruptedTransferError, StalledTransferError
from wids.core.transport.http import HttpSource, refusal
from wids.core.transport.source import HEAD, ByteSource, Sink, Stat
from wids.core.transport.spans import Span
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.core.transport.http import Answer

# Options of s3fs's client that change which request is made. All others concern how its own connections send it.
_CLIENT = frozenset({"region_name", "endpoint_url", "use_ssl", "verify", "aws_account_id"}) | frozenset(
    {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
)
_CONFIG = frozenset({"s3", "region_name", "signature_version", "max_pool_connections", "use_dualstack_endpoint"}) | {
    *("use_fips_endpoint", "user_agent", "user_agent_extra", "user_agent_appid", "ignore_configured_endpoint_urls"),
    *("request_checksum_calculation", "response_checksum_validation"),
}
_MAX_SIGNED, _MAX_ERROR_BYTES = 1000, 64 << 10


def open_bucket(plain: ByteSource, filesystem: Any, name: str, options: dict[str, Any]) -> ByteSource | None:
    """The source of an object in S3 or Google Cloud Storage over HTTP; None: its client is to read it.

    Args:
        plain: its source by its client.
        filesystem: the client, see `filesystems.open_filesystem`.
        name: of the object, likewise.
        options: for the file system.

    Raises:
        Exception: the client's, as it has no credentials.
    """
    client = type(filesystem).__module__.partition(".")[0]  # classes derived from theirs may read in another way
    make = {"s3fs": _open_s3, "gcsfs": _open_google}.get(client)
    if make is None:
        return None
    why = "a redirect" if filesystem in _unfit else ", ".join(_odd_options(options))
    if not why:
        try:
            limited = asyncio.wait_for(make(plain, filesystem, name), filesystems.limit_of(0))
            return filesystems.run(limited, go_on=plain.go_on)
        except (AttributeError, ImportError, LookupError, TypeError) as error:  # also of other versions of the clients
            why = f"{type(error).__name__}: {error}"
    _say_once(client, why)
    return None


# Clients whose servers redirect, and not to another region.
_unfit: weakref.WeakSet[Any] = weakref.WeakSet()


@functools.cache
def _say_once(client: str, why: str) -> None:
    logger.debug("%s reads objects itself, and not wids over HTTP, because of: %s", client, why)


def _odd_options(options: dict[str, Any]) -> list[str]:
    """The names of the options that only the client itself can heed."""
    config = options.get("config_kwargs") or {}
    odd = {*config} - _CONFIG | {*(options.get("client_kwargs") or {})} - _CLIENT
    if config.get("signature_version") not in (None, "s3v4"):
        odd.add("signature_version")
    return sorted(odd | {name for name in ("requests_timeout",) if options.get(name) is not None})


class _Signed(NamedTuple):
    """A request of S3's client, ready to be sent, and when it was signed."""

    url: str
    headers: dict[str, str]
    at: float


class _NotSentError(Exception):
    """Ends the client's call, once the request is made."""


# A list for the request that this task makes, which is then not sent.
_wanted: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("_wanted", default=None)


def _keep(request: Any, **_: Any) -> None:
    if (requests := _wanted.get()) is not None:
        requests.append(request)
        raise _NotSentError


# By client and name.
_signatures: weakref.WeakKeyDictionary[Any, dict[str, _Signed]] = weakref.WeakKeyDictionary()


async def _sign(filesystem: Any, name: str) -> _Signed:
    """The client's own request for an object, which was made just now or a short time ago."""
    kept = _signatures.setdefault(filesystem, {})
    if name not in kept or not 0 <= time.time() - kept[name].at < filesystems.LIMITS.signed_seconds:
        if len(kept) >= _MAX_SIGNED:
            kept.clear()
        kept[name] = await _make(filesystem, name)
    return kept[name]


async def _make(filesystem: Any, name: str) -> _Signed:
    await filesystem.set_session()
    bucket, key, _ = filesystem.split_path(name)
    if not key:
        raise LookupError("a bucket is no object")
    events = (await filesystem.get_s3(bucket)).meta.events
    events.register_last("before-send.s3.GetObject", _keep, unique_id="wids")
    requests: list[Any] = []
    before = _wanted.set(requests)
    try:
        with contextlib.suppress(_NotSentError):
            await _call(filesystem, name)
    finally:
        _wanted.reset(before)
    request = requests[-1]
    words = ((key, text.decode() if isinstance(text, bytes) else text) for key, text in request.headers.items())
    return _Signed(request.url, {**dict(words), "Accept-Encoding": "identity"}, time.time())


async def _call(filesystem: Any, name: str, **options: str) -> Any:
    options.update(filesystem.req_kw)  # who pays, which newer releases add by themselves
    bucket, options["Key"], version = filesystem.split_path(name)
    if version:
        options["VersionId"] = version
    return await filesystem._call_s3("get_object", Bucket=bucket, **options)  # noqa: SLF001 - as in `AsyncSource`


async def _open_s3(plain: ByteSource, filesystem: Any, name: str) -> ByteSource:
    return S3Source(plain, filesystem, name, await _sign(filesystem, name), _tls_of(filesystem))


def _tls_of(filesystem: Any) -> Any:
    """The client's verification of certificates, as aiohttp takes it."""
    from botocore.httpsession import get_cert_path  # type: ignore[import-untyped]

    verify = filesystem.client_kwargs.get("verify")
    if verify is None:
        verify = filesystem.session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or True
    return _tls_with(get_cert_path(verify)) if verify else False


@functools.cache
def _tls_with(path: str) -> ssl.SSLContext:
    is_directory = os.path.isdir(path)
    return ssl.create_default_context(cafile=None if is_directory else path, capath=path if is_directory else None)


class S3Source(HttpSource):
    """An object in S3, or in a server like it.

    Args:
        plain: its source by its client.
        filesystem: see `filesystems.open_filesystem`.
        name: see there.
        signed: a request for it.
        tls: see `_tls_of`.
    """

    is_as_stored: bool = True

    def __init__(self, plain: ByteSource, filesystem: Any, name: str, signed: _Signed, tls: Any) -> None:
        http, url = filesystems.open_filesystem(signed.url)
        super().__init__(plain.url, http, url, go_on=plain.go_on, precedence=plain.precedence)
        self._s3, self._key, self._tls = filesystem, name, tls

    async def prepare(self) -> tuple[Any, Any, dict[str, Any]]:
        """Sign the request; see `HttpSource`."""
        from yarl import URL

        signed = await _sign(self._s3, self._key)
        options = {"headers": signed.headers, "allow_redirects": False}
        if signed.url.startswith("https:"):
            options["ssl"] = self._tls
        return await self._filesystem.set_session(), URL(signed.url, encoded=True), options

    async def ask(self, span: Span | None, *, is_raw: bool = True) -> Answer:
        """Send the request; see `HttpSource`. The version has the form of s3fs, as recorded in caches and journals."""
        from botocore.utils import parse_timestamp  # type: ignore[import-untyped]

        try:
            answer = await super().ask(span, is_raw=is_raw)
        except OSError as error:
            is_elsewhere = _is_elsewhere(error)
            if is_elsewhere:
                with contextlib.suppress(Exception):  # of interest is what the next answer says
                    # The client finds the region, and remembers it.
                    (await _call(self._s3, self._key, Range="bytes=0-0"))["Body"].close()
            _signatures.get(self._s3, {}).pop(self._key, None)
            if not is_elsewhere:
                raise
            try:
                answer = await super().ask(span, is_raw=is_raw)
            except OSError as again:
                if not _is_elsewhere(again):
                    raise
                _unfit.add(self._s3)
                raise StalledTransferError(f"{self.url}: is redirected; its client follows in the next try") from again
        changed = answer.headers.get("Last-Modified")
        info = {"ETag": answer.headers.get("ETag", ""), "LastModified": parse_timestamp(changed) if changed else ""}
        version, is_strong = filesystems.version_of(info)
        answer.stat = answer.stat._replace(version=version, is_strong=is_strong)
        return answer

    async def check(self, response: Any) -> None:
        """Raise the errors of s3fs, but for those that may have a ``Retry-After``; see `HttpSource`."""
        if response.status < 300:
            return await super().check(response)
        from botocore.exceptions import ClientError  # type: ignore[import-untyped]
        from botocore.parsers import create_parser  # type: ignore[import-untyped]
        from s3fs.errors import translate_boto_error  # type: ignore[import-untyped]

        body = bytearray()
        while len(body) < _MAX_ERROR_BYTES and (data := await response.content.readany()):
            body += data
        headers = {key.lower(): text for key, text in response.headers.items()}
        answer = {"status_code": response.status, "headers": headers, "body": bytes(body)}
        parsed = create_parser("rest-xml").parse(answer, None)
        parsed["Error"]["Code"] = parsed["Error"].get("Code") or str(response.status)  # a page of a proxy has none
        error = ClientError(parsed, "GetObject")
        if response.status in (408, 429) or response.status >= 500:
            raise refusal(response, str(error))
        raise translate_boto_error(error, message=str(error))


def _is_elsewhere(error: OSError) -> bool:
    """True if a bucket is in another region than the one that was asked."""
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return False
    is_redirect = response["ResponseMetadata"]["HTTPStatusCode"] in (301, 302, 307)
    return is_redirect or response["Error"]["Code"] == "AuthorizationHeaderMalformed"


async def _open_google(plain: ByteSource, filesystem: Any, name: str) -> ByteSource:
    is_zonal = getattr(filesystem, "_is_zonal_bucket", None)
    if is_zonal is not None and await is_zonal(filesystem.split_path(name)[0]):
        raise LookupError("zonal buckets are read by gRPC")
    return GoogleSource(plain, filesystem, name)


class GoogleSource(HttpSource):
    """An object in Google Cloud Storage; its size and version are those of gcsfs, which no answer with bytes has.

    Args:
        plain: its source by its client.
        filesystem: see `filesystems.open_filesystem`.
        name: see there.
    """

    answers_have_stat: bool = False

    def __init__(self, plain: ByteSource, filesystem: Any, name: str) -> None:
        super().__init__(plain.url, filesystem, name, go_on=plain.go_on, precedence=plain.precedence)
        self._plain, self._media = plain, filesystem.url(name)
        self._params = filesystem._get_params({})  # noqa: SLF001 - the project that pays
        self._known: Stat | None = None

    def stat(self, first: Span | None = HEAD, *, is_fresh: bool = True) -> Stat:
        """Ask the client, and note the answer; see `ByteSource`."""
        self._known = self._plain.stat(first, is_fresh=is_fresh)
        return self._known

    async def read(self, span: Span, sink: Sink) -> None:
        """Read a span of the generation that `stat` saw; see `ByteSource`."""
        await super().read(span, Sink(lambda _: None, sink.write))

    def stream(self, end: int | None = None, *, in_one_request: bool = False) -> Iterator[bytes]:
        """Stream the object; it is one request in any case. See `ByteSource`."""
        del in_one_request
        first = None if end is None else Span(0, end)
        return self._blocks_of(filesystems.run(self._keep(first), go_on=self.go_on), end)

    async def prepare(self) -> tuple[Any, Any, dict[str, Any]]:
        """Prepare a request with a token that gcsfs refreshes, if need be; see `HttpSource`."""
        import aiohttp
        from yarl import URL

        session = await self._filesystem._set_session()  # noqa: SLF001 - gcsfs's interface is spelt so
        headers = self._filesystem._get_headers({"Accept-Encoding": "identity"})  # noqa: SLF001 - likewise
        options = {"headers": headers, "params": self._params}
        if self.precedence is not None and "timeout" not in self._filesystem.session_kwargs:
            limits = filesystems.LIMITS  # aiohttp's own ones end each transfer after five minutes
            connect, read = limits.connect_seconds, limits.read_seconds
            options["timeout"] = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=read)
        return session, URL(self._media, encoded=True), options

    async def check(self, response: Any) -> None:
        """Raise on errors, and on another generation than that of `stat`; see `HttpSource`."""
        await super().check(response)
        generation = response.headers.get("x-goog-generation")
        if generation and self._known is not None and generation not in (self._known.version or ()):
            raise InterruptedTransferError(f"{self.url}: it changed during the transfer")
