# %% [markdown]
# # Choosing samples
#
# Train on a part of a dataset: chosen by scores and captions that came after its shards were written, with a class balance of your own,
# without the samples whose owners want them left out. No shard is rewritten or copied. What is chosen is a *view*: a dataset
# like any other, with a length, shuffled, and resumed in mid-epoch; saved, it is a file of some kilobytes.
#
# Takes a quarter of a minute on a laptop without a GPU. For your own data set the URLs, give a table of scores, and change the SQL; SQL and
# tables take `pip install 'wids[views]'`.

# %% tags=["parameters"]
train_url, test_url = None, None  # URLs of indexes; None: handwritten digits, served by this machine
scores_path = None  # a Parquet file with the columns key, score and caption; None: made below
good = "score >= 0.6 and caption not ilike '%faint%'"  # SQL: which samples are good enough
opted_out = 50  # samples to leave out; here they are drawn at random
batch_size = 16
workers = 2
epochs = 3
broken_at = 0.6  # the part of a run after which it is ended, to be resumed
seed = 0

# %%
import json
import random
import sys
from pathlib import Path

import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from torch.utils.data import DataLoader

import wids

torch.set_num_threads(1)  # threads gain nothing with a model as small as this one
python = sys.executable
if train_url is None:
    digits = bucket.digits(samples=75, has_ranges=True)
    train_url, test_url = digits.train, digits.test
work_dir, cache_dir = Path(bucket.temporary("work")), bucket.temporary("cache")
columns_path = work_dir / "train.columns.parquet"

# %% [markdown]
# ## What is known of each sample
#
# To choose by labels, they have to be known without reading all samples again each time. This command reads the `.cls` members once, and
# writes a Parquet file with a row for each sample: index, key, sizes, label. (`--json .json:width,height` takes keys of a JSON
# member, `--text .txt=caption` a text.) Beside the index the file is found by itself; where it lies elsewhere, as here, the dataset is told.

# %%
# !{python} -m wids.tools.cli columns create {train_url} --field .cls=label -o {columns_path} 2>&1 | cat


def open_dataset(index, **options):
    dataset = wids.ShardListDataset(index, cache_dir=cache_dir, **options)
    return dataset.with_columns(fields=False, place=columns_path)  # for SQL and keys: none comes into the samples


dataset = open_dataset(train_url)
dataset.query('select "index", key, label, bytes, jpg_bytes from samples order by "index" limit 3').to_pandas()

# %% [markdown]
# ## Scores and captions from another table
#
# Scores, new captions and embeddings come later, from somebody else, in another order, and belong to samples by their keys. Here the
# score is the probability that a small model, trained on other digits, gives to the digit's label. The caption says how it is written.


# %%
def make_scores(dataset):
    """A table of key, score, caption, in no order: stands for what a scoring job has written."""
    samples = [
        sample
        for at in range(0, len(dataset), 500)
        for sample in dataset.__getitems__(range(at, at + 500)[: len(dataset) - at])
    ]
    pixels = np.stack([np.asarray(sample[".jpg"], np.float32) / 255 for sample in samples])
    labels = np.array([sample[".cls"] for sample in samples])
    inputs = pixels.reshape(len(pixels), 8, 4, 8, 4).mean(axis=(2, 4)).reshape(len(pixels), 64)
    model = LogisticRegression(C=0.3, max_iter=200)
    scores = cross_val_predict(model, inputs, labels, cv=4, method="predict_proba")[np.arange(len(labels)), labels]
    ink = pixels.mean(axis=(1, 2))
    strokes = np.array(["faint", "plain", "bold"])[np.searchsorted(np.quantile(ink, [0.2, 0.8]), ink)]
    y, x = np.mgrid[:32, :32]
    shares = pixels / pixels.sum(axis=(1, 2), keepdims=True)
    mean_x, mean_y, mean_xy, mean_yy = ((shares * each).sum(axis=(1, 2)) for each in (x, y, x * y, y * y))
    slants = (mean_x * mean_y - mean_xy) / (mean_yy - mean_y**2)  # columns to the right for each row upwards
    leanings = np.array(["leaning left", "upright", "leaning right"])[
        np.searchsorted(np.quantile(slants, [0.2, 0.8]), slants)
    ]
    table = {"key": [sample["__key__"] for sample in samples], "score": scores}
    table["caption"] = [
        f"a {stroke} {label}, {leaning}" for stroke, label, leaning in zip(strokes, labels, leanings, strict=True)
    ]
    return pd.DataFrame(table).sample(frac=1, random_state=seed)


