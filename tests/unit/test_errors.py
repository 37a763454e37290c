"""What stands in errors, logs and events, and what must not."""

import contextlib
import importlib
import io
import json
import logging
import pickle
import pkgutil
import re
import traceback
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wids
from tests.support import cache_shards
from tests.support.servers import cut, instead, redirect, reset, status
from wids import errors
from wids.core.index.discovery import find_shards
from wids.core.transport import download
from wids.core.transport.range_client import ShardBytes
from wids.core.transport.session import Session
from wids.core.transport.upload import Target
from wids.errors import FetchError, SpecError, WidsError, without_secrets
from wids.events import NotFetchedAhead, Retried, logger
from wids.tools.cli.advice import with_advice
from wids.tools.cli.format import print_error, shown_url

SECRETS = ("s3cr3t-sig", "s3cr3t-pass", "s3cr3t-key")
SIGNED = "?X-Amz-Signature=s3cr3t-sig&X-Amz-Date=1"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((2, 2), np.int64), "array([[0, 0], [0, 0]])"),
        ("two\nlines", r"'two\nlines'"),
        ("a" * 101, f"'{'a' * 100}'... (1 more)"),
        ([1, "b"], "[1, 'b']"),
    ],
)
def test_a_value_is_shown_on_one_line(value, text):
    """Also an array, whose text has a line for each row."""
    assert errors.shown(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "an int"),
        ({}, "a dict"),
        (None, "None"),
        (np.zeros(1), "an ndarray"),
        (b"", "a bytes"),
        (Path(), "a PosixPath"),
    ],
)
def test_the_kind_of_a_value_has_its_article(value, text):
    """As it is spoken."""
    assert errors.a_kind(value) == text


def test_letters_of_strangers_do_not_act_on_a_terminal(tmp_path, server):
    """Nor in the name of a class, in a note to an error of a transformation, and in the cause of an error."""
    acting = "\x1b]0;all is well\x07"
    assert errors.a_kind(type(f"C{acting}", (), {})()) == "a C\\x1b]0;all is well\\x07"
    sample = {"__index__": 0, "__key__": acting, "__shard__": f"{acting}.tar", f".{acting}": b"", "__dataset__": acting}
    [note] = errors.note_sample(KeyError(".jpg"), sample).__notes__
    url = server.add("/i.json", b"")
    server.faults["/i.json"] = [redirect(f"http://x{acting}/i.json")]
    with pytest.raises(FetchError) as failed:
        wids.ShardListDataset(url, cache_dir=tmp_path)
    for text in (note, "".join(traceback.format_exception(failed.value))):
        assert "all is well" in text
        assert errors.is_harmless(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@h/a.tar?X-Sig=abc: there is nothing", "https://h/a.tar: there is nothing"),
        ("403, message='Forbidden', url='http://h/a.tar?s=S'", "403, message='Forbidden', url='http://h/a.tar'"),
        ("(see https://h/x?token).", "(see https://h/x)."),
        ("https://h/x#access_token=1", "https://h/x"),
        ("https://h?token", "https://h"),
        ("a user's token: https://ghp_token@h/x", "a user's token: https://h/x"),
        ("https://u:p@ss@h/x", "https://h/x"),
        ("simplecache::https://u:p@h/x?sig y", "simplecache::https://h/x y"),
        ("http://h/a b.tar?sig=1&x=2: no", "http://h/a b.tar: no"),
        ("s3://key:secret@bucket/x", "s3://bucket/x"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("s3://bucket/what?.tar", "s3://bucket/what?.tar"),
        ("is there memory? yes (really?), no", "is there memory? yes (really?), no"),
        ("a@b.c, /tmp/a@b", "a@b.c, /tmp/a@b"),
        ("'hf://datasets/o/n@v1?split=val' --x", "'hf://datasets/o/n@v1?split=val' --x"),
        ("hf://datasets/o/n?split=val&sig=abcd x", "hf://datasets/o/n x"),
        ("hf://datasets/o/n?sig=a?split=val", "hf://datasets/o/n"),
        ("hf://datasets/o/n?split=val?sig=a", "hf://datasets/o/n?split=val"),
        ("hf://datasets/o/n/a.tar?split=val", "hf://datasets/o/n/a.tar"),
        ("", ""),
    ],
)
def test_without_secrets(text, shown):
    """Queries and credentials go, the rest of a text stays, punctuation behind a URL included."""
    assert without_secrets(text) == shown


