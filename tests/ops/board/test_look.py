"""Asking the database for a page: what fails is told without what it held."""

import asyncio

import pytest
from sqlalchemy import text

from ops.board.look import Look, Problem


@pytest.fixture
def look(database):
    found = Look(database)
    yield found
    found.close()


async def test_one_broken_question_is_told_and_the_others_are_answered(look, caplog):
    broken = look.ask("broken", verb=lambda c: c.execute(text("select 'sk-secret' from nothing")))
    bug = look.ask("bug", verb=lambda c: {}["sk-secret"])
    good = look.ask("good", verb=lambda c: c.execute(text("select 7")).scalar_one())
    told, bugged, answer = await asyncio.gather(broken, bug, good)
    assert isinstance(told, Problem)
    assert isinstance(bugged, Problem)
    assert answer == 7
    assert "secret" not in told.text + bugged.text + caplog.text
    assert "broken" in caplog.text


async def test_a_slow_question_ends_at_the_deadline_in_the_database_too(database):
    look = Look(database, deadline_s=0.3)
    told = await look.ask("slow", verb=lambda c: c.execute(text("select pg_sleep(60)")))
    assert isinstance(told, Problem)
    assert "longer" in told.text or "too long" in told.text
    while await look.act(lambda: _sleeping(look)):  # noqa: ASYNC110  (the database has no event to wait for)
        await asyncio.sleep(0.05)
    look.close()


def _sleeping(look):
    with look.engine.connect() as connection:
        return connection.execute(text("select count(*) from pg_stat_activity where state = 'active' "
                                       "and query like 'select pg_sleep(60)%' and datname = current_database()")).scalar_one()


async def test_a_database_that_is_away_is_told(database):
    look = Look(database.rsplit("/", 1)[0] + "/absent")
    told = await look.ask("away", verb=lambda c: 1)
    assert isinstance(told, Problem)
    assert database not in told.text
    look.close()


async def test_the_same_question_at_once_is_asked_once(look):
    asked = []

    def verb(connection):
        asked.append(1)
        return len(asked)

    assert await asyncio.gather(*(look.ask("same", 1, verb=verb) for _ in range(9))) == [1] * 9
    assert await look.ask("same", 2, verb=verb) == 2
