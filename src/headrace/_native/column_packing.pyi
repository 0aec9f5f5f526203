from headrace._native.column_packing_pure import ROWS_MAX as ROWS_MAX
from headrace._native.column_packing_pure import is_packed_column as is_packed_column
from headrace._native.column_packing_pure import pack_column as pack_column
from headrace._native.column_packing_pure import pack_columns as pack_columns
from headrace._native.column_packing_pure import unpack_column as unpack_column
