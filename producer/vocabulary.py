"""The reduced vocabulary of a draft model: token counts, and the maps that trainers want shipped with them.

d2t int64[D]: d2t[i] = id - i for the i-th id of the draft vocabulary, ids ascending. t2d bool[V]: whether an id is in it.
In are the D ids most often supervised in the train split; of equals the smaller id. A trainer that finds no map quietly takes
ids 0 .. D-1, and one that makes its own breaks ties otherwise: so the map itself is shipped, not the counts alone.
"""

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.blob import Ids
from producer.shards import Shard, write_file

Counts = NDArray[np.int64]


class Frequencies:
    """How often each id is supervised; one array of the vocabulary's size, whatever the rows."""

    def __init__(self, size: int) -> None:
        self.counts: Counts = np.zeros(size, dtype=np.int64)

    def add(self, completions: Iterable[Ids]) -> None:
        parts = list(completions)
        if parts:
            self.counts += np.bincount(np.concatenate(parts), minlength=len(self.counts))


def chosen(counts: Counts, draft_size: int) -> NDArray[np.int64]:
    """The ids of the draft vocabulary, ascending. 1 <= draft_size <= len(counts)."""
    if not 1 <= draft_size <= len(counts):
        raise ValueError(f"a draft vocabulary has 1 to {len(counts)} ids, not {draft_size}")
    order = np.lexsort((np.arange(len(counts)), -counts))
    return np.sort(order[:draft_size]).astype(np.int64)


def maps(counts: Counts, draft_size: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(d2t, t2d)."""
    ids = chosen(counts, draft_size)
    t2d = np.zeros(len(counts), dtype=np.bool_)
    t2d[ids] = True
    return ids - np.arange(draft_size, dtype=np.int64), t2d


def coverage(counts: Counts, draft_size: int) -> float:
    """The share of supervised tokens that the draft vocabulary holds."""
    total = int(counts.sum())
    return float(counts[chosen(counts, draft_size)].sum() / total) if total else 0.0


def write(root: Path, counts: Counts, draft_sizes: Iterable[int]) -> Iterator[tuple[Shard, int | None]]:
    """Writes `vocab/` and yields each file with its draft size. vocab_mapping.pt is of the first size and needs torch."""
    present = np.flatnonzero(counts)
    table = {str(i): int(counts[i]) for i in present}
    yield write_file(root, "vocab/token_freq.json", json.dumps(table, separators=(",", ":")).encode()), None
    first = None
    for size in draft_sizes:
        d2t, t2d = maps(counts, size)
        first = first or (size, d2t, t2d)
        yield write_file(root, f"vocab/d2t-{size}.npy", _npy(d2t)), size
        yield write_file(root, f"vocab/t2d-{size}.npy", _npy(t2d)), size
    if first is not None:
        for name, data in _torch_files(table, first[1], first[2]).items():
            yield write_file(root, f"vocab/{name}", data), first[0]


def _npy(array: NDArray[np.int64] | NDArray[np.bool_]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _torch_files(table: dict[str, int], d2t: NDArray[np.int64], t2d: NDArray[np.bool_]) -> dict[str, bytes]:
    try:
        import torch
    except ImportError:
        return {}
    made = {
        "vocab_mapping.pt": {"d2t": torch.from_numpy(d2t), "t2d": torch.from_numpy(t2d)},
        "d2t.pt": torch.from_numpy(d2t), "t2d.pt": torch.from_numpy(t2d),
        "token_freq.pt": {int(i): n for i, n in table.items()},
    }
    files = {}
    for name, value in made.items():
        buffer = io.BytesIO()
        torch.save(value, buffer)
        files[name] = buffer.getvalue()
    return files
