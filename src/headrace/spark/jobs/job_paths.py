"""Paths of tables and reports, on this machine or in any file system that Spark knows (`s3a://…`, `hdfs://…`).

Owns joining such paths and writing small files to them. Invariant: a scheme and its slashes stay as they are. Files in
other file systems are written through Spark's Hadoop libraries, with the configuration of the session.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pyspark.sql import SparkSession

from headrace.reader.options import OptionError


def join_path(folder: str, *names: str) -> str:
    """Return the path of something below a folder."""
    return "/".join((folder.rstrip("/") or folder, *names))


def sibling_path(path: str, template: str) -> str:
    """Return a path beside another one; `{}` in the template is the last part of the name."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        scheme, rest = "", path
    target = PurePosixPath(rest.rstrip("/") or rest)
    if separator and len(target.parts) < 2:
        raise OptionError(f"{path!r} is a whole bucket: name a folder in it, or set a checkpoint")
    return f"{scheme}{separator}{target.parent / template.format(target.name)}"


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a small file, replacing one that exists."""
    if "://" not in path:
        Path(path).write_text(text)
        return
    context = spark.sparkContext
    # PySpark has no public interface for files.
    jvm = context._jvm  # noqa: SLF001
    assert jvm is not None, "the session runs"
    configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001
    hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
    stream = hadoop_path.getFileSystem(configuration).create(hadoop_path, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
