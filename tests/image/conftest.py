"""Fixtures for tests of the built image. `make test-image` runs them and sets HEADRACE_IMAGE to the image's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from claims.object_stores import Weed
from image.build import Image

FOLDER = os.environ.get("HEADRACE_IMAGE", "")
#: Without an image only the reader of Dockerfiles is tested.
collect_ignore = [] if FOLDER else ["test_image.py", "test_image_claims.py", "test_pod.py"]
USER_ID = 10001


@pytest.fixture(scope="session")
def image() -> Image:
    return Image.load(Path(FOLDER))


@pytest.fixture
def volume(tmp_path: Path, image: Image) -> str:
    """Return a folder for /data. A named volume has the owner that the folder has in the image."""
    return make_volume(tmp_path / "data", image)


def make_volume(folder: Path, image: Image) -> str:
    """Make a folder that belongs to the owner of /data in the image."""
    folder.mkdir()
    owner = Path(image.rootfs, "data").stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    return str(folder)


def give_to_user(*paths: str | Path) -> None:
    """Let the user of the image own files."""
    for path in paths:
        os.chown(path, USER_ID, USER_ID)


@pytest.fixture(scope="session")
def weed() -> Iterator[Weed]:
    """Start SeaweedFS on all addresses of this network namespace, so that containers reach it."""
    store = Weed(listen="0.0.0.0")
    yield store
    store.close()
