"""Replays a corpus of faults over the wire through the real client and holds every verdict against its expectation.

    python tests/faults/replay.py [CASES_FILE]

One line per missed expectation and a count; exit status 1 on a miss. Replies are asked for from a byte-level server on
loopback, prompt files are read by the producer. Codes and flags are labels: another name is fine as long as everything
that has its own name in the file is told apart (such names are listed, not counted as missed).
"""

import asyncio
import json
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from inputs import input_misses
from wire import Wire

from workers.providers import connect
from workers.providers.base import Ask, Exchange, Limits
from workers.providers.soundness import native_text
from workers.verdict import Action, History, Scope, Verdict, judge

SHARED = Path(__file__).resolve().parents[3] / "shared" / "faults" / "cases.jsonl"
LIMITS = Limits(connect_s=1.0, idle_s=0.8, total_s=1.5)
STORED = (Action.DONE, Action.PROMOTE)
SCOPES = {"request": Scope.REQUEST, "provider": Scope.PROVIDER, "key": Scope.ACCOUNT, "fleet": Scope.ACCOUNT,
          "dataset": Scope.DATASET}
MOST_TRIES = 200
Case = Mapping[str, Any]


@dataclass
class Result:
    case: str
    misses: list[str] = field(default_factory=list)
    labels: list[tuple[str, str, str]] = field(default_factory=list)     # kind, expected, ours


def ask_of(case: Case) -> Ask:
    request = case["request"]
    tool = {"type": "function", "function": {"name": "calc", "description": "adds", "parameters": {"type": "object"}}}
    return Ask(
        model=request["model"], messages=request["messages"], max_tokens=request["max_tokens"],
        stream=bool(request.get("stream")), reasoning={"enabled": True} if request.get("reasoning") else None,
        tools=[tool] if request.get("tools_sent") else None, routing={"ignore": request.get("provider_ignore", [])},
        expected_prompt_tokens=request.get("expected_prompt_tokens"), limits=LIMITS)


async def verdict_of(case: Case, url: str) -> Verdict:
    """The last verdict of a sample that is asked again for as long as its verdicts say so."""
    ask = ask_of(case)
    history = History(lane=case["request"].get("queue", "short"), seen=case["request"].get("already_stored_generation_ids", ()))
    replies = len(case.get("script", [0]))
    for turn in range(1, MOST_TRIES):
        verdict = judge(ask, await exchange_of(case, ask, url), history)
        over = verdict.halts if case.get("script_repeat") else turn >= replies
        if over or verdict.action not in (Action.RETRY, Action.SNOOZE):
            return verdict
        history = replace(history, burnt=history.burnt + verdict.burns, snoozed=history.snoozed + (not verdict.burns),
                          possibly_paid=history.possibly_paid + verdict.possibly_paid)
    return verdict


async def exchange_of(case: Case, ask: Ask, url: str) -> Exchange:
    raised, transport = case.get("response", {}).get("raise", ""), case.get("response", {}).get("transport")
    base, connections = f"{url}/c/{case['id']}", 4
    if transport == "refuse" or raised.endswith(("ConnectError", "ConnectTimeout")):
        base = f"http://127.0.0.1:{unused_port()}"
    if raised.endswith("PoolTimeout"):
        base, connections = f"{url}/c/{case['id']}", 1
    provider = await connect("openrouter", base, lambda: "sk-or-replayed", connections)
    try:
        if raised.endswith("PoolTimeout"):
            waiting = asyncio.create_task(provider.ask(ask))
            await asyncio.sleep(0.1)
            exchange = await provider.ask(replace(ask, limits=replace(LIMITS, connect_s=0.2)))
            provider.stop(lambda _: True)
            await waiting
            return exchange
        return await provider.ask(ask)
    finally:
        await provider.aclose()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def compare(case: Case, verdict: Verdict) -> Result:
    expect, result = case["expect"], Result(case["id"])
    result.labels.append(("code", expect["code"], verdict.code))
    result.misses += _differences(expect, verdict)
    row = expect["row"]
    if row is not None and verdict.answer is not None:
        wanted, given = set(row["flags"]), set(verdict.flags)
        missing, extra = sorted(wanted - given), sorted(given - wanted)
        if len(missing) == len(extra):
            result.labels += [("flag", w, g) for w, g in zip(missing, extra, strict=True)]
        else:
            result.misses.append(f"flags: expected {sorted(wanted)}, got {sorted(given)}")
        result.labels += [("flag", f, f) for f in wanted & given]
    return result


