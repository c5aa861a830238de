"""Prompts from, and exports to, what fsspec reaches: its file system in memory stands for a bucket."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models import plan
from models.errors import SettingsError
from models.urls import url_of
from producer.partitions import datasets_of
from producer.prompts import Prompt, read
from producer.remote import publish

fsspec = pytest.importorskip("fsspec")
MARK = "MANIFEST.yaml"


@pytest.fixture
def bucket() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_a_path_stands_for_the_url_it_was_made_of() -> None:
    urls = ("s3://bucket/key/B1.jsonl", "gs://b/k", "hf://datasets/a/b/x.parquet", "memory://x")
    assert [url_of(Path(url)) for url in urls] == list(urls)
    assert [url_of(Path(p)) for p in ("/a/b", "a/b", "s3:x", "C:/x", "file:///x")] == [None] * 5


@pytest.mark.parametrize("kind", ["plain", "gzip", "parquet"])
def test_rows_are_read_as_from_a_local_file(bucket: Any, kind: str, tmp_path: Path) -> None:
    rows = [{"id": str(n), "prompt": f"why {n}?"} for n in range(300)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x")
        lines = (tmp_path / "x").read_bytes()
    bucket.pipe("/b/B1.jsonl", gzip.compress(lines) if kind == "gzip" else lines)
    found = list(read(Path("memory://b/B1.jsonl")))
    assert [item.key for item in found if isinstance(item, Prompt)] == [row["id"] for row in rows]


def test_a_remote_file_that_is_not_there_or_cannot_be_reached_is_told(bucket: Any) -> None:
    [refusal] = read(Path("memory://b/none.jsonl"))
    assert (refusal.line, refusal.file) == (0, "memory://b/none.jsonl")  # type: ignore[union-attr]
    with pytest.raises(SettingsError, match="nowhere://"):
        list(read(Path("nowhere://b/none.jsonl")))


def test_a_remote_folder_makes_datasets_like_a_local_one(bucket: Any) -> None:
    for name in ("B2.jsonl", "B1.jsonl.gz", "notes.txt", "B3/part-1.parquet", "B3/part-0.parquet"):
        bucket.pipe(f"/b/{name}", b"x")
    found = datasets_of(Path("memory://b"), "all")
    assert {n: [f.name for f in files] for n, files in found.items()} == {
        "B1": ["B1.jsonl.gz"], "B2": ["B2.jsonl"], "B3": ["part-0.parquet", "part-1.parquet"]}
    assert url_of(found["B3"][0]) == "memory://b/B3/part-0.parquet"
    assert list(datasets_of(Path("memory://b/B2.jsonl"))) == ["B2"]


def test_a_plan_may_name_remote_prompts_and_a_remote_place_for_exports(tmp_path: Path) -> None:
    file = tmp_path / "draftmill.toml"
    file.write_text('output_dir = "s3://bucket/out"\n[accounts.a]\n[datasets.B1]\nprompts = ["gs://b/B1.jsonl", "near.jsonl"]\n'
                    'profile = "p"\nmodel = "m"\naccount = "a"\n')
    found = plan.read(file)
    assert url_of(found.output_dir) == "s3://bucket/out"
    assert [url_of(p) for p in found.datasets["B1"].prompts] == ["gs://b/B1.jsonl", None]
    assert found.datasets["B1"].prompts[1] == tmp_path / "near.jsonl"


def made(folder: Path, *names: str) -> Path:
    for name in (*names, MARK):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_a_remote_export_has_its_mark_only_while_it_is_whole(
        bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Path("memory://b/out/B1")
    publish(made(tmp_path / "one", "tokens/train/part-00000.jsonl", "tokens/train/part-00001.jsonl"), out, MARK)
    assert sorted(bucket.find("/b")) == [f"/b/out/B1/{n}" for n in (
        MARK, "tokens/train/part-00000.jsonl", "tokens/train/part-00001.jsonl")]
    put: list[str] = []
    real = type(bucket).put_file

    def watched(self: Any, source: str, target: str, **more: Any) -> Any:
        put.append(target)
        assert (os.path.basename(target) == MARK) or not bucket.exists(f"/b/out/B1/{MARK}")
        return real(self, source, target, **more)
    monkeypatch.setattr(type(bucket), "put_file", watched)
    publish(made(tmp_path / "two", "tokens/train/part-00000.jsonl"), out, MARK)
    assert put[-1].endswith(MARK)
    assert sorted(bucket.find("/b")) == [f"/b/out/B1/{n}" for n in (MARK, "tokens/train/part-00000.jsonl")]


def test_a_remote_folder_that_is_no_export_is_left_as_it_is(bucket: Any, tmp_path: Path) -> None:
    bucket.pipe("/b/out/B1/thesis.txt", b"years of work")
    with pytest.raises(SettingsError, match="not an export"):
        publish(made(tmp_path / "one", "README.md"), Path("memory://b/out/B1"), MARK)
    assert bucket.find("/b") == ["/b/out/B1/thesis.txt"]
