"""Each fault strikes a running job; the set that comes out is that of an undisturbed run."""

from collections.abc import Callable

import pytest

from tests.chaos.faults import FAULTS, Fault
from tests.chaos.fleet import Outcome


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [
    pytest.param(f, id=f.name, marks=[pytest.mark.quick] if f.quick else []) for f in FAULTS])
def test_every_sample_ends_once_and_is_paid_once(fault: Fault, suffers: Callable[..., Outcome]) -> None:
    if reason := fault.lacking():
        pytest.skip(reason)
    found = suffers(fault)
    assert found.kept, str(found)
