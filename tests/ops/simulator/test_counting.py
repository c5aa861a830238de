"""With a profile, what the simulator counts is what the model's own tokenizer counts."""

import json
import random
from pathlib import Path

import pytest

from models.tokens.profile import load
from models.tokens.vocabulary import open_vocabulary
from ops.simulator import answers
from ops.simulator.behaviour import Behaviour
from ops.simulator.counting import Profiled

PROFILES = ("kimi-k2.5", "qwen3")


@pytest.fixture(scope="module", params=PROFILES)
def counted(request: pytest.FixtureRequest, shared: Path) -> tuple[str, Profiled, Path]:
    folder = shared / "tokenizers"
    return request.param, Profiled(request.param, folder, seed=1), folder


def test_every_slice_encodes_to_its_own_ids(counted: tuple[str, Profiled, Path]) -> None:
    name, counting, folder = counted
    vocabulary, _ = open_vocabulary(load(name, tokenizers=folder))
    draw = random.Random(2)
    for _ in range(200):
        text, ids = counting.corpus.slice(draw.randrange(40_000), draw.choice([1, 2, 3, 7, 60, 900]))
        assert vocabulary.encode(json.loads(b'"%b"' % text)) == json.loads(b"[%b]" % ids[:-1])


def test_an_answer_is_sampled_as_the_vocabulary_spells_it(counted: tuple[str, Profiled, Path]) -> None:
    name, counting, folder = counted
    profile = load(name, tokenizers=folder)
    vocabulary, _ = open_vocabulary(profile)
    prompt = counting.prompt([{"role": "user", "content": "hi 你好"}], None, True, b"")
    answer = answers.natural(Behaviour(), b"x", opened=prompt.opened)
    cut = answers.cut(counting.corpus, answer, answer.length)
    assert vocabulary.encode(json.loads(b'"%b"' % cut.sampled) + profile.stop) == json.loads(b"[%b]" % cut.ids)
    before = vocabulary.decode(json.loads(b"[%b]" % prompt.json_ids())).decode()
    assert (before + json.loads(b'"%b"' % cut.sampled)).count("<think>") == 1
