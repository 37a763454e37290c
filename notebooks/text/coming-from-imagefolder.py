# %% [markdown]
# # Coming from ImageFolder
#
# A folder of images by class, read by torchvision's `ImageFolder`; one command that packs it in shards; and the same training
# on the shards. All samples are the same, pixel by pixel, with the same class numbers and names. Gained is a training set of a few
# large files, which may be in a bucket. The second table says what becomes of each attribute and argument of `ImageFolder`.
#
# Takes 15 seconds on a laptop without a GPU. For your own folder, set `folder`; `wids pack` needs as much disk space as the folder.

# %% tags=["parameters"]
folder = None  # images by class: folder/cat/1.jpg; None: scikit-learn's digits, written as files
batch_size = 32
num_workers = 0  # of a DataLoader; more when decoding is what takes the time
epochs = 3
shard_size = "100kB"  # for these small images; for real ones 100MB to 1GB

# %%
import os
import shutil
import sys

import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torchvision import datasets
from torchvision.transforms import v2

import wids

python = sys.executable
os.environ["FORCE_COLOR"] = ""  # the command below: without a progress bar
work_dir = bucket.temporary("work")
names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
if folder is None:
    folder = f"{work_dir}/digits"
    data = load_digits()
    for number, (pixels, label) in enumerate(zip(data.images, data.target, strict=True)):
        os.makedirs(f"{folder}/{names[label]}", exist_ok=True)
        image = Image.fromarray((pixels * 15.9).astype("uint8")).resize((32, 32), Image.Resampling.BICUBIC)
        image.save(f"{folder}/{names[label]}/{number:04d}.jpg", quality=95)

print(", ".join(f"{entry}/ {len(os.listdir(f'{folder}/{entry}'))}" for entry in sorted(os.listdir(folder))))

# %% [markdown]
# ## As it is
#
# A transform of an image (torchvision's v2, which stays as it is), `ImageFolder`, a DataLoader that shuffles, a training loop.