def test_a_known_url_is_taken_out_whole():
    """Spaces in a query do not end it where the URL is known."""
    url = "https://h/a b.tar?sig=s3cr3t x s3cr3t"
    error = FetchError(f"{url}: no", url=url)
    assert (str(error), error.url) == ("https://h/a b.tar: no", url)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.url) == (str(error), url)


@given(st.text(), st.sampled_from(["https://u:s3cr3t-pass@h/x", "http://h/x?s3cr3t-sig", "ftp://h/?a=s3cr3t-sig"]))
def test_whatever_stands_before_a_url(text, url):
    """No text before a URL hides what is secret in it."""
    assert "s3cr3t" not in without_secrets(f"{text} {url} x")


def test_events_show_no_secrets():
    """The text of an event has none; its fields are whole."""
    url = f"https://u:s3cr3t-pass@h/a.tar{SIGNED}"
    event = Retried(url=url, attempt=1, cause=f"no {url}")
    for text in (repr(event), str(event), f"{event}", repr([event])):
        assert text.count("https://h/a.tar") == 2
        assert "s3cr3t" not in text
    assert event.url == msgspec.to_builtins(event)["url"] == url


def test_the_log_shows_no_secrets(caplog):
    """Nor does the log, in arguments, errors and tracebacks."""
    url = f"https://u:s3cr3t-pass@h/a.tar{SIGNED}"
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    try:
        logger.warning("%s: %s", url, OSError(url))
        try:
            raise OSError(url)
        except OSError:
            logger.exception("%s: failed", url)
    finally:
        logger.removeHandler(handler)
    for text in (caplog.text, stream.getvalue()):
        assert text.count("https://h/a.tar") >= 4
        assert "s3cr3t" not in text


def test_the_command_line_shows_no_secrets(capsys):
    """What a command complains of, and the URLs that it shows."""
    print_error(f"https://u:s3cr3t-pass@h/a.tar{SIGNED}: no")
    assert capsys.readouterr().err == "wids: https://h/a.tar: no\n"
    assert shown_url(f"https://u:s3cr3t-pass@h/a b.tar{SIGNED}") == "https://h/a b.tar"


def test_every_hint_of_the_library_has_advice():
    """A hint without words for it on the command line would be lost."""
    sources = (path.read_text(encoding="utf-8") for path in Path(wids.__file__).parent.rglob("*.py"))
    hints = {hint for source in sources for hint in re.findall(r'\bhint="(\w+)"', source)}
    assert {"base", "overwrite"} <= hints
    assert with_advice(WidsError("no; pass overwrite=True", hint="overwrite")) == "no; pass --overwrite"
    assert with_advice(WidsError("no; say too_long='skip'", hint="too_long")) == "no; say --too-long skip"
    assert with_advice(WidsError("no; give it to jsons", hint="jsons")) == "no; give it to --json"
    for hint in hints - {"overwrite", "too_long", "jsons"}:
        assert with_advice(WidsError("no", hint=hint)).startswith("no; ")
    assert with_advice(WidsError("no")) == "no"


class Texts(list):
    """All that was told: a hook, a log handler's stream, and a place for errors."""

    def __call__(self, event):
        """Keep what an event says."""
        self.append(repr(event))
        self.append(getattr(event, "cause", ""))

    def write(self, text):
        """Keep a line of the log."""
        self.append(text)

    def flush(self):
        """Nothing waits."""

    def fails(self, function, *args, **options):
        """A call that must fail; its error and what a traceback shows of it are kept."""
        with pytest.raises((WidsError, KeyError)) as caught:
            function(*args, **options)
        self.append(str(caught.value))
        self.extend(traceback.format_exception(caught.value))
        if isinstance(caught.value, WidsError):
            self.append(str(pickle.loads(pickle.dumps(caught.value))))


