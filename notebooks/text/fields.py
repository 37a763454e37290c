# %% [markdown]
# # Fields: embeddings and captions beside the tars
#
# Embeddings and captions come after the pictures, and the tars with the pictures should stay as they are. Here a model computes an
# embedding of each picture (`wids map`), SQL finds near-duplicates by them, a view leaves these out, and a second run adds captions.
# A model is trained on pictures and captions, ended in mid-epoch, and resumed with the embeddings as a further field.
#
# Takes half a minute on a laptop without a GPU. For your own data set set the URL, and put your model into `Embed`.

# %% tags=["parameters"]
url = None  # of an index of pictures (.jpg), or an absolute path; None: pieces of two photographs
copies = 60  # of these pieces are there twice: shifted, compressed again, or smaller
alike = 0.96  # pictures whose embeddings have at least this cosine are near-duplicates
batch_size = 16
workers = 2
epochs = 6
broken_at = 0.55  # the part of the run after which it is ended, to be resumed
seed = 0

# %%
import colorsys
import hashlib
import io
import os
import sys
from pathlib import Path

import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.nn import functional
from torch.utils.data import DataLoader

import wids
from wids import jobs

torch.set_num_threads(1)  # threads gain nothing with a model as small as this one
python = sys.executable
os.chdir(bucket.temporary("fields"))  # for the files of this notebook
BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#8A8A8A"  # Okabe and Ito's, for all eyes

# %% [markdown]
# ## Pictures in plain tars
#
# A sample is one file, `0017.jpg`. Among the pictures are near-duplicates, as in most data from the web: the same picture some pixels
# further, in a lower quality, or smaller.


# %%
def make_pictures():
    """(JPEG, the place that it shows) of each picture, in random order."""
    rng = np.random.default_rng(seed)
    photographs = load_sample_images().images

    def piece(place, shift=(0, 0)):
        k, y, x = place
        y, x = y + shift[0], x + shift[1]
        return photographs[k][y : y + 96, x : x + 96]

    def encode(pixels, quality=92, size=96):
        out = io.BytesIO()
        Image.fromarray(pixels).resize((size, size)).save(out, "JPEG", quality=quality)
        return out.getvalue()

    places = [(k, y, x) for k in range(2) for y in range(8, 320, 40) for x in range(8, 536, 40)]
    places = [place for place in places if piece(place).mean(axis=2).std() > 30]  # not sky alone
    pictures = [(encode(piece(place)), place) for place in places]
    for n, k in enumerate(rng.choice(len(places), copies, replace=False)):
        shift, quality, size = [((3, -4), 92, 96), ((0, 0), 25, 96), ((0, 0), 92, 60)][n % 3]
        pictures.append((encode(piece(places[k], shift), quality, size), places[k]))
    return [pictures[n] for n in rng.permutation(len(pictures))]


