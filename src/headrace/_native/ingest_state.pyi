from headrace._native.ingest_state_pure import ByteBudget as ByteBudget
from headrace._native.ingest_state_pure import DedupWindow as DedupWindow
from headrace._native.ingest_state_pure import OpenBatch as OpenBatch
from headrace._native.ingest_state_pure import parse_nats_headers as parse_nats_headers
