import os
import re
from urllib.parse import unquote

import braceexpand
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from wids.errors import SpecError
from wids.transport import urls

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
    assert urls.scheme_of(url) == scheme
    assert urls.is_local(url) is is_local
    assert urls.reaches_local(url) is reaches_local


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/data/x.tar", "/data/x.tar"),
        ("x y%20z.tar", "x y%20z.tar"),
        ("~/x.tar", "~/x.tar"),
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
    ],
)
def test_local_path(url, path):
    """A path stands as it is; a file: URL is unquoted, also to names that are not UTF-8."""
    assert urls.local_path(url) == path


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
    assert urls.directory_of(url) == directory


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
    assert urls.basename_of(url) == name


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
}


@pytest.mark.parametrize(("parts", "url"), [*JOINED.items(), *REPAIRED_JOINED.items()])
def test_join(parts, url):
    """Relative URLs against a base; absolute ones win; queries, signatures and odd letters survive."""
    assert urls.join(*parts) == url


@checked
@given(roots, paths, paths, st.sampled_from(["", "?sig=a%2Fb%3D&x=//y/../z#part"]))
def test_join_keeps_place_and_query(root, directory, name, query):
    """A plain name joins to base/name, whatever letters are in it, quoted where they must be; its directory is base."""
    has_query = root.startswith("http")  # elsewhere these are letters of the name, and its dots are folded
    query = query if has_query else query.replace("..", "_").replace("/", "_")
    base = f"{root}/{directory}"
    full = urls.join(base, name + query)
    shown = f"{base}/{name}{query}"
    if root == "file://":
        assert urls.local_path(full) == urls.local_path(base) + f"/{name}{query}"
        shown = full
    elif has_query and "%" in name:
        assert unquote(urls.without_query(full).removeprefix(base)) == unquote(f"/{name}")
        shown = full
    assert full == shown
    assert urls.basename_of(full) == shown.removesuffix(query if has_query else "").rpartition("/")[2]
    assert urls.directory_of(full) == shown.removesuffix(query if has_query else "").rpartition("/")[0]
    assert urls.join(base, full) == full


@checked
@given(any_text, any_text)
def test_any_text_is_a_url(base, url):
    """Nothing but text comes out, whatever goes in; and what is absolute stays so when it is joined again."""
    full = urls.join(base, url)
    for each in (base, url, full):
        assert isinstance(urls.directory_of(each), str)
        assert "/" not in urls.basename_of(each)
        assert isinstance(urls.local_path(each), str)
        assert "".join(urls._split(each)) == each
        assert not urls.is_local(each) or urls.reaches_local(each)
    if urls.scheme_of(full):
        assert urls.join("gs://other/place", full) == full


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
    name = urls.cache_name(url)
    assert re.fullmatch(r"[0-9a-f]{32}-[A-Za-z0-9._+-]{1,80}", name)
    assert len(name) <= 120
    assert os.path.basename(name) == name
    assert urls.cache_name(url) == name


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
    assert (urls.cache_name(one) == urls.cache_name(other)) == (one == other)


def test_cache_name_shows_the_basename():
    """A person can tell what a cached file is; the end of a long name is kept, with its extension."""
    assert urls.cache_name("gs://b/d/train-000001.tar?sig=x").endswith("-train-000001.tar_sig_x")
    assert urls.cache_name("https://h/d/train-000001.tar?sig=x").endswith("-train-000001.tar")
    assert urls.cache_name("/d/" + "a" * 200 + ".tar").endswith("a" * 76 + ".tar")
    assert urls.cache_name("pipe:cat /secret/token").endswith("-pipe.tar")
    assert urls.cache_name("https://h").endswith("-shard.tar")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("x.tar", ["x.tar"]),
        ("a}b.tar", ["a}b.tar"]),
        ("x-{000..002}.tar", ["x-000.tar", "x-001.tar", "x-002.tar"]),
        ("x-{8..10}.tar", ["x-8.tar", "x-9.tar", "x-10.tar"]),
        ("{a,b}/{0..1}.tar", ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
        ("gs://b/{train,val}-{0..0}.tar", ["gs://b/train-0.tar", "gs://b/val-0.tar"]),
        ("x{y}.tar", ["x{y}.tar"]),
        ("", [""]),
    ],
)
def test_expand(pattern, names):
    """Brace patterns as the shell has them, in order; other text is itself."""
    assert list(urls.expand(pattern)) == names


