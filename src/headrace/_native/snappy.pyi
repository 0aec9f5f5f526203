from headrace._native.snappy_pure import compress as compress
from headrace._native.snappy_pure import crc32c as crc32c
from headrace._native.snappy_pure import decompress as decompress
from headrace._native.snappy_pure import encode_entries as encode_entries
from headrace._native.snappy_pure import parse_entries as parse_entries
