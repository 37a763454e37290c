"""A tiny language model that is trained on packs, by any number of ranks, and goes on from its last checkpoint.

    python with_packs.py INDEX CHECKPOINT WORKERS

The checkpoint has the state of the loader, the model, and what all ranks have read together: the number of tokens, and
the sum of a hash of each (sample, number, token). Rank 0 prints a line after each step.
"""

import os
import sys

import numpy as np
import torch
import torch.distributed
import torch.nn.functional as F  # noqa: N812

import wids

VOCABULARY, WIDTH, SEPARATOR = 64, 16, 0
_MASK = (1 << 61) - 1


class Model(torch.nn.Module):
    """A layer of attention within documents."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch):
        """The loss of a batch."""
        documents, n = batch["doc_ids"], batch["doc_ids"].shape[1]
        mask = (documents[:, :, None] == documents[:, None, :]) & torch.ones(n, n, dtype=torch.bool).tril()
        q, k, v = self.qkv(self.embed(batch["input_ids"])).chunk(3, dim=-1)
        logits = self.head(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        labels = batch["labels"][:, 1:].reshape(-1)
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), labels, ignore_index=-100, reduction="sum")


class Collate:
    """The tensors of packs, and hashes of the tokens that are read."""

    def __init__(self):
        self._pack = wids.pack_collate("tokens", pack_tokens=128, separator=SEPARATOR)

    def __call__(self, samples):
        """Make the tensors."""
        read = 0
        for sample in samples:
            first, last = sample["__piece__"]
            tokens = [*sample["tokens"][first:last].tolist(), *[SEPARATOR] * (last > len(sample["tokens"]))]
            for number, token in enumerate(tokens, first):
                read += hash((sample["__index__"], number, token)) & _MASK
        return {
            **self._pack(samples),
            "read": read & _MASK,
            "count": sum(p[1] - p[0] for p in (s["__piece__"] for s in samples)),
        }


def main(index, checkpoint, workers):
    """Train to the end of two epochs."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = wids.ShardListDataset(index, fields={"tokens": ".npy"})
    sampler = wids.DistributedChunkedSampler(dataset, seed=5, chunksize=20, lanes=6)
    packs = wids.PackSampler(
        sampler, lengths=np.load(f"{index}.npy"), pack_tokens=128, batch_size=2, separators=1, block=40
    )
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=packs, collate_fn=Collate(), num_workers=workers)
    loader, model, read, count = wids.resumable(loader), Model(), 0, 0
    start = 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        loader.load_state_dict(saved["loader"])
        model.load_state_dict(saved["model"])
        start, read, count = saved["epoch"], saved["read"], saved["count"]
    for epoch in range(start, 2):
        packs.set_epoch(epoch)
        for batch in loader:
            model.zero_grad()
            model(batch).backward()
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.grad)
                parameter.data -= 1e-4 * parameter.grad
            together = torch.tensor([batch["read"], batch["count"]])
            parts = [torch.empty_like(together) for _ in range(torch.distributed.get_world_size())]
            torch.distributed.all_gather(parts, together)
            read, count = (
                (read + sum(int(part[0]) for part in parts)) & _MASK,
                count + sum(int(part[1]) for part in parts),
            )
            if rank == 0:
                state = {"loader": loader.state_dict(), "model": model.state_dict(), "epoch": epoch}
                torch.save({**state, "read": read, "count": count}, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)
                print(count, flush=True)  # noqa: T201
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
