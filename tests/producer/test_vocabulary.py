import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.export import ExportRow, Options, Selection, export
from producer.vocabulary import chosen, coverage, maps

Make = Callable[..., ExportRow]
Many = Callable[[int], list[ExportRow]]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_the_maps_agree_with_each_other_and_hold_the_most_frequent_ids(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(counts)))
    array = np.array(counts, dtype=np.int64)
    d2t, t2d = maps(array, size)
    ids = d2t + np.arange(size)
    assert (d2t.dtype, t2d.dtype, len(t2d)) == (np.int64, np.bool_, len(counts))
    assert np.flatnonzero(t2d).tolist() == ids.tolist()
    by_rule = sorted(range(len(counts)), key=lambda i: (-counts[i], i))[:size]
    assert ids.tolist() == sorted(by_rule)


def test_of_equals_the_smaller_id_is_taken() -> None:
    counts = np.array([0, 3, 1, 1, 1, 3], dtype=np.int64)
    assert chosen(counts, 3).tolist() == [1, 2, 5]
    assert coverage(counts, 3) == 7 / 9


@pytest.mark.parametrize("size", [0, -1, 7])
def test_a_draft_vocabulary_larger_than_the_models_is_refused(size: int) -> None:
    with pytest.raises(ValueError):
        maps(np.zeros(6, dtype=np.int64), size)


def test_only_supervised_ids_of_the_train_split_are_counted(tmp_path: Path, many: Many, options: Options) -> None:
    out, rows = tmp_path / "out", many(300)
    summary = export(rows, out, replace(options, mask_end=True))
    train = {got["id"]: got for got in map(json.loads, (out / "tokens/train/part-00000.jsonl").read_bytes().splitlines())}
    want: Counter[int] = Counter()
    for got in train.values():
        want.update(i for i, m in zip(got["input_ids"], got["loss_mask"], strict=True) if m)
    table = json.loads((out / "vocab/token_freq.json").read_text())
    assert {int(i): n for i, n in table.items()} == want
    assert 2 not in want  # the end token, masked
    assert 0 < len(train) < len(rows)
    for size in (8, 32):
        d2t, t2d = np.load(out / f"vocab/d2t-{size}.npy"), np.load(out / f"vocab/t2d-{size}.npy")
        inside = set((d2t + np.arange(size)).tolist())
        assert inside == set(np.flatnonzero(t2d).tolist())
        assert summary.coverage[size] == sum(n for i, n in want.items() if i in inside) / want.total()
        assert min(want[i] for i in inside) >= max(n for i, n in want.items() if i not in inside)


def test_an_export_of_validation_rows_alone_has_no_map_to_mislead(tmp_path: Path, row: Make, options: Options) -> None:
    summary = export([row()], tmp_path / "out", replace(options, selection=Selection(val_share=1.0)))
    assert summary.coverage == {}
    assert not list((tmp_path / "out/vocab").glob("*.npy"))


def test_torch_files_hold_the_same_maps(tmp_path: Path, many: Many, options: Options) -> None:
    torch = pytest.importorskip("torch", reason="vocab_mapping.pt needs torch, which is optional")
    export(many(50), tmp_path / "out", options)
    mapping = torch.load(tmp_path / "out/vocab/vocab_mapping.pt", weights_only=True)
    assert mapping["d2t"].numpy().tolist() == np.load(tmp_path / "out/vocab/d2t-8.npy").tolist()
    assert mapping["t2d"].numpy().tolist() == np.load(tmp_path / "out/vocab/t2d-8.npy").tolist()
