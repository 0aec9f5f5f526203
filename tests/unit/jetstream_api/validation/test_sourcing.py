"""Index names of sources; the vectors of the sourcing specification."""

from headrace.jetstream_api.configs import External, StreamConsumerSource, StreamSource, SubjectTransform
from headrace.jetstream_api.names import short_hash
from headrace.jetstream_api.validation.sourcing import make_index_name, make_upstream_name


def test_short_hash_matches_nats_server() -> None:
    assert short_hash("M $G") == "ih8eMwqr"
    assert short_hash(short_hash("A $G")) == "LTl3xeTE"
    assert short_hash(short_hash("SPLIT $G") + " O o.1 >") == "CQaaDu0Z"
    assert short_hash("$JS.LEAF.API") == "pGu3nZaw"


def test_a_source_is_named_by_origin_filters_and_destinations() -> None:
    assert make_index_name(StreamSource(name="O")) == "O > >"
    assert make_index_name(StreamSource(name="O", filter_subject="o.1")) == "O o.1 >"
    transforms = [SubjectTransform(src="o.7", dest="seven"), SubjectTransform(src="", dest="")]
    assert make_index_name(StreamSource(name="O", subject_transforms=transforms)) == "O o.7\f> seven\f>"


def test_a_consumer_of_the_user_is_part_of_the_name_one_of_the_server_is_not() -> None:
    leaf = External(api="$JS.LEAF.API")
    users = StreamConsumerSource(name="dc", deliver_subject="d")
    ours = StreamConsumerSource(name="dc", server_managed=True)
    assert (
        make_upstream_name(StreamSource(name="WQ", external=leaf, consumer=users)) == "WQ:pGu3nZaw:C=lobr3bUB"
    )
    assert make_upstream_name(StreamSource(name="WQ", external=leaf, consumer=ours)) == "WQ:pGu3nZaw"
