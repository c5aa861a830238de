"""Sampling settings of one sample: fixed values as they are, lists drawn by weight from the sample's key alone."""

import hashlib
from typing import Any

from models.conversation import answer_number
from models.plan import Choice, Sampling


def drawn(sampling: Sampling, key: str) -> dict[str, Any]:
    """The settings to send and to store. The same key always draws the same values, whoever asks and however often."""
    settings: dict[str, Any] = {}
    for name in type(sampling).model_fields:
        value = getattr(sampling, name)
        if isinstance(value, list):
            value = _pick(value, f"{name}\0{key}") if value else None
        if value is not None:
            settings[name] = value
    if "seed" in settings:
        settings["seed"] += answer_number(key)      # or all answers to one prompt would be the same
    return settings


def _pick(choices: list[Choice], seed: str) -> float | int | str:
    point = int.from_bytes(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest()[:8], "big") / 2**64
    point *= sum(c.weight for c in choices)
    for choice in choices:
        point -= choice.weight
        if point < 0:
            return choice.value
    return choices[-1].value
