"""Where items come from, and that each can be read by its number."""

import io
import json
import pickle
import tarfile

import fsspec
import pytest
import torch
from s3_server import BUCKET, Faults

from dovetail.feeds.definition import feed
from dovetail.feeds.sources import DatasetSource, ParquetSource, StreamSource, TarSource, source_of
from dovetail.vocabulary import ProgramError
from tests.feeds.feeds import plan, same


def write_tar(path, samples, *, mode="w"):
    """One sample has a picture and a label."""
    with tarfile.open(path, mode) as archive:
        for stem, label in samples:
            for ending, content in (("jpg", stem.encode() * 50), ("json", json.dumps(label).encode()), ("empty", b"")):
                member = tarfile.TarInfo(f"{stem}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def shards(tmp_path):
    for shard in range(2):
        write_tar(tmp_path / f"shard{shard}.tar", [(f"train/{shard}-{n}", n) for n in range(3)])
    return str(tmp_path / "shard*.tar")


def label_of(sample):
    return sample["__key__"], json.loads(sample["json"])


def test_samples_of_tar_shards(shards):
    source = source_of(shards)
    assert isinstance(source, TarSource)
    assert len(source) == 6
    assert source.read(4) == {"__key__": "train/1-1", "jpg": b"train/1-1" * 50, "json": b"1", "empty": b""}
    assert pickle.loads(pickle.dumps(source)).read(0) == source.read(0)
    assert list(feed(shards).map(label_of)) == [(f"train/{shard}-{n}", n) for shard in range(2) for n in range(3)]
    assert feed(shards) == feed(shards)
    assert "2 tar shards" in repr(feed(shards))


@pytest.mark.process
def test_shards_are_read_by_workers(shards):
    definition = feed(shards).shuffle(4).map(label_of)
    expected = list(definition)
    for worker in ("thread", "process"):
        with definition.open(plan(definition, worker, 2)) as running:
            assert same(list(running), expected)


def test_compressed_shards_are_refused(tmp_path):
    write_tar(tmp_path / "shard.tar.gz", [("a", 1)], mode="w:gz")
    with pytest.raises(
        ProgramError,
        match=r"a tar shard must be an uncompressed tar file, .*shard.tar.gz' is not: .*Unpack it, or write",
    ):
        len(source_of(str(tmp_path / "shard.tar.gz")))


def test_patterns_give_paths_in_order_on_any_file_system(tmp_path):
    for name in ("b.txt", "a.txt", "c.bin"):
        (tmp_path / name).write_text(name)
    assert [path.rpartition("/")[2] for path in feed(str(tmp_path / "*.txt"))] == ["a.txt", "b.txt"]
    assert list(feed(tmp_path / "c.bin")) == [str(tmp_path / "c.bin")]
    memory = fsspec.filesystem("memory")
    for name in ("/feeds/2.txt", "/feeds/1.txt"):
        memory.pipe(name, name.encode())
    found = list(feed("memory://feeds/*.txt").map(read_any))
    assert found == [b"/feeds/1.txt", b"/feeds/2.txt"]


def read_any(path):
    with fsspec.open(path, "rb") as file:
        return file.read()


def test_rows_of_parquet_files(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for shard in range(2):
        table = arrow.table({"text": [f"{shard}-{n}" for n in range(25)], "label": list(range(25))})
        parquet.write_table(table, tmp_path / f"rows{shard}.parquet", row_group_size=10)
    source = source_of(str(tmp_path / "*.parquet"))
    assert isinstance(source, ParquetSource)
    assert len(source) == 50
    assert [source.read(n) for n in (0, 9, 10, 24, 25, 49)] == [
        {"text": text, "label": label}
        for text, label in (("0-0", 0), ("0-9", 9), ("0-10", 10), ("0-24", 24), ("1-0", 0), ("1-24", 24))
    ]
    assert pickle.loads(pickle.dumps(source)).read(30) == source.read(30)
    definition = feed(source).shuffle(8).map(lambda row: row["text"])
    with definition.open(plan(definition, workers=3)) as running:
        assert list(running) == list(definition)


def test_parquet_files_need_pyarrow(tmp_path, monkeypatch):
    import sys

    (tmp_path / "rows.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ProgramError, match="must have pyarrow; it is not installed: pip install pyarrow"):
        len(source_of(str(tmp_path / "rows.parquet")))


def test_datasets_lists_and_streams():
    assert isinstance(source_of([1, 2]), DatasetSource)
    assert isinstance(source_of(range(3)), DatasetSource)
    assert isinstance(source_of({"a": 1}), StreamSource)
    assert source_of(["a.jpg", "b.jpg"]).read(1) == "b.jpg"
    assert isinstance(source_of(["a.tar", "b.tar"]), TarSource)
    assert feed([1, 2]).batch(2) == feed([1, 2]).batch(2)
    assert feed([1, 2]).batch(2) != feed([1, 3]).batch(2)
    assert feed([1, 2]).batch(2) != feed([1, 2]).batch(1)


def test_definitions_travel():
    definition = feed(range(9)).map(abs).shuffle(3).batch(2)
    assert pickle.loads(pickle.dumps(definition)) == definition
    assert repr(definition) == "feed(range of 9 items).map(abs).shuffle(3).batch(2)"


def test_a_function_called_read_keeps_its_name():
    def read(number):
        return number

    assert [stage.name for stage in feed(range(4)).map(read).map(read).work_stages()] == ["source", "read", "read 2"]


@pytest.mark.process
def test_a_feed_reads_through_s3_what_it_reads_here(shards, tmp_path, s3):
    """Samples of tar shards by their numbers, from a pattern, by processes, while the server has its faults."""
    there = f"s3://{BUCKET}/{tmp_path.name}"
    for path in tmp_path.glob("*.tar"):
        fsspec.filesystem("s3").put_file(str(path), f"{there}/{path.name}")
    s3.faults = Faults.share(0.2, slow_seconds=0.01)
    here, far = (feed(pattern).map(label_of).shuffle(8) for pattern in (shards, f"{there}/shard*.tar"))
    with far.open(plan(far, worker="process", workers=2)) as running:
        assert list(running) == list(here)
    assert s3.counts


def test_an_iterable_dataset_that_knows_its_length_is_a_stream():
    class Counting(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

        def __len__(self):
            return 3

    assert isinstance(source_of(Counting()), StreamSource)
