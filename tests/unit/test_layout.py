"""The architecture: imports point downward only, and every module has a docstring."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source_tree import SOURCE, list_nodes, parse_module

#: What each part may import besides itself. All parts may import the leaves.
LEAVES = {"errors", "extras", "durations", "clock", "code_probes", "deprecation", "os_files", ""}
BELOW: dict[str, set[str]] = {
    "_native": set(),
    "protocol": {"_native"},
    "storage": {"_native", "protocol"},
    "jetstream_api": {"_native", "protocol", "storage"},
    "broker": {"_native", "protocol", "storage", "jetstream_api"},
    # Options contain keys and JWTs, whose formats are below them; authentication reads the options.
    "config": {"protocol", "jetstream_api", "broker", "auth.nkeys", "auth.jwt"},
    "auth": {"protocol", "jetstream_api", "broker", "config"},
    "net": {"_native", "protocol", "storage", "jetstream_api", "broker", "config", "auth"},
    "monitor": {
        *("_native", "protocol", "storage", "jetstream_api", "broker", "config", "auth", "net"),
        "archive",  # it starts the archive, and shows how far it is behind
    },
    "sim": {"_native", "protocol", "storage", "jetstream_api", "broker", "client", "claims"},
    "client": set(),
    "claims": {"client"},
    # A backup reads the files of a store, and writes to the object stores of claims.
    "backup": {"storage", "claims"},
    # An archive follows the journals of stores; its bases are backups.
    "archive": {"_native", "storage", "claims", "backup"},
    # A move reads subjects and backups, and needs no other part of a server.
    "migrate": {"client", "protocol"},
    "reader": {"_native", "protocol", "storage", "claims"},
    # Tables are written from what the reader reads.
    "tables": {"reader"},
    # The sink recognises rows in streams that transform subjects.
    "spark": {"_native", "client", "claims", "storage", "reader", "jetstream_api.subject_transform"},
}
#: The order inside a part, from the bottom: a module may import those before it and its own. Type imports count, too.
INSIDE: dict[str, list[str]] = {
    "storage": [
        "options store_observer format format_features native_records damage_report sequence_arrays",
        "checkpoint_schema io compressed_block memory_frames",
        "feature_requests journal segments",
        "log metadata_store",
        "maintenance",
        "space_monitor",
        "checkpoint",
        "frame_builder",
        "store",
        "recovery",
        "snapshot fsck",
    ],
    "broker": [
        "timers operation_runner",
        "routing",
        "commit",
        "streams",
        "consumers",
        "sourcing leafnodes account_context jetstream_settings",
        "stream",
        "handlers metadata_compaction",
        "stream_registry",
        "jetstream",
        "accounts reply_map",
        "account_imports",
    ],
    "net": [
        "logs listen_socket loop_wakeup turn_queue closed_transport",
        "loop_watchdog offloop info startup_log timer_wheel tls_channel tls_context pid_files timer_driver virtual_time",
        "password_verifier",
        "listener_profile write_scheduler jetstream_setup",
        "client_connection account_setup protocol_trace",
        "connection_registry client_backpressure reload",
        "connection_context",
        "client_tls",
        "client_input",
        "connection",
        "websocket_connection",
        "listener",
        "internal_client leafnode",
    ],
    "reader": [
        "batch_cast blocking_connection claim_fetch claim_reference_column json_scalars kv_rows option_values",
        "subject_columns",
        "json_values option_aliases",
        "json_columns",
        "options direct_get_decode",
        "stream_admin claim_inline snapshot_reader fingerprint",
        "leader_reader claim_lease http_snapshot stream_names queue_acker landed_table",
        "range_reader",
        "direct_get_reader pull_reader",
        "read_method",
        "partitions",
        "last_per_subject read_source",
        "backends row_mapper",
        "table_union",
        "broker_sources offline_source",
        "open_source",
    ],
    "tables": [
        "column_types bucket_columns synced_files rest_catalog",
        "position config gap_finder",
        "claim_rows",
        "columns redaction",
        "catalog data_files commits stream_range orphan_files",
        "maintenance",
        "worker inspection",
        "maintenance_schedule",
        "service",
        "metrics",
    ],
    "spark": [
        "pyspark_compat svg_charts lag_metrics doctor idle_pause",
        "schema offsets",
        "pushdown claims query_rows stream_identity",
        "batch_reader write",
        "micro_batch_reader",
        "multi_stream_reader",
        "kv jobs plots watching",
        "datasource",
    ],
}
#: How many modules may all reach each other by imports, and the parts in which it is more.
CYCLE_MAX = 3
LARGE_CYCLES = {
    "client": 7,  # the classes of the public API return each other
    "sim": 7,  # actions and checks of a simulation take the simulation
}
#: What the core may not import, and where the store may: the real disk, and what other processes call to read its files.
SYSTEM_MODULES = {"asyncio", "socket", "threading", "time"}
REAL_STORAGE = ("storage/io/", "storage/snapshot/offline_pin.py", "storage/snapshot/open_snapshot.py")
#: The parts on top, which put the others together.
TOP = {"cli", "server", "testing", "demo", "__init__", "__main__", "reading"}
#: Modules under their old names, for one release.
DEPRECATED = {"plots", "watching"}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
#: Words that had several meanings (CONTRIBUTING.md): not allowed in names of modules and classes.
BANNED_WORDS = {
    *(
        "door",
        "lane",
        "link",
        "fact",
        "held",
        "holding",
        "kept",
        "desk",
        "verdict",
        "told",
        "heard",
        "said",
        "offer",
    ),
    *(
        "wire",
        "origin",
        "shelf",
        "trash",
        "behind",
        "road",
        "approach",
        "intake",
        "pump",
        "scribe",
        "diary",
        "footprint",
    ),
    *("outflow", "presence", "tenant", "lot", "deposit", "kernel", "twin", "ledger", "crowd", "world"),
}
#: Class names with the same meaning in two layers; their docstrings refer to each other.
TWO_LAYERS = {
    *("Batch", "Client", "Messages", "Publisher", "Watcher"),  # asynchronous and blocking client
    *("KeyValue", "KeyValueReader"),  # the same
    *(
        "ConsumerConfig",
        "DeadLetter",
        "StreamConfig",
        "StreamSource",
        "StreamConsumerSource",
        "Placement",
    ),  # API and client
    "StreamInfo",  # reader and client
}

MODULES = sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_parts(path: Path) -> Iterator[tuple[int, str]]:
    for node in list_nodes(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "headrace":
            names = [f"headrace.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            root, _, rest = name.partition(".")
            if root == "headrace":
                yield node.lineno, rest


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_keeps_its_place(path: Path) -> None:
    tree = parse_module(path)
    part = part_of(path)
    assert ast.get_docstring(tree), "a module says at its top what it owns"
    assert path.stem not in BANNED_NAMES
    if part in TOP | LEAVES:
        return
    assert part in BELOW, f"say in BELOW what {part} may import"
    allowed = BELOW[part] | LEAVES | {part, "__version__", "COMPATIBLE_VERSION", "API_LEVEL"}
    wrong = [
        (line, target)
        for line, target in imported_parts(path)
        if target.partition(".")[0] not in allowed and ".".join(target.split(".")[:2]) not in allowed
    ]
    assert not wrong, f"{part} may not import {wrong}"


@pytest.mark.parametrize("part", INSIDE)
def test_imports_inside_a_part_point_downward(part: str) -> None:
    level = {name: number for number, names in enumerate(INSIDE[part]) for name in names.split()}
    present = {
        path.stem for path in (SOURCE / part).iterdir() if path.name[0] != "_" and path.suffix in ("", ".py")
    }
    assert set(level) == present, "INSIDE names what is there"
    for path in (SOURCE / part).rglob("*.py"):
        name = path.relative_to(SOURCE / part).parts[0].removesuffix(".py")
        if name == "__init__":
            continue
        for line, target in imported_parts(path):
            if target.split(".")[0] != part or "." not in target:
                continue
            other = target.split(".")[1]
            if other == name or other not in level:
                continue
            assert level[other] < level[name], f"{path.relative_to(SOURCE)}:{line} imports {target}"


def find_cycles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Return groups of modules that all reach each other."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        found, todo = set(), [start]
        while todo:
            for other in edges[todo.pop()] - found:
                found.add(other)
                todo.append(other)
        reached[start] = found
    return [
        {other for other in found if start in reached[other]}
        for start, found in reached.items()
        if start in found
    ]


@pytest.mark.parametrize("part", BELOW)
def test_few_modules_know_each_other(part: str) -> None:
    """Types count, too: parts name protocols (`*_context`), not the modules that put them together."""
    modules = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in MODULES}
    edges: dict[str, set[str]] = {name: set() for name in modules if name.startswith(f"{part}.")}
    for name, found in edges.items():
        for node in list_nodes(modules[name]):
            if isinstance(node, ast.ImportFrom) and node.module:
                home = node.module.removeprefix("headrace.")
                names = {home, *(f"{home}.{alias.name}" for alias in node.names)}
                found |= {each for each in names if each in edges and each != name}
    largest = max((len(cycle) for cycle in find_cycles(edges)), default=0)
    assert largest <= LARGE_CYCLES.get(part, CYCLE_MAX)


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in MODULES:
        for node in list_nodes(path):
            if isinstance(node, ast.ClassDef):
                yield path, node


def words_of(name: str) -> set[str]:
    """Return the words of a name in either spelling, in the singular."""
    spread = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word.lower().removesuffix("s") for word in spread.split("_") if word}


def test_a_word_with_many_meanings_names_nothing() -> None:
    modules = {str(path.relative_to(SOURCE)): path.stem for path in MODULES if path.stem not in DEPRECATED}
    named = {**modules, **{f"{path.relative_to(SOURCE)}:{node.name}": node.name for path, node in classes()}}
    wrong = [place for place, name in named.items() if words_of(name) & BANNED_WORDS]
    assert not wrong, f"see docs/reference/glossary.md for the words to use: {wrong}"


def test_a_class_name_is_defined_once() -> None:
    found: dict[str, list[str]] = {}
    for path, node in classes():
        if not path.stem.endswith("_pure"):
            found.setdefault(node.name, []).append(ast.get_docstring(node) or "")
    twice = {name: texts for name, texts in found.items() if len(texts) > 1}
    assert set(twice) == TWO_LAYERS
    for name, texts in twice.items():
        assert any(f".{name}`" in text or "jetstream_api" in text for text in texts), (
            f"{name} says why there are two"
        )


def test_the_core_knows_no_sockets_clocks_or_threads() -> None:
    """Time, disk and network come in through small protocols, so that everything runs in the simulator."""
    for part in ("protocol", "jetstream_api", "broker", "storage"):
        for path in (SOURCE / part).rglob("*.py"):
            if str(path.relative_to(SOURCE)).startswith(REAL_STORAGE):
                continue
            for node in list_nodes(path):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module]
                wrong = {name.partition(".")[0] for name in names} & SYSTEM_MODULES
                assert not wrong, f"{path.relative_to(SOURCE)} imports {wrong}"


def test_the_test_of_a_module_is_where_its_folder_says() -> None:
    """Folders below `tests/unit` mirror the source; a file named after a module is beside no other module's tests."""
    tests = Path(__file__).parent
    homes: dict[str, set[Path]] = {}
    for path in MODULES:
        homes.setdefault(path.stem.removesuffix("_pure"), set()).add(path.parent.relative_to(SOURCE))
    wrong = []
    for path in sorted(tests.rglob("test_*.py")):
        home, name = path.parent.relative_to(tests), path.stem.removeprefix("test_")
        is_mirrored = home.name == "bench" or (SOURCE / home).is_dir()
        if not is_mirrored or home not in homes.get(name, {home}):
            wrong.append(f"{path.relative_to(tests)}: {sorted(map(str, homes.get(name, set())))}")
    assert not wrong, "move it, or name it after what it tests"
