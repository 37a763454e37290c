"""``wids.wids_tar`` of the original: the members of one local tar by number."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from wids.legacy.wids_mmtar import MMIndexedTar
else:
    from wids.wids_mmtar import MMIndexedTar  # the name it has for users; the other one would be a second module

__all__ = ["TarFileReader", "find_index_file"]


def find_index_file(file: str) -> str:
    """The path of the original's pickled index beside a tar; it is neither read nor written any more."""
    return f"{file}.index"


class TarFileReader(MMIndexedTar):
    """Members of a tar: ``fnames[i]``, ``index[i]`` is (data offset, size in bytes). Owns the stream it is given."""

    index: np.ndarray[Any, np.dtype[np.int64]]
    fnames: list[str]

    def __init__(
        self,
        file: str | os.PathLike[str] | BinaryIO,
        index_file: object = find_index_file,  # noqa: ARG002 - programs pass it; it was a pickle, and is not used
        verbose: bool = True,  # noqa: ARG002 - nothing is printed
    ) -> None:
        super().__init__(file)
        self.fnames = [name for name, _, _ in self.by_index]
        self.index = np.array([(offset, size) for _, _, offset, size in self.members], np.int64).reshape(-1, 2)

    def names(self) -> list[str]:  # type: ignore[override]  # a list here, dict keys there: as in the original
        return self.fnames