def _differences(expect: Mapping[str, Any], verdict: Verdict) -> Iterator[str]:
    if not _does(expect["action"], verdict):
        yield f"action: expected {expect['action']}, got {verdict.action}{' (halts)' if verdict.halts else ''}"
    if verdict.burns != expect["consumes_attempt"]:
        yield f"consumes_attempt: expected {expect['consumes_attempt']}, got {verdict.burns}"
    if verdict.scope is not SCOPES[expect["scope"]]:
        yield f"scope: expected {expect['scope']}, got {verdict.scope}"
    if expect["wait_s"] and not expect["wait_s"][0] <= verdict.wait_s[0] <= verdict.wait_s[1] <= expect["wait_s"][1]:
        yield f"wait_s: expected within {expect['wait_s']}, got {verdict.wait_s}"
    yield from _money(expect["billed"], verdict)
    yield from _row(expect["row"], verdict)


def _does(action: str, verdict: Verdict) -> bool:
    again = verdict.action in (Action.RETRY, Action.SNOOZE)
    match action:
        case "accept" | "accept_flagged":
            return verdict.action is Action.DONE
        case "retry":
            return again and not verdict.halts and not verdict.ignore_provider
        case "retry_other_provider":
            return (again or verdict.action is Action.PROMOTE) and verdict.ignore_provider != ""
        case "requeue_long":
            return verdict.action is Action.PROMOTE
        case "fail_permanent" | "dead_letter":
            return verdict.action is Action.DROP
        case "pause_queue":
            return verdict.action is Action.SNOOZE and verdict.scope in (Scope.ACCOUNT, Scope.PROVIDER)
        case "halt_dataset":
            return verdict.action is Action.SNOOZE and verdict.halts and verdict.scope is Scope.DATASET
        case "halt_fleet":
            return verdict.action is Action.SNOOZE and verdict.halts and verdict.scope is Scope.ACCOUNT
    return False


def _money(billed: Mapping[str, Any], verdict: Verdict) -> Iterator[str]:
    if verdict.billed.basis != billed["basis"]:
        yield f"billed basis: expected {billed['basis']}, got {verdict.billed.basis}"
    tokens = billed["completion_tokens"]
    if tokens is not None and verdict.billed.completion_tokens != tokens:
        yield f"billed tokens: expected {tokens}, got {verdict.billed.completion_tokens}"
    if billed["basis"] == "estimate" and verdict.billed.completion_tokens <= 0:
        yield "billed tokens: an estimate of nothing"


def _row(row: Mapping[str, Any] | None, verdict: Verdict) -> Iterator[str]:
    if row is None or verdict.answer is None:
        if (row is None) != (verdict.action not in STORED):
            yield f"row: expected {'none' if row is None else 'one'}, got {verdict.action}"
        return
    content = verdict.answer.content + (native_text(verdict.answer.tool_calls) or "")
    for name, given in (("content", content), ("reasoning", verdict.answer.reasoning)):
        if (row[name] or "") != (given or ""):
            yield f"row {name}: expected {row[name]!r:.120}, got {given!r:.120}"
    for name in ("truncated", "trainable"):
        if row[name] != getattr(verdict, name):
            yield f"row {name}: expected {row[name]}, got {getattr(verdict, name)}"


def tell_apart(results: list[Result]) -> Iterator[str]:
    """Adds a miss where two expected names share one of ours, or one of ours means another expected name; lists the rest."""
    ours: dict[tuple[str, str], set[str]] = defaultdict(set)
    names: dict[str, set[str]] = defaultdict(set)
    for result in results:
        for kind, expected, given in result.labels:
            ours[kind, given].add(expected)
            names[kind].add(given)
    for result in results:
        for kind, expected, given in result.labels:
            if expected == given:
                continue
            if len(ours[kind, given]) > 1 or expected in names[kind]:
                result.misses.append(f"{kind}: expected {expected}, got {given}")
            else:
                yield f"{result.case}: {kind} {expected} is named {given} here"


async def one(case: Case, url: str, at_once: asyncio.Semaphore) -> Result:
    if case["kind"] == "input":
        return Result(case["id"], list(input_misses(case)))
    async with at_once:
        return compare(case, await verdict_of(case, url))


async def replayed(cases: list[Case]) -> tuple[list[Result], list[str]]:
    at_once = asyncio.Semaphore(16)
    async with Wire({c["id"]: c for c in cases}) as url:
        results = list(await asyncio.gather(*(one(c, url, at_once) for c in cases)))
    return results, list(tell_apart(results))


def load(file: Path) -> list[Case]:
    lines = file.read_text(encoding="utf-8").split("\n")
    return [c for c in map(json.loads, filter(None, lines)) if c["kind"] in ("response", "http", "stream", "input")]


def main(arguments: list[str]) -> int:
    file = Path(arguments[0]) if arguments else SHARED
    results, notes = asyncio.run(replayed(load(file)))
    for note in notes:
        print(f"note  {note}")
    for result in results:
        for miss in result.misses:
            print(f"miss  {result.case}: {miss}")
    met = sum(not r.misses for r in results)
    print(f"{met}/{len(results)} cases met")
    return 0 if met == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
