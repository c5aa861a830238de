"""The story of a sample against a server whose replies are written here, with the real ledger in PostgreSQL."""

import asyncio
import gzip
import json
from typing import Any

import pytest
from aiohttp import web

from models import blob
from models.health import drifted
from models.plan import Routing, Sampling
from models.store import providers
from tests.hand import Hand
from tests.workers.mill import HOSTS, USAGE, Mill, answers, reply
from tests.workers.providers.conftest import Scripted
from tests.workers.replies import TEXT
from workers import generate

# -- text

BODIES = {
    "nul": json.dumps(reply(content="a\x00b " + TEXT)).encode(),
    "lone surrogate": json.dumps(reply(content="half \ud83d here")).encode(),
    "surrogates in names": json.dumps(
        {**reply(content=TEXT), "id": "gen-\udc00", "provider": "P\x00\ud800", "model": "\x00"}).encode(),
    "line separators": json.dumps(reply(content="one\u2028two\u2029three\x85four"), ensure_ascii=False).encode(),
    "byte order mark": b"\xef\xbb\xbf" + json.dumps(reply(content="\ufeff" + TEXT)).encode(),
    "a number of 5,000 digits": json.dumps({**reply(content=TEXT), "x": 1}).replace('"x": 1', '"x": ' + "9" * 5_000).encode(),
    "a count of 5,000 digits": json.dumps(reply(content=TEXT)).replace('"completion_tokens": 30',
                                                                       '"completion_tokens": ' + "9" * 5_000).encode(),
    "counts beyond int4": json.dumps(reply(usage={**USAGE, "completion_tokens": 2**40, "cost": 1e300}, content=TEXT)).encode(),
    "a duplicate key": json.dumps(reply(content=TEXT)).replace('"content":', '"content": "other", "content":').encode(),
    "deep nesting": json.dumps({**reply(content=TEXT), "x": 1}).replace('"x": 1', '"x": ' + "[" * 100_000).encode(),
    "no UTF-8": json.dumps(reply(content="caf#")).encode().replace(b"#", b"\xe9"),
}
KEPT = set(BODIES) - {"deep nesting"}


async def test_whatever_a_text_holds_it_is_kept_as_it_came_or_refused_with_a_cause_and_spoils_no_other(
        store: Hand, server: Scripted, mill: Mill) -> None:
    bodies = {**BODIES, **{f"good {i}": json.dumps(reply(content=f"{TEXT} {i}")).encode() for i in range(5)}}

    def by_prompt(request: web.Request) -> web.Response:
        asked = server.requests[-1][2]["messages"][0]["content"]
        return web.Response(body=bodies[asked], content_type="application/json")
    answers(server, by_prompt)
    ids = await mill.put(list(bodies))
    codes = dict(zip(bodies, await mill.run(*ids), strict=True))
    assert codes["deep nesting"] == "bad_json"
    assert [codes[f"good {i}"] for i in range(5)] == ["ok"] * 5
    rows = {r.sample_id: r for r in await store.all("select * from completion")}
    for name, sample_id in zip(bodies, ids, strict=True):
        if name in KEPT or name.startswith("good"):
            assert blob.unpack_raw(rows[sample_id].raw) == bodies[name], name
    assert {name for name, i in zip(bodies, ids, strict=True) if i not in rows} == {"deep nesting"}
    await store.check_counters()


async def test_a_body_cut_inside_its_compression_is_lost_and_not_shortened(store: Hand, server: Scripted, mill: Mill) -> None:
    whole = gzip.compress(json.dumps(reply(content=TEXT * 50)).encode())
    packed = {"content-encoding": "gzip", "content-type": "application/json"}
    answers(server, lambda _: web.Response(body=whole[:-9], headers=packed))
    [sample] = await mill.put(["Why?"])
    assert await mill.run(sample) == ["bad_encoding"]
    [attempt] = await mill.attempts()
    assert (attempt.action, attempt.basis) == ("retry", "estimate")


# -- what is stored of a call

async def test_the_precision_that_served_is_stored_and_one_off_the_plan_is_kept_and_not_trained_on(
        store: Hand, server: Scripted, mill: Mill) -> None:
    def by_prompt(_: web.Request) -> web.Response:
        return web.json_response({**reply(content=TEXT), "provider": server.requests[-1][2]["messages"][0]["content"]})
    answers(server, by_prompt, {**HOSTS, "Novita": "novita/fp8"})
    ids = await mill.put(["Moonshot AI", "DeepInfra", "Somebody"], routing=Routing(quantizations=["int4", "fp8"]))
    await mill.run(*ids)
    rows = await store.all("select provider, quantization, trainable, flags from completion order by sample_id")
    assert [(r.provider, r.quantization, r.trainable) for r in rows] == [
        ("Moonshot AI", "int4", True), ("DeepInfra", "fp4", False), ("Somebody", "", True)]
    assert "excluded_provider" in rows[1].flags
    assert [a.quantization for a in await mill.attempts()] == ["int4", "fp4", ""]


