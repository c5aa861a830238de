"""README.md of an export: the dataset card, for people. Says what is in it, how sure it is, and how each trainer is started."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from producer.manifest import hidden_bytes
from producer.plots import FOLDER as PLOTS
from producer.plots import TITLES
from producer.tally import Summary

# Their limits when none is given, from trainers' sources; beyond it SpecForge and speculators cut on the right, in the answer.
DEFAULT_LENGTHS = {"SpecForge": 2_048, "speculators": 8_192}


def card(summary: Summary) -> str:
    """Markdown, with the header that dataset hubs read. Deterministic."""
    parts = [_header(summary), _contents(summary), _drawn(summary, "lengths", "time"), _trust(summary),
             _drawn(summary, "grades"), _trainers(summary), _vocabulary(summary),
             _chats(summary), _left_out(summary), _files(summary)]
    return "\n".join(part for part in parts if part)


def _header(summary: Summary) -> str:
    splits = "\n".join(f"  - split: {name}\n    path: tokens/{name}/*.jsonl" for name in sorted(summary.tally.splits))
    tokens = f"configs:\n- config_name: tokens\n  data_files:\n{splits}\n" if "tokens" in summary.settings["forms"] else ""
    names = ", ".join(sorted(summary.tally.datasets))
    return f"""---
task_categories:
- text-generation
tags:
- speculative-decoding
- eagle-3
{tokens}---

# Training rows for a draft model: {names}

One row per generation: `input_ids` are the prompt as it was sent and the tokens as they were sampled, `loss_mask` is 0 over the
prompt and 1 over what was sampled{_end_note(summary)}. Nothing here was rendered or tokenised again.
"""


def _drawn(summary: Summary, *names: str) -> str:
    present = {shard.path for shard in summary.shards}
    paths = [(TITLES[name], f"{PLOTS}/{name}.png") for name in names]
    return "".join(f"![{title}]({path})\n" for title, path in paths if path in present)


def _end_note(summary: Summary) -> str:
    return ", the end-of-turn token left out" if summary.settings["mask_end"] else ", its end-of-turn token included"


def _contents(summary: Summary) -> str:
    tally = summary.tally
    percentiles = ", ".join(f"{name} {n:,}" for name, n in tally.percentiles().items())
    rows = [
        ("rows", ", ".join(f"{name} {n:,}" for name, n in sorted(tally.splits.items()))),
        ("tokens", f"{tally.tokens:,}, of which supervised {tally.supervised:,}"),
        ("row length in tokens", percentiles),
        ("cut by a limit", f"{tally.cut:,} ({_percent(tally.cut, summary.rows)}); without an end token, and in no chat form"),
        ("spent on these rows", f"${tally.cost_nusd / 1e9:.6f}"),
        ("models", _counts(tally.models)),
        ("datasets", _counts(tally.datasets)),
        ("finish reasons", _counts(tally.finish_reasons)),
    ]
    if (size := hidden_bytes(summary)) is not None:
        rows.append(("hidden states, if stored", f"{size / 1e9:,.2f} GB ({summary.hidden_bytes_per_token:,} bytes a token)"))
    rows += [(str(name), str(value)) for name, value in summary.facts.items() if isinstance(value, str | int | float)]
    return "## Contents\n\n" + _table(("", ""), rows)


def _trust(summary: Summary) -> str:
    tally = summary.tally
    grades = sorted(tally.grades)
    rows = [(provider, *(f"{tally.grades_of_provider[provider, grade]:,}" for grade in grades))
            for provider in sorted(tally.providers)]
    intro = ("How the ids of a row are known (`exactness`): engine, the engine's own; logprobs, from the bytes of each token; "
             "verified, encoded from the text,\nwith one candidate that agrees with the billed count; anything less is weaker.")
    return f"## Grades\n\n{intro}\n\n" + _table(("provider (quantization)", *grades), rows)


def _trainers(summary: Summary) -> str:
    if "tokens" not in summary.settings["forms"]:
        return ""
    longest = summary.longest
    over = [f"- {name} cuts at {n:,} by default: {_over(summary, n)}" for name, n in DEFAULT_LENGTHS.items() if longest > n]
    warning = "\n".join(["", *over])
    return f"""## Trainers

