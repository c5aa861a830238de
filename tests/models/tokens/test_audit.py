"""The provider bench: are the grades true? At least 500 rows per convention with known ids; `make tokens-bench` runs more."""

from random import Random

import numpy as np
import pytest

from models.states import Grade
from models.tokens.audit import Report, Share, audit, silent, wilson
from models.tokens.model import Model
from models.tokens.replay import STYLES, replay
from models.tokens.row import Row
from ops.bench import tokens, truth


@pytest.mark.parametrize("rate", tokens.RATES)
def test_grades_of_kimi_answers_are_true_under_every_convention(kimi, rate):
    for line in tokens.lines(kimi, Random(11), 500, 5, (rate,)):
        assert line.missed() == [], line.text()
        assert line.tally.rows.total() == 500


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("rate", tokens.RATES)
def test_grades_of_qwen3_answers_are_true_under_every_convention(qwen3, rate):
    for line in tokens.lines(qwen3, Random(11), 500, 3, (rate,)):
        assert line.missed() == [], line.text()


def test_a_bound_that_is_missed_is_named(kimi):
    rows = truth.rows(kimi, Random(5), 500, 0.02, truth.STEADY, False, 2)
    tally = audit(kimi, rows, STYLES[:1])[0]
    line = tokens.Line("kimi", 0.02, tally, {Grade.VERIFIED: 0.99}, {Grade.DRIFT: 0.0})
    assert len(line.missed()) >= 2


def test_the_bench_says_which_vocabulary_is_absent(tmp_path, capsys):
    assert tokens.main(rows=1, tokenizers=tmp_path / "none") == 2
    assert "--tokenizers" in capsys.readouterr().out


def test_another_path_tells_the_same_text(kimi):
    random, text = Random(2), "Unbelievable performance, 推测解码 and naïve café 🦅. " * 4
    ids = kimi.vocabulary.spell(text).tolist()
    other = truth.sampled(kimi, random, text, 0.2)
    assert other != ids
    assert kimi.decode(other).decode() == text


def test_a_replayed_answer_shows_what_its_style_shows(kimi):
    row = truth.rows(kimi, Random(1), 1, 0.0, truth.STEADY, False, 3)[0]
    raw, _, stripped, _, unbilled, *_, inline, _, _ = (replay(kimi.rebuilder, row, False, s) for s in STYLES)
    assert raw.content.startswith("\n\n")
    assert stripped.content == raw.content.strip()
    assert unbilled.usage.completion_tokens == len(row.completion_ids) - 1
    assert inline.content == f"{raw.reasoning}</think>{raw.content}"


def test_the_interval_of_a_share_is_wilsons():
    low, high = wilson(10, 10)
    assert (round(low, 4), high) == (0.7225, 1.0)
    assert wilson(0, 0) == (0.0, 1.0)
    assert Share(199, 200).share == 0.995


def graded(grade: Grade, reason: str = "") -> Row:
    return Row(np.empty(0, np.int32), np.empty(0, np.int32), (), grade, reason=reason)


def test_silent_rows_are_estimated_from_counted_drift_alone():
    rows = [graded(Grade.VERIFIED)] * 900 + [graded(Grade.DRIFT, "the count differs")] * 100
    rows += [graded(Grade.DRIFT, "not calibrated"), graded(Grade.DRIFT, "cut inside a character")] * 500
    found = silent(rows, ratio=0.1)
    assert (found.drift, found.verified) == (100, 900)
    assert found.low < found.share < found.high
    assert found.share == pytest.approx(0.1 * 0.1 / 0.9)
    assert silent([]).high == 1.0


def test_a_report_tells_what_was_kept_of_what_was_billed(kimi: Model):
    report = Report()
    rows = truth.rows(kimi, Random(4), 20, 0.0, truth.STEADY, False, 2)
    for row in rows:
        report.add(row, replay(kimi.rebuilder, row, False, STYLES[4]), [])
    assert report.grades[Grade.ENGINE] == 20
    assert report.drift_percent < 0
    assert report.kept["stop unbilled"] - report.billed["stop unbilled"] == sum(r.spans[-1].kind == "stop" for r in rows)
