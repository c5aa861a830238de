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

CUT_SHARE = 0.12
WINDOW = 8          # tokens after which another path has met the canonical one again


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
        if random.random() < 0.5:
            ids += sampled(model, random, content.rstrip() + model.profile.tools.gap, rate)
        ids += model.vocabulary.encode(_calls(model, random))
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


def _calls(model: Model, random: Random) -> str:
    tools = model.profile.tools
    assert tools is not None
    calls = []
    for index in range(random.randint(1, 3)):
        name = random.choice(["get_weather", "search", "run_code"])
        city = random.choice(["Tokyo", "北京", "São Paulo"])
        arguments = {"city": city, "days": random.randint(1, 9), "note": prose.english(random)}
        written = json.dumps(arguments, ensure_ascii=False, separators=random.choice([(", ", ": "), (",", ":")]))
        given = tools.id.replace("{name}", name).replace("{index}", str(index))
        calls.append(tools.call.replace("{id}", given).replace("{name}", name).replace("{arguments}", written))
    return tools.open + tools.join.join(calls) + tools.close


def sampled(model: Model, random: Random, text: str, rate: float) -> list[int]:
    """The text's ids, with about `rate` of the tokens left for another path to the same text."""
    ids: list[int] = model.vocabulary.spell(text).tolist()
    if not rate:
        return ids
    for at in sorted(_places(random, len(ids), rate), reverse=True):
        ids[at:at + WINDOW] = other_path(model, random, ids[at:at + WINDOW])
    return ids


def _places(random: Random, length: int, rate: float) -> Iterator[int]:
    at = int(random.expovariate(rate))
    while at < length:
        yield at
        at += WINDOW + int(random.expovariate(rate))


def other_path(model: Model, random: Random, ids: list[int]) -> list[int]:
    """The same text as a model writes it after an unlucky token: a beginning of ids[0], then canonically on from there.

    Mostly that costs a token more. Where the rest joins what follows, the count stays, and nobody can see it in a text.
    The ids themselves where ids[0] has no shorter beginning.
    """
    table, id_of = model.vocabulary.table, model.vocabulary.id_of
    first, rest = table[ids[0]], b"".join(table[i] for i in ids[1:])
    cuts = [n for n in range(1, len(first)) if first[:n] in id_of and _is_text(first[n:] + rest)]
    if not cuts:
        return ids
    n = random.choice(cuts)
    return [id_of[first[:n]], *model.vocabulary.spell((first[n:] + rest).decode()).tolist()]


def _is_text(data: bytes) -> bool:
    try:
        return bool(data.decode())
    except UnicodeDecodeError:
        return False
