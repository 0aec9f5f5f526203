"""Conditions on payloads and headers, applied to batches of messages. Must not know where batches come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.exit_codes import USAGE_ERROR, CliError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Search:
    """A text in the payload, and headers by name and, if it is not None, value."""

    text: str
    is_regex: bool
    ignore_case: bool
    headers: tuple[tuple[str, str | None], ...]

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the messages that match."""
        if self.text:
            batch = batch.filter(self._match_text(batch.column("data")))
        if self.headers and batch.num_rows:
            import pyarrow as pa

            matches = [
                self._match_headers(dict(pairs or ())) for pairs in batch.column("headers").to_pylist()
            ]
            batch = batch.filter(pa.array(matches, pa.bool_()))
        return batch

    def _match_text(self, column: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        match = pc.match_substring_regex if self.is_regex else pc.match_substring
        return match(column, self.text, ignore_case=self.ignore_case)

    def _match_headers(self, found: dict[str, list[str]]) -> bool:
        return all(name in found and (value is None or value in found[name]) for name, value in self.headers)


def make_search(text: str, is_regex: bool, ignore_case: bool, headers: Sequence[str] | None) -> Search:
    """Return the search; raise CliError if the regular expression is invalid."""
    pairs = []
    for line in headers or ():
        name, colon, value = line.partition(":")
        pairs.append((name.strip(), value.strip() if colon else None))
    search = Search(text, is_regex, ignore_case, tuple(pairs))
    if is_regex:
        import pyarrow as pa

        try:
            search.filter(pa.record_batch({"data": pa.array([b""])}))
        except pa.ArrowInvalid as error:
            raise CliError(f"{text!r} is not a regular expression: {error}", USAGE_ERROR) from None
    return search
