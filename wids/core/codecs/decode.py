"""Turn the bytes of a sample's members into values, by their extension.

Only keys that start with "." are decoded, and only if they hold bytes; a field with an unknown extension keeps its
bytes. So do sounds and the extensions of `UNASKED`, which wids 0.1 did not decode, unless the caller asks for them: a
program that never looks at such a field must not fail by it. Decoders that the program registered go before the
built-in ones (`wids.core.codecs.decoders`). Every failure is a `DecodeError` that names shard, key and field.
"""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from wids.core.codecs.decoders import SOUND_EXTENSIONS, Decoder, Options, decode_gzipped, find_decoder
from wids.core.order.validation import suggest_names
from wids.core.tables.fields import Alternatives, FieldNames
from wids.errors import DecodeError, DependencyError, InputError, UnsafeFormatError

_Plan = dict[str, Decoder | None]

# Built-in decoders that work only on request to a `SampleDecoder`; those of sounds are not among `UNASKED`, which needs
# no more packages than wids does.
UNASKED = frozenset({"gif", "bmp", "tif", "tiff", "npz", "jsonl", "msgpack", "index"})
_ON_REQUEST = UNASKED.union(SOUND_EXTENSIONS)

_FORMATS = {"pil": "PIL", "numpy": "numpy", "torch": "torch", "raw": "raw"}
_BINARY = (io.BytesIO, bytes, bytearray, memoryview)

DEFAULT_INFLATE_BYTES = 1 << 30
_CACHED_FIELDS = 1024  # file names with many dots make every field of a shard a new one


class _Registry:
    """The user's decoders in this process; `current` is replaced, never changed, so its identity is its version."""

    __slots__ = ("current", "lock")

    def __init__(self) -> None:
        self.current: Mapping[str, Decoder] = {}
        self.lock = threading.Lock()

    def add(self, name: str, decoder: Decoder) -> None:
        with self.lock:  # two threads that copy the same mapping would lose one registration
            self.current = {**self.current, name: decoder}


_registry = _Registry()


@suggest_names
def register_decoder(extension: str, decoder: Decoder) -> None:
    """Decode members of this extension with ``decoder``, in every format but "raw".

    It takes the place of the built-in decoder and of an earlier registration. The longest registered
    extension wins, so ".seg.png" goes before ".png". With ".gz" on top of it, it is given the inflated bytes.

    Args:
        extension: ".seg.png" or "seg.png"; case does not matter.
        decoder: called with the member's bytes, returns its value. To reach DataLoader workers that are
            spawned it must pickle: a function at module level, not a lambda.

    Raises:
        ValueError: the extension is empty or has an empty part.
        TypeError: the decoder cannot be called.

    Example:
        >>> wids.register_decoder(".hex", bytes.hex)
        >>> wids.SampleDecoder()({".hex": b"wids"})
        {'.hex': '77696473'}
    """
    name = extension.removeprefix(".").lower()
    if not all(name.split(".")):
        raise ValueError(f"{extension!r} is not an extension; give one like '.png' or '.seg.png'")
    if not callable(decoder):
        raise TypeError(f"the decoder for {extension!r} must be callable, got {type(decoder).__name__}")
    _registry.add(name, decoder)


