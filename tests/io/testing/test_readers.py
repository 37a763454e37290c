"""`ReaderSuite` and `ShardProviderSuite` as others run them: right ones pass, wrong ones are told what they break."""

import pytest

from tests.support import toy_readers
from tests.support.suites import run_suites

# Class -> a test that fails, and what it says.
WRONG = {
    "AllFields": ("test_open_reads_samples", "`fields` are those that are read, if any"),
    "OtherRows": ("test_open_reads_samples", "`read_rows` gives what `read` of each row gives"),
    "StaysOpen": ("test_close_is_final_and_may_be_repeated", "no file stays open"),
    "ClosesAtOnce": ("test_a_held_reader_closes_when_it_is_dropped", "reads go on until `unpin`"),
    "Copied": ("test_a_reader_has_no_copies", "is a TypeError"),
    "AnySize": ("test_a_shard_of_another_size_is_refused", "of another size than the index says is refused"),
    "OwnErrors": ("test_a_missing_shard_is_a_fetch_error", "a shard that is missing is a FetchError"),
    "LeavesOpen": ("test_a_reader_in_use_closes_after_its_use", "no file stays open"),
}
WITHOUT = {"test_a_forked_child_reads_on", "test_a_dataset_travels"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What becomes of the suites for each of them: see `run_suites`."""
    lines = ["from tests.support import toy_readers"]
    for name in ("Readers", "Providers", "Datasets"):
        lines += [f"class Test{name}(toy_readers.Toy{name}):", "    pass"]
    for name in toy_readers.READERS:
        lines += [f"class Test{name}(toy_readers.ToyReaders):", f"    reader = {name!r}"]
    for name in toy_readers.PROVIDERS:
        lines += [f"class Test{name}(toy_readers.ToyProviders):", f"    kind = toy_readers.{name}"]
    lines += ["class TestNothing(toy_readers.ShardProviderSuite):", "    pass"]
    return run_suites(tmp_path_factory.mktemp("toys"), "\n".join(lines))


def test_right_ones_pass(found):
    """All of it; where no dataset reads so, that is declared, and said."""
    failed, skipped = found
    assert [failed[f"Test{name}"] for name in ("Readers", "Providers", "Datasets")] == [{}, {}, {}]
    assert [skipped["TestReaders"], skipped["TestDatasets"]] == [{}, {}]
    left_out = {name.partition("[")[0]: words for name, words in skipped["TestProviders"].items()}
    assert left_out.keys() == WITHOUT | {"test_a_dataset_that_goes_closes_its_files"}
    assert set(left_out.values()) == {"TestProviders.has_dataset is False"}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_told_what_it_breaks(found, name):
    """In the words of the promise."""
    test, promise = WRONG[name]
    message = found[0][f"Test{name}"][test]
    assert "AssertionError: broken promise: " in message
    assert promise in message


def test_every_wrong_one_is_tried():
    """There are no others."""
    assert toy_readers.READERS.keys() | toy_readers.PROVIDERS.keys() == WRONG.keys()


def test_a_hook_that_is_missing_is_named(found):
    """With what to do."""
    assert all("override `put`" in message for message in found[0]["TestNothing"].values())
