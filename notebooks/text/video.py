# %% [markdown]
# # Video: clips of episodes in tars
#
# Robots, cars and cameras record episodes: a film, and what was measured at each frame. This notebook packs 200 episodes as MP4 and
# JSON into plain tars, and trains on windows of 8 frames at random places. `wids.lazy` opens a film as a file in which the decoder
# seeks, so a clip costs the bytes of its frames, and not of the film: from a store, no shard and no whole film is downloaded.
# Then the same with a sample for each frame and `dataset.windows`, as users of LeRobot's `delta_timestamps` know it.
#
# Takes a minute on a laptop without a GPU. The films are made here by PyAV; for your own data set the URL of an index.

# %% tags=["parameters"]
url = None  # index of episodes with .mp4 and .json, whose .json says "frames"; None: made and served here
episodes = 200
frames, size, fps = 200, 192, 30  # of a film: its frames, pixels a side, frames in a second
clip = 8  # frames of a window
batch_size = 8
workers = 2
measured = 60  # clips that are read in each way
broken_at = 0.4  # the part of an epoch after which it is ended, to be resumed

# %%
import io
import sys

import av
import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader

import wids

python = sys.executable
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"  # Okabe and Ito's, for all eyes

# %% [markdown]
# ## Episodes in tars
#
# An episode is one sample: `0017.mp4`, and `0017.json` with the state and the action at each frame. Here a camera moves over a
# photograph and follows a disc. Nothing about the tars is special: `tar` or any other program may write them.


# %%
def make_episode(number):
    """A film, (frames, size, size, 3), and what was measured at its frames."""
    rng = np.random.default_rng(number)
    photograph = load_sample_images().images[number % 2]
    room = np.array(photograph.shape[:2]) - size
    steps = rng.normal(0, 2, (frames, 2)).cumsum(0)
    places = np.clip(rng.uniform(0.2, 0.8, 2) * room + steps.cumsum(0) / 4, 0, room).astype(int)
    states = np.clip(size / 2 + rng.normal(0, 3, (frames, 2)).cumsum(0), 12, size - 12)
    rows, columns = np.mgrid[:size, :size]
    film = np.stack([photograph[y : y + size, x : x + size] for y, x in places])
    for frame, (y, x) in zip(film, states, strict=True):
        frame[(rows - y) ** 2 + (columns - x) ** 2 < 100] = (213, 94, 0)
    actions = np.diff(states, axis=0, append=states[-1:])
    return film, {"frames": frames, "states": states.round(2).tolist(), "actions": actions.round(2).tolist()}


