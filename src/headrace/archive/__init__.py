"""The archive: the journal of all stores in an object store, as groups of frames, with bases to restore from.

`docs/explanation/archive.md` has the rules that make it safe.
"""

__all__: list[str] = []
