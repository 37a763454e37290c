"""Sources to pack, packing in this process, and the samples of what was packed."""

import os

import pyarrow as pa

import wids
from wids import jobs
from wids.core.tables.table import parse_table
from wids.core.transport.session import PLAIN
from wids.jobs import PackSettings, PackSource
from wids.jobs.runner import RunOptions
from wids.writing.pack import datasets, folders, manifest
from wids.writing.pack.run import pack_listing

ONE = RunOptions(jobs=1)


def put(directory, files):
    """Write files, a dict of names to bytes or text; returns the directory."""
    for name, data in files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
    return str(directory)


def photos(directory, count=10):
    """Images by class, as far as their names go: seven of cats to three of dogs."""
    return put(
        directory, {f"{'dog' if k % 3 == 0 else 'cat'}/v.1/{k:03d}.JPG": f"photo {k}" * 90 for k in range(count)}
    )


def pack(sources, output, *, engine=ONE, **options):
    """Pack sources; the options are those of `PackSource` and of `PackSettings`."""
    chosen = {name: options.pop(name) for name in PackSource.__struct_fields__ if name in options}
    return jobs.pack(sources, PackSettings(output=str(output), **options), source=PackSource(**chosen), engine=engine)


def list_images(directory, **options):
    """The listing of class folders."""
    return folders.list_images(str(directory), **{"numbers_keys": False, "tell": lambda _: None, **options})


def list_files(directory):
    """The listing of a folder of files."""
    return folders.list_files(str(directory), numbers_keys=False, keep_fields=None, tell=lambda _: None)


def list_rows(sources, *fields, key=None, base=None, numbers_keys=False, classes=None):
    """The listing of one or more manifests."""
    return manifest.list_rows(
        sources if isinstance(sources, list) else str(sources),
        fields=[manifest.parse_field(field) for field in fields],
        key=key,
        base=base,
        numbers_keys=numbers_keys,
        session=PLAIN,
        tell=lambda _: None,
        classes=classes,
    )


def list_dataset(source, *, keep_fields=None, cache_dir="nowhere"):
    """The listing of a dataset."""
    return datasets.list_dataset(
        source, cache_dir=str(cache_dir), keep_fields=keep_fields, session=PLAIN, tell=lambda _: None
    )


def pack_files(source, output, **settings):
    """Pack a folder of files."""
    return pack_listing(list_files(source), PackSettings(output=str(output), **settings))


def pack_rows(sources, output, *fields, key=None, base=None, numbers_keys=False, classes=None, **settings):
    """Pack one or more manifests."""
    listing = list_rows(sources, *fields, key=key, base=base, numbers_keys=numbers_keys, classes=classes)
    return pack_listing(listing, PackSettings(output=str(output), numbers_keys=numbers_keys, **settings))


def pack_dataset(source, output, *, keep_fields=None, cache_dir="nowhere", **settings):
    """Pack a dataset."""
    listing = list_dataset(source, keep_fields=keep_fields, cache_dir=cache_dir)
    return pack_listing(listing, PackSettings(output=str(output), **settings))


def shown(index, **options):
    """Keys and undecoded fields of all samples of a dataset."""
    dataset = wids.ShardListDataset(str(index), transformations="raw", **options)
    return [
        (sample["__key__"], {name: value for name, value in sample.items() if name.startswith(".")})
        for sample in dataset
    ]


def keys_of(index, **options):
    """The keys of all samples of a dataset."""
    return [key for key, _ in shown(index, **options)]


def labels_of(index):
    """The .cls of all samples of a dataset."""
    return [sample[".cls"] for sample in wids.ShardListDataset(str(index), fields=(".cls",))]


def content(directory):
    """All files of a dataset: bytes by name; tables without the time of their shard."""
    found = {}
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), "rb") as file:
            data = file.read()
        if name.endswith(".widx"):
            table = parse_table(data, shard=name)
            data = table.with_identity(
                type(table.identity)(size=table.identity.size, md5=table.identity.md5)
            ).to_bytes()
        found[name] = data
    return found


PICTURES = [b"\x89PNG picture %d" % k * 300 for k in range(7)]


def write_arrow(path, table, *, is_stream=True, rows=3):
    """Write a table as an Arrow stream in batches of a few rows, as ``datasets`` do, or as an Arrow file."""
    open_writer = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, open_writer(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return str(path)


def picture_rows(**columns):
    """A table of pictures as ``datasets`` have them, with labels, texts and more columns."""
    cells = [{"bytes": data, "path": None} for data in PICTURES]
    image = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    return pa.table({"image": image, "label": [k % 2 for k in range(7)], "text": list("abcdefg"), **columns})
