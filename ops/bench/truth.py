"""Rows whose ids are known because they are made, not guessed: sampled paths with a given rate of non-canonical tokens."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

from models.states import Grade
from models.tokens.model import Model
from models.tokens.replay import known
from models.tokens.row import Row
from ops.bench import prose

FIXED, VARIED = ("",), ("", "", "", "\n")
CUT_SHARE = 0.12


@dataclass(frozen=True, slots=True)
class Habits:
    """White space the model samples: before and after its thought, before and after its content. One is drawn per row."""

    think_lead: tuple[str, ...] = ("",)
    think_tail: tuple[str, ...] = ("\n",)
    content_lead: tuple[str, ...] = ("\n\n",)
    content_tail: tuple[str, ...] = ("",)


STEADY = Habits()
VARIED_HABITS = Habits(("",) * 18 + ("\n", " "), ("", "\n", "\n", "\n\n"), ("\n\n",) * 7 + ("\n", "", " "), ("",) * 19 + ("\n",))


def rows(model: Model, random: Random, count: int, rate: float, habits: Habits, tools: bool, sentences: int) -> list[Row]:
    """`rate`: non-canonical tokens per token. An eighth of the rows are cut anywhere, also inside a character."""
    return [_row(model, random, rate, habits, tools, sentences) for _ in range(count)]


def _row(model: Model, random: Random, rate: float, habits: Habits, tools: bool, sentences: int) -> Row:
    prompt = model.prompt_ids([{"role": "user", "content": prose.english(random)}])
    rebuilder, ids = model.rebuilder, list[int]()
    if rebuilder.open >= 0:
        ids += [] if rebuilder.open in prompt[-2:] else [rebuilder.open]
        thought = _spaced(random, habits.think_lead, habits.think_tail, _long(random, sentences))
        ids += [*sampled(model, random, thought, rate), rebuilder.close]
    content = _spaced(random, habits.content_lead, habits.content_tail, _long(random, sentences))
    if tools and model.profile.tools:
        ids += sampled(model, random, content.rstrip(), rate) if random.random() < 0.5 else []
        ids += model.vocabulary.encode(_calls(model, random, bool(ids and ids[-1] != rebuilder.close)))
    else:
        ids += sampled(model, random, content, rate)
    ids.append(rebuilder.stop)
    if random.random() < CUT_SHARE:
        ids = ids[:random.randint(2, max(2, len(ids) - 1))]
    return true_row(model, prompt.tolist(), ids)


def true_row(model: Model, prompt: list[int], ids: list[int]) -> Row:
    """A row as an engine's own ids would give it."""
    cut = ids[-1] not in model.end_ids
    spans = known(model.rebuilder, Row(np.asarray(prompt, np.int32), np.asarray(ids, np.int32), (), Grade.ENGINE), cut).spans(ids)
    return Row(np.asarray(prompt, np.int32), np.asarray(ids, np.int32), spans, Grade.ENGINE)


def _long(random: Random, sentences: int) -> str:
    return prose.text(random, 1 + min(8 * sentences, int(random.expovariate(1 / sentences))))


def _spaced(random: Random, lead: tuple[str, ...], tail: tuple[str, ...], text: str) -> str:
    return random.choice(lead) + text + random.choice(tail)


def _calls(model: Model, random: Random, after_text: bool) -> str:
    tools = model.profile.tools
    assert tools is not None
    calls = []
    for index in range(random.randint(1, 3)):
        name = random.choice(["get_weather", "search", "run_code"])
        arguments = {"city": random.choice(["Tokyo", "北京", "São Paulo"]), "days": random.randint(1, 9), "note": prose.english(random)}
        written = json.dumps(arguments, ensure_ascii=False, separators=random.choice([(", ", ": "), (",", ":")]))
        given = tools.id.replace("{name}", name).replace("{index}", str(index))
        calls.append(tools.call.replace("{id}", given).replace("{name}", name).replace("{arguments}", written))
    return (tools.gap if after_text else "") + tools.open + tools.join.join(calls) + tools.close


def sampled(model: Model, random: Random, text: str, rate: float) -> list[int]:
    """The text's ids, with about `rate` of the tokens left for another path to the same text."""
    ids = model.vocabulary.spell(text)
    if not rate:
        return ids
    for at in sorted((i for i in _places(random, len(ids), rate)), reverse=True):
        ids[at:at + 2] = other_path(model, random, ids[at:at + 2])
    return ids


def _places(random: Random, length: int, rate: float) -> Iterator[int]:
    at = int(random.expovariate(rate))
    while at < length:
        yield at
        at += 2 + int(random.expovariate(rate))


def other_path(model: Model, random: Random, ids: list[int]) -> list[int]:
    """One of the other ways to write the same bytes in at most one token more, drawn evenly; the ids where there is none."""
    data = b"".join(model.vocabulary.table[i] for i in ids)
    known_ids = model.vocabulary.id_of
    paths = [path for path in _paths(data, len(ids) + 1, known_ids) if path != ids]
    return random.choice(paths) if paths else ids


def _paths(data: bytes, most: int, known_ids: dict[bytes, int]) -> Iterator[list[int]]:
    if not data:
        yield []
    for n in range(1, len(data) + 1 if most else 0):
        first = known_ids.get(data[:n])
        if first is not None:
            for rest in _paths(data[n:], most - 1, known_ids):
                yield [first, *rest]
