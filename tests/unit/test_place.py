import os
import pickle
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from wids.core.place import Place, plain_name, relative_name

checked = settings(max_examples=examples(300))

# Any text at all, also what is left of a name that is not UTF-8, and what json makes of half a surrogate pair.
any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)
words = st.text("abz09._- é%+&=;,", min_size=1, max_size=8).filter(lambda word: word.strip("."))
paths = st.lists(words, min_size=1, max_size=4).map("/".join)
roots = st.sampled_from(["https://host", "http://host:8080", "gs://bucket", "s3://bucket", "hf://datasets", "file://"])


@pytest.mark.parametrize(
    ("url", "scheme", "is_local", "reaches_local"),
    [
        ("/data/x.tar", "", True, True),
        ("x.tar", "", True, True),
        ("../x.tar", "", True, True),
        ("~/x.tar", "", True, True),
        ("", "", True, True),
        ("a:b.tar", "", True, True),
        ("file:///x.tar", "file", True, True),
        ("FILE:///x.tar", "file", True, True),
        ("local:///x.tar", "local", True, True),
        ("https://h/x.tar", "https", False, False),
        ("HTTPS://h/x.tar", "https", False, False),
        ("gs://b/x.tar", "gs", False, False),
        ("s3://b/x.tar", "s3", False, False),
        ("hf://datasets/a/b/x.tar", "hf", False, False),
        ("memory://x.tar", "memory", False, False),
        ("pipe:cat /x.tar", "pipe", False, True),
        ("pipe:curl https://h/a::b", "pipe", False, True),
        ("simplecache::https://h/x.tar", "", False, False),
        ("simplecache::gs://b/x.tar", "", False, False),
        ("zip://x.tar::https://h/x.zip", "zip", False, False),
        ("simplecache::file:///x.tar", "", False, True),
        ("simplecache::/x.tar", "", False, True),
        ("simplecache::x.tar", "", False, True),
        ("simplecache::zip://x.tar::file:///x.zip", "", False, True),
        ("zip://x.tar::/x.zip", "zip", False, True),
        # fsspec opens the first part of a chain, and takes the rest for where that is found.
        ("file:///etc/passwd::https://h/x.tar", "file", False, True),
        ("file::https://h/x.tar", "", False, True),
        ("FILE::https://h/x.tar", "", False, True),
        ("simplecache::file:///x.tar::https://h/x.tar", "", False, True),
        # Its own text names what is read, and that may be any file.
        ("reference::https://h/refs.json", "", False, True),
        ("reference://a/b::https://h/refs.json", "reference", False, True),
        ("git://repo:x.tar", "git", False, True),
        ("simplecache::pipe://x", "", False, True),
    ],
)
def test_kinds_of_url(url, scheme, is_local, reaches_local):
    """What is read in place, and what a remote index must not point at: anywhere in a chain, in any case of letters."""
    assert Place(url).scheme == scheme
    assert Place(url).is_local is is_local
    assert Place(url).reaches_local is reaches_local


# What the original's urldir gives, and ours too.
DIRECTORIES = {
    "https://h/d/e/index.json": "https://h/d/e",
    "https://h/index.json": "https://h/",
    "https://h": "https://h",
    "https://h/d/": "https://h/d",
    "gs://b/d/i.json": "gs://b/d",
    "gs://b/i.json": "gs://b/",
    "hf://datasets/a/b/i.json": "hf://datasets/a/b",
    "/d/i.json": "/d",
    "/i.json": "/",
    "d/i.json": "d",
    "i.json": "",
    "./i.json": ".",
    "../i.json": "..",
    "~/d/i.json": "~/d",
    "file:///d/i.json": "file:///d",
    "pipe:cat /d/i.json": "pipe:cat /d",
}
# Where the original kept the query of the index, or took "#" and "?" in a bucket or local name for one; and chains.
REPAIRED_DIRECTORIES = {
    "https://h/d/index.json?sig=a/b&c=d": "https://h/d",
    "https://h/d/index.json#part/2": "https://h/d",
    "https://h?x=/y": "https://h",
    "gs://b/a#b/i.json": "gs://b/a#b",
    "s3://b/a?b/i.json": "s3://b/a?b",
    "/a?b/i.json": "/a?b",
    "/a#b/i.json": "/a#b",
    "gs://b//data/i.json": "gs://b//data",
    "simplecache::https://h/d/i.json?sig=/": "simplecache::https://h/d",
}