async def test_a_host_that_serves_off_the_plan_is_left_out_of_later_calls_with_the_reason(
        store: Hand, server: Scripted, mill: Mill) -> None:
    def by_prompt(_: web.Request) -> web.Response:
        return web.json_response({**reply(content=TEXT), "provider": server.requests[-1][2]["messages"][0]["content"]})
    answers(server, by_prompt, HOSTS)
    ids = await mill.put(["DeepInfra", "Moonshot AI"] * 35, routing=Routing(quantizations=["int4", "fp8"]))
    await mill.run(*ids[:-1])
    [(dataset_id, none)] = (await store.do(providers.opened)).items()
    found = drifted(await store.do(providers.health, dataset_id))
    assert (none, found) == ({}, {"DeepInfra": "answers off the plan: 100% against 0% of the others"})
    await store.do(providers.exclude, dataset_id, found)
    await mill.look()
    await mill.run(ids[-1])
    assert server.requests[-1][2]["provider"] == {"quantizations": ["int4", "fp8"], "ignore": ["deepinfra"]}


async def test_each_sample_is_asked_with_its_own_draw_and_keeps_it(store: Hand, server: Scripted, mill: Mill) -> None:
    answers(server, lambda _: web.json_response(reply(content=TEXT)))
    choices = [{"value": 0.2, "weight": 1}, {"value": 1.0, "weight": 1}]
    sampling = Sampling.model_validate({"temperature": choices, "top_p": 0.9})
    ids = await mill.put([f"Question {i}" for i in range(24)], sampling=sampling)
    await mill.run(*ids)
    stored = {r.sample_id: r.sampling for r in await store.all("select sample_id, sampling from completion")}
    sent = {body["messages"][0]["content"]: body["temperature"] for path, _, body in server.requests if body}
    assert [stored[i]["temperature"] for i in ids] == [sent[f"Question {n}"] for n in range(24)]
    assert set(sent.values()) == {0.2, 1.0}
    assert {s["top_p"] for s in stored.values()} == {0.9}


# -- places

async def test_a_process_has_no_more_calls_in_flight_than_places_and_a_call_leaves_its_own_before_its_row_is_written(
        store: Hand, server: Scripted, mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight, most, asked, written = 0, 0, asyncio.Semaphore(0), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.02)
        in_flight -= 1
        asked.release()
        return web.json_response(reply(content=TEXT))

    async def stored(*_: Any) -> Any:
        await written.wait()
        raise AssertionError("not of interest")
    answers(server, slow)
    mill.places = asyncio.Semaphore(2)
    monkeypatch.setattr(mill.rebuilder, "stored", stored)
    ids = await mill.put([f"Question {i}" for i in range(6)])
    running = asyncio.ensure_future(mill.run(*ids))
    async with asyncio.timeout(20):
        for _ in ids:                   # all are asked though not one row is written
            await asked.acquire()
    written.set()
    await running
    assert most == 2


async def test_a_hint_that_finds_no_place_ends_and_claims_nothing(
        store: Hand, server: Scripted, mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "SLOT_WAIT_S", 0.05)
    mill.places = asyncio.Semaphore(0)
    [sample] = await mill.put(["one"])
    assert await mill.run(sample) == ["no_slot"]
    assert await mill.attempts() == []


# -- pauses

@pytest.mark.parametrize(("status", "message", "reason"), [
    (400, "kimi-k9 is not a valid model ID", "unknown_model"), (404, "Model kimi-k9 not found", "unknown_model"),
    (404, "No endpoints found that support your data policy", "bad_routing")])
async def test_a_wrong_model_or_routing_closes_the_dataset_and_fails_nothing(
        store: Hand, server: Scripted, mill: Mill, status: int, message: str, reason: str) -> None:
    answers(server, lambda _: web.json_response({"error": {"code": status, "message": message}}, status=status))
    ids = await mill.put(["one", "two"])
    assert set(await mill.run(*ids)) <= {reason, "not_claimed", "closed"}
    assert mill.closed == reason
    assert await store.one("select state, closed_reason from dataset") == (1, reason)
    assert {tuple(s) for s in await store.all("select state, burnt from sample")} == {(0, 0)}


@pytest.mark.parametrize(("status", "error", "reason"), [
    (401, {"message": "User not found"}, "bad_credentials"),
    (402, {"message": "Insufficient credits", "metadata": {"limit_source": "openrouter_credits"}}, "no_credit")])
async def test_a_bad_key_or_spent_credit_pauses_the_account_and_burns_nothing(
        store: Hand, server: Scripted, mill: Mill, status: int, error: dict[str, Any], reason: str) -> None:
    answers(server, lambda _: web.json_response({"error": {"code": status, **error}}, status=status))
    [sample] = await mill.put(["one"])
    assert await mill.run(sample) == [reason]
    assert mill.limit.paused == reason
    assert tuple(await store.one("select state, burnt from sample")) == (0, 0)
