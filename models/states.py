"""The life of a sample, drawn as one table.

                    enqueue
                       |
     requeue           v        claim (fence + 1, reserve)
failed ---------->  queued  ----------------------------->  running --- done ----> done
   ^                   ^                                       |
   |                   +---- retry, snooze, promote, release, -+
   |                   |     rescue of a dead worker           |
   +-------------------------------- drop(reason) -------------+

An import of an answer made elsewhere takes queued and failed samples to done. A death that is told only after its rescue
drops a queued sample which it shows to be poison.

`store` writes these numbers; nothing else may.
"""

from enum import IntEnum, StrEnum


class State(IntEnum):
    QUEUED = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3


class Lane(IntEnum):
    SHORT = 0
    LONG = 1

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> "Lane":
        return cls[label.upper()]


class Event(StrEnum):
    CLAIM = "claim"
    DONE = "done"
    RETRY = "retry"
    SNOOZE = "snooze"
    PROMOTE = "promote"
    RELEASE = "release"
    RESCUE = "rescue"
    DROP = "drop"
    REQUEUE = "requeue"
    IMPORT = "import"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.QUEUED, Event.CLAIM): State.RUNNING,
    (State.RUNNING, Event.DONE): State.DONE,
    (State.RUNNING, Event.RETRY): State.QUEUED,
    (State.RUNNING, Event.SNOOZE): State.QUEUED,
    (State.RUNNING, Event.PROMOTE): State.QUEUED,
    (State.RUNNING, Event.RELEASE): State.QUEUED,
    (State.RUNNING, Event.RESCUE): State.QUEUED,
    (State.RUNNING, Event.DROP): State.FAILED,
    (State.QUEUED, Event.DROP): State.FAILED,   # its third death was told late
    (State.FAILED, Event.REQUEUE): State.QUEUED,
    (State.DONE, Event.REQUEUE): State.QUEUED,  # a truncated row that a person asks for again
    (State.QUEUED, Event.IMPORT): State.DONE,   # answered elsewhere
    (State.FAILED, Event.IMPORT): State.DONE,
}


class DatasetState(IntEnum):
    OPEN = 0
    CLOSED = 1


class Closed(StrEnum):
    """Why a dataset is closed."""

    BUDGET = "budget"
    MONEY = "money"
    OPERATOR = "operator"
    ROUTING = "routing"
    MODEL = "model"
    WASTE = "waste"


class Grade(IntEnum):
    """How the ids of a row are known; higher is better, so that a minimum grade is one comparison."""

    REJECTED = 0
    DRIFT = 1
    AMBIGUOUS = 2
    VERIFIED = 3
    LOGPROBS = 4
    ENGINE = 5

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> "Grade":
        return cls[label.upper()]