@pytest.mark.parametrize(("url", "directory"), [*DIRECTORIES.items(), *REPAIRED_DIRECTORIES.items()])
def test_directory_of(url, directory):
    """What relative URLs in an index are relative to: its directory, without its query or signature."""
    assert str(Place(url).directory) == directory


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h/d/x.tar?sig=a/b.json", "x.tar"),
        ("https://h/d/x.tar#a/b", "x.tar"),
        ("gs://b/d/x#1?.tar", "x#1?.tar"),
        ("/d/x y.tar", "x y.tar"),
        ("/d/x?.tar", "x?.tar"),
        ("x.tar", "x.tar"),
        ("/d/", "d"),
        ("https://h", ""),
        ("", ""),
        ("simplecache::https://h/d/x.tar?sig=a/b", "x.tar"),
        ("file:///d/x.tar", "x.tar"),
    ],
)
def test_basename_of(url, name):
    """The last part of the path, without query."""
    assert Place(url).name == name


# What the original's urlmerge gives, and ours too.
JOINED = {
    ("https://h/d", "x.tar"): "https://h/d/x.tar",
    ("https://h/d/", "x.tar"): "https://h/d/x.tar",
    ("https://h/d", "./e/x.tar"): "https://h/d/e/x.tar",
    ("https://h/d", "x.tar?sig=a%2Fb"): "https://h/d/x.tar?sig=a%2Fb",
    ("https://h/d?tok=1", "x.tar"): "https://h/d/x.tar",
    ("https://h/d", "/x.tar"): "https://h/x.tar",
    ("https://h/d", "../x.tar"): "https://h/x.tar",
    ("https://h/d", "//o/x.tar"): "https://o/x.tar",
    ("https://h", "x.tar"): "https://h/x.tar",
    ("https://h/d", "x;p.tar"): "https://h/d/x;p.tar",
    ("gs://b/d", "x.tar"): "gs://b/d/x.tar",
    ("gs://b/d", "/x.tar"): "gs://b/x.tar",
    ("gs://b", "x.tar"): "gs://b/x.tar",
    ("gs://b/d", "a b#c?d.tar"): "gs://b/d/a b#c?d.tar",
    ("/data", "x.tar"): "/data/x.tar",
    ("/data", "x y.tar"): "/data/x y.tar",
    ("/data", "100%.tar"): "/data/100%.tar",
    ("/data", "../x.tar"): "/x.tar",
    ("/data", "./a/./b//c.tar"): "/data/a/b/c.tar",
    ("../d", "../x.tar"): "../x.tar",
    ("d", "x.tar"): "d/x.tar",
    ("d", "/x.tar"): "/x.tar",
    ("", "x.tar"): "x.tar",
    ("/data", "gs://b/x.tar"): "gs://b/x.tar",
    ("gs://b/d", "s3://c/x.tar"): "s3://c/x.tar",
    ("/data", "file:///e/x.tar"): "file:///e/x.tar",
    ("file:///d", "x.tar"): "file:///d/x.tar",
    ("pipe:cat /d", "x.tar"): "pipe:cat /d/x.tar",
}
REPAIRED_JOINED = {
    # Absolute after all; the original put them behind the base.
    ("/data", "~/x.tar"): "~/x.tar",
    ("https://h/d", "~/x.tar"): "~/x.tar",
    ("/data", "pipe:cat x.tar"): "pipe:cat x.tar",
    ("/data", "simplecache::https://h/x.tar"): "simplecache::https://h/x.tar",
    # What was signed, or is a letter of the name, is kept; the original folded or dropped it.
    ("https://h/d", "x.tar?u=/a/../b//c"): "https://h/d/x.tar?u=/a/../b//c",
    # A file's name, letter by letter as far as it is one.
    ("https://h/d", "x#1.tar"): "https://h/d/x%231.tar",
    ("https://h/d", "e#1/x#2.tar?sig=a#b"): "https://h/d/e%231/x%232.tar?sig=a#b",
    ("https://h/d", "what?.tar"): "https://h/d/what%3F.tar",
    ("https://h/d", "a.b/what?.tar?sig=1"): "https://h/d/a.b/what%3F.tar?sig=1",
    ("https://h/d", "get?name=3.tar"): "https://h/d/get?name=3.tar",
    ("https://h/d", "x.tar?token"): "https://h/d/x.tar?token",
    ("https://h/d", "100%.tar"): "https://h/d/100%25.tar",
    ("https://h/d", "a%20b.tar"): "https://h/d/a%20b.tar",
    ("https://h/d", "./a%20b.tar"): "https://h/d/a%2520b.tar",
    ("https://h/d", "./x.y?1.tar"): "https://h/d/x.y%3F1.tar",
    ("https://h/d", "/e/x#1.tar"): "https://h/e/x%231.tar",
    ("simplecache::https://h/d", "x#1.tar"): "simplecache::https://h/d/x%231.tar",
    ("gs://b/d", "./a%20b?#.tar"): "gs://b/d/a%20b?#.tar",
    ("/data", "./a%20b?#.tar"): "/data/a%20b?#.tar",
    ("http://[::1]:8000/d", "a#b%20c.tar"): "http://[::1]:8000/d/a%23b%20c.tar",
    ("file:///d", "./x::y.tar"): "file:///d/x%3A%3Ay.tar",
    ("/d", "./x::y.tar"): "/d/x::y.tar",
    (".", "./x::y.tar"): "./x::y.tar",
    (".", "./~t.tar"): "./~t.tar",
    ("./e", "../pipe:x.tar"): "pipe:x.tar",
    ("file:///d%23", "a%20b#1.tar"): "file:///d%23/a%2520b#1.tar",
    ("https://h/d", "a//b.tar"): "https://h/d/a//b.tar",
    ("https://h/d", "?x=1"): "https://h/d/?x=1",
    ("gs://b//data", "x.tar"): "gs://b//data/x.tar",
    ("gs://b/data//", "x.tar"): "gs://b/data//x.tar",
    ("gs://b//", "x.tar"): "gs://b//x.tar",
    ("gs://b/", "x.tar"): "gs://b/x.tar",
    ("gs://b/d", ".x/..y/z..tar"): "gs://b/d/.x/..y/z..tar",
    ("gs://b/d", "//x.tar"): "gs://b//x.tar",
    ("/a;b", "x.tar"): "/a;b/x.tar",
    ("gs://b/a#b", "x.tar"): "gs://b/a#b/x.tar",
    # There is nothing above the root.
    ("https://h/d", "../../../x.tar"): "https://h/x.tar",
    ("gs://b/d", "e/../../../../x.tar"): "gs://b/x.tar",
    ("file:///d", "../../x.tar"): "file:///x.tar",
    # Chains.
    ("simplecache::https://h/d", "x.tar?a=b/../c"): "simplecache::https://h/d/x.tar?a=b/../c",
    ("simplecache::https://h/d", "/x.tar"): "simplecache::https://h/x.tar",
    ("simplecache::gs://b/d", "../x#1.tar"): "simplecache::gs://b/x#1.tar",
    ("simplecache::/d", "x.tar"): "simplecache::/d/x.tar",
    (None, "x.tar"): "x.tar",
    ("https://h/d", ""): "https://h/d",
    ("gs://b", ""): "gs://b",
    ("/d", ""): "/d",
}


