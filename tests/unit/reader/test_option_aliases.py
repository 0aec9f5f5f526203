"""Options of the Kafka source stand for own options, and never beside them."""

from __future__ import annotations

import pytest

from headrace.reader.options import EARLIEST, LATEST, Bound, OptionError, parse_read_options

PAIRS = {
    "subscribe": ("stream", "S"),
    "subscribePattern": ("streamPattern", "S.*"),
    "startingOffsets": ("starting", "earliest"),
    "endingOffsets": ("ending", "latest"),
    "maxOffsetsPerTrigger": ("maxMessagesPerTrigger", "5"),
    "minOffsetsPerTrigger": ("minMessagesPerTrigger", "5"),
}


@pytest.mark.parametrize("alias", PAIRS)
def test_an_alias_stands_for_an_option(alias: str) -> None:
    name, value = PAIRS[alias]
    rest = {} if "subscribe" in alias else {"stream": "S"}
    rest |= {"maxTriggerDelay": "1s"} if alias.startswith("min") else {}
    assert parse_read_options({**rest, alias: value}) == parse_read_options({**rest, name: value})
    with pytest.raises(OptionError, match=f"options `{alias}` and `{name}` mean the same"):
        parse_read_options({**rest, alias: value, name: value})


def test_positions_per_stream() -> None:
    text = '{"A": {"0": 17}, "B": -2, "C": {"0": -1}, "D": "2026-01-31T12:00Z"}'
    options = parse_read_options({"subscribe": "A,B,C,D,E", "startingOffsets": text})
    assert options.streams == ("A", "B", "C", "D", "E")
    found = {name: options.for_stream(name).starting for name in options.streams}
    assert found == {
        "A": Bound(seq=17),
        "B": EARLIEST,
        "C": LATEST,
        "D": Bound(time_ns=1_769_860_800 * 10**9),
        "E": None,
    }
    one = parse_read_options({"stream": "A", "starting": '{"A": 3}', "ending": '{"A": 5}'})
    assert (one.starting, one.ending, one.reads_several) == (Bound(seq=3), Bound(seq=5), False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": "17"}, "option `startingOffsets`: '17' is neither earliest, latest nor JSON"),
        ({"startingOffsets": '{"S": {"1": 5}}'}, "stream 'S' has the partition 0 only, not 1"),
        ({"startingOffsets": '{"S": [5]}'}, r"position of stream 'S' is \[5\]"),
        ({"startingOffsets": "{S"}, "option `starting`: '{S' is not JSON"),
        ({"startingOffsets": '{"T": 5}'}, "a position is given for stream 'T'"),
        ({"ending": '{"S": "earliest"}'}, "earliest is not an end"),
        ({"streamPattern": "S.*"}, "options `stream` and `streamPattern` cannot be combined"),
        ({"columns": "none"}, "option `columns`: 'none' is not headrace or kafka"),
        ({"valueFormat": "avro"}, "option `valueFormat`: 'avro' is not json"),
        ({"mode": "DROPMALFORMED"}, "option `mode`"),
    ],
)
def test_errors_say_what_is_wrong(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_read_options({"stream": "S", **given})


def test_names_and_patterns_are_checked() -> None:
    with pytest.raises(OptionError, match="'a b' is not a valid stream name"):
        parse_read_options({"stream": "a b"})
    with pytest.raises(OptionError, match="'' is not a valid stream name"):
        parse_read_options({"stream": "a,"})
    with pytest.raises(OptionError, match="is not a regular expression"):
        parse_read_options({"streamPattern": "["})
