"""Stored rows: read back in pages, and graded anew."""

import json

from models import blob
from models.store import rows
from tests.hand import done, stored


async def filled(store, n=5, **changes):
    d = await store.dataset()
    taken = await store.claim(await store.samples(d, n))
    await store.settle(*[done(c, 10, row=stored(10, **changes)) for c in taken.values()])
    return d, sorted(taken)


def regraded(sample_id, fence=1, n=10, grade=3):
    return {"id": sample_id, "fence": fence, "grade": grade, "candidates": 2, "rule": "longest", "reason": "why", "delta": 0,
            "prompt_delta": None, "version": "v2", "n_prompt": 3, "n_tokens": n, "spans": json.dumps([["content", 0, n]]),
            "prompt_ids": blob.pack_ids([1, 2, 3]), "ids": blob.pack_ids(range(n))}


async def read(store, d, **how):
    return await store.do(lambda connection: list(rows.stored(connection, d, **how)))


async def test_rows_come_in_order_and_in_pages_with_their_samples(store, monkeypatch):
    monkeypatch.setattr(rows, "PAGE", 2)
    d, ids = await filled(store)
    found = await read(store, d)
    assert [r.sample_id for r in found] == ids
    assert (found[0].key, found[0].primary_id, found[0].turn) == ("k0000000", "k0000000", 0)


async def test_rows_below_a_grade_stay_out(store):
    d, ids = await filled(store)
    await store.do(rows.regrade, [regraded(i, grade=2) for i in ids[:2]])
    assert [r.sample_id for r in await read(store, d, min_grade=3)] == ids[2:]


async def test_rows_that_are_stored_meanwhile_stay_out(store, monkeypatch):
    monkeypatch.setattr(rows, "PAGE", 2)
    d, ids = await filled(store)
    [late] = await store.samples(d, prefix="late")
    claim = await store.claimed(late)
    async with store.engine.connect() as connection:
        pages = await connection.run_sync(lambda c: rows.stored(c, d))
        first = await connection.run_sync(lambda _: next(pages))
        await store.settle(done(claim))
        rest = await connection.run_sync(lambda _: list(pages))
    assert [r.sample_id for r in (first, *rest)] == ids


async def test_a_regrade_moves_the_counters_by_the_difference(store):
    d, ids = await filled(store, grade=0)
    assert (await store.one("select stored_tokens, useful_tokens from dataset")) == (50, 0)
    assert await store.do(rows.regrade, [regraded(ids[0], n=12), regraded(ids[1], n=7, grade=0)]) == 2
    assert (await store.one("select stored_tokens, useful_tokens from dataset")) == (49, 12)
    await store.check_counters()
    row = (await read(store, d))[0]
    assert (row.grade, row.rule, row.version, row.spans) == (3, "longest", "v2", [["content", 0, 12]])
    assert blob.unpack_ids(row.ids).tolist() == list(range(12))


async def test_a_row_that_was_replaced_meanwhile_is_left_alone(store):
    _, ids = await filled(store)
    assert await store.do(rows.regrade, [regraded(ids[0], fence=2), regraded(999)]) == 0
    assert (await store.one("select stored_tokens from dataset")).stored_tokens == 50
