import pathlib
D={
"sim/checkers":"Checkers: what must hold after every simulated run, and the models they compare with.",
"broker/commit":"Group commit and what surrounds it: timers, quotas, usage, disk back-pressure, advisories.",
"broker/consumers":"Consumers: delivery, acknowledgements, pull requests, push delivery, and their durable state.",
"broker/streams":"Streams: the publish path, limits, retention, TTLs, atomic batches, counters and schedules.",
"storage/io":"File I/O: the `Disk` protocol, its implementations, open files and commit latency.",
"spark/kv":"The data source `headrace_kv`: key-value buckets as tables and change feeds.",
"sim/network":"Simulated clients, connections and servers.",
"sim/disk":"A simulated disk that loses power, fails calls and fills up.",
"broker/sourcing":"Mirrors and sources: replicators, upstream consumers, and how copies are stored.",
"sim/workloads":"Workloads: the actors and events of a simulated run, and the options a seed chooses.",
"broker/leafnodes":"Leafnode sessions without sockets: interest, permissions and fan-out between servers.",
"config":"Configuration: the options of a server, and the parser and schema of configuration files.",
"broker/routing":"Subject routing: sessions, accounts, the subscription index, permissions, imports and exports.",
"auth":"Authentication: users, NKeys, JWTs, certificates and operator mode.",
"spark/write":"The Spark sink: rows become messages, stored exactly once.",
"storage/checkpoint":"Checkpoints and recovery: writing them, loading them, replaying the journal after them.",
"net/leafnode":"Leafnode connections on sockets: the listener, the dialer and the connection.",
"jetstream_api/validation":"Validation of stream and consumer configurations, with nats-server's rules and errors.",
"broker/handlers":"Handlers of JetStream API requests: dispatch, streams, consumers, direct get, backup and restore.",
"spark/claims":"Claims in Spark: the claim column, fetching payloads, reader leases.",
"storage/segments":"Segments: sealed and growing blocks of records, and their column files.",
"storage/maintenance":"Background work on segments: flushing blocks, compaction, garbage collection of files.",
"storage/journal":"The journal (write-ahead log): its files, the sync marker, and scanning after a crash.",
"storage/log":"Logs: one stream's messages on disk or in memory, with their index and filters.",
"storage/fsck":"Checking a store offline, and accepting a loss.",
"storage/snapshot":"Snapshots: leases on a stream's files, and reading them as Arrow from other processes.",
}
for d,t in D.items():
    p=pathlib.Path('src/headrace')/d/'__init__.py'
    if not p.exists(): p.write_text(f'"""{t}"""\n')
