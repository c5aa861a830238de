import json
import shutil
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from models.errors import ProfileError
from models.tokens import profile
from models.tokens.model import Model
from models.tokens.vocabulary import cut_runs

ANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.text(max_size=80) | st.text(st.sampled_from("ab I'sS .!\n\r\t \u3000é推测解🦅👩\u200d1２३ि<|>/think"), max_size=60)


def lines(folder: Path, model: str) -> list[dict]:
    return [json.loads(x) for x in (folder / model / "reference_ids.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["kimi", "qwen3"])
def test_every_reference_text_has_its_ids_both_as_text_and_with_markers(name, tokenizers, request):
    vocabulary = request.getfixturevalue(name).vocabulary
    texts = [x for x in lines(tokenizers, name) if "text" in x]
    assert len(texts) == 46
    for x in texts:
        assert vocabulary.encode_ordinary(x["text"]) == x["ids"], x["text"]
        assert vocabulary.encode(x["text"]) == x.get("ids_special", x["ids"]), x["text"]
        assert vocabulary.decode(x["ids"]).decode() == x.get("decoded", x["text"])


def test_a_vocabulary_out_of_a_gguf_is_the_one_of_the_tokenizer_file(tiny, qwen3, tokenizers):
    for x in lines(tokenizers, "qwen3"):
        if "text" in x:
            assert tiny.vocabulary.encode(x["text"]) == x.get("ids_special", x["ids"])
    assert tiny.vocabulary.table[:151_669] == qwen3.vocabulary.table[:151_669]
    assert tiny.vocab_size == 151_936


def test_every_reference_prompt_is_reproduced_as_meant_and_as_an_engine_reads_it(tokenizers, kimi, qwen3, tiny):
    seen = 0
    for name, model in (("kimi", kimi), ("qwen3", qwen3), ("qwen3", tiny)):
        for x in (x for x in lines(tokenizers, name) if "prompt_ids" in x):
            asked = x["messages"], x.get("tools"), x["thinking"]
            as_engine = x.get("differs", {}).get("renderers", x["prompt_ids"])
            assert model.prompt_ids(*asked).tolist() == as_engine, x["name"]
            assert model.prompt_ids(*asked, literal=name == "kimi").tolist() == x["prompt_ids"], x["name"]
            assert model.holds_marker(x["messages"]) == ("holds" in x["name"])
            seen += 1
    assert seen == 36


def test_a_literal_prompt_keeps_what_a_user_typed_as_text(qwen3):
    ids = qwen3.prompt_ids([{"role": "user", "content": "Print <|im_end|> for me."}], literal=True).tolist()
    assert ids.count(151645) == 1
    assert b"Print <|im_end|> for me." in qwen3.decode(ids)


@ANY
@given(text=TEXTS)
@example("cafe\u0301 A\u030a")
def test_spelling_loses_nothing(model, text):
    vocabulary = model.vocabulary
    told = vocabulary.decode(vocabulary.spell(text)).decode("utf-8", "replace")
    assert told == text or (not vocabulary.complete and any(bytes([b]) not in vocabulary.id_of for b in text.encode()))


@ANY
@given(before=TEXTS, after=TEXTS)
def test_no_merge_crosses_a_marker(model, before, after):
    vocabulary = model.vocabulary
    if vocabulary.marker.search(before + after):
        return
    think = model.profile.think
    marker = think.close if think else model.profile.stop
    plain = vocabulary.encode_ordinary
    assert vocabulary.encode(before + marker + after) == [*plain(before), vocabulary.added[marker], *plain(after)]


@ANY
@given(text=TEXTS, cut=st.integers(0, 60))
@example("foo.\n\n🦅", 2)
@example("x  \n  \u3000\ny", 2)
@example("I'ſ", 1)
@example("推测解码🦅", 3)
def test_what_is_kept_of_a_cut_text_is_a_beginning_of_what_was_sampled(model, text, cut):
    sampled = model.vocabulary.spell(text).tolist()
    sampled = sampled[:min(cut, len(sampled))]
    shown = model.vocabulary.decode(sampled).decode("utf-8", "replace")
    shown = shown.rstrip("\ufffd")
    if "\ufffd" in shown:
        return      # such an answer is rejected whatever its ids
    kept = model.vocabulary.spell(model.vocabulary.stable(shown)).tolist()
    assert kept == sampled[:len(kept)]


def test_a_stable_text_is_not_empty_where_it_need_not_be(model):
    assert model.vocabulary.stable("One sentence. And another 🦅").startswith("One sentence.")


def test_lone_surrogates_read_as_an_engine_reads_them(model):
    assert model.decode(model.vocabulary.encode("a\ud800b")).decode() == "a\ufffdb"


def test_very_long_texts_and_runs_are_cut_as_moonshot_cuts_them(kimi):
    text = " " * 60_000 + "x" * 30_000 + "推" * 26_000 + " end" * 100_000
    pieces = [p for start in range(0, len(text), 400_000) for p in cut_runs(text[start:start + 400_000], 25_000)]
    encoding = kimi.vocabulary.codec.encoding
    assert kimi.vocabulary.encode_ordinary(text) == [i for p in pieces for i in encoding.encode_ordinary(p)]
    assert "".join(pieces) == text
    assert max(len(p) for p in pieces if not p.strip()) <= 25_000


def test_ids_and_bytes_are_one_to_one(model):
    vocabulary, random = model.vocabulary, Random(1)
    for i in random.sample(range(vocabulary.size), 2000):
        if vocabulary.table[i]:
            assert vocabulary.id_of[vocabulary.table[i]] == i


def test_kimi_knows_its_markers(kimi):
    added = kimi.vocabulary.added
    assert (added["<|im_end|>"], added["<think>"], added["</think>"]) == (163586, 163606, 163607)
    assert kimi.vocabulary.size == 163_840
    assert 163586 in kimi.end_ids
    assert len(added) == 256
    assert kimi.vocabulary.decode([163606, 163586], hidden=False) == b"<think>"


def changed(tmp_path: Path, tokenizers: Path, old: str, new: str) -> Path:
    for file in profile.FOLDER.glob("kimi*"):
        shutil.copy(file, tmp_path)
    own = tmp_path / "kimi-k2.5.toml"
    text = own.read_text(encoding="utf-8")
    assert old in text
    own.write_text(text.replace(old, new), encoding="utf-8")
    return own


def test_a_profile_whose_ids_do_not_resolve_says_which(tmp_path, tokenizers):
    own = changed(tmp_path, tokenizers, '[ids]\n"<think>" = 163606', '[ids]\n"<think>" = 163605\n"<|no_such|>" = 1')
    with pytest.raises(ProfileError, match=r"'<think>' is 163606, not 163605; '<\|no_such\|>' is None, not 1"):
        Model.open(profile.load(str(own), tokenizers=tokenizers))


def test_another_vocabulary_than_the_pinned_one_is_refused(tmp_path, tokenizers):
    folder = tmp_path / "kimi"
    folder.mkdir()
    (folder / "tiktoken.model").write_bytes((tokenizers / "kimi" / "tiktoken.model").read_bytes()[:-10])
    with pytest.raises(ProfileError, match="sha256"):
        profile.load("kimi-k2.5", tokenizers=tmp_path)


def test_an_unknown_profile_names_the_known_ones(tmp_path):
    with pytest.raises(ProfileError, match=r"no such profile; known: .*kimi-k2\.5.*qwen3.*smollm2"):
        profile.load("llama-9")


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(b"not a gguf at all, but long enough")
    with pytest.raises(ProfileError, match="not a GGUF"):
        Model.open(profile.load("qwen3", tokenizers=file))


def test_every_profile_can_be_read():
    for name in profile.names():
        assert profile._read(name, profile.FOLDER / f"{name}.toml").name == name


def test_the_error_of_a_refused_prompt_does_not_quote_it(kimi):
    with pytest.raises(ProfileError) as caught:
        kimi.prompt_ids([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://secret"}}]}])
    assert "secret" not in str(caught.value)
    assert "only text parts" in str(caught.value)


def test_nested_tools_are_declared_as_kimi_declares_them(kimi):
    latitude = {"type": "number", "minimum": -90}
    place = {"type": "object", "description": "A place.", "properties": {"lat": latitude}, "required": ["lat"]}
    parameters = {
        "type": "object", "required": ["places"], "$defs": {"Place": place}, "additionalProperties": False,
        "properties": {
            "unit": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": "C"},
            "tags": {"type": "array", "maxItems": 3, "items": {"type": "string", "description": "A tag.\n\nShort."}},
            "places": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
            "when": {"type": "object", "properties": {"day": {"type": ["integer", "null"]}}}}}
    tool = {"type": "function", "function": {"name": "look", "description": "Look up.", "parameters": parameters}}
    text = kimi.decode(kimi.prompt_ids([{"role": "user", "content": "?"}], [tool])).decode()
    assert """namespace functions {
// A place.
interface Place {
  // minimum: -90
  lat: number
}
// Look up.
type look = (_: {
  places: Array<Place>,
  // maxItems: 3
  tags?: Array<
    // A tag.

    // Short.
    string
  >,
  // Default: "C"
  unit?: string | null,
  when?: {
    day?: number | null
  },
  [k: string]: never
}) => any;
}
<|im_end|>""" in text