if scores_path is None:
    scores_path = work_dir / "scores.parquet"
    make_scores(dataset).to_parquet(scores_path)
pd.read_parquet(scores_path).head(3)

# %% [markdown]
# `with_table` joins it by key. `fields=` says which columns come into the samples, too. With `missing="error"` each sample has to have
# a row; by default those without one have nulls, and a warning counts them. These are the digits with the lowest scores:

# %%
scored = dataset.with_table(scores_path, on="key", missing="error", fields=["caption", "score"])
worst = scored.query('select "index" from samples order by score limit 14')["index"]

fig, axes = plt.subplots(2, 7, figsize=(10.5, 4.4), dpi=80, layout="constrained")
for ax, i in zip(axes.flat, worst.to_pylist(), strict=True):
    sample = scored[i]
    ax.imshow(sample[".jpg"], cmap="gray_r")
    ax.set_axis_off()
    ax.set_title(f"score {sample['score']:.3f}\n" + sample["caption"].replace(", ", "\n"), fontsize=9)
plt.show()

# %% [markdown]
# ## An opt-out list, and a view by SQL
#
# `exclude` takes a file with a key a line (or indices, or the `error_log` of an earlier run). `where` takes what would stand after WHERE,
# in DuckDB's SQL. Both give a dataset, so they can be chained. No sample is read, and none is copied (to find keys, the shards' member
# tables are read).

# %%
keys = dataset.query("select key from samples order by key")["key"].to_pylist()
opt_out_path = work_dir / "opted-out.txt"
opt_out_path.write_text("\n".join(random.Random(seed).sample(keys, opted_out)))

allowed = scored.exclude(opt_out_path)
better = allowed.where(good)
print(f"{len(scored):,} samples, {len(allowed):,} allowed, {len(better):,} of these good enough")

# %% [markdown]
# ## Class balance
#
# A score is kinder to some classes than to others: what was balanced no longer is. So as many of each class are taken as the
# smallest one has, those with the highest scores. `query` takes a whole SELECT, and `select` the indices that it finds.


# %%
def count_classes(dataset):
    """How many samples of each label."""
    found = dataset.query("select label, count(*) as n from samples group by label order by label")
    return found.to_pandas().set_index("label").n


smallest = int(count_classes(better).min())
best = better.query(
    f"""select "index" from samples
        qualify row_number() over (partition by label order by score desc, key) <= {smallest}"""
)
balanced = better.select(best["index"])
counts = pd.DataFrame(
    {"all": count_classes(dataset), "good enough": count_classes(better), "balanced": count_classes(balanced)}
)

BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#8A8A8A"  # Okabe and Ito's, for all eyes
fig, axes = plt.subplots(1, 3, figsize=(10.5, 2.8), dpi=80, layout="constrained", sharey=True)
for ax, colour, (name, column) in zip(axes, (GREY, VERMILLION, BLUE), counts.items(), strict=True):
    ax.bar(column.index.astype(str), column, color=colour)
    ax.bar_label(ax.containers[0], fontsize=8)
    ax.set_title(name, loc="left", fontweight="bold", fontsize=10.5)
    ax.set_title(f"{column.sum():,} samples", loc="right", fontsize=9.5)
    ax.set_xlabel("label")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("samples")
plt.show()

# %% [markdown]
# ## Saved, and opened again
#
# A saved view is an index: the URL of the one that it is a view of, how it was made, and the rows of each shard in a file beside it.

# %%
view_path = work_dir / "good.json"
balanced.save(view_path)
print(view_path.read_text())
print({path.name: f"{path.stat().st_size:,} bytes" for path in sorted(work_dir.glob("good.*"))})

# %% [markdown]
# Commands that read an index take it in the place of one; `wids view INDEX --where ... --exclude ... -o good.json` makes one without a program. If
# the index lists other shards by then, opening the view is an error that says what has changed.

# %%
# !{python} -m wids.tools.cli ls {view_path} --range 0:3
view = open_dataset(view_path)
print(f"{len(view):,} samples; the same keys as before: {list(view.keys) == list(balanced.keys)}")

# %% [markdown]
# ## Training on it, with a resume in mid-epoch
#
# Joined tables are not saved with a view: join them again. Here each sample weighs as much as its score, beside its picture and label.


