"""Prompts that are one too many: the same, nearly the same, or out of a benchmark."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from models.errors import SettingsError
from producer.likeness import Likeness, Rule, shingles, sketch, words

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi"]


def asks(text: str, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text, **more}]


def prose(seed: int, n: int = 60) -> list[str]:
    return random.Random(seed).choices(WORDS, k=n)


def code(likeness: Likeness, name: str, text: str) -> str | None:
    match = likeness.match(name, asks(text), None)
    return None if match is None else f"{match.code} {match.other}"


def test_the_same_prompt_is_kept_once_and_named_by_the_first() -> None:
    with Likeness(Rule(exact=True)) as likeness:
        assert code(likeness, "a", "Why?") is None
        assert code(likeness, "b", "Why?") == "same_prompt a"
        assert code(likeness, "c", "why?") is None      # exact means the very same text
        assert likeness.match("d", asks("Why?"), [{"type": "function", "function": {"name": "f"}}]) is None
        assert likeness.match("e", [{"role": "system", "content": "s"}, *asks("Why?")], None) is None


def test_all_turns_of_a_conversation_share_the_answer_that_its_first_got() -> None:
    with Likeness(Rule(exact=True)) as likeness:
        assert [code(likeness, *which) for which in (("a", "Why?"), ("a", "Why? More."), ("b", "Why?"), ("b", "New."))] == [
            None, None, "same_prompt a", "same_prompt a"]


@pytest.mark.parametrize(("changed", "is_near"), [(0, True), (1, True), (30, False)])
def test_prompts_that_differ_in_a_word_are_near_and_half_new_ones_are_not(changed: int, is_near: bool) -> None:
    first = prose(1, 120)
    second = [f"w{n}" if n < changed else word for n, word in enumerate(first)]
    with Likeness(Rule(exact=True, near=0.8)) as likeness:
        assert code(likeness, "a", " ".join(first)) is None
        found = code(likeness, "b", "  ".join(second).upper())
        assert found == ("near_prompt a" if is_near else None)


def test_the_sketch_estimates_how_much_two_texts_share() -> None:
    a, b = prose(1, 400), prose(2, 400)
    mixed = a[:300] + b[:100]
    first, second = (set(shingles(said, 5).tolist()) for said in (a, mixed))
    true = len(first & second) / len(first | second)
    estimated = float((sketch(shingles(a, 5)) == sketch(shingles(mixed, 5))).mean())
    assert abs(true - estimated) < 0.15


def test_chinese_is_compared_by_its_characters() -> None:
    assert words(asks("星空very很美。")) == ["星", "空", "very", "很", "美"]
    poem = "床前明月光疑是地上霜举头望明月低头思故乡春眠不觉晓处处闻啼鸟夜来风雨声花落知多少"
    with Likeness(Rule(near=0.8)) as likeness:
        assert code(likeness, "a", poem) is None
        assert code(likeness, "b", poem + "！") == "near_prompt a"


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    path = tmp_path / "bench.jsonl"
    rows = [{"prompt": " ".join(prose(n, 40))} for n in range(5)] + [{"prompt": "What is two and two?"}, {"prompt": "???"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_prompt_that_holds_a_run_of_a_reference_is_contaminated_and_the_reference_named(benchmark: Path) -> None:
    with Likeness(Rule(against=(benchmark,))) as likeness:
        assert list(likeness.learn()) == []
        assert code(likeness, "a", "Please solve: " + ", ".join(prose(3, 40)[10:23]) + "!") == "contaminated bench.jsonl:4"
        assert code(likeness, "b", "Please solve: " + ", ".join(prose(3, 40)[10:22]) + "!") is None       # 12 words only
        assert code(likeness, "c", "what is TWO and two") == "contaminated bench.jsonl:6"
        assert code(likeness, "d", "Tell me: what is two and two?") is None    # shorter references match whole only
        assert code(likeness, "e", "!!!") is None


def test_a_run_that_stands_in_many_references_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    template = " ".join(prose(9, 15))
    path.write_text("".join(json.dumps({"prompt": f"{template} {' '.join(prose(n, 20))} {n}"}) + "\n" for n in range(20)))
    with Likeness(Rule(against=(path,))) as likeness:
        list(likeness.learn())
        assert code(likeness, "a", f"{template} and something else") is None
        assert code(likeness, "b", f"{template} {' '.join(prose(4, 20))} 4") == "contaminated bench.jsonl:5"


def test_a_reference_file_that_holds_no_prompts_is_a_setting_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_text('{"no": "prompt"}\n')
    with Likeness(Rule(against=(path,))) as likeness, pytest.raises(SettingsError):
        list(likeness.learn())
