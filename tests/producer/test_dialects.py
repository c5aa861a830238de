import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.answer import ToolCall
from models.conversation import document
from models.tokens.row import Span
from producer.dialects import DIALECTS, Chat, chat
from producer.export import ExportRow, Options, Selection, Vocabulary, export

Make = Callable[..., ExportRow]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
CALL = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
USER = {"role": "user", "content": "Hi"}


def told(dialect: str, row: ExportRow, vocabulary: Vocabulary) -> Chat:
    found = chat(dialect, row, vocabulary)
    assert isinstance(found, Chat)
    return found


def test_specforge_gets_an_explicit_system_message_and_no_other_columns(row: Make, vocabulary: Vocabulary) -> None:
    found = told("specforge", row(reasoning="hm"), vocabulary)
    assert found.line == {"id": "B1/a", "conversations": [
        {"role": "system", "content": "", "reasoning_content": ""},
        {**USER, "reasoning_content": ""},
        {"role": "assistant", "content": "Hello", "reasoning_content": "hm"}]}
    own = row(prompt=document([{"role": "system", "content": "Be terse."}, USER]))
    assert [m["content"] for m in told("specforge", own, vocabulary).line["conversations"]] == ["Be terse.", "Hi", "Hello"]


def test_specforge_tool_calls_are_text_so_that_arguments_of_any_type_load(row: Make, vocabulary: Vocabulary) -> None:
    calling = row(prompt=document([USER], tools=[TOOL]), tool_calls=(ToolCall("f:0", "f", '{"x": 1}'),), content="")
    found = told("specforge", calling, vocabulary)
    assert found.group == "tools"
    assert json.loads(found.line["tools"]) == [TOOL]
    assert [json.loads(m["tool_calls"]) for m in found.line["conversations"]] == [[], [], [CALL]]


def test_torchspec_gets_thinking_inline_and_tool_calls_as_the_model_wrote_them(row: Make, vocabulary: Vocabulary) -> None:
    calling = row(reasoning="hm", content="So: ", tool_calls=(ToolCall("f:0", "f", "{}"),), finish_reason="tool_calls",
                  completion_ids=np.array([20, 21, 22, 2], dtype=np.int32),
                  spans=(Span("content", 0, 1), Span("tools", 1, 3), Span("stop", 3, 4)))
    found = told("torchspec", calling, vocabulary)
    assert found.line["conversations"][-1] == {"role": "assistant", "content": "<think>hm</think>So: ‹21›‹22›"}


@pytest.mark.parametrize(("change", "reason"), [
    ({"prompt": document([USER], tools=[TOOL])}, "tools_never_rendered"),
    ({"tool_calls": (ToolCall("a", "f", "{}"),)}, "raw_calls_unknown"),
    ({"prompt": document([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                          {"role": "tool", "content": "1", "tool_call_id": "f:0"}])}, "calls_in_history"),
])
def test_torchspec_leaves_out_what_it_would_render_otherwise(
        row: Make, vocabulary: Vocabulary, change: dict[str, Any], reason: str) -> None:
    assert chat("torchspec", row(**change), vocabulary) == reason


def test_modelopt_gets_no_tools_since_its_template_call_drops_them(row: Make, vocabulary: Vocabulary) -> None:
    found = told("modelopt", row(prompt=document([USER], tools=[TOOL])), vocabulary)
    assert "tools" not in found.line
    assert found.tools is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_all_rows_of_a_folder_have_one_schema(tmp_path: Path, row: Make, options: Options, dialect: str) -> None:
    """A large lot with the odd rows last, read by Arrow in small blocks, as `datasets` reads large files."""
    from pyarrow import json as arrow_json

    declared = row(prompt=document([USER], tools=[TOOL]))
    called = row(prompt=document([USER], tools=[TOOL]), tool_calls=(ToolCall("f:0", "f", "{}"),), reasoning="hm")
    answered = row(prompt=document([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                                    {"role": "tool", "content": "1", "tool_call_id": "f:0", "name": "f"}], tools=[TOOL]))
    undeclared = replace(answered, prompt={**answered.prompt, "tools": None})
    rows = [undeclared] * 20 + [row()] * 50 + [declared] * 50 + [called] * 50 + [answered] * 5 + [row(reasoning="late")]
    export(rows, tmp_path / "out", replace(options, forms=(dialect,), selection=Selection(val_share=0)))
    folders = list((tmp_path / "out" / dialect).glob("*/train"))
    assert folders
    for folder in folders:
        table = arrow_json.read_json(folder / "part-00000.jsonl", read_options=arrow_json.ReadOptions(block_size=2_000))
        assert "null" not in str(table.schema)


def test_the_rate_of_rows_that_survive_a_trainers_render_is_measured(tmp_path: Path, row: Make, options: Options) -> None:
    good = row()

    def render(messages: list[dict[str, Any]], tools: Any) -> Any:
        return None if messages[0]["role"] == "system" else np.array([1, 10, 11, 20, 21, 2], dtype=np.int32)
    other = row(id="b", completion_ids=np.array([20, 22, 2], dtype=np.int32))
    summary = export([good, other], tmp_path / "out", replace(options, forms=("tokens", "messages", "specforge"), render=render))
    assert summary.rates == {"messages": {"equal": 1, "other": 1}, "specforge": {"other": 2}}
    card = (tmp_path / "out/README.md").read_text()
    assert "| messages | 1 of 2 (50.0%) | 0 (0.0%) | none |" in card
