"""A lane of an epoch, from its definition, in plain Python: slow, and simple enough to be believed."""

from wids.core.order.permutation import PARTS, ROUNDING, SAMPLES, permutation, random_words


def slow_lane(chunks, *, window, seed, epoch, is_shuffled):
    """The samples of chunks (lists of consecutive samples) in the lane's order.

    Slot k mixes chunks k .. k + window - 1. A chunk is permuted, and split over the slots that hold it.
    """
    if not is_shuffled or not chunks:
        return [i for chunk in chunks for i in chunk]

    def permuted(items, stream, position):
        order = permutation(len(items), seed=seed, epoch=epoch, stream=stream, position=position)
        return [items[i] for i in order]

    # An empty chunk begins where it would.
    starts = [chunk[0] if chunk else chunk.start for chunk in chunks]
    window = min(window, len(chunks))
    slots = [[] for _ in range(len(chunks) - window + 1)]
    words = random_words(len(chunks), seed=seed, epoch=epoch, stream=ROUNDING, position=starts[0]).tolist()
    for j, chunk in enumerate(chunks):
        holders = [slot for k, slot in enumerate(slots) if k <= j < k + window]
        samples = list(chunk) if window == 1 else permuted(list(chunk), PARTS, starts[j])
        rounding, at = words[j] % len(holders), 0
        for number, slot in enumerate(holders, 1):
            end = (number * len(samples) + rounding) // len(holders)
            slot.extend(samples[at:end])
            at = end
    return [i for k, slot in enumerate(slots) for i in permuted(slot, SAMPLES, starts[k])]
