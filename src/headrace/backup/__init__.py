"""Backups of whole servers, in a folder or an object store: made from pins, incremental, restored into an empty folder.

The files of a backup are the store's own. `docs/adr` has the format and why it is safe.
"""

__all__: list[str] = []
