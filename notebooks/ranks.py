"""Draw the picture of README.md: ranks by steps, and what each downloads (``python notebooks/ranks.py [FILE]``).

The batches and downloads are those of `equal-batches`: its cells are run up to the first table, and they share out one
odd dataset in three ways, read every sample, and count what was fetched.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import jupytext
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle
from PIL import Image

HERE = Path(__file__).resolve().parent
LAST_CELL = "epoch_table = "  # of those that are run
GOOD, BAD, GREY = "#0072B2", "#C8500A", "#5A6068"
TITLES = {
    "shards dealt": "Shards dealt to ranks and workers, as WebDataset does",
    "DistributedSampler": "torch's DistributedSampler",
    "wids": "wids.DistributedChunkedSampler",
}


def run_cells() -> dict:
    """The names that the notebook's cells define up to its first table."""
    names: dict = {"__name__": "equal-batches"}
    for cell in jupytext.read(HERE / "text" / "equal-batches.py").cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, "equal-batches", "exec"), names)
            if LAST_CELL in cell.source:
                return names
    raise RuntimeError(f"no cell of equal-batches has {LAST_CELL!r}")


def draw(names: dict, path: str) -> None:
    """Draw the three ways, one below the other, 800 pixels wide at half of the file's size."""
    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9.5})
    world, size, shard_of = names["world_size"], names["batch_size"], names["shard_of"]
    colours = plt.get_cmap("viridis")(np.linspace(0, 1, len(names["lengths"])))
    ways = list(TITLES)
    most = max(len(batches) for way in ways for batches, *_ in names["epochs"][way, world])
    figure, axes = plt.subplots(len(ways), 1, figsize=(8, 5.5), dpi=200, facecolor="white")
    figure.subplots_adjust(left=0.07, right=0.99, top=0.915, bottom=0.06, hspace=0.46)
    gap, cell = 0.9, 0.42  # between the steps and the downloads; the width of a download
    for ax, way in zip(axes, ways, strict=True):
        known, ranks = names["facts"](way, world), names["epochs"][way, world]
        steps = known["steps together"]
        for rank, (batches, _, fetched) in enumerate(ranks):
            for step, batch in enumerate(batches):
                row = np.ones((1, size, 4))
                row[0, : len(batch)] = colours[shard_of[batch]]
                ax.imshow(
                    row,
                    extent=(step + 0.05, step + 0.95, rank + 0.38, rank - 0.38),
                    aspect="auto",
                    interpolation="nearest",
                )
                if step >= steps:
                    ax.add_patch(Rectangle((step, rank - 0.4), 1, 0.8, color="white", alpha=0.75, lw=0))
            shards = sorted({int(shard_of[i]) for batch in batches for i in batch})
            assert len(shards) == fetched, f"{way}: rank {rank} read {len(shards)} shards and fetched {fetched}"
            for place, shard in enumerate(shards):
                left = most + gap + place * cell
                ax.add_patch(Rectangle((left, rank - 0.38), cell * 0.82, 0.76, color=colours[shard], lw=0))
        hangs = steps < max(len(batches) for batches, *_ in ranks)
        lost, downloads = known["samples not reached"], known["fetched in all"]
        if hangs:
            first = min(range(world), key=lambda rank: len(ranks[rank][0]))
            ax.plot([steps, steps], [-0.55, world - 0.45], color=BAD, lw=2.5)
            ax.text(
                steps + 0.12, first, f"rank {first} has no batch left;\nthe others wait for ever", color=BAD,
                va="center", fontweight="bold", linespacing=1.15,
            )  # fmt: skip
            verdict = f"hangs at step {steps + 1}; {lost} of {names['count']} samples are not read"
        else:
            verdict = f"{steps} steps on every rank, every sample read"
        is_ours = way == "wids"
        colour = BAD if hangs else GOOD if is_ours else GREY
        ax.text(0.05, -0.98, TITLES[way], fontweight="bold", fontsize=11, color=colour, va="bottom")
        ax.text(0.05, -0.94, verdict, va="top", color="black")
        ax.text(
            most + gap, -0.98, f"{downloads} downloads", fontweight="bold", fontsize=11, va="bottom",
            color=GOOD if is_ours else BAD if downloads > 2 * len(names["lengths"]) else GREY,
        )  # fmt: skip
        ax.set_xlim(0, most + gap + cell * len(names["lengths"]))
        ax.set_ylim(world - 0.4, -0.6)
        ax.set_yticks(range(world), [f"rank {rank}" for rank in range(world)])
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    below = {"va": "top", "color": GREY}
    axes[-1].text(0.05, world - 0.35, f"one box: a step, a batch of {size} samples; one colour: a shard", **below)
    axes[-1].text(most + gap + cell * len(names["lengths"]), world - 0.35, "shards of each rank", ha="right", **below)
    drawn = io.BytesIO()
    figure.savefig(drawn)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(64).save(path, "PNG", optimize=True)


if __name__ == "__main__":
    draw(run_cells(), sys.argv[1] if len(sys.argv) > 1 else str(HERE / "ranks.png"))