# %%
transform = v2.Compose([v2.Grayscale(), v2.Resize((32, 32)), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


def train(loader, *, classes):
    """Train a small CNN; return the share of the last epoch's samples that it classified correctly."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 5, stride=2), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(32 * 5 * 5, classes),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        right = seen = 0
        for images, labels in loader:
            predicted = model(images)
            loss = torch.nn.functional.cross_entropy(predicted, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (predicted.argmax(1) == labels).sum().item()
            seen += len(labels)
    print(f"{seen:,} samples, training accuracy {right / seen:.1%}")
    return right / seen


# %%
files = datasets.ImageFolder(folder, transform)
loader = torch.utils.data.DataLoader(files, batch_size=batch_size, shuffle=True, num_workers=num_workers)
accuracy_of_files = train(loader, classes=len(files.classes))

# %% [markdown]
# ## Packed
#
# One command. A file's bytes go into the shards unchanged (`.jpg`), beside the number of its class (`.cls`); classes are numbered in
# sorted order, as `ImageFolder` does, and the index keeps their names. After a kill, the same command resumes.
# `-o` may be a bucket: `s3://bucket/train-%06d.tar`.
#
# The samples are shuffled once, with seed 0; `--shuffle 1` takes another seed, `--no-shuffle` keeps the order of the folders. Training
# shuffles in each epoch as well, but only among the few shards that a rank has open at a time, and shards of a folder that is sorted
# by class would hold few classes each. `wids info` says how classes are spread over the shards.

# %%
# !mkdir {work_dir}/shards
# !cd {work_dir}/shards && {python} -m wids.tools.cli pack {folder} -o 'train-%06d.tar' --size {shard_size}
# !cd {work_dir}/shards && {python} -m wids.tools.cli info train.json | grep -E '^(samples|classes)'

# %% [markdown]
# Folders called `train` and `val` are parts of a dataset, not classes. Each is packed by itself; `--classes` gives the second the
# numbers of the first, whatever classes it has.

# %%
for path, _ in datasets.ImageFolder(folder).samples[::100]:
    for part in ("train", "val"):
        copy = f"{work_dir}/both/{part}/{os.path.relpath(path, folder)}"
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy(path, copy)

# !cd {work_dir} && {python} -m wids.tools.cli pack both -o 'both-%06d.tar'
# !cd {work_dir} && {python} -m wids.tools.cli pack both/val -o 'val-%06d.tar' --classes shards/train.json

# %% [markdown]
# ## The same training on shards
#
# They are served over HTTP here, as a bucket would. Two lines are new: a function that turns a sample into `(image, label)`
# and applies the transform, and the sampler, which shuffles, divides the samples among ranks, and resumes.

# %%
served = bucket.Bucket(f"{work_dir}/shards", has_ranges=True)


def make_sample(sample):
    return transform(sample[".jpg"].convert("RGB")), sample[".cls"]  # ImageFolder's loader converts, too


shards = wids.ShardListDataset(served.train, cache_dir=bucket.temporary("cache")).add_transform(make_sample)
sampler = wids.DistributedChunkedSampler(shards, num_replicas=1, rank=0)  # under torchrun, without these two
loader = torch.utils.data.DataLoader(shards, batch_size=batch_size, sampler=sampler, num_workers=num_workers)
accuracy_of_shards = train(loader, classes=len(files.classes))

# %% [markdown]
# ## Nothing changed
#
# The same samples, and each with the same class and the same pixels. `ImageFolder` is in the order of names; here the order is that
# of the tars. A key is the file's path without its extension, so each sample knows where it came from.

# %%
labels = {}  # of the file's path without its extension
with_transform, shards.transformations = shards.transformations, shards.transformations[:1]  # for now: decoded, no more
different = []
for path, label in files.samples:
    key = os.path.splitext(os.path.relpath(path, folder))[0]
    sample = shards[shards.keys.index(key)]
    labels[key] = label, sample[".cls"]
    with Image.open(path) as image:
        if image.convert("RGB").tobytes() != sample[".jpg"].convert("RGB").tobytes():
            different.append(key)
shards.transformations = with_transform

sizes = [os.path.getsize(path) for path, _ in files.samples]
tars = [entry.stat().st_size for entry in os.scandir(served.directory) if entry.name.endswith(".tar")]
table = pd.DataFrame(
    {
        "ImageFolder": {
            "samples": len(files),
            "classes": len(files.classes),
            "samples of other labels": 0,
            "samples of other pixels": 0,
            "training accuracy": f"{accuracy_of_files:.1%}",
            "files": len(files),
            "mean size of a file, kB": round(sum(sizes) / len(sizes) / 1e3, 1),
            "reads from a bucket in an epoch": len(files),
        },
        "shards": {
            "samples": len(shards),
            "classes": len(shards.spec["info"]["classes"]),
            "samples of other labels": sum(one != other for one, other in labels.values()),
            "samples of other pixels": len(different),
            "training accuracy": f"{accuracy_of_shards:.1%}",
            "files": len(tars),
            "mean size of a file, kB": round(sum(tars) / len(tars) / 1e3, 1),
            "reads from a bucket in an epoch": shards.stats().fetches,
        },
    }
)
table

# %% [markdown]
# ## What becomes of ImageFolder's attributes and arguments
#
# | `ImageFolder` | shards |
# |---|---|
# | `files.classes` | `dataset.spec["info"]["classes"]` |
# | `files.class_to_idx` | `{name: number for number, name in enumerate(classes)}` |
# | `files.targets` | `dataset.read_column("label")`, after `wids columns create train.json --field .cls=label` |
# | `files.samples`, `files.imgs` | `dataset.keys[i]` is the path without its extension; `dataset.locate(i)` is its shard's number and its row |
# | `files[i]` | `dataset[i]` |
# | `transform=`, `target_transform=` | one function of the sample, with `add_transform` |
# | `loader=` (`convert("RGB")`) | `sample[".jpg"].convert("RGB")`; `transformations="torch"` decodes to uint8 tensors |
# | `extensions=`, `is_valid_file=` | `wids pack` leaves out files that are no images, and names them |
# | `allow_empty=True` | the default: an empty folder keeps its number, and is named |
# | a `find_classes` of your own | `wids pack --classes FILE`: a name a line, a JSON list, or an index |
# | `Subset(files, indices)` | `dataset.select(indices)`, `dataset.where("label = 3")` |
# | `random_split(files, [0.9, 0.1])` | `dataset.split(0.9, 0.1)`: by the keys, so it is the same in each run |
# | `WeightedRandomSampler(weights, n)` | `DistributedChunkedSampler(dataset, weights=wids.balance(targets))` |
#
# Labels are asked for once, in a table beside the index; then no shard is read for them:

# %%
# !cd {served.directory} && {python} -m wids.tools.cli columns create train.json --field .cls=label 2>&1 | grep columns

labelled = wids.ShardListDataset(served.train, cache_dir=bucket.temporary("cache"))
classes = labelled.spec["info"]["classes"]
class_to_idx = {name: number for number, name in enumerate(classes)}
targets = labelled.read_column("label")
fives = labelled.where(f"label = {class_to_idx['five']}") if "five" in class_to_idx else labelled.where("label = 0")
train_part, val_part = labelled.split(0.9, 0.1)

example = 0
shard, row = labelled.locate(example)
print(f"{labelled.keys[example]}: class {targets[example]}, {classes[targets[example]]!r}; row {row} of shard {shard}")
pd.DataFrame(
    {
        "ImageFolder": np.bincount(files.targets),
        "shards": np.bincount(targets),
        "of these for training": np.bincount(train_part.read_column("label")),
    },
    index=pd.Index(classes, name="samples of a class"),
)

# %%
shown = fives.select(range(min(10, len(fives))))
figure, axes = plt.subplots(1, 10, figsize=(9, 1.4), dpi=80, layout="constrained")
for axis in axes:
    axis.set_axis_off()
for axis, sample in zip(axes, shown, strict=False):
    axis.imshow(sample[".jpg"], cmap="gray_r")
    axis.set_title(sample["__key__"], fontsize=7)
plt.show()
print(f"{len(fives)} of {len(labelled):,} samples are of this class; only these {len(shown)} were read")

# %% [markdown]
# ## What is gained
#
# A bucket answers each request after some 30 ms. A million images are a million requests in every epoch: eight hours of waiting,
# divided by the number of parallel requests. A thousand shards are a thousand downloads, once and not in every epoch, since
# they stay in the cache (`cache_size=` limits it), and they are downloaded ahead of the training. On a network file system each
# opening of a file is slow; on a local disk the gain is only that few files are copied, listed and deleted instead of a million.
