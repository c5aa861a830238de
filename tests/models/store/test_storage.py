"""What a stored row costs on disk."""

import random
from pydoc_data import topics

import numpy as np
import pytest
import tiktoken
from tiktoken.load import load_tiktoken_bpe

from models import blob
from tests.hand import done, stored

VOCABULARY = 163_840        # Kimi-K2
TOKENS, ROWS, BATCH = 4_059, 300, 100
BYTES_A_TOKEN = 2.4


def prose(rng, n):
    """Ids as a language has them: frequencies by Zipf's law over the real vocabulary's size, and phrases that return."""
    ranks = rng.zipf(1.15, size=2 * n)
    ids = np.random.default_rng(7).permutation(VOCABULARY)[ranks[ranks <= VOCABULARY][:n] - 1]
    for _ in range(n // 60):
        a, b, length = rng.integers(0, n - 12), rng.integers(0, n - 12), rng.integers(3, 10)
        ids[b:b + length] = ids[a:a + length]
    return ids.astype(np.int32)


@pytest.fixture
def real_rows(shared):
    """Real prose (the manual that comes with Python) in Kimi's vocabulary, in rows of TOKENS that do not overlap."""
    ranks = load_tiktoken_bpe(str(shared / "tokenizers" / "kimi" / "tiktoken.model"))
    kimi = tiktoken.Encoding("kimi", pat_str=r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+", mergeable_ranks=ranks,
                             special_tokens={})
    ids = np.asarray(kimi.encode_ordinary("\n".join(topics.topics.values())), dtype=np.int32)
    return [ids[start:start + TOKENS] for start in range(0, len(ids) - TOKENS, TOKENS)]


async def disk(store):
    row = await store.one("select pg_total_relation_size('completion') as bytes")
    return row.bytes


async def write(store, rows):
    taken = list((await store.claim(await store.samples(await store.dataset(), len(rows)))).values())
    for start in range(0, len(taken), BATCH):
        await store.settle(*[
            done(c, len(ids), row=stored(len(ids), ids=blob.pack_ids(ids), prompt_ids=blob.pack_ids(ids[:40]), raw=b""))
            for c, ids in zip(taken[start:start + BATCH], rows[start:start + BATCH], strict=True)])


async def bytes_a_token(store, rows):
    before = await disk(store)
    await write(store, rows)
    kept = [blob.unpack_ids(r.ids) for r in await store.all("select ids from completion order by sample_id")]
    assert all((k == ids).all() for k, ids in zip(kept, rows, strict=True))
    return (await disk(store) - before) / sum(map(len, rows))


async def test_token_ids_of_prose_take_at_most_2_4_bytes_each_on_disk(store, real_rows):
    """The whole table with its indexes and unused space, prompt ids included."""
    assert len(real_rows) > 20
    assert await bytes_a_token(store, (real_rows * 10)[:ROWS]) <= BYTES_A_TOKEN


async def test_ids_by_zipfs_law_take_no_more(store):
    rng = np.random.default_rng(1)
    assert await bytes_a_token(store, [prose(rng, TOKENS) for _ in range(ROWS)]) <= BYTES_A_TOKEN


async def test_text_comes_back_byte_for_byte(store):
    dice = random.Random(3)
    anything = "".join(chr(dice.randrange(0x110000)) for _ in range(500))
    replies = ["\0", "a\0b", "\ud83d", "\udcff\ud800", "\U0010ffff", "", anything]
    taken = list((await store.claim(await store.samples(await store.dataset(), len(replies)))).values())
    rows = [stored(raw=blob.pack_json({"content": text})) for text in replies]
    await store.settle(*[done(c, row=row) for c, row in zip(taken, rows, strict=True)])
    kept = await store.all("select raw from completion order by sample_id")
    assert [blob.unpack_json(r.raw)["content"] for r in kept] == replies
