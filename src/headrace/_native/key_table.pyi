from headrace._native.key_table_pure import KeyTable as KeyTable
from headrace._native.key_table_pure import find_first_rows as find_first_rows
