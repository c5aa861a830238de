"""The token form: one JSON line per generation, which SpecForge and speculators load as it is.

    id, primary_id   text
    input_ids        prompt ids + completion ids
    loss_mask        0 over the prompt, 1 over what was sampled (its end token too, unless `mask_end`)
    text             the ids decoded (only where a decoder is at hand: then in every row)
    ...              flat columns of one type each, never null, in one order (`scalars`)
    extra            all else as one JSON string

Arrow guesses a column's type from the first megabytes, so a null or a late column there breaks the load of a large file
though a small one passes. Hence: every column in every row.
"""

import json
import math
from typing import Any

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from models.blob import Ids
from producer.rows import ExportRow
from producer.selection import Vocabulary

UNSET_TEMPERATURE = -1.0  # the provider's own: never null, never an integer

# orjson alone reads an array as it is: half the time of a list of ints, which would be most of a row.
_array, _NUMPY = orjson.dumps, orjson.OPT_SERIALIZE_NUMPY
_encode = msgspec.json.Encoder().encode
_sorted = msgspec.json.Encoder(order="deterministic").encode


def scalars(row: ExportRow, covered: int) -> dict[str, Any]:
    """The flat columns between the arrays and `extra`."""
    temperature = row.temperature
    if temperature is None or not math.isfinite(temperature):
        temperature = UNSET_TEMPERATURE
    return {
        "dataset": row.dataset, "turn": row.turn, "finish_reason": row.finish_reason, "truncated": row.cut,
        "is_tool_call": bool(row.tool_calls) or row.finish_reason == "tool_calls",
        "prompt_tokens": len(row.prompt_ids), "completion_tokens": covered,
        "model": row.model, "provider": row.provider, "quantization": row.quantization,
        "temperature": float(temperature), "exactness": row.grade.label,
    }


def extra(row: ExportRow) -> str:
    """What has no fixed type, as JSON in ASCII, keys sorted."""
    document = {
        "account": row.account, "billed_completion_tokens": row.completion_tokens, "billed_prompt_tokens": row.prompt_tokens,
        "cost_usd": row.cost_usd, "created_at": row.created_at, "fingerprint": row.fingerprint, "flags": sorted(row.flags),
        "metadata": row.metadata, "sampling": row.sampling, "spans": [(s.kind, s.start, s.end) for s in row.spans]}
    text = _sorted(document)
    return text.decode() if text.isascii() else json.dumps(document, sort_keys=True, separators=(",", ":"))


def line(row: ExportRow, vocabulary: Vocabulary, covered: int, mask_name: str = "loss_mask") -> bytes:
    """The row as one line of JSON, without its line end. covered: ids of the completion under the mask, from its start."""
    whole, text = ids(row), b""
    if vocabulary.decode is not None:
        # ASCII: U+2028 and its like would end the line for readers that are not careful.
        text = b'"text":%b,' % json.dumps(vocabulary.decode(whole)).encode()
    return b'{"id":%b,"primary_id":%b,"input_ids":%b,"%b":%b,%b%b,"extra":%b}' % (
        _encode(row.id), _encode(row.primary_id), _array(whole, option=_NUMPY), mask_name.encode(), _mask(row, covered),
        text, _encode(scalars(row, covered))[1:-1], _encode(extra(row)))


def ids(row: ExportRow) -> Ids:
    return np.concatenate((row.prompt_ids, row.completion_ids))


def mask(row: ExportRow, covered: int) -> NDArray[np.int8]:
    flags = np.zeros(row.length, dtype=np.int8)
    flags[len(row.prompt_ids):len(row.prompt_ids) + covered] = 1
    return flags


def _mask(row: ExportRow, covered: int) -> bytes:
    uncovered = len(row.completion_ids) - covered
    return b"[%b]" % (b"0," * len(row.prompt_ids) + b"1," * covered + b"0," * uncovered)[:-1]