def encode(film):
    """The same film as MP4, with a key frame at each sixth."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width = stream.height = size
        stream.pix_fmt, stream.gop_size, stream.bit_rate = "yuv420p", 6, 8_000_000
        for frame in film:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return out.getvalue()


served = None
if url is None:
    served = bucket.Bucket(has_ranges=True)
    with wids.ShardWriter(f"{served.directory}/episodes-%03d.tar", samples=25) as writer:
        for number in range(episodes):
            film, measurements = make_episode(number)
            writer.write({"__key__": f"{number:04d}", ".mp4": encode(film), ".json": measurements})
    url = f"{served.url}/episodes.json"

# %% [markdown]
# What the films are is in their headers. `wids columns create --videos` reads these into a table, for SQL and views:
# `dataset.where("frames >= 100 and fps = 30")`.

# %%
columns_path = f"{bucket.temporary('columns')}/episodes.columns.parquet"
# !{python} -m wids.tools.cli columns create {url} --videos .mp4 -o {columns_path} 2>&1 | cat
videos = pd.read_parquet(columns_path)
videos[["key", "width", "height", "frames", "fps", "duration", "codec", "mp4_bytes"]].head(3)

# %% [markdown]
# ## A random clip of each episode
#
# `wids.lazy` is the only difference to a dataset of pictures. The sampler gives each sample a seed, so the place of its clip is
# another one in each epoch, and the same on any machine, worker and number of ranks.


# %%
def frames_from(file, first, count=clip):
    """Frames ``first .. first + count`` of a film: (count, H, W, 3), uint8."""
    with av.open(file) as film:
        video = film.streams.video[0]
        rate = video.average_rate
        film.seek(int(first / rate / video.time_base), stream=video)  # to the key frame before it
        decoded = (frame for frame in film.decode(video) if round(frame.time * rate) >= first)
        return np.stack([frame.to_ndarray(format="rgb24") for frame, _ in zip(decoded, range(count), strict=False)])


def make_clip(sample):
    first = int(wids.rng(sample).integers(sample[".json"]["frames"] - clip + 1))
    actions = np.array(sample[".json"]["actions"][first : first + clip], np.float32)
    return frames_from(sample[".mp4"], first), actions


def open_episodes(*steps, **options):
    return wids.ShardListDataset(url, cache_dir=bucket.temporary("cache"), transformations=[*steps], **options)


dataset = open_episodes(wids.lazy(".mp4"), "torch", make_clip, access="range")
sampler = wids.DistributedChunkedSampler(dataset, sample_seeds=True)
loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=workers)
films, actions = next(iter(loader))
films.shape, actions.shape

# %%
figure, axes = plt.subplots(3, clip, figsize=(1.3 * clip, 4.2), dpi=50)
for row, film in zip(axes, films.numpy(), strict=False):
    for axis, frame in zip(row, film, strict=True):
        axis.imshow(frame)
        axis.set_axis_off()
figure.suptitle("Clips of three episodes")
figure.tight_layout()

# %% [markdown]
# ## What a clip costs
#
# The same clips in three ways: shards that are downloaded as a whole (`access="fetch"`, right for many epochs), members that are
# read as a whole by byte ranges, and the parts that the decoder asks for. A film here has half a megabyte; the longer films are, the
# larger the difference.

# %%
if served is not None:
    rng = np.random.default_rng(0)
    picks = [(int(rng.integers(len(dataset))), int(rng.integers(frames - clip))) for _ in range(measured)]
    ways = {
        "whole shards": open_episodes(fields=(".mp4",), early_reads=False),
        "whole films": open_episodes(fields=(".mp4",), access="range"),
        "wids.lazy": open_episodes(wids.lazy(".mp4"), fields=(".mp4",), access="range"),
    }
    read, sums = {}, {}
    for name, each in ways.items():
        each[0]  # the member tables are read once
        before = served.sent_bytes
        sums[name] = [int(frames_from(each[episode][".mp4"], first).sum()) for episode, first in picks]
        read[name] = (served.sent_bytes - before) / measured / 1e3
    figure, axis = plt.subplots(figsize=(7, 2.2))
    bars = axis.barh(list(read), list(read.values()), color=[VERMILLION, BLUE, GREEN])
    axis.bar_label(bars, fmt=" %.0f kB")
    axis.set_xlabel(f"read for a clip of {clip} frames, kB, mean of {measured} clips")
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.12)

# %% [markdown]
# ## Each window once
#
# A random clip of each episode is what action recognition trains on. To see *every* window of an epoch once, number them: a dataset
# with `dataset` and `indices`, as torch's `Subset` has them, tells the sampler in which shard each window lies. The sampler shuffles
# windows within chunks, reads shard by shard, gives each rank as many, and resumes.


# %%
class Clips(torch.utils.data.Dataset):
    """Each window of ``clip`` frames of each episode."""

    def __init__(self, dataset, counts):
        self.dataset = dataset
        # The episode of each window, and the window's first frame.
        self.indices = np.repeat(np.arange(len(dataset)), np.maximum(counts - clip + 1, 0))
        self.firsts = np.arange(len(self.indices)) - np.searchsorted(self.indices, self.indices)

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, i):
        sample = self.dataset[int(self.indices[i])]
        first = int(self.firsts[i])
        return frames_from(sample[".mp4"], first), int(self.indices[i]), first


short = open_episodes(wids.lazy(".mp4"), fields=(".mp4",), access="range").select(range(3))  # a few, to be quick
clips = Clips(short, videos["frames"].to_numpy()[: len(short)])
sampler = wids.DistributedChunkedSampler(clips, num_replicas=1, rank=0, chunksize=200)
loader = wids.resumable(DataLoader(clips, batch_size=batch_size, sampler=sampler, num_workers=workers))
seen = []
for _, of, first in loader:
    seen += zip(of.tolist(), first.tolist(), strict=True)
    if len(seen) >= broken_at * len(clips):
        break
state = loader.state_dict()  # and the job ends here

rest = []
for rank in range(2):  # it goes on with two ranks in the place of one
    sampler = wids.DistributedChunkedSampler(clips, num_replicas=2, rank=rank, chunksize=200)
    loader = wids.resumable(DataLoader(clips, batch_size=batch_size, sampler=sampler, num_workers=workers))
    loader.load_state_dict(state)
    for _, of, first in loader:
        rest += zip(of.tolist(), first.tolist(), strict=True)
print(f"{len(clips)} windows: {len(seen)} before the break, {len(rest)} after it; all: {len({*seen, *rest})}")

# %% [markdown]
# ## A sample for each frame: `dataset.windows`
#
# Where frames are pictures of their own, or only states are read, a sample may be a frame. `dataset.windows` makes consecutive
# samples one item, never across an episode. `offsets` say which frames a field has, relative to the frame at hand: two pictures and
# 16 actions, as `delta_timestamps` of LeRobot do in seconds. Beyond an episode's end its last action is repeated, and marked.

# %%
steps_dir = bucket.temporary("steps")
with wids.ShardWriter(f"{steps_dir}/steps-%03d.tar", samples=500) as writer:
    for number in range(3):
        film, measurements = make_episode(number)
        for k, (frame, action) in enumerate(zip(film, measurements["actions"], strict=True)):
            writer.write({"__key__": f"{number:04d}/{k:04d}", ".png": frame, ".npy": np.array(action, np.float32)})
steps = wids.ShardListDataset(writer.index, transformations="torch")
delta_timestamps = {".png": [-1 / fps, 0.0], ".npy": [k / fps for k in range(16)]}
offsets = {name: [round(t * fps) for t in times] for name, times in delta_timestamps.items()}
episode_of = np.arange(len(steps)) // frames  # a number for each sample; a column's name does, too
policy = steps.windows(offsets=offsets, by=episode_of, pad="repeat", stack=torch.stack)
last = policy[frames - 3]
print({name: tuple(last[name].shape) for name in (".png", ".npy")}, "padded:", last["__pad__"][".npy"].astype(int))

# %% [markdown]
# | the data | a sample | windows |
# |---|---|---|
# | films, decoded as they are read: small on disk, a key frame and what follows it is decoded for each clip | an episode: `.mp4`, `.json` | `wids.lazy`, and a random clip of each, or each window once (`Clips`) |
# | frames as pictures: ten times larger, any frame costs the same | a frame: `.jpg`, `.npy` | `dataset.windows` |
# | measurements alone | a frame, or a stretch of them as one array | `dataset.windows` |

# %%
if served is not None:
    display(pd.DataFrame({"kB read for a clip": read}).round(0))