# %%
def make_sample(sample):
    pixels = torch.from_numpy(np.asarray(sample[".jpg"], np.float32) / 255)
    return pixels, sample[".cls"], sample.get("score", 1.0), sample["__key__"]


def train(*, end_at=None, checkpoint=None):
    """Train on the saved view; return the keys of each step's batch, the model, and a checkpoint of the end."""
    torch.manual_seed(seed)
    view = open_dataset(view_path, fields=(".jpg", ".cls"))
    view = view.with_table(scores_path, on="key", columns=["score"], missing="error", fields=True).add_transform(
        make_sample
    )
    sampler = wids.DistributedChunkedSampler(view, seed=seed, num_replicas=1, rank=0)
    loader = DataLoader(
        view,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,  # functions of a notebook reach no other kind of process
    )
    loader = wids.resumable(loader)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    first, batches, step = 0, {}, 0
    if checkpoint is not None:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])
        first, step = checkpoint["epoch"], checkpoint["step"]
    for epoch in range(first, epochs):
        loader.set_epoch(epoch)
        for pixels, labels, weights, keys in loader:
            losses = torch.nn.functional.cross_entropy(model(pixels), labels, reduction="none")
            optimizer.zero_grad()
            (losses * weights).mean().backward()
            optimizer.step()
            step += 1
            batches[step] = keys
            if step == end_at:
                states = {"model": model, "optimizer": optimizer, "loader": loader}
                states = {name: each.state_dict() for name, each in states.items()}
                return batches, model, {**states, "epoch": epoch, "step": step}
    return batches, model, None


whole, model, _ = train()
last = round(broken_at * len(whole))
before, _, checkpoint = train(end_at=last)
torch.save(checkpoint, work_dir / "checkpoint.pt")
after, resumed, _ = train(checkpoint=torch.load(work_dir / "checkpoint.pt"))

print(f"{len(whole)} steps without a break; {len(before)} and {len(after)} with one")
rows = range(last - 1, last + 3)
pd.DataFrame(
    {
        "step": rows,
        "without a break": [" ".join(whole[step][:3]) + " ..." for step in rows],
        "ended and resumed": [" ".join({**before, **after}[step][:3]) + " ..." for step in rows],
    }
).set_index("step")

# %% [markdown]
# The second run was ended in the middle of an epoch, after which nothing was left of it but the checkpoint. Its batches are the same, and
# so are the weights at the end, to the last bit. The state of a sampler is small, and knows its view:

# %%
same_weights = all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
same_batches = {**before, **after} == whole
print(f"the same batches: {same_batches}; the same weights: {same_weights}")
opted_out_keys = set(opt_out_path.read_text().split())
trained_on = {key for keys in whole.values() for key in keys}
print(f"trained on {len(trained_on):,} samples; {len(opted_out_keys & trained_on)} of them are on the opt-out list\n")
print(json.dumps(checkpoint["loader"]), "\n")
try:
    wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0).load_state_dict(checkpoint["loader"])
except wids.WidsError as error:
    print(f"{type(error).__name__}: {error}")

# %% [markdown]
# ## The rest of the epoch on two ranks
#
# The same state is resumed by any number of ranks. A global batch takes one sample from each rank in turn.


# %%
def what_is_left(ranks):
    """The indices that are left of the epoch, in the order in which so many ranks read them."""
    samplers = [wids.DistributedChunkedSampler(view, seed=seed, num_replicas=ranks, rank=k) for k in range(ranks)]
    for sampler in samplers:
        sampler.load_state_dict(checkpoint["loader"])
    return [index for together in zip(*samplers, strict=True) for index in together]


alone, together = what_is_left(1), what_is_left(2)
same_order = together[: len(alone)] == alone
print(f"{len(alone)} samples are left; two ranks read the same ones in the same order: {same_order}")

# %% [markdown]
# And what the model has learned of them, from digits that no run has seen:

# %%
tested = wids.ShardListDataset(test_url, cache_dir=cache_dir).add_transform(make_sample)
right = 0
with torch.no_grad():
    for pixels, labels, _, _ in DataLoader(tested, batch_size=64):
        right += (model(pixels).argmax(1) == labels).sum().item()
accuracy = f"{right / len(tested):.1%} of {len(tested)} test digits are right"
print(f"{accuracy}, after training on {len(view):,} of {len(dataset):,} digits")