@pytest.mark.parametrize(("parts", "url"), [*JOINED.items(), *REPAIRED_JOINED.items()])
def test_join(parts, url):
    """Relative URLs against a base; absolute ones win; queries, signatures and odd letters survive."""
    base, name = parts
    assert str(Place(base or "").join(name)) == url


@checked
@given(roots, paths, paths, st.sampled_from(["", "?sig=a%2Fb%3D&x=//y/../z#part"]))
def test_join_keeps_place_and_query(root, directory, name, query):
    """A plain name joins to base/name, whatever letters are in it, quoted where they must be; its directory is base."""
    has_query = root.startswith("http")  # elsewhere these are letters of the name, and its dots are folded
    query = query if has_query else query.replace("..", "_").replace("/", "_")
    base = f"{root}/{directory}"
    full = str(Place(base).join(name + query))
    shown = f"{base}/{name}{query}"
    if root == "file://":
        assert Place(full).path == Place(base).path + f"/{name}{query}"
        shown = full
    elif has_query and "%" in name:
        assert unquote(Place(full).without_query.removeprefix(base)) == unquote(f"/{name}")
        shown = full
    assert full == shown
    assert Place(full).name == shown.removesuffix(query if has_query else "").rpartition("/")[2]
    assert str(Place(full).directory) == shown.removesuffix(query if has_query else "").rpartition("/")[0]
    assert str(Place(base).join(full)) == full


