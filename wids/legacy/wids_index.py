"""``widsindex create | update | info | sample`` of the original, with its flags."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from wids.core.files.atomic import write_atomically
from wids.core.files.replaced import ReplacedFile
from wids.core.index import writing
from wids.core.index.earlier import EarlierIndex
from wids.core.index.paths import check_index_replaceable
from wids.core.index.writing import shorten_name
from wids.core.place import Place
from wids.core.transport import urls
from wids.core.transport.download import read_bytes
from wids.errors import SpecError, WidsError
from wids.jobs.engines import run
from wids.jobs.index_edit import read_index
from wids.jobs.runner import RunOptions
from wids.jobs.scan import ScanTask, scan_shard
from wids.legacy import refuse
from wids.wids_specs import load_remote_dsdesc_raw, urldir  # by the name that it has for users, as in `wids.wids`

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "AtomicJsonUpdate",
    "format_with_suffix",
    "load_remote_dsdesc_raw",
    "main",
    "main_create",
    "main_info",
    "main_sample",
    "main_update",
    "shorten_name",
    "urldir",
]
_OUTPUT = "shardindex.json"
_RAW = "ShardListDataset(index, transformations='raw') gives bytes"
__getattr__: Callable[[str], NoReturn] = refuse(
    __name__,
    {
        "print_long_info": "main_info prints it; `wids info INDEX` says more",
        "urlfile": "use wids.core.place.Place(url).name",
        "urldirbase": "use wids.core.place.Place(url).directory",
        **dict.fromkeys(("maybe_read", "maybe_decode"), _RAW),
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except (WidsError, OSError, IndexError, KeyError) as error:
        print(f"widsindex: {error}", file=sys.stderr)
        return 1


def main_create(args: argparse.Namespace) -> None:
    sources = [line.strip() for line in sys.stdin if line.strip()] if args.files == ["-"] else args.files
    names = [name for source in sources for name in urls.expand(source)]
    if not names:
        raise SpecError("no shards to index")
    output = args.output or _OUTPUT
    path = os.path.abspath(output)
    earlier = EarlierIndex.read(path)
    # As in 0.1, an index of whatever shards is replaced.
    check_index_replaceable(path, shards=names, is_later=lambda _: True, overwrite=None)
    if earlier.entries and not earlier.lists(names):
        print(f"widsindex: {output}: {earlier.other_shards()}; it is replaced", file=sys.stderr)
    name = args.name
    if name is None:
        name = shorten_name(os.path.splitext(names[0])[0])
        print("setting name to", name)
    info = None
    if args.info is not None:
        with open(args.info, encoding="utf-8") as file:
            info = file.read()
    for shard in names:
        print(shard)
    tasks = [ScanTask(url=shard, checksums=("md5sum",)) for shard in names]
    options = RunOptions(engine="threads", jobs=os.cpu_count())
    with contextlib.closing(run(scan_shard, tasks, options)) as results:
        entries = [result.get().entry() for result in results]
    entries.sort(key=lambda entry: str(entry["url"]))
    with ReplacedFile(os.path.abspath(output), advice=None).alone():
        _write(output, writing.make_index(entries, name=name or None, info=info, base=args.base))


def main_update(args: argparse.Namespace) -> None:
    with AtomicJsonUpdate(args.filename) as index:
        for key in ("name", "info", "base"):
            if getattr(args, key):
                index[key] = getattr(args, key)
        if args.keep or args.nokeep:
            index["keep"] = args.keep
        shards = index["shardlist"]
        if args.rebase:
            bases = {str(Place(shard["url"]).directory) for shard in shards}
            if len(bases) != 1:
                raise SpecError(f"{args.filename}: --rebase needs shards in one directory, they are in {sorted(bases)}")
            index["base"] = bases.pop()
            print(f"rebasing to {index['base']}")
        if args.dir or args.nodir or args.rebase:
            for shard in shards:
                shard["url"] = os.path.join("" if args.nodir else args.dir, Place(shard["url"]).name)
            shards.sort(key=lambda shard: str(shard["url"]))
        index.setdefault("name", os.path.splitext(os.path.basename(args.filename))[0])


class AtomicJsonUpdate:
    """An index to change within the ``with`` block, written when that ends well; the old one stays as ``.bak``.

    Raises:
        OutputError: at the end: another program has written it meanwhile.
    """

    data: dict[str, Any]

    def __init__(self, filename: str) -> None:
        self.filename = filename

    def __enter__(self) -> dict[str, Any]:
        self._file = ReplacedFile(os.path.abspath(self.filename))
        self.data = read_index(self.filename)
        return self.data

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with self._file.alone():
                # A copy, not a rename: at no moment is there no index.
                write_atomically(f"{self.filename}.bak", read_bytes(self.filename))
                _write(self.filename, self.data)


def main_info(args: argparse.Namespace) -> None:
    if args.table:
        print("file\tname\tnbytes\tnsamples\tbase\tlast\tdatasets")
    for filename in args.filenames:
        index = read_index(filename)
        shards = index.get("shardlist") or []
        nbytes, nsamples = (sum(shard.get(key) or 0 for shard in shards) for key in ("filesize", "nsamples"))
        parts = index.get("datasets") or []
        last = shards[-1]["url"] if shards else ""
        if args.table:
            print(filename, index.get("name"), nbytes, nsamples, index.get("base"), last, len(parts), sep="\t")
            continue
        shown = {
            "name": index.get("name"),
            "info": index.get("info"),
            "base": f"{index.get('base')} (assumed: {Place(filename).directory})",
            "total size": format_with_suffix(nbytes),
            "total samples": format_with_suffix(nsamples),
            "avg sample size": format_with_suffix(nbytes // max(1, nsamples)),
            "avg shard size": format_with_suffix(nbytes // max(1, len(shards))),
            "first shard": shards[0]["url"] if shards else "",
            "last shard": last,
        }
        print("filename:", filename)
        for name, value in shown.items():
            print(f"{name:>16}: {value}")
        for part in parts:
            print(f"{'dataset':>16}: {part.get('name')} {part.get('source_url', '')}")
        print()


def main_sample(args: argparse.Namespace) -> None:
    from wids.dataset import ShardListDataset

    is_raw = args.raw or args.cat is not None
    dataset = ShardListDataset(args.filename, transformations="raw" if is_raw else "PIL")
    print("dataset size:", len(dataset), file=sys.stderr)
    sample = dataset[args.index]
    if args.cat is not None:
        if args.cat not in sample:
            raise SpecError(f"sample {args.index} has no field {args.cat!r}; it has {sorted(sample)}")
        sys.stdout.buffer.write(sample[args.cat])
        return
    width = max(map(len, sample))
    for name, value in sorted(sample.items()):
        print(name.ljust(width), repr(value)[: args.width - width - 1])


def _write(filename: str, index: dict[str, Any]) -> None:
    write_atomically(filename, writing.dump_index(index))


def format_with_suffix(number: float) -> str:
    for suffix in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.1f}{suffix}"
        number /= 1000
    return f"{number:.1f}P"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="widsindex", description="Make, change and look into shard indexes.")
    commands = parser.add_subparsers(dest="command", required=True)

    create = commands.add_parser("create", help="write the index of a list of shards")
    create.add_argument("files", nargs="+", help="shards: paths, URLs, brace patterns; '-' reads them from stdin")
    create.add_argument("-o", "--output", default=_OUTPUT, help="the index to write")
    create.add_argument("-n", "--name", help="name of the dataset")
    create.add_argument("-i", "--info", help="file that describes the dataset")
    create.add_argument("-b", "--base", help="what relative URLs are relative to")
    create.set_defaults(run=main_create)

    update = commands.add_parser("update", help="change an index; the old one stays as .bak")
    update.add_argument("filename")
    update.add_argument("-n", "--name", default="", help="set the name")
    update.add_argument("-k", "--keep", action="store_true", help="set the keep flag")
    update.add_argument("-K", "--nokeep", action="store_true", help="clear the keep flag")
    update.add_argument("-i", "--info", default="", help="set the description")
    update.add_argument("-D", "--nodir", action="store_true", help="strip the directory from the URLs")
    update.add_argument("-d", "--dir", default="", help="set the directory of the URLs")
    update.add_argument("-b", "--base", default="", help="set the base")
    update.add_argument("-B", "--rebase", action="store_true", help="move the shards' common directory to base")
    update.set_defaults(run=main_update)

    info = commands.add_parser("info", help="what an index holds")
    info.add_argument("filenames", nargs="*")
    info.add_argument("-t", "--table", action="store_true", help="one line each")
    info.set_defaults(run=main_info)

    sample = commands.add_parser("sample", help="one sample of a dataset")
    sample.add_argument("filename")
    sample.add_argument("index", type=int, nargs="?", default=0)
    sample.add_argument("-p", "-r", "--python", "--raw", dest="raw", action="store_true", help="undecoded")
    sample.add_argument("-c", "--cat", help="write the bytes of this field to stdout")
    sample.add_argument("-w", "--width", type=int, default=250, help="characters in a line")
    sample.set_defaults(run=main_sample)
    return parser


if __name__ == "__main__":
    sys.exit(main())
