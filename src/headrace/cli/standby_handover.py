"""What a standby hands to the server that it becomes.

Owns the renewal of the leader object until that server renews it. Must not know how a standby waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.archive.leader_record import KeeperThread


@dataclass(frozen=True, slots=True)
class StandbyHandover:
    """The server starts now; its clock shows at least `time_floor_ns`.

    After a takeover `keeper` renews the leader object until the server does.
    """

    keeper: KeeperThread | None = None
    time_floor_ns: int = 0

    def stop(self) -> None:
        """Stop renewing: the server does it now, or could not start."""
        if self.keeper is not None:
            self.keeper.stop()
