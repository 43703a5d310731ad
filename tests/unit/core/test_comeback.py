"""When a requeued job may start again, as a table."""

from __future__ import annotations

import pytest

from slurmtrain.core import events as ev
from slurmtrain.core.comeback import LONGEST_S, QUICK_S, UNKNOWN_S, Comeback, choose_comeback, clean_up_times
from slurmtrain.core.run import fold


@pytest.mark.parametrize(
    ("seen", "wanted", "epilog", "plan"),
    [
        ([], None, False, Comeback(True, QUICK_S)),
        ([], None, True, Comeback(False, UNKNOWN_S)),  # an epilog that nobody has timed
        ([0.8, 1.2], None, True, Comeback(True, QUICK_S)),  # the epilog is short
        ([0.8, 5.3], None, False, Comeback(False, 8)),
        ([9.0, 0.5, 0.5, 0.5, 0.5, 0.5], None, True, Comeback(True, QUICK_S)),  # long ago
        ([121.0, -3.0], None, True, Comeback(False, UNKNOWN_S)),  # nonsense teaches nothing
        ([119.5], None, True, Comeback(False, LONGEST_S)),
        ([0.1], 12, False, Comeback(False, 12)),  # the site knows better
    ],
)
def test_the_wait_follows_from_what_was_seen(
    seen: list[float], wanted: int | None, epilog: bool, plan: Comeback
) -> None:
    assert choose_comeback(seen, wanted_s=wanted, epilog=epilog) == plan


def test_one_that_was_too_short_is_longer_the_next_time() -> None:
    """The clean-up went on behind the start time: Slurm's two minutes applied, and it told how long it had taken."""
    assert not choose_comeback([QUICK_S], wanted_s=None, epilog=False).quick
    assert choose_comeback([UNKNOWN_S + 4.0], wanted_s=None, epilog=True).seconds > UNKNOWN_S + 4


def test_the_run_remembers() -> None:
    came = [ev.CameBack(at=1, who="agent", attempt=n, clean_up_s=float(n), waited_s=9) for n in range(2)]
    assert list(clean_up_times(fold(came))) == [0.0, 1.0]
