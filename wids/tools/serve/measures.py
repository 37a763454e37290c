"""Statistics of an array for people: least, mean, greatest, spread, how many are no numbers, a histogram."""

from __future__ import annotations

from typing import Any

_BINS = 40
# For the histogram of a larger array, numbers at equal distances are used.
_MAX_COUNTED = 1 << 22


def measure(value: Any) -> dict[str, Any]:
    """The statistics of an array or a tensor of the CPU.

    Returns:
        ``shape``, ``dtype``, ``size`` (numbers). For real numbers ``nans`` and ``infinities`` (counts), and of the
        others ``min``, ``max``, ``mean``, ``std`` (floats; of whole numbers, min and max are ints) and ``histogram``
        (counts of equal steps from min to max).
    """
    import numpy as np

    dtype = str(value.dtype).removeprefix("torch.")
    if hasattr(value, "detach"):
        value = value.detach()
        value = (value.float() if value.dtype.is_floating_point and value.dtype.itemsize < 4 else value).numpy()
    found = {"shape": [int(size) for size in value.shape], "dtype": dtype, "size": int(value.size)}
    if value.dtype.kind not in "biuf" or not value.size:
        return found
    is_known = np.isfinite(value)
    nans = int(np.isnan(value).sum())
    known = value[is_known]
    found |= {"nans": nans, "infinities": int(value.size - known.size) - nans}
    if not known.size:
        return found
    low, high = known.min(), known.max()
    with np.errstate(all="ignore"):  # sums of the greatest doubles
        found |= {"mean": float(known.mean(dtype=np.float64)), "std": float(known.std(dtype=np.float64))}
        some = known.ravel()[:: -(-known.size // _MAX_COUNTED)].astype(np.float64)
        span = float(high) / 2 - float(low) / 2
        places = ((some / 2 - float(low) / 2) / span * _BINS).astype(np.int64) if span > 0 else np.zeros(1, np.int64)
    counts = np.bincount(np.clip(places, 0, _BINS - 1), minlength=_BINS) if span > 0 else np.asarray([some.size])
    is_whole = known.dtype.kind in "biu"
    return {
        **found,
        "min": int(low) if is_whole else float(low),
        "max": int(high) if is_whole else float(high),
        "histogram": counts.tolist(),
    }
