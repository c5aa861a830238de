"""Names are safe in paths, queues, SQL and cells, or they are refused at the door."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import NameRefused
from models.names import NAME, checked, cleaned


@pytest.mark.parametrize("name", ["B1", "a", "0", "kimi-k2.5_v3", "x" * 63])
def test_plain_names_are_taken_as_they_are(name: str) -> None:
    assert checked(name) == name


@pytest.mark.parametrize("name", [
    "", ".", "..", "a..b", "a.", "-a", "_a", ".a", "a/b",
    "a\\b", "a b", "a\n", "a\0", "x" * 64, "é", "Ａ", "a;drop", "a'b", 'a"b', "=a"])
def test_what_could_mean_something_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(NameRefused):
        checked(name)


@given(st.text() | st.from_regex(NAME))
def test_a_name_that_passes_stays_one_part_of_a_path(name: str) -> None:
    try:
        checked(name)
    except NameRefused:
        return
    assert PurePosixPath("/root", name).parts == ("/", "root", name)
    assert name.isascii()
    assert name.isprintable()


@given(st.text(st.characters(exclude_categories=())))
def test_a_foreign_name_is_shown_as_short_printable_ascii_without_a_formula(name: str) -> None:
    shown = cleaned(name)
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) <= 120
    assert shown[:1] not in ("=", "+", "-", "@", " ")


def test_foreign_names_that_are_plain_stay_themselves() -> None:
    assert cleaned("Moonshot AI") == "Moonshot AI"
    assert cleaned("\x00\ud800=cmd|' /C calc'!A0\u2028") == "cmd|' /C calc'!A0"
    assert cleaned(None) == "None"
    assert cleaned("x" * 500, 40) == "x" * 40