@pytest.mark.parametrize(
    "pattern",
    [
        "x-{0000000000..9999999999}.tar",
        "x-{0..999}{0..999}{0..999}.tar",
        f"x-{{0..{'9' * 400}}}.tar",
        f"x-{{0..{'9' * 5000}}}.tar",
        "{a,b}" * 500,
        "{" + ",".join("{0..99999}" for _ in range(100)) + "}",
        "{" * 5000 + "a,b" + "}" * 5000,
        "}{" * 5,
        "{" * 5000,
    ],
    ids=["range", "product", "400 digits", "5000 digits", "pairs", "sum", "nested", "unbalanced", "open"],
)
def test_expand_is_bounded(pattern):
    """More names than a dataset has shards, or braces in thousands of braces: an error before anything is expanded."""
    with pytest.raises(SpecError, match="brace pattern") as caught:
        next(urls.expand(pattern))
    assert len(str(caught.value)) < 500


@given(st.text("{},.\\09aZ-", max_size=12))
def test_expand_counts(pattern):
    """What is counted beforehand is never less than what is expanded; what braceexpand takes, this does."""
    try:
        names = list(urls.expand(pattern))
    except SpecError:
        assert "}{" in pattern or _is_refused(pattern)
    else:
        assert "{" not in pattern or len(names) <= urls._count(pattern)


def _is_refused(pattern):
    """Whether braceexpand refuses a pattern, or finds a brace that ends nothing."""
    try:
        list(braceexpand.braceexpand(pattern))
    except ValueError:
        return True
    return "}" in pattern


@pytest.mark.parametrize("pattern", ["x-{0..1.tar", "x-{a,{b}.tar"])
def test_expand_unbalanced(pattern):
    """Braces that do not match are an error that shows the pattern and how to write one."""
    with pytest.raises(SpecError, match=re.escape("{000000..000099}")) as caught:
        list(urls.expand(pattern))
    assert pattern in str(caught.value)


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
    assert urls.origin_of(url) == origin


OWN, THEIRS = {"headers": {"a": "1"}}, {"headers": {"b": "2"}}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://own/x", OWN),
        ("https://own:444/x", {}),
        ("http://own/x", {}),
        ("https://theirs/x", THEIRS),
        ("https://stranger/x", {}),
        ("https://own@stranger/x", {}),
        ("https://own\\@stranger/x", {}),
        ("s3://bucket/x", OWN),
        ("simplecache::https://own/x", OWN),
        ("simplecache::https://stranger/x", {}),
        ("zip://https://own::https://stranger/x", {}),
        ("https://stranger/https://own::https://own", {}),
    ],
)
def test_narrowed_options(url, expected):
    """What is given for one server goes to no other, however a URL is spelt."""
    narrowed = urls.narrow_options({**OWN, "https://theirs/dir": THEIRS}, ["https://own"])
    assert urls.options_for(url, narrowed) == expected


def test_options():
    """Without a server's name they hold everywhere; with it, instead of the others; and they are dicts."""
    given = {**OWN, "https://theirs": THEIRS}
    assert urls.options_for("https://any/x", given) == OWN
    assert urls.options_for("https://theirs/x", given) == THEIRS
    assert urls.options_for("https://any/x", None) == {}
    assert urls.narrow_options(None, ["https://own"]) is None
    with pytest.raises(ValueError, match="no dict") as caught:
        urls.options_for("https://any/x", {"https://u:s3cr3t@h": "s3cr3t"})
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("base", ["http://[::1]:8000", "http://[fe80::1]/a::b"])
def test_double_colons_in_web_urls(base):
    """In http(s) they are an address, or letters of a path or query; nothing local is reached."""
    for name in ("x.tar", "x::y.tar?sig=a::b", "x.tar?sig=a::file:///etc/passwd"):
        url = urls.join(base, name) if "::y" not in name else f"{base}/{name}"
        assert url == f"{base}/{name}"
        assert not urls.reaches_local(url)
        assert not urls.is_local(url)
        assert urls.basename_of(url) == name.partition("?")[0]


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
def test_without_access(url, shown):
    """Passwords, tokens and signatures go; what names the file stays."""
    assert urls.without_access(url) == shown