The longest row has {longest:,} tokens. Longer rows than a trainer's limit are cut on the right, in the answer, without a word:
give the limit. After loading, count the rows.{warning}

SpecForge takes one file of tokens, so join the shards:

    cat tokens/train/*.jsonl > train.jsonl
    data.prompts_path=train.jsonl data.max_length={longest}{_specforge_map(summary)}

speculators, one split at a time, into a folder that is new (it does nothing where Arrow files are, and reuses an old
`token_freq.pt`); never give it the folder above the splits, which it would read as one:

    speculators prepare-data --model TOKENIZER --data tokens/train --output prepared \\
      --seq-length {longest} --no-skip-token-freq{_speculators_map(summary)}
    speculators train ... --total-seq-len {longest}

TRL reads the form `trl` (`assistant_masks`). Model-Optimizer and TorchSpec take chat only; render rates are below.
"""


def _specforge_map(summary: Summary) -> str:
    if not summary.coverage:
        return ""
    size = next(iter(summary.coverage))
    made = any(shard.path == "vocab/vocab_mapping.pt" for shard in summary.shards)
    return " model.vocab_mapping_path=vocab/vocab_mapping.pt" + ("" if made else f"""

Its map is written where torch is installed at export; without, make it from the arrays:

    import numpy, torch
    arrays = {{name: torch.from_numpy(numpy.load(f"vocab/{{name}}-{size}.npy")) for name in ("d2t", "t2d")}}
    torch.save(arrays, "vocab/vocab_mapping.pt")""")


def _speculators_map(summary: Summary) -> str:
    size = next(iter(summary.coverage), None)
    return "" if size is None else f"\n    cp vocab/d2t-{size}.npy vocab/t2d-{size}.npy prepared/"


def _over(summary: Summary, limit: int) -> str:
    n = sum(count for length, count in summary.tally.lengths.items() if length > limit)
    return f"longer rows {n:,} ({_percent(n, summary.rows)})"


def _vocabulary(summary: Summary) -> str:
    if not summary.coverage:
        return ""
    rows = [(f"{size:,} of {summary.vocabulary_size:,}", f"{share:.4%}") for size, share in summary.coverage.items()]
    intro = ("`d2t[i] = id - i`, `t2d[id]` true for the ids in; the most supervised ids of the train split, "
             "of equals the smaller id.")
    return f"## Draft vocabulary\n\n{intro}\n\n" + _table(("ids", "supervised tokens covered"), rows)


def _chats(summary: Summary) -> str:
    names = [name for name in summary.settings["forms"] if name in summary.chat_left_out]
    if not names:
        return ""
    rows = []
    for name in names:
        found = summary.rates.get(name, Counter())
        equal, longer, tried = found["equal"], found["longer"], found.total()
        rate = f"{equal:,} of {tried:,} ({_percent(equal, tried)})" if tried else "not measured"
        more = f"{longer:,} ({_percent(longer, tried)})" if tried else ""
        rows.append((name, rate, more, _counts(summary.chat_left_out[name]) or "none"))
    intro = ("Derived, one per trainer: rendered and tokenised again there, so not all rows keep their ids. Give a trainer one\n"
             "folder of a split; rows with tools are apart. Train on the last turn only: the history has rows of its own.")
    return f"## Chat forms\n\n{intro}\n\n" + _table(
        ("form", "rows whose ids are equal after the render", "equal, with more behind them", "left out"), rows)


def _left_out(summary: Summary) -> str:
    rows = [(name, f"{n:,}") for name, n in sorted(summary.tally.left_out.items())]
    return "## Left out\n\n" + _table(("reason", "rows"), rows) if rows else ""


def _files(summary: Summary) -> str:
    rows = [(s.path, f"{s.rows:,}" if s.rows else "", f"{s.bytes:,}", f"`{s.sha256}`") for s in summary.shards]
    return "## Files\n\n" + _table(("path", "rows", "bytes", "sha256"), rows)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in sorted(counts.items()))


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0%"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
