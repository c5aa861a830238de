"""`draftmill requeue` in one line: the bound first, then the deed, its record, and the way back."""

from collections.abc import Callable

import psycopg
import pytest
from typer.testing import CliRunner

from models.base import connect
from models.errors import SettingsError
from ops.cli import app
from tests.ops.board import seeded

FAILED = {"length": 90, "timeout": 70, "http_500": 40}


@pytest.fixture(scope="module")
def fleet(new_database: Callable[[], str]) -> str:
    url = new_database()
    seeded.fill(url)
    seeded.failures(url, "B8", FAILED)
    return url


@pytest.fixture
def command(fleet, monkeypatch, tmp_path):
    engine = connect(fleet, size=1)     # the command leaves its own to the end of its process
    monkeypatch.setattr("ops.cli.steering.engine_of", lambda settings: engine)

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, ["requeue", *words, "--home", str(tmp_path)])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    yield run
    engine.dispose()


def states(url):
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return dict(connection.execute("select state, count(*) from sample where key like 'late-%' group by 1").fetchall())


def test_two_hundred_failed_long_samples_are_asked_again_in_one_line(command, fleet):
    said = command("B8", "--from-lane", "long", "--lane", "long", "--max-tokens", "16384", "--dry-run")
    assert said == "200 samples (90 length, 70 timeout, 40 http_500), at most 3,276,800 tokens and $32.77\n"
    assert states(fleet) == {3: 200}
    said = command("B8", "--from-lane", "long", "--lane", "long", "--max-tokens", "16384")
    assert said.startswith("200 samples (90 length, 70 timeout, 40 http_500), at most 3,276,800 tokens and $32.77\n")
    assert states(fleet) == {0: 200}
    number = said.split()[-1]
    record = command("B8", "--records")
    assert record.startswith(f"{number}: ")
    assert record.endswith("200 waiting\n")
    assert command("--undo", number) == "200 samples are as they were\n"
    assert states(fleet) == {3: 200}
    assert "taken back" in command("--records")


def test_cause_provider_age_and_nothing_at_all(command):
    assert command("B8", "--cause", "length", "--cause", "timeout", "--dry-run").startswith("160 samples")
    assert command("B8", "--provider", "Novita", "--dry-run").startswith("0 samples")
    assert command("B8", "--older-than", "1h", "--dry-run") == (
        "0 samples, at most 0 tokens and $0.00\nwhat has failed, and why: draftmill status B8\n")
    assert not command("B3", "--grade", "verified", "--older-than", "30m", "--dry-run").startswith("0 samples")


@pytest.mark.parametrize(("words", "cause"), [
    (["B7"], r"closed \(operator\).*draftmill open B7"), (["B8", "--older-than", "soon"], "write 90s, 30m, 2h or 1d"),
    ([], "name the dataset")])
def test_what_cannot_be_done_says_what_to_do(command, words, cause):
    with pytest.raises(SettingsError, match=cause):
        command(*words)