@checked
@given(any_text, any_text)
def test_any_text_is_a_url(base, url):
    """Nothing but text comes out, whatever goes in; and what is absolute stays so when it is joined again."""
    full = str(Place(base).join(url))
    for each in (base, url, full):
        assert isinstance(str(Place(each).directory), str)
        assert "/" not in Place(each).name
        assert isinstance(Place(each).path, str)
        assert "".join(Place(each)._split()[:3]) == each
        assert not Place(each).is_local or Place(each).reaches_local
    if Place(full).scheme:
        assert str(Place("gs://other/place").join(full)) == full


@checked
@given(any_text)
@example("x" * 5000)
@example("https://h/" + "ü" * 300 + ".tar?sig=" + "a/" * 500)
@example("\ud800\udfff/\udce9")
@example("pipe:cat '/a/b.tar' | gunzip")
@example("https://h/..")
@example("")
@example("gs://b/a\0b\n.tar")
def test_cache_name_is_a_safe_file_name(url):
    """For any text: plain ASCII letters, at most 200 bytes, no directory, no dotfile, and the same every time."""
    name = Place(url).cache_name()
    assert re.fullmatch(r"[0-9a-f]{32}-[A-Za-z0-9._+-]{1,80}", name)
    assert len(name) <= 120
    assert os.path.basename(name) == name
    assert Place(url).cache_name() == name


@checked
@given(any_text, any_text)
@example("gs://b/x/shard.tar", "gs://b/y/shard.tar")
@example("https://h/x.tar?a", "https://h/x.tar?b")
@example("é", "\udcc3\udca9")
@example("\ud800", "\udc00")
@example("x/", "x")
@example("HTTPS://h/x", "https://h/x")
def test_cache_names_never_collide(one, other):
    """Two URLs that differ in anything have two names."""
    assert (Place(one).cache_name() == Place(other).cache_name()) == (one == other)


def test_cache_name_shows_the_basename():
    """A person can tell what a cached file is; the end of a long name is kept, with its extension."""
    assert Place("gs://b/d/train-000001.tar?sig=x").cache_name().endswith("-train-000001.tar_sig_x")
    assert Place("https://h/d/train-000001.tar?sig=x").cache_name().endswith("-train-000001.tar")
    assert Place("/d/" + "a" * 200 + ".tar").cache_name().endswith("a" * 76 + ".tar")
    assert Place("pipe:cat /secret/token").cache_name().endswith("-pipe.tar")
    assert Place("https://h").cache_name().endswith("-shard.tar")


# What a file of a disk may be called, but is something else in a URL, a pattern, a shell or a chain.
ODD_NAMES = [
    *(
        "a#b.tar",
        "a?b.tar",
        "what?",
        "100%.tar",
        "a%20b.tar",
        "a%2Fb",
        "a b.tar",
        " ",
        "{0..9}.tar",
        "a}b{",
        "[ab]*.tar",
    ),
    *("~", "~root", "~x.tar", "a::b.tar", "::", "simplecache::x", "pipe:cat x", "pipe:", "x;y"),
    *("\udce9.tar", "é.tar", "-rf", "a&b=c", "?x=1", "...", "a\\b", "a\nb", "http:", "file:"),
]
odd_names = st.one_of(
    st.sampled_from(ODD_NAMES),
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=9),
).filter(lambda name: name not in (".", ".."))
odd_paths = st.lists(odd_names, min_size=1, max_size=3).map("/".join)


