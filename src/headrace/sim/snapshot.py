"""The disk at one instant, and what a crash there leaves. Owns how outcomes are applied to all nodes.

Invariant: synced content and synced names always survive; a folder disappears only when empty.
A snapshot never changes, so thousands of crashes can start from it.
"""

from __future__ import annotations

from random import Random

from headrace.sim.image import Write
from headrace.sim.nodes import File, Folder, NameChange, Node, lay
from headrace.sim.outcome import Landed, Outcome, Place

ROOT = 0


class Snapshot:
    """Nodes by number, shared with the disk they came from, and the number of operations done."""

    __slots__ = ("at", "nodes", "signature")

    def __init__(self, nodes: dict[int, Node], at: int, signature: int = 0) -> None:
        self.nodes = nodes
        self.at = at
        #: Of a disk after a power loss: equal for equal fates of all pending operations.
        self.signature = signature

    def copies(self, epoch: int) -> dict[int, Node]:
        """The nodes for a new disk, page cache included."""
        return {number: node.clone(epoch, move_cache=False) for number, node in self.nodes.items()}

    def pending(self) -> int:
        """How many operations a power loss could take."""
        return sum(len(node.pending) for node in self.nodes.values())

    def power_loss(self, outcome: Outcome, rng: Random) -> Snapshot:
        """As after a power loss in which every pending operation met its fate by `outcome`."""
        places = self._places(rng)
        landed: dict[int, list[Write]] = {}
        kept: dict[int, list[NameChange]] = {}
        for number, node in self.nodes.items():
            if isinstance(node, File):
                if node.pending:
                    landed[number] = _land(node, outcome, rng, places)
            elif node.pending:
                kept[number] = [change for change in node.pending if outcome.keeps(rng, places[change.at])]
        self._hold_back(kept)
        nodes = self._rebuilt(landed, kept)
        fates = [(number, tuple(fate)) for table in (landed, kept) for number, fate in table.items()]
        return Snapshot(nodes, self.at, hash(tuple(fates)))

    def _places(self, rng: Random) -> dict[int, Place]:
        numbers = sorted({pending.at for node in self.nodes.values() for pending in node.pending})
        cut = rng.randrange(len(numbers) + 1)
        return {at: Place(index, len(numbers), cut) for index, at in enumerate(numbers)}

    def _hold_back(self, kept: dict[int, list[NameChange]]) -> None:
        """A name moved to another folder disappears only if it has appeared there."""
        for number, changes in kept.items():
            kept[number] = [change for change in changes if self._may_go(change, kept)]

    def _may_go(self, change: NameChange, kept: dict[int, list[NameChange]]) -> bool:
        if change.needs is None:
            return True
        folder, at = change.needs
        lost = any(other.at == at for other in self.nodes[folder].pending)
        return not lost or any(other.at == at for other in kept.get(folder, ()))

    def _rebuilt(self, landed: dict[int, list[Write]], kept: dict[int, list[NameChange]]) -> dict[int, Node]:
        tables = {number: node.synced for number, node in self.nodes.items() if isinstance(node, Folder)}
        removals: list[tuple[int, NameChange]] = []
        for number, changes in kept.items():
            tables[number] = dict(tables[number])
            for change in changes:
                if change.gone and not change.name and not change.needs and change.node in tables:
                    removals.append((number, change))
                else:
                    lay(tables[number], change)
        for number, change in sorted(removals, key=lambda removal: -removal[1].node):  # inner folders first
            if not tables[change.node]:
                lay(tables[number], change)
        return self._reachable(tables, landed)

    def _reachable(
        self, tables: dict[int, dict[str, int]], landed: dict[int, list[Write]]
    ) -> dict[int, Node]:
        nodes: dict[int, Node] = {ROOT: Folder(0, tables[ROOT])}
        waiting = [ROOT]
        while waiting:
            for child in tables[waiting.pop()].values():
                found = nodes.get(child)
                if found is None:
                    found = nodes[child] = self._survivor(child, tables, landed)
                    if isinstance(found, Folder):
                        waiting.append(child)
                if isinstance(found, File):
                    found.links += 1
        return nodes

    def _survivor(
        self, number: int, tables: dict[int, dict[str, int]], landed: dict[int, list[Write]]
    ) -> Node:
        node = self.nodes[number]
        if isinstance(node, Folder):
            return Folder(0, tables[number])
        image = node.image
        writes = landed.get(number)
        if writes:
            image = image.copy()
            image.apply(writes)
        file = File(0, image)
        file.shared = True
        return file


def _land(file: File, outcome: Outcome, rng: Random, places: dict[int, Place]) -> list[Write]:
    """A reservation is metadata: it is there or not, and has no sectors."""
    landed: list[Write] = []
    for write in file.pending:
        place = places[write.at]
        if write.data:
            fate: Landed = outcome.lands(write, rng, place)
        else:
            fate = (write,) if outcome.keeps(rng, place) else ()
        landed.extend(fate)
    return landed