@pytest.mark.usefixtures("no_waits")
def test_no_failure_tells_a_secret(server, tmp_path):
    """Failures of every kind, of signed URLs with a password in them and credentials in the options: none is told."""
    texts = Texts()
    handler = logging.StreamHandler(texts)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    options = {"headers": {"X-Api-Key": "s3cr3t-key"}, "client_kwargs": {"headers": {"X-Other": "s3cr3t-key"}}}
    body, target = cache_shards.shard("a"), tmp_path / "target"
    target.touch()

    def secret(url):
        return url.replace("://", "://me:s3cr3t-pass@") + SIGNED

    def open_dataset(shards, **more):
        dataset = wids.ShardListDataset(
            shards, cache_dir=tmp_path / "cache", storage_options=options, hooks=[texts], **more
        )
        return [dataset[k] for k in range(len(dataset))]

    try:
        faults = [status(code) for code in (400, 401, 403, 404, 416, 429, 500, 503)]
        faults += [cut, reset, instead(b"<html>log in</html>"), instead(b"short"), instead(b""), instead(b"x" * 600)]
        faults += [redirect("ftp://me:s3cr3t-pass@h/x"), redirect(f"http://127.0.0.1:1/x{SIGNED}"), redirect("//[")]
        for number, fault in enumerate(faults):
            url = secret(server.add(f"/{number}.tar", body, fault))
            texts.fails(open_dataset, [{"url": url, "nsamples": 3, "filesize": len(body)}])
            texts.fails(open_dataset, [{"url": url, "nsamples": 3}], access="range")
            texts.fails(open_dataset, url + "#.json")
            with contextlib.suppress(pytest.fail.Exception):  # of some, a few bytes can be read
                texts.fails(lambda url: ShardBytes(url, session=Session(hooks=[texts])).read(0, 10), url)
        for url in (
            "http://127.0.0.1:1/a.tar",
            "http://nosuch.invalid/a.tar",
            "http://127.0.0.1:port/a.tar",
            "nosuch://host/a.tar",
            "s3://bucket/a.tar",
            "ftp://127.0.0.1:1/a.tar",
            "http://127.0.0.1:1/a b.tar",
        ):
            texts.fails(
                download.download_to, secret(url), str(target), check=lambda: None, session=Session(hooks=[texts])
            )
            texts.fails(Target().put_bytes, b"", secret(url))
        whole = secret(server.add("/whole.tar", body))
        texts.fails(open_dataset, [(whole, 5)])
        texts.fails(open_dataset, [{"url": whole, "nsamples": 3, "md5sum": "0" * 32}])
        texts.fails(open_dataset, [{"url": whole, "nsamples": 3, "filesize": 5}])
        texts.fails(wids.ShardListDataset([(whole, 3)], cache_dir=tmp_path / "cache").cache.get_shard, whole + "&x")
        texts.fails(find_shards, [secret(server.url + "/nothing/").replace("?", "/?")])
        for index in (
            b"{",
            b"[]",
            b"{}",
            json.dumps({"wids_version": 1, "shardlist": [{"url": f"pipe:curl {whole}", "nsamples": 3}]}).encode(),
            json.dumps({"wids_version": 1, "shardlist": [{"url": whole}]}).encode(),
            json.dumps({"wids_version": 1, "datasets": [{"source_url": whole}]}).encode(),
        ):
            texts.fails(open_dataset, secret(server.add("/index.json", index)))
        texts.fails(open_dataset, [(f"pipe:curl {whole}", 3)])
        texts.fails(open_dataset, [(f"pipe:false {whole}", 3)], allow_pipe=True)
        texts.fails(open_dataset, [(f"pipe:nosuch {whole}", 3)], allow_pipe=True)
        texts(NotFetchedAhead(url=whole, cause=texts[0]))
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    assert len(texts) > 500
    assert [text for text in texts if any(word in text for word in SECRETS)] == []


@pytest.mark.thorough
def test_the_tree_in_the_docstring_is_that_of_the_classes():
    """Each class stands once, under its parent; none that wids raises is defined elsewhere, but private ones."""
    for module in pkgutil.walk_packages(wids.__path__, "wids."):
        if not module.name.endswith(("__main__", "wids_bench")):  # the one runs commands, the other refuses
            importlib.import_module(module.name)
    drawn, path = {}, []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+)( \((\w+)\))?", line)
        if found is None or not issubclass(getattr(errors, found[2], object), WidsError):
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        assert found[2] not in drawn
        drawn[found[2]] = (path[depth - 1] if depth else None, found[4])
    real = {}
    for each in _subclasses(WidsError):
        own, *beside = [base.__name__ for base in each.__bases__]
        real[each.__name__] = (own, beside[0] if beside else None)
        assert each.__module__ == "wids.errors", each
    assert drawn == {"WidsError": (None, None), **real}


def _subclasses(kind):
    for each in kind.__subclasses__():
        if each.__module__.startswith("wids."):
            yield each
            yield from _subclasses(each)


def test_what_acts_on_a_terminal_is_escaped():
    """In messages of errors, which may quote a stranger's file; line breaks and tabs stay."""
    error = SpecError("a\x1b[2Jb\x07\r\n\tc\u202ed\x9b")
    assert str(error) == "a\\x1b[2Jb\\x07\\r\n\tc\\u202ed\\x9b"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
