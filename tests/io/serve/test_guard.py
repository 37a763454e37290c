"""Who may ask for the pages, and what a browser may do with the answers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from wids.tools.serve.guard import LOOPBACK, Guard, _name_of

OWN = {"x-wids": "1"}


async def pages(scope, receive, send):
    """What is guarded."""
    await PlainTextResponse("in")(scope, receive, send)


def client(host="127.0.0.1:8000", **options):
    """A browser at an address."""
    return TestClient(Guard(pages, **{"hosts": LOOPBACK, **options}), base_url=f"http://{host}", follow_redirects=False)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost:1", 200),
        ("LOCALHOST", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:8000", 421),
        ("[::1]", 200),
        ("[::1].evil.example", 421),
        ("[::1].evil.example:8000", 421),
        ("[::1]evil.example", 421),
        ("[::1]:8000.evil.example", 421),
        ("[::1]:", 421),
        ("[::1", 421),
        ("localhost:8000:1", 421),
        ("localhost:x@evil.example", 421),
        ("evil.example@localhost", 421),
        ("localhost/.evil.example", 421),
        ("localhost.", 421),
        ("localhost,evil.example", 421),
    ],
)
def test_names_that_are_ours(host, status):
    """A foreign name that resolves to this machine does not reach the pages."""
    assert client().get("/", headers={"host": host}).status_code == status


@given(st.text("[]:.@/\\,#?% \t01localhostev127.-_", max_size=24).map(str.strip))
def test_no_other_name_is_ours(text):
    """Whatever is before or behind one of our names, and a port, makes it the name of another host."""
    for host in (text, f"[::1]{text}", f"127.0.0.1{text}", f"{text}localhost"):
        ours = re.fullmatch(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", host)
        assert (_name_of(host) in LOOPBACK) == bool(ours)


def test_two_hosts():
    """A request for two is for nobody."""
    headers = [("host", "localhost"), ("host", "evil.example")]
    assert client().get("/", headers=headers).status_code == 421


def test_a_request_without_a_host():
    """It is for nobody."""
    assert client().get("/", headers={"host": ""}).status_code == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (OWN, 200),
        ({**OWN, "origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}, 200),
        ({}, 403),
        ({**OWN, "origin": "http://evil.example"}, 403),
        ({**OWN, "origin": "http://127.0.0.1:8001"}, 403),
        ({**OWN, "origin": "null"}, 403),
        ({**OWN, "sec-fetch-site": "cross-site"}, 403),
        ({**OWN, "sec-fetch-site": "same-site"}, 403),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_our_pages_change_anything(method, headers, status):
    """A page of another site, or of another port, changes nothing."""
    assert client().request(method, "/", headers=headers).status_code == status


def test_a_token():
    """Nothing is answered without it; the address has it once, and a cookie of this port from then on."""
    browser = client(hosts=None, token="s3cret")
    for path in ("/", "/?token=", "/?token=s3cre", "/?token=%ff", "/static/style.css"):
        assert browser.get(path).status_code == 403
    assert browser.get("/", headers={"cookie": "wids-8000=s3cret; ; =;"}).status_code == 200
    browser = client(hosts=None, token="s3cret")
    answer = browser.get("/epoch?step=3&token=s3cret&rank=%20")
    assert (answer.status_code, answer.headers["location"]) == (303, "./epoch?step=3&rank=+")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert browser.get("/").text == "in"
    assert client(hosts=None, token="s3cret").get("/", headers={"cookie": "wids-80=s3cret"}).status_code == 403


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example/"])
def test_a_redirect_stays_here(path):
    """A path that looks like another host is not followed there: what leads on is relative."""
    answer = client(hosts=None, token="t").get(f"http://127.0.0.1:8000{path}?token=t")
    assert (answer.status_code, answer.headers["location"]) == (303, "./")


def test_a_cookie_below_a_proxy():
    """A browser sends it to these pages alone, not to those of others below the same host; of a deeper page, to all."""
    for root, path, where in (
        ("", "/", None),
        ("", "/samples", None),
        ("", "/sample/3", "/"),
        ("/a/b", "/sample/3", "/a/b"),
    ):
        answer = client(hosts=None, token="t", root_path=root).get(f"{path}?token=t")
        found = re.search("; path=([^;]*)", answer.headers["set-cookie"], re.IGNORECASE)
        assert (found and found[1]) == where


@pytest.mark.parametrize("path", ["/samples", "/user/me/samples"])
def test_a_proxy_that_passes_its_path_on(path):
    """The pages are there and at their own paths; what is refused there is refused here."""
    seen = []

    async def pages(scope, receive, send):
        seen.append((scope["path"], scope["raw_path"]))
        await PlainTextResponse("in")(scope, receive, send)

    browser = TestClient(Guard(pages, hosts=LOOPBACK, root_path="user/me/"), base_url="http://127.0.0.1:8000")
    assert browser.get(path).text == "in"
    assert seen == [("/samples", b"/samples")]
    assert browser.get("/user/me/api/rows").status_code == 403
    assert browser.get("/user/me?a=1").url.path == "/user/me/"


def test_headers():
    """No script but ours, no frame but a notebook's of this machine, no guess of a type; also of a refusal."""
    for answer in (client().get("/"), client().get("/", headers={"host": "evil.example"})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "unsafe-inline" not in policy
        assert policy.endswith("frame-ancestors 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    framed = client(has_frames=True).get("/").headers["content-security-policy"]
    assert framed.endswith("frame-ancestors 'self' http://localhost:* http://127.0.0.1:*")


@pytest.mark.parametrize("foreign", ['theme={"a": 1, "b": [2]}', 'a="b; c', "_xsrf=2|1:0|é", "a[0]=1", "=;;a b"])
def test_a_cookie_among_others(foreign):
    """Other servers of this host have cookies, too, and any letters in them."""
    for cookies in (f"{foreign}; wids-8000=s3cret", f"wids-8000=s3cret; {foreign}"):
        answer = client(hosts=None, token="s3cret").get("/", headers={b"cookie": cookies.encode()})
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("site", "mode", "dest", "has_frames", "status"),
    [
        ("none", "navigate", "document", False, 200),
        ("same-origin", "navigate", "document", False, 200),
        ("cross-site", "navigate", "document", False, 200),
        ("cross-site", "navigate", "iframe", True, 200),
        ("cross-site", "navigate", "iframe", False, 403),
        ("cross-site", "no-cors", "empty", False, 403),
        ("cross-site", "no-cors", "image", True, 403),
        ("same-site", "cors", "empty", True, 403),
        ("same-site", "no-cors", "script", False, 403),
    ],
)
def test_other_sites_link_to_pages(site, mode, dest, has_frames, status):
    """A page of another site may link to ours; its images and requests get nothing."""
    headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
    for path in ("/", "/samples", "/sample/3", "/epoch", "/cache"):
        assert client(has_frames=has_frames).get(path, headers=headers).status_code == status


PARTS = ("/api/rows?where=true", "/thumb/0/.jpg", "/field/0/.jpg", "/picture/0/.jpg")


@pytest.mark.parametrize("has_frames", [True, False])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none", "", "odd"])
@pytest.mark.parametrize("mode", ["navigate", "no-cors", "cors"])
def test_other_sites_give_no_work(site, mode, has_frames):
    """Parts of pages are for our pages alone, also after a click on a link; a person may open a picture, not SQL."""
    for path in PARTS:
        is_ours = site == "same-origin" or (site == "none" and not path.startswith("/api/"))
        for more in ({}, OWN, {"referer": "http://127.0.0.1:8000/"}):
            headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": "document", **more}
            found = client(has_frames=has_frames).get(path, headers=headers).status_code
            assert found == (200 if is_ours else 403), (path, more)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        (OWN, 200),
        ({"referer": "http://127.0.0.1:8000/samples?where=true"}, 200),
        ({"origin": "http://127.0.0.1:8000"}, 200),
        ({"referer": "http://127.0.0.1:8001/"}, 403),
        ({"referer": "http://127.0.0.1/"}, 403),
        ({"referer": "http://evil.example/127.0.0.1:8000/"}, 403),
        ({"referer": "http://127.0.0.1:8000@evil.example/"}, 403),
        ({"referer": "http://evil.example@127.0.0.1:8000/"}, 403),
        ({"referer": "http://127.0.0.1:8000/", "origin": "null"}, 403),
        ({"referer": "http://[", **OWN}, 403),
        ({**OWN, "origin": "http://evil.example"}, 403),
    ],
)
@pytest.mark.parametrize("path", PARTS)
def test_browsers_that_do_not_say_who_asks(path, headers, status):
    """Old ones, and all for addresses of other machines: the request names a page of ours, or nothing is answered."""
    assert client().get(path, headers=headers).status_code == status


def test_pages_name_themselves_to_us_alone():
    """Browsers that do not say who asks need the address of the asking page; no other host hears it."""
    assert client().get("/").headers["referrer-policy"] == "same-origin"


@pytest.mark.parametrize("path", PARTS)
def test_what_is_loaded_in_advance(path):
    """A browser that prefetches what another site's page lists names no site, and still gives us no work."""
    headers = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for purpose in ("prefetch", "prefetch;prerender"):
        found = client().get(path, headers={**headers, "sec-purpose": purpose, "referer": "http://evil.example/"})
        assert found.status_code == 403
        own = client().get(path, headers={"sec-fetch-site": "same-origin", "sec-purpose": purpose})
        assert own.status_code == 200
