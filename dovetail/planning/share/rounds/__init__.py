"""From shares to placements, a round at a time.

A share is an average over time; a round is who runs now. Each task has its turn on an option by priority, and devices
for which nobody has a turn go to tasks that wait, and then to tasks that can grow (`turns`); gangs keep their devices
where they can and go on one node each (`rota`). Knows no clock: what was received is handed in and handed back
(`round_records`). Imports nothing that `dovetail.planning` does not.
"""

from dovetail.planning.share.rounds.rota import Rota
from dovetail.planning.share.rounds.round_records import (
    Decision,
    Gang,
    Received,
    Round,
    after,
    carry_over,
    explain,
    without,
)

__all__ = ["Decision", "Gang", "Received", "Rota", "Round", "after", "carry_over", "explain", "without"]
