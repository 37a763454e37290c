"""What holds at the end of each notebook: a function by its name, which takes variables of the notebook by theirs.

`tests/e2e/test_notebooks.py` adds a cell that calls it; a reader's notebook ends with a result instead.
"""

from __future__ import annotations

import collections
import inspect
import json
import os
import urllib.request

import numpy as np


def function_name(notebook):
    """The function that checks a notebook."""
    return notebook.replace("-", "_").replace(".", "_")


def check(notebook, variables):
    """Check a notebook by its variables after its last cell."""
    function = globals()[function_name(notebook)]
    function(**{name: variables[name] for name in inspect.signature(function).parameters})


def choosing_samples(
    *,
    view,
    balanced,
    opted_out,
    opted_out_keys,
    trained_on,
    whole,
    before,
    after,
    same_batches,
    same_weights,
    same_order,
):
    """The view holds, what is left out is never read, and a resume repeats nothing."""
    assert list(view.keys) == list(balanced.keys)
    assert {**before, **after} == whole, "the resumed run has seen other samples"
    assert same_batches
    assert same_weights
    assert len(opted_out_keys) == opted_out
    assert not opted_out_keys & trained_on, "a sample was trained on that is to be left out"
    assert same_order, "two ranks have another order"


def order_of_any_dataset(*, results, n, reads, groups):
    """Each row comes once on other ranks, and no more row groups are read than the ranks share."""
    assert {"memmap", "Arrow", "Parquet"} <= {row["dataset"] for row in results}
    for row in results:
        assert row["rows seen"] == n
        assert row["repeated at the end"] < 3
        assert not row["states differ"]
    assert reads["lengths="] <= groups + 3 < reads["without"]


def coming_from_imagefolder(
    *, files, shards, labels, different, tars, accuracy_of_shards, classes, class_to_idx, targets, folder, fives, shown
):
    """The shards have the folder's samples, classes and pixels, and are fetched once."""
    assert classes == files.classes, "the same classes, numbered in the same way"
    assert class_to_idx == files.class_to_idx
    assert len(shards) == len(files) == len(labels) == len(targets), "as many samples as files"
    assert all(one == other for one, other in labels.values()), "each has the label that it had"
    numbers = {os.path.splitext(os.path.relpath(path, folder))[0]: label for path, label in files.samples}
    assert {key: int(label) for key, label in zip(shards.keys, targets, strict=True)} == numbers
    assert not different, "and the pixels that it had"
    assert shards.stats().fetches == len(tars), "each shard was downloaded once, however many epochs"
    assert accuracy_of_shards > 0.9, "it trains as well"
    assert len(fives) == files.targets.count(files.class_to_idx["five"])
    assert len(shown) == 10


def coming_from_webdataset(
    *, table, read_by, dataset, world_size, ours, passes, over, seen, decoded, named, low, plain, keys, train, test,
    labels, even, substitute, clean, drawn, begun, rest, unbroken, batches, steps
):  # fmt: skip
    """Ranks are equal and read everything; each call that is shown gives the samples that the table says."""
    assert len(set(table["samples", "wids"])) == 1, "every rank reads the same number of samples"
    assert len(set(table["batches", "wids"])) == 1, "every rank trains the same number of steps"
    assert {i for taken in read_by for i in taken} == set(range(len(dataset))), "together they read all of it"
    repeated = sum(map(len, read_by)) - len(dataset)
    assert 0 <= repeated < world_size, "at most one sample for each rank is read twice, to make them equal"
    assert ours.min() == passes, "without epochs, each sample comes once in each pass"
    assert (ours > passes).sum() == over < world_size, "and again only where the ranks do not divide the whole run"
    assert seen == len(dataset), "one process reads each sample once in an epoch"
    assert batches == steps
    assert decoded["raw"][".jpg"].split() == ["bytes"]
    assert {name for name in named if not name.startswith("__")} == {"image", "label"}
    assert "uint8" in decoded["numpy"][".jpg"]
    assert "torch.uint8" in decoded["torch"][".jpg"]
    assert {sample[".cls"] for sample in low} == set(range(5))
    assert len(train) + len(test) == len(plain) - len(keys)
    assert not {*train.keys, *test.keys} & {*keys}
    assert substitute["__substitute_for__"] == 7 != substitute["__index__"]
    assert len(clean) == 19
    assert abs(sum(i < len(low) for i in drawn) - 700) <= 1, "shares hold"
    counts = np.bincount(labels[even])
    assert counts.min() > 150, "classes are even"
    assert begun + rest == unbroken, "a resume reads the rest"


