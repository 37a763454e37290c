# %% [markdown]
# # Coming from ImageFolder
#
# A folder of images by class, read by torchvision's `ImageFolder`; one command that packs it in shards; and the same training
# on the shards. It shows that all samples are the same, pixel by pixel, and what is gained: a training set of a few large
# files, which can lie in a bucket.
#
# Takes 15 seconds on a laptop without a GPU. For your own folder, set `folder`; `wids pack` needs as much disk space as the folder.

# %% tags=["parameters"]
folder = None  # images by class: folder/cat/1.jpg; None: scikit-learn's digits, written as files
batch_size = 32
num_workers = 0  # of a DataLoader; more when decoding is what takes the time
epochs = 4
shard_size = "100kB"  # for these small images; for real ones 100MB to 1GB

# %%
import os
import sys

import bucket
import pandas as pd
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torchvision import datasets, transforms

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
# A transform of an image, `ImageFolder`, a DataLoader that shuffles, a training loop.

# %%
transform = transforms.Compose([transforms.Grayscale(), transforms.Resize((32, 32)), transforms.ToTensor()])


def train(loader, *, classes):
    """Train a small CNN; return the share of the last epoch's samples that it got right."""
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
# `--shuffle 1` shuffles the samples once, when they are packed. Training shuffles in each epoch as well, but only among the few
# shards that a rank has open at a time, and shards of a folder that is sorted by class would be sorted too.

# %%
# !mkdir {work_dir}/shards
# !cd {work_dir}/shards && {python} -m wids.cli pack {folder} -o 'train-%06d.tar' --size {shard_size} --shuffle 1

# %% [markdown]
# ## The same training on shards
#
# They are served over HTTP here, as a bucket would. Two lines are new: a function that turns a sample into `(image, label)`
# and applies the transform, and the sampler, which shuffles, divides the samples among ranks, and resumes.

# %%
served = bucket.Bucket(f"{work_dir}/shards")


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
classes = shards.spec["info"]["classes"]
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
            "classes": len(classes),
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
# ## What is gained
#
# A bucket answers each request after some 30 ms. A million images are a million requests in every epoch: eight hours of waiting,
# divided by the number of parallel requests. A thousand shards are a thousand downloads, once and not in every epoch, since
# they stay in the cache (`cache_size=` limits it), and they are downloaded ahead of the training. On a network file system each
# opening of a file is slow; on a local disk the gain is only that few files are copied, listed and deleted instead of a million.

# %%
assert classes == files.classes, "the same classes, numbered in the same way"
assert len(shards) == len(files) == len(labels), "as many samples as files"
assert all(one == other for one, other in labels.values()), "each has the label that it had"
assert not different, "and the pixels that it had"
assert shards.stats().fetches == len(tars), "each shard was downloaded once, however many epochs"
assert accuracy_of_shards > 0.9, "it trains as well"
