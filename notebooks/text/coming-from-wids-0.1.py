# %% [markdown]
# # Coming from wids 0.1
#
# A program that was written for wids 0.1, unchanged, and what behaves differently when it runs here: each difference is shown by a cell that
# runs it. The behaviour of wids 0.1 is described, not run. The table in wids/legacy/README.md has all of them.
#
# Takes a quarter of a minute on a laptop without a GPU.

# %% tags=["parameters"]
world_size = 4  # ranks that share the samples out
epochs = 1

# %%
import glob
import os
import shutil
import subprocess
import sys

import bucket
import pandas as pd
import torch

import wids

data = bucket.digits()
work_dir = bucket.temporary("work")
cache_dir = bucket.temporary("cache")
tars = sorted(glob.glob(f"{data.directory}/*train*.tar"))
outcome = {}  # what the cells below found
print(len(tars), "shards")

# %% [markdown]
# ## The program, as it was
#
# An index of the shards, a dataset with a cache, a transform, the sampler, and a process that keeps the cache small.

# %%
names = [os.path.basename(tar) for tar in tars]
command = [sys.executable, "-m", "wids.wids_index", "create", *names, "--output", "old.json", "--name", "digits"]
environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
subprocess.run(command, check=True, capture_output=True, cwd=data.directory, env=environment)
index = f"{data.url}/old.json"  # beside the shards, in what stands for a bucket

dataset = wids.ShardListDataset(index, cache_dir=cache_dir, keep=True)
print(len(dataset), "samples;", sorted(name for name in dataset[0] if not name.startswith("__")))

# %%
from wids.wids_cleanup import create_cleanup_background_process

image_name = next(name for name in dataset[0] if name in (".png", ".jpg"))


def make_sample(sample):
    pixels = torch.frombuffer(bytearray(sample[image_name].convert("L").resize((8, 8)).tobytes()), dtype=torch.uint8)
    return pixels.float() / 255, sample[".cls"]


dataset.add_transform(make_sample)
cleanup = create_cleanup_background_process(f"{cache_dir}/*", maxsize=int(1e9), every=1)
sampler = wids.DistributedChunkedSampler(dataset, chunksize=1000, shuffle=True)
loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
seen = 0
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(labels)
is_cleaned = cleanup.is_alive()  # for as long as the program runs
cleanup.terminate()
cleanup.join()
fetched = sum(name.endswith(".tar") for name in os.listdir(cache_dir))
print(f"{seen} samples trained on, {fetched} shards in the cache")

# %% [markdown]
# ## Equal counts, and explicit ranks win
#
# No process group exists here, and each rank gets its own share all the same; all shares are of one size, also on odd world sizes.

# %%
shares = {}
for world in (3, world_size, 7):
    samplers = [wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank) for rank in range(world)]
    shares[world] = [list(one) for one in samplers]
    print(world, "ranks:", [len(share) for share in shares[world]])
outcome["equal"] = all(len({len(share) for share in of}) == 1 for of in shares.values())
outcome["covered"] = all({i for share in of for i in share} == set(range(len(dataset))) for of in shares.values())
outcome["ranks"] = all(len({tuple(share) for share in of}) == world for world, of in shares.items())

# %% [markdown]
# ## A wrong count is an error with a name

# %%
wrong = wids.ShardListDataset([{"url": tars[0], "nsamples": dataset.lengths[0] + 1}], cache_dir=cache_dir)
try:
    wrong[0]
    outcome["count"] = False
except wids.errors.CountMismatchError as error:
    outcome["count"] = True
    print(type(error).__name__ + ":", str(error).replace(data.directory, "..."))

# %% [markdown]
# ## Two shards with one basename

# %%
for number in (0, 1):
    os.makedirs(f"{work_dir}/{number}")
    shutil.copy(tars[number], f"{work_dir}/{number}/same.tar")
far = bucket.Bucket(work_dir)
served = [f"{far.url}/{number}/same.tar" for number in (0, 1)]
spec = [{"url": url, "nsamples": dataset.lengths[number]} for number, url in enumerate(served)]
same_cache = bucket.temporary("cache")
both = wids.ShardListDataset(spec, cache_dir=same_cache)
keys = [both[0]["__key__"], both[dataset.lengths[0]]["__key__"]]
cached = sorted(name for name in os.listdir(same_cache) if name.endswith(".tar"))
print(keys, cached)
plain = wids.ShardListDataset(index, cache_dir=cache_dir)
outcome["names"] = keys == [plain[0]["__key__"], plain[dataset.lengths[0]]["__key__"]] and len(cached) == 2

# %% [markdown]
# ## Each epoch is shuffled, and resumes in its middle

# %%
sampler = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0)
orders = []
for epoch in (0, 1, 0):
    sampler.set_epoch(epoch)
    orders.append(list(sampler))
    print("epoch", epoch, orders[-1][:8])
shards = list(dict.fromkeys(dataset.locate(i)[0] for i in orders[0]))  # as epoch 0 comes to them
outcome["shuffles"] = orders[0] == orders[2] != orders[1] and shards != sorted(shards)

sampler.set_epoch(0)
iterator = iter(sampler)
first = [next(iterator) for _ in range(100)]
state = sampler.state_dict()
again = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0)
again.load_state_dict(state)
outcome["resumes"] = first + list(again) == orders[0]

# %%
rows = [
    ("ranks got unequal counts", "equal, each sample is in one", outcome["equal"] and outcome["covered"]),
    ("explicit rank was ignored without a process group", "it wins", outcome["ranks"]),
    ("a wrong nsamples was an IndexError somewhere", "CountMismatchError", outcome["count"]),
    ("shards with one basename overwrote each other", "names hold a digest", outcome["names"]),
    ("epoch 0 kept chunk order", "every epoch shuffles, set_epoch decides", outcome["shuffles"]),
    ("no resume in mid-epoch", "state_dict, load_state_dict", outcome["resumes"]),
]
pd.DataFrame(rows, columns=["wids 0.1", "here", "checked"])