def coming_from_wids_0_1(*, is_cleaned, seen, epochs, dataset, fetched, rows):
    """Each difference is there."""
    assert is_cleaned, "the cleanup process runs for as long as the program"
    assert seen == epochs * len(dataset), "the program went over all samples"
    assert fetched == len(dataset.lengths), "each shard was fetched, and kept"
    for before, here, held in rows:
        assert held, f"{before}: {here}"


def equal_batches(*, epochs, lengths, count, world_sizes, seen, fixed_table):
    """Ours has equal batches, each sample, and no more shards than it needs."""
    for (way, _), ranks in epochs.items():
        if way == "wids":
            sizes = [[len(batch) for batch in batches] for batches, _, _ in ranks]
            assert all(each == sizes[0] for each in sizes), "a rank of ours has other batches than the first"
            read = collections.Counter(i for batches, _, _ in ranks for batch in batches for i in batch)
            assert len(read) == count, "ours left a sample out"
            assert sum(read.values()) - count < len(ranks), "ours repeated more samples than it has to"
            opened = sum(shards for _, shards, _ in ranks)
            assert opened < len(lengths) + len(ranks), "ours opened more shards than it has to"
            assert all(opened == fetched for _, opened, fetched in ranks), "ours fetched what it did not open"
    assert all(words.isdigit() for words in fixed_table["batches of each rank"]), (
        "a fixed number is not the same for all"
    )
    for world in world_sizes:
        had = seen["wids", world]
        assert (had.max(axis=1) - had.min(axis=1)).max() <= 1, "ours has shown one sample twice more than another"
        assert fixed_table.loc[world, "wids"]["lost in the first epoch"] == 0, "ours lost a sample"


def fields(
    *, dataset, unique, captioned, copies, twins, hits, found, outcome, whole, before, after, same_batches, same_tars
):
    """The copies are found, the others have captions, a run goes on with embeddings, and no tar was written anew."""
    assert len(twins) == copies
    assert len(hits) >= 0.95 * copies
    assert len(found) - len(hits) < 0.2 * copies
    assert outcome.computed == len(unique) == len(captioned) < len(dataset)
    assert not outcome.errors
    assert same_batches
    assert sorted([*before, *after]) == sorted(whole)
    assert all("embedding" in step for step in after.values())
    assert not any("embedding" in step for step in [*whole.values(), *before.values()])
    assert after[max(after)]["embedding"] < after[min(after)]["embedding"]
    assert same_tars


def hub(*, look, view, known, whole, before, after, state, downloads, stand_in):
    """The view is what SQL says, the resumed epoch the whole one, and the Hub's API was asked twice in all."""
    assert len(look) == len(known) == sum(map(len, whole)) == 1347
    assert len(view) == len([index for index in range(len(known)) if look[index][".cls"] in (3, 8)])
    assert sorted(index for batch in whole for index in batch) == list(range(len(look))), "a sample was left out"
    assert 0 < downloads <= len(look.shards), (
        "a shard was downloaded twice"
    )  # an epoch may end before its last one is here
    assert len(before) == state["batches"] > 0
    assert after, "it was not stopped in mid-epoch"
    assert before + after == whole, "the resumed run has read other samples"
    assert stand_in.requests["api"] == 2, "a commit and its listing are asked for once, for all processes"


def lengths_and_shapes(
    *, before, after, texts, lengths, max_tokens, table, costs, shown, sizes, shapes, read, twice, largest, states,
    world_size, resume_world_size, cut, whole, packed_table,
):  # fmt: skip
    """No batch is above the budget, steps are even, batches have one shape; a resume reads the rest; packs hold all."""
    for ranks in (before, after):
        assert sorted(i for batches in ranks for batch in batches for i in batch) == list(range(len(texts)))
    assert len(set(map(len, after))) == 1, "every rank has as many batches"
    assert costs(after).max() <= max_tokens
    plain, like = table["padded / own tokens"]
    assert plain > 2
    assert like < 1.1
    assert table["costliest rank of a step / mean"]["like lengths"] < 1.08
    assert len(shown) == 6
    for count, height, width, _ in (batch.shape for batch in shown):
        assert count <= sizes[f"{width} x {height}"]
    assert set(sizes) == set(shapes)
    assert all(state == states[0] for state in states), "ranks have different states"
    assert read.min() == 1, "a text was lost"
    assert read.max() == (2 if twice else 1)
    assert 0 <= twice < resume_world_size <= world_size, "at most one batch for each rank, to make them equal"
    assert largest <= max_tokens
    for ranks in (cut, whole):
        assert len(set(map(len, ranks))) == 1, "every rank has as many packs"
        tokens = collections.Counter(i for packs in ranks for i in packs[packs >= 0].tolist())
        assert tokens == dict(enumerate(lengths.tolist())), "each token came once"
    assert packed_table["texts cut"]["cut=False"] == "0"
    assert float(packed_table["room that is empty"]["cut=True"].strip("%")) < 100 / 32