class SampleDecoder:
    """Decode the members of a sample; call it with a sample, get a new dict.

    Keys stay as they are (".txt.gz" becomes a str under ".txt.gz"). Images are loaded whole, first frame, mode
    untouched. Registrations made in this process count from the next call on. A pickled decoder carries those of
    its process along; in the process that unpickles it, they go before those registered there until then.

    Args:
        format: "PIL": images are `PIL.Image.Image`. "numpy": images are arrays, H W C or H W. "torch": images are
            tensors, C H W or 1 H W in memory order H W C, and .npy and .npz give tensors where torch has the dtype.
            Both kinds are writable and the caller's own. "raw": every member becomes bytes, nothing is inflated or
            parsed.
        allow_pickle: decode .pkl and .pickle, objects in .pt, .pth, .npy and .npz. This runs code from the shard.
        max_inflate_bytes: the most that one .gz or .npz member may inflate to, and a sound's waveform take.
        also: members to decode that are left alone otherwise, an extension or several of .gif, .bmp, .tif, .tiff, .npz,
            .jsonl, .msgpack and .index, and of sounds .flac, .wav, .mp3, .ogg and .opus: (waveform, sample rate), the
            waveform float32 (channels, frames), an array or for "torch" a tensor, the rate an int in Hz. Sounds take
            soundfile: ``pip install 'wids[sounds]'``.

    Raises:
        ValueError: an unknown format, a negative bound, or an extension in ``also`` that is none of these.

    Example:
        >>> decode = wids.SampleDecoder()
        >>> decode({".txt": b"a text", ".cls": b"7", ".json": b"[1]"})
        {'.txt': 'a text', '.cls': 7, '.json': [1]}
    """

    __slots__ = ("_carried", "_options", "_plan")
    _options: Options
    _carried: tuple[Mapping[str, Decoder], Mapping[str, Decoder]] | None  # registered at unpickling; pickled along
    _plan: tuple[Mapping[str, Decoder] | None, _Plan]  # the registrations it was made from; field -> decoder

    @suggest_names
    def __init__(
        self,
        format: Literal["PIL", "numpy", "torch", "raw"] = "PIL",  # noqa: A002 - the original's public keyword
        *,
        allow_pickle: bool = False,
        max_inflate_bytes: int = DEFAULT_INFLATE_BYTES,
        also: str | Iterable[str] = (),
    ) -> None:
        name = _FORMATS.get(str(format).lower())
        if name is None:
            raise ValueError(f"unknown format {format!r}; choose one of {', '.join(_FORMATS.values())}")
        if max_inflate_bytes < 0:
            raise ValueError(f"max_inflate_bytes must not be negative, got {max_inflate_bytes}")
        self.__setstate__((Options(name, bool(allow_pickle), int(max_inflate_bytes), _parse_also(also)), {}))

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of `sample` with its members decoded.

        Args:
            sample: extensions (".jpg") to `io.BytesIO` or bytes, and "__key__", "__shard__", ...; it is not changed,
                and neither are its streams' positions.

        Raises:
            DecodeError: a member cannot be decoded; `__cause__` is the error of its decoder.
            UnsafeFormatError: a member can only be decoded by running code from it.
            DependencyError: there are sounds to decode, and soundfile is not installed.
        """
        seen, plan = self._plan  # read once: another thread may put a new pair there
        if seen is not _registry.current:
            plan = self._renew_plan()
        result = dict(sample)
        for field, value in sample.items():
            if not field.startswith(".") or not isinstance(value, _BINARY):
                continue
            try:
                decoder = plan[field]
            except KeyError:
                decoder = _resolve(field, self._registered(), self._options)
                if len(plan) < _CACHED_FIELDS:
                    plan[field] = decoder
            if decoder is None:
                continue
            try:
                result[field] = decoder(value.getvalue() if isinstance(value, io.BytesIO) else bytes(value))
            except (MemoryError, DependencyError):  # say something about the machine, not about the member
                raise
            except Exception as error:
                raise _explain(error, sample, field) from error
        return result

    def _registered(self) -> Mapping[str, Decoder]:
        """Return the registrations that count here: those carried along, and newer ones of this process."""
        live = _registry.current
        if self._carried is None:
            return live
        found_there, carried = self._carried
        newer = {name: decoder for name, decoder in live.items() if found_there.get(name) is not decoder}
        return {**found_there, **carried, **newer}

    def _renew_plan(self) -> _Plan:
        plan: _Plan = {}
        self._plan = (_registry.current, plan)
        return plan

    def __getstate__(self) -> tuple[Options, Mapping[str, Decoder]]:
        return self._options, self._registered()

    def __setstate__(self, state: tuple[Options, Mapping[str, Decoder]]) -> None:
        self._options, carried = state
        self._carried = (_registry.current, carried) if carried else None
        self._plan = (None, {})

    def __repr__(self) -> str:
        name, allow_pickle, bound, also = self._options
        extra = f", also={sorted(also)}" if also else ""
        return f"SampleDecoder({name!r}, allow_pickle={allow_pickle}, max_inflate_bytes={bound}{extra})"

    def __eq__(self, other: object) -> bool:
        return self._options == other._options if isinstance(other, SampleDecoder) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._options)


def parse_transformations(value: Any, **decoding: Any) -> list[Callable[[Any], Any]]:
    """The functions that ``transformations=`` of a dataset stands for: a format, a function, a list of these, or none.

    Args:
        value: the argument.
        **decoding: for the `SampleDecoder` of a format.

    Raises:
        TypeError: one is neither a format nor callable.
        ValueError: an unknown format.
    """
    if value is None:
        return []
    listed = value if isinstance(value, (list, tuple)) else [value]
    steps = [SampleDecoder(cast("Any", step), **decoding) if isinstance(step, str) else step for step in listed]
    for step in steps:
        if not callable(step):
            raise TypeError(f"transformation {step!r} is neither one of {(*_FORMATS.values(),)} nor callable")
    return steps


def name_fields(steps: Sequence[Callable[[Any], Any]], fields: Collection[str] | None) -> list[Callable[[Any], Any]]:
    """Transformations, with the one that names ``fields`` where decoders, which go by extensions, are done.

    Args:
        steps: the transformations; such a step that is among them already is replaced.
        fields: of the dataset; without names, the steps stay as they are.

    Raises:
        InputError: a decoder comes after a function, which has the names.
    """
    if not isinstance(fields, Alternatives) or fields.names is None:
        return list(steps)
    naming = FieldNames(fields)
    others = [step for step in steps if step != naming]
    count = next((k for k, step in enumerate(others) if not isinstance(step, SampleDecoder)), len(others))
    late = [step for step in others[count:] if isinstance(step, SampleDecoder)]
    if late:
        raise InputError(
            f"transformations: {late[0]!r} comes after a function, and goes by extensions; with "
            f"fields={fields!r} members have names by then: put it first"
        )
    return [*others[:count], naming, *others[count:]]


def _resolve(field: str, registered: Mapping[str, Decoder], options: Options) -> Decoder | None:
    """Return the decoder for a field like ".seg.png.gz", or None when its members stay as they are."""
    if options.format == "raw":
        return bytes
    suffix = field[1:].lower()
    decoder = _lookup(suffix, registered, options)
    if decoder is not None or not suffix.endswith(".gz"):
        return decoder
    # The format inside may be unknown: it is inflated all the same, as the original did.
    return functools.partial(decode_gzipped, _lookup(suffix[:-3], registered, options) or io.BytesIO, options)


def _lookup(suffix: str, registered: Mapping[str, Decoder], options: Options) -> Decoder | None:
    rest = suffix
    while rest:  # the longest first
        if rest in registered:
            return registered[rest]
        rest = rest.partition(".")[2]
    name = suffix.rpartition(".")[2]
    return None if name in _ON_REQUEST - options.also else find_decoder(name, options)


def _parse_also(also: str | Iterable[str]) -> frozenset[str]:
    names = frozenset(name.removeprefix(".").lower() for name in ([also] if isinstance(also, str) else also))
    if unknown := names - _ON_REQUEST:
        raise ValueError(f"also has {sorted(unknown)}; choose from {', '.join(sorted(_ON_REQUEST))}")
    return names


def _explain(error: Exception, sample: Mapping[str, Any], field: str) -> DecodeError:
    """Return the error for the caller: the place, the cause and the remedy."""
    shard, key, index = sample.get("__shard__"), sample.get("__key__"), sample.get("__index__")
    subject = f"{field} of sample {key!r}" + ("" if index is None else f" (index {index})") + f" in shard {shard}"
    if isinstance(error, DecodeError):
        story = str(error)  # from below: it already says what to do
    else:
        story = (
            f"{type(error).__name__}: {error}. The member is damaged or not what its extension says; repair it, "
            "read other fields only, or register another decoder with wids.register_decoder"
        )
    kind = UnsafeFormatError if isinstance(error, UnsafeFormatError) else DecodeError
    return kind(f"cannot decode {subject}: {story}", shard=shard, key=key, field=field)
