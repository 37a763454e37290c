"""Who may ask for the pages, and what a browser may do with the answers."""

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from wids.serve.guard import LOOPBACK, Guard

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
    ],
)
def test_names_that_are_ours(host, status):
    """A foreign name that resolves to this machine does not reach the pages."""
    assert client().get("/", headers={"host": host}).status_code == status


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
    assert (answer.status_code, answer.headers["location"]) == (303, "/epoch?step=3&rank=+")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert browser.get("/").text == "in"
    assert client(hosts=None, token="s3cret").get("/", headers={"cookie": "wids-80=s3cret"}).status_code == 403


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example/"])
def test_a_redirect_stays_here(path):
    """A path that looks like another host is not followed there."""
    answer = client(hosts=None, token="t").get(f"http://127.0.0.1:8000{path}?token=t")
    assert (answer.status_code, answer.headers["location"]) == (303, "/evil.example/")


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
        ("same-origin", "cors", "empty", False, 200),
        ("same-origin", "no-cors", "image", False, 200),
        ("cross-site", "navigate", "document", False, 200),
        ("cross-site", "navigate", "iframe", True, 200),
        ("cross-site", "navigate", "iframe", False, 403),
        ("cross-site", "no-cors", "empty", False, 403),
        ("cross-site", "no-cors", "image", True, 403),
        ("same-site", "cors", "empty", True, 403),
        ("same-site", "no-cors", "script", False, 403),
    ],
)
def test_other_sites_give_no_work(site, mode, dest, has_frames, status):
    """A page of another site may link to ours; it cannot make us query or read samples by its images and requests."""
    headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
    assert client(has_frames=has_frames).get("/api/rows", headers=headers).status_code == status