@checked
@given(st.sampled_from(["/", "/data/", "", "a/"]), odd_paths, odd_paths)
@example("", "~x", "s.tar")
@example("/", "a::b", "100%::s.tar")
@example("", "a://b", "s.tar")
def test_paths_come_back(root, directory, name):
    """Path -> place -> join -> path: whatever letters a name has, it is that file, as a URL or a path."""
    home = root + directory
    place = Place.of_path(home)
    assert place.is_local
    assert os.path.normpath(place.path) == os.path.normpath(home)
    inside = place.join(f"./{name}")
    assert inside.is_local
    assert os.path.normpath(inside.path) == os.path.normpath(f"{home}/{name}")
    assert inside.name == Place.of_path(name.rpartition("/")[2]).name or inside.scheme == "file"
    assert os.path.normpath(inside.directory.path) == os.path.dirname(os.path.normpath(f"{home}/{name}"))
    assert inside.absolute.path == os.path.abspath(f"{home}/{name}")
    assert inside.absolute.absolute == inside.absolute


@checked
@given(st.sampled_from(["https://h/d", "http://[::1]:80", "ftp://h:21/d#x"]), odd_names)
def test_names_come_back_from_web_urls(home, name):
    """A name below an http(s) URL is quoted letter by letter where it begins with ./: nothing of it is a query."""
    place = Place(home).join(f"./{name}")
    assert place.without_query == str(place)
    assert plain_name(place.name) == name.rstrip("/")
    assert place.directory == Place(home).join("./x").directory
    assert relative_name(name) in (name, f"./{name}")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/data/x.tar", "/data/x.tar"),
        ("x y%20z.tar", "x y%20z.tar"),
        ("a#b?c.tar", "a#b?c.tar"),
        ("file:///data/x.tar", "/data/x.tar"),
        ("file:///data/x%20y%23.tar", "/data/x y#.tar"),
        ("file:///data/a b#c?d.tar", "/data/a b#c?d.tar"),
        ("file:///%C3%A9.tar", "/é.tar"),
        ("file:///%E9.tar", "/\udce9.tar"),
        ("file://localhost/data/x.tar", "/data/x.tar"),
        ("file://localhost.tar", "localhost.tar"),
        ("file://d/x.tar", "d/x.tar"),
        ("local:///data/x.tar", "/data/x.tar"),
        ("/d/a#1.tar", "/d/a#1.tar"),
        ("/d/a?b=c.tar", "/d/a?b=c.tar"),
        ("/d/100%25.tar", "/d/100%25.tar"),
        ("/d/{a,b} c.tar", "/d/{a,b} c.tar"),
        ("file:///d/a%231.tar", "/d/a#1.tar"),
        ("file:///d/a#1?.tar", "/d/a#1?.tar"),
        ("~/d/s.tar", "/home/me/d/s.tar"),
        ("./~/d/s.tar", "./~/d/s.tar"),
        ("file:///~/s.tar", "/~/s.tar"),
        ("d/s.tar", "d/s.tar"),
        (Path("d") / "s.tar", "d/s.tar"),
    ],
)
def test_path(given, path, monkeypatch):
    """A path stands as it is, but for ~; a file: URL is unquoted, also to names that are not UTF-8."""
    monkeypatch.setenv("HOME", "/home/me")
    assert Place(given).path == path
    assert Place(given).absolute.path == os.path.abspath(path)


def test_places_are_values():
    """They are compared, hashed and pickled by their text, which stays as it was given."""
    text = "HTTPS://u:p@h/a b.tar?sig=1"
    place = Place(text)
    assert str(place) == text
    assert place == Place(place) == pickle.loads(pickle.dumps(place))
    assert len({place, Place(text), Place("x")}) == 2
    assert place != text
    assert "u:p" not in repr(place)
    assert "sig" not in repr(place)
    with pytest.raises(AttributeError):
        place.scheme = "file"


