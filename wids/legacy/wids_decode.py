"""``wids.wids_decode`` of the original: the decoder behind ``transformations="PIL"``."""

from __future__ import annotations

from typing import Any, Literal

from wids.decode import SampleDecoder


def default_decoder(
    sample: dict[str, Any], format: Literal["PIL", "numpy", "torch", "raw"] = "PIL", gz_update_key: bool = False
) -> dict[str, Any]:
    """Decode a sample; ``gz_update_key`` drops ``.gz`` from the names of the fields that had it."""
    decoded = SampleDecoder(format)(sample)
    if not gz_update_key:
        return decoded
    return {_inner_name(name) if value is not sample[name] else name: value for name, value in decoded.items()}


def _inner_name(name: str) -> str:
    return name[:-3] if name.startswith(".") and name.endswith(".gz") and len(name) > 3 else name