def looking_at_data(*, photos, pages, dataset, grid_stats, dataset_bytes, tables, runs, run_url):
    """A look reads only what it shows; its pages are there; a run fetches each shard once, ahead of its use."""
    asking = urllib.request.Request(f"{pages.url}api/overview", headers={"X-Wids": "1"})
    with urllib.request.urlopen(asking) as answer:
        assert json.load(answer)["samples"] > 0, "the pages do not answer"
    pages.close()
    assert dataset.stats().fetches == 0, "the pages downloaded a shard"
    assert grid_stats.fetches == 0, "a whole shard was fetched for a look"
    if photos is not None:
        assert grid_stats.range_bytes < dataset_bytes / 10, "a look at a few pictures read much of the dataset"
        counts = {name: int(table.to_numpy().sum()) for name, table in tables.items()}
        assert counts == {"photographs": 783, "digits": 1347}, "not every sample has one label"
    for title, run in runs.items():
        fetched = collections.Counter(run["events"].url[run["events"].event == "Fetched"])
        assert max(fetched.values(), default=1) == 1, f"{title}: a shard was fetched twice"
        assert len(fetched) == run["stats"].fetches, f"{title}: the hook and the stats differ"
        if run_url is None and run["is_whole"]:
            assert run["stats"].fetches == len(run["requests"]) == 18, f"{title}: a shard is missing"
            assert set(run["requests"].values()) == {1}, f"{title}: a shard was asked for twice"
    assert runs["prefetch=False"]["stats"].fetched_ahead == 0, "shards were fetched ahead, though they should not be"
    if run_url is None:
        assert runs["default"]["stats"].fetched_ahead > 0, "no shard was fetched ahead"


