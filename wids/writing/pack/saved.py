"""Folders that Hugging Face's ``datasets`` saved (``save_to_disk``): their Arrow files, and fields for their columns.

Rules: rows are read by pyarrow, without ``datasets``. A column whose bytes are no pictures is an error: a guess would
name them wrongly.
"""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, Any

from wids.core.files.json_text import TOLERANT
from wids.core.transport.download import read_bytes
from wids.errors import FetchError, InputError, JsonError, shown
from wids.writing.pack.listing import PackColumn, find_picture
from wids.writing.pack.parquet import InRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.core.transport.session import Session
    from wids.writing.pack.parquet import ParquetRows

_STATE, _INFO = "state.json", "dataset_info.json"


def list_files(folder: str) -> list[str]:
    """The files of a saved dataset, in the order of its rows; []: this is none.

    Raises:
        InputError: it cannot be read, or is of a release that saved rows in another order.
    """
    folder = os.path.expanduser(folder)
    if not all(os.path.isfile(os.path.join(folder, name)) for name in (_STATE, _INFO)):
        return []
    try:
        state = _read(folder, _STATE)
        names = [str(each["filename"]) for each in state["_data_files"]]
    except (KeyError, TypeError):
        names = []
    if not names or any(os.path.basename(name) != name for name in names) or state.get("_indices_data_files"):
        raise InputError(
            f"{folder}: its {_STATE} names no Arrow files with its rows in order; save it again: "
            "datasets.load_from_disk(...).save_to_disk(...)",
            path=folder,
        )
    return [os.path.join(folder, name) for name in names]


def columns_of(files: list[str], session: Session) -> Iterator[PackColumn]:
    """The columns of a saved dataset and their fields, for `choose_fields`.

    A picture has the extension of the first one of its column, a class label is ``.cls``, and a text that is the only
    value is ``.txt``.

    Args:
        files: of it.
        session: see `list_rows`.

    Raises:
        InputError: a column holds bytes that are no pictures, or its files cannot be read.
    """
    from wids.writing.pack.parquet import ParquetRows

    rows, features = ParquetRows(files[0], session), _read(os.path.dirname(files[0]), _INFO).get("features")
    for name in rows.columns:
        feature = features.get(name) if isinstance(features, dict) else None
        kind = feature.get("_type") if isinstance(feature, dict) else None
        if kind == "Image":
            yield PackColumn(name, _find_extension(rows, name, session))
        elif "binary" in rows.types[name]:
            raise InputError(
                f"{files[0]}: column {shown(name)} holds bytes that are no pictures ({kind}); say what samples hold, "
                f"like .wav={name}",
                parameter="fields",
            )
        else:
            is_text = rows.types[name] in ("string", "large_string")
            yield PackColumn(name, ".cls" if kind == "ClassLabel" else "", ".txt" if is_text else ".json")


def _read(folder: str, name: str) -> dict[str, Any]:
    path = os.path.join(folder, name)
    try:
        found = TOLERANT.parse(read_bytes(path))
    except (FetchError, JsonError) as error:
        raise InputError(f"{path}: cannot be read ({error})", path=path) from error
    return found if isinstance(found, dict) else {}


def _find_extension(rows: ParquetRows, column: str, session: Session) -> str:
    """The extension of the first picture of a column."""
    from wids.writing.pack.parquet import read_content

    for row in rows.read((), (column,)):
        found = row.contents[column]
        if isinstance(found, InRow):
            return f".{next(iter(find_picture(read_content(found, session))), 'jpg')}"
        if found:
            return posixpath.splitext(found)[1].lower() or ".jpg"
    return ".jpg"