def checksums():
    """Name of each tar with pictures -> its SHA-256."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path("pictures").glob("*.tar")}


numbers = {}  # place -> the numbers of its pictures
if url is None:
    with wids.ShardWriter("pictures/train-%03d.tar", samples=100) as writer:
        for number, (jpeg, place) in enumerate(make_pictures()):
            writer.write({"__key__": f"{number:04d}", ".jpg": jpeg})
            numbers.setdefault(place, []).append(number)
    url = "pictures/train.json"
twins = {tuple(some) for some in numbers.values() if len(some) == 2}
tars_before = checksums()
dataset = wids.ShardListDataset(url)
dataset

# %% [markdown]
# ## Embeddings
#
# The model is a class in a module of yours: each process makes one instance, which takes a list of samples and returns their new
# fields. This one is the first half of O-Net, a network that finds faces (of MTCNN, in `facenet-pytorch`, whose package has the 1.6 MB
# of weights in it). It has seen little but faces, and yet its first layers tell pictures apart; for your data, take CLIP, DINO or the like.

# %%
# %%writefile embed.py
import numpy as np
import torch
from facenet_pytorch.models.mtcnn import ONet


class Embed:
    def __init__(self):
        first = list(ONet().children())[:7]  # to the third convolution
        self.model = torch.nn.Sequential(*first, torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()).eval()

    @torch.inference_mode()
    def __call__(self, samples):
        pictures = np.stack([np.asarray(sample[".jpg"].convert("RGB").resize((48, 48))) for sample in samples])
        inputs = (torch.from_numpy(pictures).permute(0, 3, 1, 2) - 127.5) / 128
        return [{"npy": vector.numpy()} for vector in self.model(inputs)]

# %%
# !{python} -m wids.tools.cli map {url} embed.py:Embed -o net --prefix net --batch-size 64 --fields .jpg 2>&1 | cat
# !ls net

# %% [markdown]
# `net` has tars with the same keys in the same order, and `index.json`: it is a data set of its own, a *companion* of the pictures.
# `net/joined.json` names both, and is opened as any index. By the prefix `net`, the `.npy` of the companion is the field `.net.npy`, so
# that other embeddings may follow.

# %%
joined = wids.ShardListDataset("net/joined.json")
{name: getattr(value, "shape", value) for name, value in joined[0].items()}

# %% [markdown]
# ## Near-duplicates by SQL
#
# SQL needs a table: `wids columns create` makes one of the companion's vectors. (Where nobody trains on them, `wids map --columns` writes
# a table in the place of shards.) The query compares each picture with each other one. For millions of pictures, take a library for
# nearest neighbours, which gets its array from `embeddings.read_column("vector")`.

# %%
# !{python} -m wids.tools.cli columns create net/index.json --field .npy=vector 2>&1 | cat

# %%
embeddings = wids.ShardListDataset("net/index.json")
pairs = embeddings.query(
    """select a."index" as first, b."index" as second, list_cosine_similarity(a.vector, b.vector) as cosine
       from samples a join samples b on a."index" < b."index"
       where cosine > 0.9 order by cosine desc"""
).to_pandas()
found = pairs[pairs.cosine >= alike]
print(f"{len(pairs)} pairs above 0.9, {len(found)} of them from {alike} on")

# %% [markdown]
# Only looking tells where near-duplicates end. Above are some pairs from `alike` on, the last one included, below the first ones after it.

# %%
columns = 5
some = np.linspace(0, len(found) - 1, columns).astype(int) if len(found) else []
rows = {"near-duplicates": found.iloc[some], "others": pairs[pairs.cosine < alike].head(columns)}
fig, axes = plt.subplots(2, columns, figsize=(7, 2), dpi=75, layout="constrained")
for row, (name, chosen) in zip(axes, rows.items(), strict=True):
    for ax in row:
        ax.set_axis_off()
    for ax, pair in zip(row, chosen.itertuples(), strict=False):
        both = [joined[i][".jpg"].convert("RGB").resize((96, 96)) for i in (pair.first, pair.second)]
        ax.imshow(np.hstack([both[0], np.full((96, 6, 3), 255, np.uint8), both[1]]))
        ax.set_title(f"{pair.cosine:.3f}", fontsize=9, color=VERMILLION if pair.cosine >= alike else BLUE)
    row[0].text(-0.06, 0.5, name, transform=row[0].transAxes, rotation=90, va="center", ha="right", fontsize=9.5)
plt.show()

# %% [markdown]
# Of each pair, the second picture is left out: all copies, and some pieces of the temple whose windows repeat. The view is a dataset, and
# saved an index of a kilobyte.

# %%
unique = dataset.exclude(sorted(set(found.second)))
unique.save("unique.json")
if twins:
    hits = twins & set(zip(found["first"], found.second, strict=True))
    print(f"{len(hits)} of {len(twins)} copies are found, and {len(found) - len(hits)} other pairs")
print(f"{len(dataset)} pictures, {len(unique)} of them unique")

# %% [markdown]
# ## Captions, only of these
#
# The function may also be one of this notebook. The view stands for its samples: no others are captioned.


# %%
def write_caption(sample):
    """A sentence on brightness, colour and detail."""
    pixels = np.asarray(sample[".jpg"].convert("RGB").resize((96, 96)), np.float32) / 255
    hue, saturation, value = colorsys.rgb_to_hsv(*pixels.mean(axis=(0, 1)))
    colour = ["red", "orange", "green", "green", "blue", "purple"][int(hue * 6)] if saturation > 0.25 else "grey"
    light = "dark" if value < 0.45 else "bright"
    grain = np.abs(np.diff(pixels.mean(axis=2), axis=1)).mean()
    return {"caption.txt": f"a {light} {colour} picture with {'much' if grain > 0.04 else 'little'} detail"}


outcome = jobs.map(
    "unique.json",
    write_caption,
    "captions",
    settings=jobs.MapSettings(fields=(".jpg",)),
    engine="threads",
)
print(f"{outcome.computed} captions; {outcome.empty} rows are empty, those of the pictures that are left out")
captioned = wids.ShardListDataset(outcome.joined)
captioned

# %% [markdown]
# ## Training, with a resume as the embeddings arrive
#
# The model learns to say which words a picture's caption has. After the break there are embeddings, too, and it learns to predict
# these as well. Only the index of the samples changes.

# %%
WORDS = ["dark", "bright", "red", "orange", "green", "blue", "purple", "grey", "little", "much"]


def make_sample(sample):
    picture = sample[".jpg"].convert("RGB").resize((48, 48))
    pixels = torch.from_numpy(np.array(picture, np.float32)).permute(2, 0, 1) / 255
    words = torch.tensor([float(word in sample[".caption.txt"].split()) for word in WORDS])
    return pixels, words, sample.get(".net.npy", np.zeros(0, np.float32)), sample["__key__"]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = [torch.nn.Conv2d(3, 16, 5, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2), torch.nn.ReLU()]
        self.body = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(3), torch.nn.Flatten())
        self.words, self.vector = torch.nn.Linear(288, len(WORDS)), torch.nn.Linear(288, 256)

    def forward(self, pixels):
        hidden = self.body(pixels)
        return self.words(hidden), self.vector(hidden)


def train(index, *, end_at=None, checkpoint=None):
    """Train on the samples of an index; return of each step its keys and losses, and a checkpoint of the end."""
    torch.manual_seed(seed)
    samples = wids.ShardListDataset(index).add_transform(make_sample)
    sampler = wids.DistributedChunkedSampler(samples, seed=seed, num_replicas=1, rank=0)
    context = "fork" if workers else None  # functions of a notebook reach no other kind of process
    loader = DataLoader(samples, batch_size, sampler=sampler, num_workers=workers, multiprocessing_context=context)
    loader = wids.resumable(loader)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    states = {"model": model, "optimizer": optimizer, "loader": loader}
    first = 0
    if checkpoint is not None:
        first = checkpoint["epoch"]
        for name, each in states.items():
            each.load_state_dict(checkpoint[name])
    step, steps = 0 if checkpoint is None else checkpoint["step"], {}
    for epoch in range(first, epochs):
        loader.set_epoch(epoch)
        for pixels, words, vectors, keys in loader:
            said, predicted = model(pixels)
            losses = {"words": functional.binary_cross_entropy_with_logits(said, words)}
            if vectors.shape[1]:
                losses["embedding"] = 1 - functional.cosine_similarity(predicted, vectors).mean()
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
            step += 1
            steps[step] = {"keys": keys, **{name: loss.item() for name, loss in losses.items()}}
            if step == end_at:
                state = {name: each.state_dict() for name, each in states.items()}
                return steps, {**state, "epoch": epoch, "step": step}
    return steps, None


whole, _ = train(outcome.joined)
last = round(broken_at * len(whole))
before, checkpoint = train(outcome.joined, end_at=last)
torch.save(checkpoint, "checkpoint.pt")
print(f"{len(whole)} steps without a break; with one, {len(before)} so far")
{name: checkpoint["loader"][name] for name in ("epoch", "position", "batches")}

# %% [markdown]
# The job has ended. Now its samples get the embeddings, by an index that names the view with its captions, and `net`. The view has fewer
# samples than `net`, so they are joined by their keys.

# %%
# !{python} -m wids.tools.cli index join captions/joined.json net/index.json --on key --prefix net -o joined.json

# %%
after, _ = train("joined.json", checkpoint=torch.load("checkpoint.pt"))
same_batches = [each["keys"] for each in {**before, **after}.values()] == [each["keys"] for each in whole.values()]
print(f"the same batches as without a break: {same_batches}")

fig, ax = plt.subplots(figsize=(7, 2.8), dpi=80, layout="constrained")
for steps, name, colour, label in (
    (whole, "words", GREY, "words, without a break"),
    (before, "words", BLUE, "words"),
    (after, "words", BLUE, None),
    (after, "embedding", VERMILLION, "embeddings"),
):
    losses = pd.Series({step: each[name] for step, each in steps.items()})
    ax.plot(losses.rolling(5, min_periods=1).mean(), color=colour, label=label, lw=3 if steps is whole else 1.5)
ax.axvline(last + 0.5, color="black", lw=0.8, ls=":")
ax.annotate("ended, and resumed \nwith embeddings ", (last + 0.5, ax.get_ylim()[1]), va="top", ha="right", fontsize=9)
ax.set_xlabel("step")
ax.set_ylabel("loss, mean of 5 steps")
ax.legend(frameon=False, loc="upper right", fontsize=9)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# The order is that of the pictures, whatever is joined to them, so the state of the sampler stays valid.
#
# ## Nothing was rewritten
#
# The tars with the pictures have the checksums that they had at first. What came after lies beside them. A tar takes a kilobyte for a
# caption of fifty bytes; as a column (`wids map --columns`), texts as short as these are smaller.

# %%
same_tars = checksums() == tars_before
print(f"{len(tars_before)} tars with the same checksums as at first: {same_tars}")
patterns = {
    "pictures": ["pictures/*.tar"],
    "embeddings": ["net/*.tar"],
    "captions": ["captions/*.tar"],
    "embeddings as columns": ["net/*.parquet"],
    "member tables": ["*/*.widx"],
    "indexes, views and joins": ["**/*.json", "**/*.rows", "**/*.joined"],
}
files = {name: [path for each in some for path in Path().glob(each)] for name, some in patterns.items()}
sizes = {name: sum(path.stat().st_size for path in paths) for name, paths in files.items()}
pd.DataFrame({"files": {name: len(paths) for name, paths in files.items()}, "bytes": sizes})
