"""The disk at one instant, and what a crash at that instant leaves. Owns how outcomes are applied to all nodes.

Invariant: synced content and synced names always survive; a folder disappears only when empty. A snapshot never
changes, so thousands of crashes can start from it.
"""

from __future__ import annotations

from random import Random

from headrace.sim.disk.crash_outcomes import LandedWrites, Outcome, PendingPosition
from headrace.sim.disk.fs_nodes import NameChange, Node, SimFile, SimFolder, apply_name_change
from headrace.sim.disk.sparse_file import PendingWrite

ROOT = 0


class DiskSnapshot:
    """Nodes by number, shared with the disk they came from, and the number of operations done."""

    __slots__ = ("nodes", "op_number", "signature")

    def __init__(self, nodes: dict[int, Node], at: int, signature: int = 0) -> None:
        self.nodes = nodes
        self.op_number = at
        #: After a power loss: equal if all pending operations had equal outcomes.
        self.signature = signature

    def clone_nodes(self, epoch: int) -> dict[int, Node]:
        """Return the nodes for a new disk, page cache included."""
        return {number: node.clone(epoch, move_cache=False) for number, node in self.nodes.items()}

    def count_pending(self) -> int:
        """Return how many operations a power loss could lose."""
        return sum(len(node.pending) for node in self.nodes.values())

    def power_loss(self, outcome: Outcome, rng: Random) -> DiskSnapshot:
        """Return the disk after a power loss in which `outcome` decided about every pending operation."""
        positions = self._rank_pending(rng)
        landed: dict[int, list[PendingWrite]] = {}
        kept_changes: dict[int, list[NameChange]] = {}
        for number, node in self.nodes.items():
            if isinstance(node, SimFile):
                if node.pending:
                    landed[number] = _land_writes(node, outcome, rng, positions)
            elif node.pending:
                kept_changes[number] = [
                    change for change in node.pending if outcome.keeps_name(rng, positions[change.op_number])
                ]
        self._drop_half_moves(kept_changes)
        nodes = self._rebuild(landed, kept_changes)
        fates = [(number, tuple(fate)) for table in (landed, kept_changes) for number, fate in table.items()]
        return DiskSnapshot(nodes, self.op_number, hash(tuple(fates)))

    def _rank_pending(self, rng: Random) -> dict[int, PendingPosition]:
        numbers = sorted({pending.op_number for node in self.nodes.values() for pending in node.pending})
        cut = rng.randrange(len(numbers) + 1)
        return {at: PendingPosition(index, len(numbers), cut) for index, at in enumerate(numbers)}

    def _drop_half_moves(self, kept_changes: dict[int, list[NameChange]]) -> None:
        """Let a name that was moved to another folder disappear only if it has appeared there."""
        for number, changes in kept_changes.items():
            kept_changes[number] = [change for change in changes if self._may_keep(change, kept_changes)]

    def _may_keep(self, change: NameChange, kept_changes: dict[int, list[NameChange]]) -> bool:
        if change.depends_on is None:
            return True
        folder, at = change.depends_on
        lost = any(other.op_number == at for other in self.nodes[folder].pending)
        return not lost or any(other.op_number == at for other in kept_changes.get(folder, ()))

    def _rebuild(
        self, landed: dict[int, list[PendingWrite]], kept_changes: dict[int, list[NameChange]]
    ) -> dict[int, Node]:
        tables = {number: node.synced for number, node in self.nodes.items() if isinstance(node, SimFolder)}
        removals: list[tuple[int, NameChange]] = []
        for number, changes in kept_changes.items():
            tables[number] = dict(tables[number])
            for change in changes:
                if (
                    change.removed_name
                    and not change.name
                    and not change.depends_on
                    and change.node in tables
                ):
                    removals.append((number, change))
                else:
                    apply_name_change(tables[number], change)
        for number, change in sorted(removals, key=lambda removal: -removal[1].node):  # inner folders first
            if not tables[change.node]:
                apply_name_change(tables[number], change)
        return self._collect_reachable(tables, landed)

    def _collect_reachable(
        self, tables: dict[int, dict[str, int]], landed: dict[int, list[PendingWrite]]
    ) -> dict[int, Node]:
        nodes: dict[int, Node] = {ROOT: SimFolder(0, tables[ROOT])}
        unvisited = [ROOT]
        while unvisited:
            for child in tables[unvisited.pop()].values():
                found = nodes.get(child)
                if found is None:
                    found = nodes[child] = self._make_survivor(child, tables, landed)
                    if isinstance(found, SimFolder):
                        unvisited.append(child)
                if isinstance(found, SimFile):
                    found.links += 1
        return nodes

    def _make_survivor(
        self, number: int, tables: dict[int, dict[str, int]], landed: dict[int, list[PendingWrite]]
    ) -> Node:
        node = self.nodes[number]
        if isinstance(node, SimFolder):
            return SimFolder(0, tables[number])
        image = node.image
        writes = landed.get(number)
        if writes:
            image = image.copy()
            image.apply_writes(writes)
        file = SimFile(0, image)
        file.shared = True
        return file


def _land_writes(
    file: SimFile, outcome: Outcome, rng: Random, positions: dict[int, PendingPosition]
) -> list[PendingWrite]:
    """Return what lands of a file's writes. A reservation is metadata: it lands or not, and has no sectors."""
    landed: list[PendingWrite] = []
    for write in file.pending:
        position = positions[write.op_number]
        if write.data:
            fate: LandedWrites = outcome.land_write(write, rng, position)
        else:
            fate = (write,) if outcome.keeps_name(rng, position) else ()
        landed.extend(fate)
    return landed
