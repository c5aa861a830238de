"""The samples of a dataset with their prompts, read in order of id and in bounded memory: to know what was asked already."""

from typing import NamedTuple

from sqlalchemy import Connection, text

PAGE = 500


class Stored(NamedTuple):
    id: int
    key: str
    primary_id: str
    turn: int
    state: int
    prompt: bytes


_PAGE = text("""
select id, key, primary_id, turn, state, prompt from sample
where dataset_id = :p_dataset and id > :p_after order by id limit :p_page""")


def page(connection: Connection, dataset_id: int, after: int) -> list[Stored]:
    """Up to PAGE samples whose id is above `after`; the last page is empty."""
    rows = connection.execute(_PAGE, {"p_dataset": dataset_id, "p_after": after, "p_page": PAGE})
    return [Stored(*row) for row in rows]
