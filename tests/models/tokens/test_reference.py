"""Vocabularies and templates against reference ids that several implementations agree on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.answer import Answer, Usage
from models.errors import ProfileError
from models.states import Grade
from models.tokens import profile
from models.tokens.model import Model

NAMES = ("kimi", "qwen3")


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name / "reference_ids.jsonl").read_bytes().split(b"\n") if line]


@pytest.fixture(params=NAMES)
def referred(request: pytest.FixtureRequest, tokenizers: Path) -> tuple[Model, list[dict[str, Any]]]:
    return request.getfixturevalue(request.param), lines(tokenizers, request.param)


def test_every_reference_text_has_its_ids_and_comes_back(referred: tuple[Model, list[dict[str, Any]]]) -> None:
    model, found = referred
    texts = [line for line in found if "text" in line]
    assert len(texts) >= 46
    for line in texts:
        ids = model.vocabulary.encode_ordinary(line["text"])
        assert ids == line["ids"], line["kind"]
        assert model.vocabulary.encode(line["text"]) == line.get("ids_special", line["ids"])
        assert model.decode(ids).decode() == line.get("decoded", line["text"])


def test_every_reference_chat_is_rendered_to_its_ids(referred: tuple[Model, list[dict[str, Any]]]) -> None:
    """Where user text spells a marker, Kimi's reference keeps it text: what the user meant (`literal`)."""
    model, found = referred
    chats = [line for line in found if "messages" in line]
    assert len(chats) == 12
    for line in chats:
        literal = not line["agreed"]
        ids = model.prompt_ids(line["messages"], line.get("tools"), line["thinking"], literal=literal)
        assert ids.tolist() == line["prompt_ids"], line["name"]
        if literal:
            as_seen = model.prompt_ids(line["messages"], line.get("tools"), line["thinking"])
            assert as_seen.tolist() in list(line["differs"].values()), line["name"]


def test_kimis_markers_have_the_ids_of_its_config(kimi: Model) -> None:
    added = kimi.vocabulary.added
    assert (added["<|im_end|>"], added["<think>"], added["</think>"]) == (163586, 163606, 163607)
    assert kimi.end_ids >= {163586}
    assert kimi.vocab_size == 163_840


def test_a_profile_whose_ids_do_not_resolve_says_which(tokenizers: Path, tmp_path: Path) -> None:
    text = (Path(profile.__file__).with_name("profiles") / "qwen3.toml").read_text()
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(text.replace("151645", "151646"))
    with pytest.raises(ProfileError, match=r"im_end"):
        Model.open(profile.load(str(wrong), tokenizers=tokenizers))


TEXT = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=60)


@given(thought=TEXT, content=TEXT)
@settings(max_examples=150, deadline=None)
def test_nothing_merges_across_the_think_marker(kimi: Model, thought: str, content: str) -> None:
    encode = kimi.vocabulary.encode_ordinary
    marker = kimi.vocabulary.added["</think>"]
    if kimi.vocabulary.marker.search(thought + content):
        return
    joined = kimi.vocabulary.encode(f"{thought}</think>{content}")
    assert joined == [*encode(thought), marker, *encode(content)]


@given(content=TEXT)
@settings(max_examples=100, deadline=None)
def test_any_row_decodes_to_its_text_and_its_spans_cover_it(kimi: Model, content: str) -> None:
    ids = [*kimi.vocabulary.encode_ordinary(content), 163586]
    answer = Answer(content=content, finish_reason="stop", usage=Usage(prompt_tokens=4, completion_tokens=len(ids)),
                    completion_ids=np.asarray(ids, np.int32))
    row = kimi.row(answer, np.asarray([1, 2, 3, 4], np.int32))
    assert kimi.decode(row.completion_ids[:-1]).decode() == content
    assert [s.start for s in row.spans] == [0, *(s.end for s in row.spans[:-1])]
    assert row.spans[-1].end == len(row.completion_ids)
    assert row.grade is Grade.ENGINE


def test_engine_ids_that_tell_another_text_are_rejected_and_never_replaced(qwen3: Model) -> None:
    ids = np.asarray([*qwen3.vocabulary.encode_ordinary("one two"), 151645], np.int32)
    answer = Answer(content="one three", finish_reason="stop", usage=Usage(1, len(ids)), completion_ids=ids)
    row = qwen3.row(answer, np.asarray([1], np.int32))
    assert row.grade is Grade.REJECTED
    assert row.completion_ids.tolist() == ids.tolist()


def test_a_text_only_answer_is_not_verified_before_its_provider_is_calibrated(kimi: Model) -> None:
    ids = kimi.vocabulary.encode_ordinary("The answer is 42.")
    answer = Answer(content="The answer is 42.", finish_reason="stop", usage=Usage(4, len(ids) + 1))
    row = kimi.row(answer, np.asarray([1, 2, 3, 4], np.int32))
    assert row.grade is Grade.DRIFT
    assert row.reason == "not calibrated"