@pytest.mark.parametrize(
    ("url", "home", "name"),
    [
        ("/d/e/s.tar", "/d", "e/s.tar"),
        ("/d/e/s.tar", "/d/", "e/s.tar"),
        ("/de/s.tar", "/d", ""),
        ("file:///d/a%20b.tar", "/d", "a b.tar"),
        ("https://h/d/s.tar?x=1", "https://h/d", "s.tar?x=1"),
        ("https://h/d/s.tar", None, ""),
    ],
)
def test_below(url, home, name):
    """What is written in an index that lies in a directory; nothing where the place is not below it."""
    assert Place(url).below(home) == name


# --- whose server, and what it is told


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://a.com/x", "https://a.com"),
        ("HTTPS://A.com:443/x?y", "https://a.com"),
        ("http://a.com:443", "http://a.com:443"),
        ("https://u:p@a.com/x", "https://a.com"),
        ("http://[::1]:8000/x", "http://[::1]:8000"),
        ("http://a.com?@b", "http://a.com"),
        ("s3://bucket/x", "s3://"),
        ("s3a://bucket/x", "s3://"),
        ("gcs://bucket/x", "gs://"),
        ("az://container/x", "az://"),
        ("abfs://c@acct.dfs.core.windows.net/x", "az://acct.dfs.core.windows.net"),
        ("sftp://h:22/x", "sftp://h:22"),
        ("dbfs:///x", "dbfs://"),
        ("simplecache::https://h/x", "https://h"),
        ("/a/b.tar", ""),
        ("file:///a", ""),
        ("pipe:curl https://h", ""),
        # What one client takes for the host and another for something else is no host.
        ("http://a.com\\@b.com/", ""),
        ("http://a@b@c/", ""),
        ("http://a:80:90/", ""),
        ("http://a b/", ""),
        ("http://[::1/x", ""),
    ],
)
def test_origins(url, origin):
    """Scheme, host and port; of a bucket the scheme; of what names no server, nothing."""
    assert Place(url).origin == origin


@pytest.mark.parametrize("base", ["http://[::1]:8000", "http://[fe80::1]/a::b"])
def test_double_colons_in_web_urls(base):
    """In http(s) they are an address, or letters of a path or query; nothing local is reached."""
    for name in ("x.tar", "x::y.tar?sig=a::b", "x.tar?sig=a::file:///etc/passwd"):
        url = str(Place(base).join(name)) if "::y" not in name else f"{base}/{name}"
        assert url == f"{base}/{name}"
        assert not Place(url).reaches_local
        assert not Place(url).is_local
        assert Place(url).name == name.partition("?")[0]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@h:8/a/b.json?sig=1#x", "https://h:8/a/b.json"),
        ("https://token@h/b.tar", "https://h/b.tar"),
        ("https://h/get?name=3.tar", "https://h/get?name=3.tar"),
        ("s3://key:secret@bucket/b.tar", "s3://bucket/b.tar"),
        ("s3://bucket/what?.tar", "s3://bucket/what?.tar"),
        ("sftp://user:p@ss@host/b.tar", "sftp://user@host/b.tar"),
        ("abfs://box@account.dfs.core.windows.net/b.tar", "abfs://box@account.dfs.core.windows.net/b.tar"),
        ("simplecache::https://u:p@h/b.tar?sig=1", "simplecache::https://h/b.tar"),
        ("https://token@[::1]:8000/b.tar?sig=1", "https://[::1]:8000/b.tar"),
        ("/data/a@b?.tar", "/data/a@b?.tar"),
    ],
)
def test_unsigned(url, shown):
    """In files for others passwords, tokens and signatures go; what names the file stays."""
    assert Place(url).unsigned == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@h:8/a/b.json?sig=1#x", "https://h:8/a/b.json"),
        ("https://h/get?token=3", "https://h/get"),
        ("s3://key:secret@bucket/b.tar", "s3://bucket/b.tar"),
        ("sftp://user:p@ss@host/b.tar", "sftp://host/b.tar"),
        ("simplecache::https://u:p@h/b.tar?sig=1", "simplecache::https://h/b.tar"),
        ("/data/a@b?.tar", "/data/a@b?.tar"),
    ],
)
def test_public(url, shown):
    """Messages show less still: no user, and no query at all."""
    assert Place(url).public == shown
