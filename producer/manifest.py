"""MANIFEST.yaml: what an export holds, for programs. JSON, which is YAML too, under a name that no trainer takes for data."""

import json
from collections.abc import Mapping
from typing import Any

from producer.tally import Summary

FORMAT = 1


def manifest(summary: Summary) -> str:
    """Deterministic: nothing of the time or machine of writing is in it."""
    return json.dumps(document(summary), indent=1, ensure_ascii=True, sort_keys=False) + "\n"


def document(summary: Summary) -> dict[str, Any]:
    tally = summary.tally
    return {
        "format": FORMAT,
        "rows": summary.rows,
        "splits": _sorted(tally.splits),
        "tokens": tally.tokens,
        "supervised_tokens": tally.supervised,
        "longest_row": summary.longest,
        "length_percentiles": tally.percentiles(),
        "cut_rows": tally.cut,
        "spent_usd": tally.cost_nusd / 1e9,
        "datasets": _sorted(tally.datasets),
        "grades": _sorted(tally.grades),
        "finish_reasons": _sorted(tally.finish_reasons),
        "providers": _sorted(tally.providers),
        "models": _sorted(tally.models),
        "fingerprints": _sorted(tally.fingerprints),
        "left_out": _sorted(tally.left_out),
        "chat_left_out": summary.chat_left_out,
        "rows_with_equal_ids_after_render": {
            name: {"equal": found["equal"], "longer": found["longer"], "tried": found.total()}
            for name, found in sorted(summary.rates.items())},
        "vocabulary": {"size": summary.vocabulary_size, "coverage": {str(d): c for d, c in summary.coverage.items()},
                       "ties": "the smaller id", "counted": "supervised ids of the train split"},
        "hidden_states_bytes": hidden_bytes(summary),
        "settings": summary.settings,
        "facts": summary.facts,
        "files": [{"path": s.path, "rows": s.rows, "bytes": s.bytes, "sha256": s.sha256} for s in summary.shards],
    }


def hidden_bytes(summary: Summary) -> int | None:
    per_token = summary.hidden_bytes_per_token
    return None if per_token is None else per_token * summary.tally.tokens


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))
