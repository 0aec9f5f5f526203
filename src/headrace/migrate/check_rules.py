"""The rules of `headrace migrate check`: what a new server refuses or does differently, and what to change.

Pure functions from two inventories to findings. Facts about nats-server are those of 2.15, observed in
`tests/conformance`; docs/reference/compatibility.md lists all differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.migrate.consumer_move import FIXED_START_POLICIES
from headrace.migrate.findings import MoveFinding, Severity
from headrace.migrate.inventory import CLAIM_STREAMS, Inventory, StreamItem
from headrace.migrate.obstacles import find_obstacles, list_upstreams
from headrace.migrate.stream_config import get_move
from headrace.protocol.subjects import overlaps

NOTE, CHANGE, REFUSED = Severity.NOTE, Severity.CHANGE, Severity.REFUSED
#: The first version that turns a mirror into an ordinary stream, and the first with backups in this format.
PROMOTION_VERSION, RESTORE_VERSION = (2, 12, 0), (2, 15, 0)
_BY_RESTORE = ("workqueue", "interest")
_LEAFNODE_REMEDY = (
    "connect the old server to the new one as a leafnode, each with its own JetStream domain: "
    "leafnodes { remotes: [{ url: nats-leaf://USER:PASSWORD@HOST:7422 }] }; or move with --copy restore"
)


def check_servers(old: Inventory, new: Inventory, is_reachable: bool) -> Iterator[MoveFinding]:
    """Yield what concerns all streams."""

    def find(severity: Severity, text: str, remedy: str = "") -> MoveFinding:
        return MoveFinding(severity, "server", "", text, remedy)

    if old.server_id == new.server_id:
        yield find(REFUSED, "both addresses are the same server", "name another server with --to")
        return
    version = ".".join(map(str, new.version))
    if new.version < PROMOTION_VERSION:
        yield find(
            REFUSED, f"version {version} cannot turn a mirror into a stream", "upgrade to 2.12 or later"
        )
    yield from _check_leafnode(old, new, is_reachable, find)
    if new.max_payload < old.max_payload:
        yield find(
            CHANGE,
            f"refuses messages above {new.max_payload:,} bytes; the old server allows {old.max_payload:,}",
            f"set max_payload: {old.max_payload} on the new server",
        )
    yield from _check_account(old, new, find)
    if new.is_clustered:
        yield find(
            NOTE,
            "a cluster acknowledges before it syncs to disk",
            "set jetstream { sync_interval: always } if all its servers can lose power at once",
        )


def _check_leafnode(old: Inventory, new: Inventory, is_reachable: bool, find: Any) -> Iterator[MoveFinding]:
    if not old.domain:
        yield find(
            CHANGE, "the old server has no JetStream domain, so it cannot be mirrored", _LEAFNODE_REMEDY
        )
    elif old.domain == new.domain:
        yield find(CHANGE, f"both servers have the JetStream domain {old.domain}", _LEAFNODE_REMEDY)
    elif not is_reachable:
        yield find(CHANGE, f"the new server does not reach $JS.{old.domain}.API", _LEAFNODE_REMEDY)


def _check_account(old: Inventory, new: Inventory, find: Any) -> Iterator[MoveFinding]:
    limits = new.account.get("limits") or {}
    added = len(old.streams)
    if 0 <= limits.get("max_streams", -1) < new.account.get("streams", 0) + added:
        yield find(
            REFUSED,
            f"the account may have {limits['max_streams']} streams, too few for {added} more",
            "raise max_streams of the account",
        )
    needed = sum(each.info["state"]["bytes"] for each in old.streams if each.config["storage"] == "file")
    if 0 <= limits.get("max_storage", -1) < new.account.get("storage", 0) + needed:
        yield find(
            REFUSED,
            f"the account may store {limits['max_storage']:,} bytes, too few for {needed:,} more",
            "raise max_storage of the account",
        )


def check_stream(entry: StreamItem, old: Inventory, new: Inventory, replicas: int) -> Iterator[MoveFinding]:
    """Yield what concerns a stream and its consumers."""

    def find(severity: Severity, text: str, remedy: str = "") -> MoveFinding:
        return MoveFinding(severity, entry.kind, entry.label, text, remedy)

    yield from _check_place(entry, new, find)
    yield from _check_movable(entry, new, find)
    yield from _check_fields(entry, new, replicas, find)
    yield from _check_purpose(entry, old, new, find)
    for other in old.streams:
        if entry.name in list_upstreams(other.config, local=True):
            yield find(
                CHANGE,
                f"stream {other.name} of the old server copies from it and gets nothing new after the move",
                f"move {other.name} too, or let it copy from the new server",
            )
    for consumer in entry.consumers:
        yield from check_consumer(entry, consumer)


def _check_place(entry: StreamItem, new: Inventory, find: Any) -> Iterator[MoveFinding]:
    existing = new.find(entry.name)
    own_move, their_move = get_move(entry.config), get_move(existing.config) if existing else None
    if existing and their_move and own_move and their_move["id"] == own_move["id"]:
        yield find(NOTE, "a move of it has begun", "run 'headrace migrate move' again to continue")
        return
    if existing:
        yield find(REFUSED, "the new server has a stream with this name", "remove it there, or choose others")
    for other in new.streams:
        if other.name == entry.name:
            continue
        for pattern in entry.config.get("subjects") or ():
            if any(overlaps(pattern.encode(), each.encode()) for each in other.config.get("subjects") or ()):
                yield find(
                    REFUSED,
                    f"subject {pattern} overlaps with stream {other.name} of the new server",
                    f"change the subjects of {other.name}",
                )


def _check_movable(entry: StreamItem, new: Inventory, find: Any) -> Iterator[MoveFinding]:
    config = entry.config
    for obstacle in find_obstacles(config):
        yield find(REFUSED, obstacle.text, obstacle.remedy)
    if config["retention"] in _BY_RESTORE or config.get("allow_msg_counter"):
        kind = "counters" if config.get("allow_msg_counter") else f"retention {config['retention']}"
        yield find(
            NOTE,
            f"{kind}: it is copied by backup and restore while publishers wait",
            "let its consumers work off the backlog first" if config["retention"] in _BY_RESTORE else "",
        )
        if new.version < RESTORE_VERSION:
            yield find(REFUSED, "the new server cannot restore a backup", "upgrade to 2.15 or later")


def _check_fields(entry: StreamItem, new: Inventory, replicas: int, find: Any) -> Iterator[MoveFinding]:
    config = entry.config
    if config.get("persist_mode") == "async" and replicas > 1:
        yield find(REFUSED, "persist_mode async is refused with replicas", "move it with --replicas 1")
    if replicas > 1 and not new.is_clustered:
        yield find(REFUSED, f"{replicas} replicas are refused outside a cluster", "use --replicas 1")
    if "subject_delete_markers" in config:
        yield find(
            CHANGE, "subject_delete_markers is unknown to nats-server", "it is left out: markers need a TTL"
        )
    if "headrace.markers" in (config.get("metadata") or {}):
        yield find(CHANGE, "nats-server writes no markers for purges and deletions", "do not rely on them")
    limits = new.account.get("limits") or {}
    if limits.get("max_bytes_required") and config.get("max_bytes", -1) <= 0:
        yield find(
            REFUSED, "the account requires max_bytes", "set it with 'headrace stream edit --max-bytes'"
        )
    per_stream = limits.get(
        "storage_max_stream_bytes" if config["storage"] == "file" else "memory_max_stream_bytes", -1
    )
    if per_stream > 0 and config.get("max_bytes", -1) > per_stream:
        yield find(
            REFUSED, f"max_bytes is above the account's {per_stream:,}", "lower it, or raise the limit"
        )
    if 0 < new.max_payload < config.get("max_msg_size", -1):
        yield find(CHANGE, "max_msg_size is above max_payload of the new server", "raise max_payload there")


def _check_purpose(entry: StreamItem, old: Inventory, new: Inventory, find: Any) -> Iterator[MoveFinding]:
    if entry.kind in ("bucket", "objects"):
        yield find(
            NOTE,
            "its subjects do not cross leafnode connections: clients of the old server are not forwarded",
            "start its clients with the new address",
        )
    if entry.name == CLAIM_STREAMS[0]:
        yield from _check_claims(old)
    if entry.kind == "spark":
        target = entry.name.split("_", 2)[2]
        yield find(NOTE, f"belongs to Spark's sink to {target}", f"move it together with {target}")
    elif any(
        each.name in (f"SPARK_PROGRESS_{entry.name}", f"SPARK_STAGING_{entry.name}") for each in old.streams
    ):
        yield find(
            CHANGE,
            "a Spark query writes to it",
            f"stop the query, move SPARK_PROGRESS_{entry.name} and SPARK_STAGING_{entry.name} with it, and start the "
            "query with the new address and the same checkpoint",
        )


def _check_claims(old: Inventory) -> Iterator[MoveFinding]:
    for namespace in old.claim_namespaces:
        name = str(namespace.get("namespace"))
        yield MoveFinding(
            NOTE,
            "claims",
            name,
            "its objects stay where they are",
            "stop its programs and collectors, move CLAIMS, CLAIMS_AUDIT and its streams together, and start them with the "
            "new address",
        )
        if namespace.get("backend") == "folder":
            yield MoveFinding(
                CHANGE,
                "claims",
                name,
                f"its objects are in a folder (bucket {namespace.get('bucket')}), which only one machine has",
                "let all programs reach the folder, or change backend, bucket and store to an object store",
            )


def check_consumer(entry: StreamItem, info: dict[str, Any]) -> Iterator[MoveFinding]:
    """Yield what concerns one consumer."""
    config, name = info["config"], f"{entry.name} > {info['name']}"

    def find(severity: Severity, text: str, remedy: str = "") -> MoveFinding:
        return MoveFinding(severity, "consumer", name, text, remedy)

    if not config.get("durable_name"):
        yield find(NOTE, "not durable: it is not moved", "its client creates it again on the new server")
        return
    if config.get("max_ack_pending_per_subject"):
        yield find(
            REFUSED,
            "nats-server refuses max_ack_pending_per_subject: it keeps no order per key",
            f"divide the keys into partitions and set --max-pending-per-subject 0 (headrace consumer edit {entry.name} "
            f"{info['name']}); with key_tokens, remove the consumer",
        )
    if config.get("dead_letter"):
        yield find(
            REFUSED,
            "nats-server refuses dead_letter",
            f"handle its advisories MAX_DELIVERIES and MSG_TERMINATED, and set --dead-letter none (headrace consumer edit "
            f"{entry.name} {info['name']})",
        )
    if config.get("ack_policy") == "flow_control":
        yield find(CHANGE, "another stream copies through it", "let that stream copy from the new server")
    if config.get("deliver_policy") in FIXED_START_POLICIES:
        yield find(
            CHANGE,
            f"deliver_policy {config['deliver_policy']} becomes by_start_sequence: only so can it continue",
            "bind to it by name; creating it again with the old policy fails with 10012",
        )
    if config.get("deliver_subject") and info.get("num_ack_pending"):
        yield find(NOTE, "a push consumer: messages after its ack floor are delivered again")
    if config.get("priority_groups"):
        yield find(NOTE, "pinned clients of its groups are chosen again")
