"""A stand-in for a bucket in these notebooks: small real data, packed in shards and served over HTTP on loopback.

Nothing is downloaded from the internet; all files are in temporary directories that are removed when the process ends.
For shards of your own this module is not needed: the notebooks take the URL of an index.

    python notebooks/bucket.py           serves the digits until Ctrl-C, and prints the URLs of their indexes
    python notebooks/bucket.py photos    the same with patches of two photographs
"""

from __future__ import annotations

import argparse
import atexit
import io
import itertools
import os
import signal
import tempfile
from collections import Counter
from typing import TYPE_CHECKING, Any

import wids
from wids.testing import Server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np

DIGIT_CLASSES = tuple("0123456789")
PHOTO_CLASSES = ("china", "flower")
SIDE_PX = 32  # of a digit; scikit-learn's have 8
PATCH_PX = 80


class Bucket:
    """A directory served over HTTP.

    Args:
        directory: the directory to serve; default: a temporary one.
        latency: seconds before the first byte of a response.
        rate: bytes per second of a connection after that.
        has_ranges: whether the server answers byte ranges; without them, each download of a shard is one request.

    Attributes:
        directory: the directory.
        url: its URL.
        train, test: the URLs of the indexes.
    """

    def __init__(
        self,
        directory: str | None = None,
        *,
        latency: float = 0,
        rate: float = float("inf"),
        has_ranges: bool = False,
    ) -> None:
        self.directory = temporary("bucket") if directory is None else directory
        self._server = Server(self.directory, latency_seconds=latency, bytes_per_second=rate, has_ranges=has_ranges)
        atexit.register(self._server.close)
        self.url = self._server.url
        self.train = f"{self.url}/train.json"
        self.test = f"{self.url}/test.json"

    @property
    def requests(self) -> dict[str, int]:
        """Name of a shard -> number of requests for it so far."""
        names = sorted(os.path.basename(path) for path in self._server.requests if path.endswith(".tar"))
        return dict(Counter(names))

    @property
    def sent_bytes(self) -> int:
        """Bytes of shards sent so far."""
        return sum(count for path, count in self._server.sent_bytes.items() if path.endswith(".tar"))


def temporary(name: str) -> str:
    """Make a temporary directory that is removed when this process ends (not when a child process does)."""
    directory = tempfile.TemporaryDirectory(prefix=f"wids-{name}-")
    atexit.register(directory.cleanup)
    return directory.name


def digits(directory: str | None = None, *, samples: int = 150, **serving: Any) -> Bucket:
    """Serve scikit-learn's 1,797 handwritten digits (UCI, 43 writers), every fourth of them in the test set.

    A sample has ``.jpg`` (32 x 32 pixels, grey) and ``.cls``.

    Args:
        directory: the directory for the shards; default: a temporary one.
        samples: samples in a shard.
        serving: more arguments of `Bucket`: latency, rate, has_ranges.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    bucket = Bucket(directory, **serving)
    numbered = list(enumerate(zip(data.images, data.target, strict=True)))
    for split, taken in (("train", [n % 4 != 0 for n, _ in numbered]), ("test", [n % 4 == 0 for n, _ in numbered])):
        _write(
            bucket,
            split,
            ((f"digit-{n:04d}", image * 15.9, int(label)) for n, (image, label) in itertools.compress(numbered, taken)),
            samples=samples,
            classes=DIGIT_CLASSES,
        )
    return bucket


def photos(directory: str | None = None, *, samples: int = 16, step: int = PATCH_PX, **serving: Any) -> Bucket:
    """Serve patches of scikit-learn's two sample photographs, a temple and a flower; every fourth in the test set.

    A sample has ``.jpg`` (80 x 80 pixels, RGB) and ``.cls``.

    Args:
        directory: the directory for the shards; default: a temporary one.
        samples: samples in a shard.
        step: pixels from one patch to the next; patches overlap if it is below their side, and there are more of them.
        serving: more arguments of `Bucket`: latency, rate, has_ranges.
    """
    from sklearn.datasets import load_sample_images

    pictures = load_sample_images().images
    bucket = Bucket(directory, **serving)
    patches = [patch for label, picture in enumerate(pictures) for patch in _patches(picture, label, step)]
    for split, is_test in (("train", False), ("test", True)):
        taken = (patch for n, patch in enumerate(patches) if (n % 4 == 0) == is_test)
        _write(bucket, split, taken, samples=samples, classes=PHOTO_CLASSES)
    return bucket


def _patches(picture: np.ndarray, label: int, step: int) -> Iterator[tuple[str, np.ndarray, int]]:
    height, width = picture.shape[:2]
    for y in range(0, height - PATCH_PX + 1, step):
        for x in range(0, width - PATCH_PX + 1, step):
            yield f"{PHOTO_CLASSES[label]}-{y:03d}-{x:03d}", picture[y : y + PATCH_PX, x : x + PATCH_PX], label


def _write(
    bucket: Bucket,
    split: str,
    samples_of: Iterable[tuple[str, np.ndarray, int]],
    *,
    samples: int,
    classes: tuple[str, ...],
) -> None:
    pattern = os.path.join(bucket.directory, f"{split}-%06d.tar")
    with wids.ShardWriter(pattern, samples=samples, info={"classes": classes}) as writer:
        for key, pixels, label in samples_of:
            writer.write({"__key__": key, ".jpg": _jpeg(pixels), ".cls": label})


def _jpeg(pixels: np.ndarray) -> bytes:
    from PIL import Image

    image = Image.fromarray(pixels.astype("uint8"))
    if image.width < SIDE_PX:
        image = image.resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=95)
    return stream.getvalue()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="Serve small real data in shards, over HTTP on loopback.")
    parser.add_argument("what", nargs="?", choices=("digits", "photos"), default="digits")
    bucket = {"digits": digits, "photos": photos}[parser.parse_args().what]()
    print(bucket.train)
    print(bucket.test, flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        signal.pause()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
