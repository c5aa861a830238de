"""The drawn state machine."""

import re

from models import states
from models.states import TRANSITIONS, Event, Grade, Lane, State


def test_only_a_claim_makes_a_sample_run():
    assert [(before, event) for (before, event), after in TRANSITIONS.items() if after is State.RUNNING] == [
        (State.QUEUED, Event.CLAIM)]


def test_a_running_sample_ends_by_every_event_of_a_settlement_and_by_no_other():
    ends = {event for before, event in TRANSITIONS if before is State.RUNNING}
    assert ends == set(Event) - {Event.CLAIM, Event.REQUEUE, Event.IMPORT}


def test_only_a_person_brings_an_ended_sample_back():
    assert {event for before, event in TRANSITIONS if before in (State.DONE, State.FAILED)} == {
        Event.REQUEUE, Event.IMPORT}


def test_every_state_is_reached_and_left():
    reached = set(TRANSITIONS.values())
    left = {before for before, _ in TRANSITIONS}
    assert reached == left == set(State)


def test_the_drawing_names_every_event():
    drawing = states.__doc__ or ""
    assert [e for e in Event if not re.search(rf"\b{e}\b", drawing)] == []


def test_labels_and_numbers_of_lanes_and_grades_are_inverse():
    assert [Lane.of(lane.label) for lane in Lane] == list(Lane)
    assert [Grade.of(grade.label) for grade in Grade] == list(Grade)


def test_grades_are_ordered_by_how_well_ids_are_known():
    assert Grade.REJECTED < Grade.DRIFT < Grade.AMBIGUOUS < Grade.VERIFIED < Grade.LOGPROBS < Grade.ENGINE