def mixing_datasets(
    *,
    states,
    ours,
    changed,
    total,
    mixture,
    order,
    source_of,
    resumed,
    whole,
    resume_world_size,
    most_off,
    per_class,
    sources,
):
    """Shares hold in every stretch, passes are whole, a resume reads the rest."""
    assert all(state == states[0] for state in states), "ranks have different states"
    assert (abs(ours) < 1 + 1e-6).all(), "a share is off by more than a sample"
    assert changed == {total // 2}, "weights changed at another position"
    for k, name in enumerate(mixture.names):
        own, length = order[source_of(order) == k], mixture.lengths[k]
        for first in range(0, len(own), length):
            one_pass = own[first : first + length]
            assert len(set(one_pass)) == len(one_pass), f"{name}: a sample came too soon"
    assert (resumed == order[:whole]).all(), "the resumed run has read other samples"
    assert total - whole < resume_world_size
    assert most_off < 1 + 1e-6, "a sample came neither the floor nor the ceiling of its expected copies"
    assert np.ptp(per_class["power=1.0"]) <= len(sources), "classes are not even"


def train_hugging_face(*, history, epochs, test_dataset, train_dataset, table, world_size, reported):
    """Trainer and accelerate read each sample once."""
    last = history.iloc[-1]
    assert epochs < 12 or last["eval_accuracy"] >= 0.97, "Trainer classifies 97 % of the test set correctly"
    assert last["eval_counted"] == len(test_dataset), "each test sample counts once"
    assert train_dataset.stats().fetches == len(train_dataset.shards), "each shard was fetched once"
    ours = table.loc["wrapped for one process"]
    assert (ours["never read"] == 0).all(), "both ranks together read every sample"
    assert (ours["read again"] < world_size).all(), "and at most one for each rank is read twice, to make them equal"
    of_ranks = zip(*reported["read"], strict=True)
    assert all(len({len(epoch) for epoch in epochs}) == 1 for epochs in of_ranks), "equal ranks"
    never = table.loc["prepared"]["never read"]
    assert (never > len(train_dataset) / 3).all(), "a prepared loader would leave out every second sample"


def train_lightning(*, sets, metric, devices, before, train_samples, ended, resumed, orders, epochs):
    """The metric is exact, and resumed runs are as the uninterrupted one."""
    for name, samples in sets.items():
        alone, masked, padded = metric.loc[name][["counted", "classified correctly"]].to_numpy().tolist()
        assert alone == masked, f"{name}: the metric is not that of one process"
        assert padded[0] - len(samples) == -len(samples) % devices, f"{name}: this is not what padding does"
    assert 0 < before < train_samples, "the run was not interrupted in mid-epoch"
    assert ended["history"] == resumed[1]["history"][: len(ended["history"])], "the checkpoint is not what was resumed"
    for count in resumed:
        assert orders[f"on {count}: same order"].all(), f"on {count} devices the order is another one"
        assert (orders[f"resumed on {count}"] == train_samples).all(), f"on {count} devices samples were left out"
    assert epochs < 8 or metric.loc["test"].iloc[0]["accuracy, %"] >= 97, "it has not learned enough"


def train_ray(*, table, read_in, lost_at, broken, dataset, workers, workers_later, first, later, shards, epochs):
    """Two runs together read as one would, and each node fetches a shard once."""
    assert table["as uninterrupted"].all(), "some epoch was read in another order than without the interruption"
    interrupted = read_in[lost_at[0]]
    assert {report["run"] for report in broken} == {1, 2}, "the first run was not interrupted in mid-epoch"
    assert sorted(interrupted[: len(dataset)]) == list(range(len(dataset))), "a sample was left out, or read twice"
    assert len(interrupted) - len(dataset) < workers_later, "more was repeated than to make the ranks equal"
    assert first.any(axis=0).all(), "a shard was never fetched"
    assert first.sum() <= len(shards) + workers - 1, "in the first run a shard within a lane went to several nodes"
    assert not (first & later).any(), "a node has fetched a shard twice"
    assert epochs < 7 or table["test accuracy, %"].iloc[-1] >= 97, "it has not learned enough"


def train_resnet_ddp(*, history, dataset, world_size, epochs):
    """Ranks take equal steps over all samples."""
    for _, rows in history.groupby("epoch"):
        assert rows.steps.min() == rows.steps.max(), "the ranks had unequally many steps"
        read = [index for indices in rows.indices for index in indices]
        assert set(read) == set(range(len(dataset))), "a sample was not read"
        assert len(read) - len(dataset) < world_size, "more was repeated than it takes to make the ranks equal"
    assert epochs < 4 or history["test accuracy"].iloc[-1] >= 0.97, "the digits were not learned"


def training_without_epochs(*, is_continued, ended, steps, whole, broken, batch_size, count, lines, required_accuracy):
    """The resumed run reads the batches of the uninterrupted one, and samples come equally often."""
    assert is_continued, "nominal epochs are not pieces of the endless sequence"
    assert ended < steps, "the run was over before it could be ended"
    assert whole == broken, "the resumed run has seen other samples than the uninterrupted one"
    assert sorted(whole) == list(range(1, steps + 1)), "a step is missing"
    assert {len(batch) for batch in whole.values()} == {batch_size}, "a global batch is not full"
    times = np.zeros(count, int)
    for step in sorted(whole):
        np.add.at(times, whole[step], 1)
        assert times.max() - times.min() <= 1, f"after step {step} one sample was seen two times more than another"
    for name in ("whole", "broken"):
        last = lines(f"{name}.losses")[-1]
        assert last["right"] / last["count"] >= required_accuracy, name


def video(*, clips, seen, rest, read, sums, last):
    """Each window comes once, also on other ranks; the ways give the same frames, of which `wids.lazy` reads least."""
    assert {*seen, *rest} == set(zip(clips.indices.tolist(), clips.firsts.tolist(), strict=True))
    assert len(seen + rest) - len(clips) in (0, 1), "two ranks have as many, so one window may come again"
    assert sums["wids.lazy"] == sums["whole films"] == sums["whole shards"]
    assert 0 < read["wids.lazy"] < min(read["whole films"], read["whole shards"])
    assert last["__pad__"][".npy"].tolist() == [False] * 3 + [True] * 13
