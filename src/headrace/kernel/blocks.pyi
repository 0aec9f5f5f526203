from headrace.kernel.blocks_pure import crc32c as crc32c
from headrace.kernel.blocks_pure import entries as entries
from headrace.kernel.blocks_pure import expand as expand
from headrace.kernel.blocks_pure import parse as parse
from headrace.kernel.blocks_pure import shrink as shrink
