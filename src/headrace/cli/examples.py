"""One example for each command, for its help and for the reference. A test parses all of them."""

from __future__ import annotations

_EXAMPLES = """\
headrace fsck /var/lib/headrace
headrace archive check s3://backups/headrace
headrace archive list s3://backups/headrace
headrace archive verify s3://backups/headrace
headrace archive restore s3://backups/headrace /var/lib/headrace
headrace archive promote s3://backups/headrace data --accept-loss
headrace archive trim s3://backups/headrace
headrace backup create s3://backups/headrace --keep 7
headrace backup offline /var/lib/headrace s3://backups/headrace
headrace backup ls s3://backups/headrace
headrace backup prune s3://backups/headrace --keep 7 --dry-run
headrace backup verify s3://backups/headrace
headrace restore s3://backups/headrace --to /var/lib/headrace
headrace stream ls --subject 'orders.>'
headrace stream info ORDERS
headrace stream add ORDERS --subjects 'orders.>' --max-age 7d
headrace stream edit ORDERS --max-bytes 10GB --dry-run
headrace stream copy ORDERS ORDERS_COPY --source ORDERS
headrace stream rm ORDERS
headrace stream purge ORDERS --subject orders.eu.1
headrace stream seal ORDERS
headrace stream subjects ORDERS 'orders.eu.*'
headrace stream get ORDERS --last-for orders.eu.1
headrace stream rmm ORDERS 17
headrace stream backup ORDERS orders-backup
headrace stream restore orders-backup
headrace stream report --sort bytes
headrace stream view ORDERS --since 1h --subject 'orders.eu.>'
headrace stream find ORDERS ann --since 1d --header Kind:return
headrace stream gaps ORDERS
headrace consumer ls ORDERS
headrace consumer info ORDERS worker
headrace consumer add ORDERS worker --filter 'orders.eu.>' --wait 30s
headrace consumer edit ORDERS worker --max-pending 50
headrace consumer copy ORDERS worker worker-2 --start new
headrace consumer rm ORDERS worker
headrace consumer reset ORDERS worker --seq 1
headrace consumer pause ORDERS worker 10m
headrace consumer resume ORDERS worker
headrace consumer next ORDERS worker --count 10
headrace consumer sub ORDERS worker
headrace consumer report ORDERS
headrace consumer dlq ls ORDERS worker
headrace consumer dlq redrive ORDERS worker --all
headrace kv get settings color
headrace kv put settings color green
headrace kv create settings color green --ttl 15m
headrace kv update settings color blue --revision 1
headrace kv del settings color
headrace kv purge settings color
headrace kv history settings color
headrace kv watch settings color
headrace kv compact settings --older-than 1h
headrace kv keys settings
headrace kv ls settings
headrace kv add settings --history 5 --ttl 24h
headrace kv edit settings --ttl 48h
headrace kv status settings
headrace kv rm settings
headrace object ls pictures
headrace object add pictures
headrace object put pictures cat.png
headrace object get pictures cat.png --output cat.png
headrace object info pictures cat.png
headrace object rm pictures cat.png
headrace batch orders.jsonl --format ndjson
headrace migrate check --to nats://hub.example:4222
headrace migrate move ORDERS --to nats://hub.example:4222
headrace migrate undo ORDERS --to nats://hub.example:4222
headrace pub orders.eu.1 '3 pears' --jetstream
headrace sub 'orders.>'
headrace req help.time now --timeout 2
headrace reply help.time 'it is late'
headrace counter incr hits.home 5
headrace counter get hits.home
headrace counter ls HITS --subject 'hits.>'
headrace schedule add plans.report '@every 1h' reports.due hourly
headrace schedule ls
headrace schedule rm plans.report
headrace export ORDERS orders.parquet --since 1h
headrace table add ORDERS --table shop.web --catalog http://lake:8181
headrace table run
headrace table check
headrace table status
headrace table history ORDERS
headrace table verify ORDERS
headrace table maintain ORDERS --dry-run
headrace table rm ORDERS
headrace table resync ORDERS
headrace sql "select subject, count(*) from ORDERS group by all"
headrace top
headrace bench pub
headrace bench sub
headrace bench js
headrace server ping
headrace server info
headrace server check connection
headrace server check jetstream
headrace server check stream ORDERS
headrace server check consumer ORDERS worker
headrace account info
headrace events max_deliver
headrace trace orders.eu.1
headrace mkpasswd --generate
headrace context ls
headrace context show hub
headrace context add hub --server nats://hub.example:4222 --select
headrace context select hub
headrace context rm hub
headrace completion bash
headrace version
"""


def find_example(path: str) -> str:
    """Return the example of a command by its full name, such as `headrace stream ls`; "" if it has none."""
    return next((line for line in _EXAMPLES.splitlines() if f"{line} ".startswith(f"{path} ")), "")
