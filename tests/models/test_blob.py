"""Byte columns: what goes in comes out, and what is not ours is refused."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from models import blob
from models.errors import StoreError

TEXT = st.text(st.characters(exclude_categories=()))      # lone surrogates and NUL too
VALUE = st.none() | st.booleans() | st.integers() | TEXT
JSON = st.recursive(VALUE, lambda value: st.lists(value) | st.dictionaries(TEXT, value), max_leaves=10)


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_ids_come_back_as_they_were(ids: list[int]) -> None:
    assert blob.unpack_ids(blob.pack_ids(ids)).tolist() == ids


@given(JSON)
def test_documents_come_back_as_they_were(document: object) -> None:
    assert blob.unpack_json(blob.pack_json(document)) == document


@given(st.binary())
def test_raw_replies_come_back_byte_for_byte(data: bytes) -> None:
    assert blob.unpack_raw(blob.pack_raw(data)) == data


def test_thousands_of_digits_and_deep_nesting_come_back_in_a_raw_reply() -> None:
    data = b'{"n":' + b"9" * 5_000 + b',"d":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    assert blob.unpack_raw(blob.pack_raw(data)) == data


def test_one_kind_is_not_read_as_another() -> None:
    pairs = ((blob.pack_json([1]), blob.unpack_ids), (blob.pack_ids([1]), blob.unpack_raw), (b"", blob.unpack_json))
    for packed, unpack in pairs:
        with pytest.raises(StoreError, match="codec tag"):
            unpack(packed)


def test_ids_of_four_thousand_tokens_take_less_than_three_bytes_each() -> None:
    ids = np.random.default_rng(1).zipf(1.3, 4_000).clip(0, 150_000)
    assert len(blob.pack_ids(ids)) < 3 * len(ids)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = blob.pack_raw(bytes(1_000_000))
    monkeypatch.setattr(blob, "MAX_BYTES", 1_000)
    with pytest.raises(StoreError, match="more than 1,000 bytes"):
        blob.unpack_raw(packed)
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    with pytest.raises(StoreError, match="damaged"):
        blob.unpack_raw(packed[:1] + stream.compress(bytes(1_000_000)) + stream.flush())


def test_a_damaged_blob_is_told_as_such() -> None:
    packed = blob.pack_raw(b"a long enough answer to be packed " * 20)
    for damaged in (packed[:-9], packed[:1], packed[:1] + b"not zstandard at all"):
        with pytest.raises(StoreError, match="damaged"):
            blob.unpack_raw(damaged)
