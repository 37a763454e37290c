"""``wids.wids_decode`` of the original: the decoder behind ``transformations="PIL"``, and its steps one by one.

A step changes the sample in place and returns it, as the original's did, so it may also be called for its
effect. The decoders themselves are in `wids.core.codecs.decoders`.
"""

from __future__ import annotations

import functools
import io
import warnings
from typing import TYPE_CHECKING, Any, Literal

from wids.core.codecs.decode import SampleDecoder
from wids.core.codecs.decoders import Options, decode_gzipped
from wids.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Collection

    Sample = dict[str, Any]

_IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "ppm", "pgm", "pbm", "pnm"})
_BASIC = frozenset({"txt", "text", "cls", "cls2", "json", "npy", "mp", "pt", "pth", "pkl", "pickle", "safetensors"})
_INFLATE = Options("raw", allow_pickle=False, max_inflate_bytes=1 << 30)
_GZIP_MAGIC = b"\x1f\x8b"

_decoder = functools.cache(SampleDecoder)


def check_keys(sample: Sample) -> Sample:
    """The sample, whose fields start with a dot, except ``__names__``; else `DecodeError` names the field."""
    for name in sample:
        if not name.startswith((".", "__")):
            shard, key = sample.get("__shard__"), sample.get("__key__")
            raise DecodeError(
                f"sample {key!r} has a field {name!r}; fields start with a dot, like {'.' + name!r}",
                shard=shard,
                key=key,
                field=name,
            )
    return sample


def decode_all_gz(sample: Sample, format: object = True, update_key: bool = True) -> Sample:  # noqa: ARG001 - as below
    """Inflate fields like ``.txt.gz``, into ``.txt``; ``update_key=False`` keeps their names. `io.BytesIO` each."""
    for name, value in list(check_keys(sample).items()):
        inner, _, kind = name.rpartition(".")
        if kind.lower() != "gz" or name.startswith("__"):
            continue
        if not inner:
            warnings.warn("a field with the plain name .gz is not inflated", stacklevel=2)
            continue
        try:
            inflated = io.BytesIO(decode_gzipped(bytes, _INFLATE, _bytes_of(value)))
        except Exception as error:
            shard, key = sample.get("__shard__"), sample.get("__key__")
            raise DecodeError(
                f"cannot inflate {name} of sample {key!r} in shard {shard}: {error}", shard=shard, key=key, field=name
            ) from error
        if update_key:
            del sample[name]
        sample[inner if update_key else name] = inflated
    return sample


def decode_basic(sample: Sample, format: object = True, *, allow_pickle: bool = False) -> Sample:  # noqa: ARG001
    """Decode text, numbers, JSON, arrays, msgpack, tensors; ``format`` is accepted as the original did, and unused.

    Args:
        sample: changed in place. Fields that `decode_all_gz` inflated are decoded by the extension inside.
        format: unused.
        allow_pickle: decode ``.pkl``, and objects in ``.npy`` and ``.pt``; that runs code from the shard.

    Raises:
        DecodeError: a member cannot be decoded, or (`UnsafeFormatError`) not without running code from it.
    """
    return _decode(sample, _BASIC, _decoder("PIL", allow_pickle=allow_pickle))


def decode_images_to_pil(sample: Sample, format: object = True) -> Sample:  # noqa: ARG001
    """Decode images to `PIL.Image.Image`."""
    return _decode(sample, _IMAGES, _decoder("PIL"))


def decode_images_to_numpy(sample: Sample, format: object = True) -> Sample:  # noqa: ARG001
    """Decode images to arrays, H W C or H W."""
    return _decode(sample, _IMAGES, _decoder("numpy"))


def default_decoder(
    sample: Sample, format: Literal["PIL", "numpy", "torch", "raw"] = "PIL", gz_update_key: bool = False
) -> Sample:
    """Decode a copy of a sample; ``gz_update_key`` drops ``.gz`` from the names of the fields that had it."""
    decoded = _decoder(format)(sample)
    if not gz_update_key:
        return decoded
    return {_inner_name(name) if value is not sample[name] else name: value for name, value in decoded.items()}


def _decode(sample: Sample, kinds: Collection[str], decoder: SampleDecoder) -> Sample:
    """Decode the fields whose last extension is one of ``kinds``."""
    about = {name: value for name, value in check_keys(sample).items() if name.startswith("__")}
    for name, value in sample.items():
        inner = _inner_name(name)
        if name in about or inner.rpartition(".")[2].lower() not in kinds:
            continue
        field = name if _is_gzip(value) else inner
        sample[name] = decoder({**about, field: value})[field]  # no name is added, so the loop goes on
    return sample


def _bytes_of(value: Any) -> Any:
    return value.getvalue() if isinstance(value, io.BytesIO) else value


def _is_gzip(value: Any) -> bool:
    data = _bytes_of(value)
    return isinstance(data, bytes) and data.startswith(_GZIP_MAGIC)


def _inner_name(name: str) -> str:
    return name[:-3] if name.startswith(".") and name.lower().endswith(".gz") and len(name) > 3 else name
