"""The server of `wids.testing` as the tests use it, and more of what servers and networks do wrong."""

import datetime as dt
import gzip
import ipaddress
import os
import threading

from wids import testing
from wids.testing import Gate, cut, instead, redirect, reset, stall, status, whole

__all__ = [
    "Gate",
    "Meeting",
    "Server",
    "cut",
    "instead",
    "redirect",
    "reset",
    "shard_requests",
    "stall",
    "status",
    "whole",
    "write_certificate",
]


class Server(testing.Server):
    """Serves ``files`` (path -> bytes), without ranges until ``has_ranges`` is set."""

    def __init__(self, **options):
        super().__init__(**{"has_ranges": False, **options})

    def gate(self):
        """A fault that stops half-way until the test lets it go on."""
        return Gate()

    def meeting(self, count):
        """A fault for the coming answers: their bodies wait until there are ``count`` of them."""
        return Meeting(count)


def shard_requests(server):
    """The requests to a server but those for member tables, which are asked for wherever there may be some."""
    return [target for target in server.requests if ".widx" not in target]


class Meeting:
    """Sends the head of each answer, and the bodies when there are enough of them, or when ``go`` is set."""

    def __init__(self, count):
        self.missing, self.go, self._lock = count, threading.Event(), threading.Lock()

    def __call__(self, reply, body):
        """See the class."""
        data = reply.begin(body)
        with self._lock:
            self.missing -= 1
        if self.missing <= 0:
            self.go.set()
        reply.wait(self.go)
        reply.end(data)


def whole_unannounced(reply, body):
    """All of the body, no length announced: the connection's end is its end."""
    reply.start(Connection="close")
    reply.end(body)
    reply.close_connection = True


def zipped(reply, body):
    """The right bytes under ``Content-Encoding: gzip``, asked for or not."""
    instead(gzip.compress(body), Content_Encoding="gzip")(reply, body)


def endless(reply, body):
    """Spaces without an end: well, 64 MiB of them, no length announced."""
    reply.start(Connection="close")
    for _ in range(64):
        reply.send(b" " * (1 << 20))
    reply.close_connection = True


def bomb(reply, body):
    """64 MiB of spaces in a few kilobytes."""
    instead(gzip.compress(b" " * (64 << 20)), Content_Encoding="gzip")(reply, body)


def cut_unannounced(reply, body):
    """Half the body and the end of the connection, no length announced."""
    reply.start(Connection="close")
    reply.send(body[: len(body) // 2])
    reply.close_connection = True


def cut_zipped(reply, body):
    """Half of what the body is in gzip, and the end of the connection, no length announced."""
    data = gzip.compress(body)
    reply.start(Connection="close", Content_Encoding="gzip")
    reply.send(data[: len(data) // 2])
    reply.close_connection = True


def cut_zipped_chunked(reply, body):
    """Half of what the body is in gzip, and the end of the answer in good order, as a proxy sends what it has."""
    data = gzip.compress(body)
    half = data[: len(data) // 2]
    reply.start(Transfer_Encoding="chunked", Content_Encoding="x-gzip")
    reply.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(half), half))


def cut_chunked(reply, body):
    """Half the body in chunks, without the last one."""
    reply.start(Transfer_Encoding="chunked")
    half = body[: len(body) // 2]
    reply.send(b"%x\r\n%b\r\n" % (len(half), half))
    reply.close_connection = True


def mute(reply, body):
    """Nothing at all."""
    reply.wait()
    reply.close_connection = True


def write_certificate(path):
    """A certificate for 127.0.0.1 that signs itself, and its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, raw = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    data = key.private_bytes(pem, raw, serialization.NoEncryption()) + certificate.public_bytes(pem)
    path.write_bytes(data)
    return os.fspath(path)
