"""What servers do wrong with single byte ranges; faults as in `wids.testing`, for one that has ranges."""

import gzip

from wids.testing import whole


def part(divisor):
    """A proper answer that ends early: its head speaks of the whole range, and announces a part of it."""

    def fault(handler, body):
        lo, hi = handler.span
        count = max((min(hi, len(body)) - lo) // divisor, 1)
        handler.end(handler.begin(body, Content_Length=count)[:count])

    return fault


short = part(2)


def within(first, last):
    """Not what was asked for but a range in it: without its first and its last bytes, so many of them; it says so."""

    def fault(handler, body):
        lo, hi = handler.span[0] + first, min(handler.span[1], len(body)) - last
        handler.begin(body, Content_Length=hi - lo, Content_Range=f"bytes {lo}-{hi - 1}/{len(body)}")
        handler.end(body[lo:hi])

    return fault


def unsized(handler, body):
    """A range of nobody knows how many bytes, as a proxy that is still receiving the rest gives it."""
    lo, hi = handler.span
    handler.end(handler.begin(body, Content_Range=f"bytes {lo}-{min(hi, len(body)) - 1}/*"))


def unsaid(handler, body):
    """A range, and not a word on which one."""
    handler.end(handler.begin(body, Content_Range=""))


def too_long(handler, body):
    """More bytes than the range has."""
    lo, hi = handler.span
    data = body[lo : hi + 10]
    handler.begin(body, Content_Length=len(data))
    handler.end(data)


def ignored(handler, body):
    """All of it, with status 200."""
    handler.span = None
    whole(handler, body)


def elsewhere(handler, body):
    """Another range of that length, which the head names."""
    size = min(handler.span[1], len(body)) - handler.span[0]
    lo = max(min(handler.span[0] + 512, len(body) - size), 0)
    handler.begin(body, Content_Length=size, Content_Range=f"bytes {lo}-{lo + size - 1}/{len(body)}")
    handler.end(body[lo : lo + size])


def of_longer(handler, body):
    """The right bytes, as a range of something longer."""
    lo, hi = handler.span[0], min(handler.span[1], len(body))
    handler.end(handler.begin(body, Content_Range=f"bytes {lo}-{hi - 1}/{len(body) + 512}"))


def all_as_range(handler, body):
    """All of it, with status 206."""
    handler.begin(body, Content_Length=len(body), Content_Range=f"bytes 0-{len(body) - 1}/{len(body)}")
    handler.end(body)


def zipped_range(handler, body):
    """The right range under ``Content-Encoding: gzip``, asked for or not."""
    data = gzip.compress(body[slice(*handler.span)])
    handler.begin(body, Content_Length=len(data), Content_Encoding="gzip")
    handler.end(data)


def chunked(handler, body):
    """A good answer in chunks, no length announced."""
    data = handler.begin(body, Content_Length=None, Transfer_Encoding="chunked")
    for at in range(0, len(data), 1000):
        piece = data[at : at + 1000]
        handler.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    handler.end(b"0\r\n\r\n")


def replaced(new):
    """From now on there is another version."""

    def fault(handler, body):
        owner = handler.owner
        owner.add(handler.name, new)
        handler.version = owner.versions[handler.name]
        whole(handler, new)

    return fault


def marked_anew(handler, body):
    """The right bytes under an entity tag that no other answer has."""
    handler.end(handler.begin(body, ETag=f'W/"{handler.number}"'))


def said(fault, **headers):
    """A fault under these headers, in place of the server's own; ``_`` for ``-``, and None leaves one out."""

    def odd(handler, body):
        begin = handler.begin
        handler.begin = lambda body, **more: begin(body, **{**headers, **more})
        try:
            fault(handler, body)
        finally:
            del handler.begin

    return odd


# Validators that stay the same whatever the object is, or that there are none.
WEAK = {
    "none": {"ETag": None, "Last_Modified": None},
    "weak tag": {"ETag": 'W/"1"', "Last_Modified": None},
    "weak tag, small": {"ETag": 'w/"1"', "Last_Modified": None},
    "broken tag": {"ETag": '"', "Last_Modified": None},
    "time": {"ETag": None, "Last_Modified": "Wed, 25 Nov 2026 00:00:00 GMT"},
    "empty tag": {"ETag": '""', "Last_Modified": None},
}


def held(handler, body):
    """The head of a good answer, and no body."""
    handler.begin(body)
    handler.wait()
    handler.close_connection = True
