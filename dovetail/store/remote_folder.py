"""Files in a folder that fsspec reaches: `s3://bucket/folder`, `gs://...`, `sftp://host/folder`.

Such places have neither a rename nor a sync to rely on; a file is there when its write has returned, and may be there
in part when its writer was killed. Credentials are fsspec's business (its configuration, the environment), not the
URL's.
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dovetail.store.atomic_write import write_atomically
from dovetail.vocabulary import StoreError

_URL = re.compile(r"[a-z][a-z0-9+.-]*(::|://)", re.IGNORECASE)

Found = TypeVar("Found")


@dataclasses.dataclass(frozen=True)
class RemoteFolder:
    """A folder at a URL. Its methods raise OSError, whatever fsspec's file systems raise.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = RemoteFolder(f"file://{name}") / "task"
    ...     folder.write("page", b"text")
    ...     folder.names(), folder.read("page")
    (['page'], b'text')
    """

    url: str

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.url.rstrip("/").rpartition("/")[2]

    def __truediv__(self, name: str) -> "RemoteFolder":
        return RemoteFolder(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url

    def read(self, name: str) -> bytes:
        """The contents of a file."""
        return self._do(lambda files, path: bytes(files.cat_file(f"{path}/{name}")))

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file, and the folder if need be. On this machine's disks (`file://`) only this user can
        read it; elsewhere the place decides who can."""

        def put(files: Any, path: str) -> None:
            if "file" in files.protocol:
                Path(path).mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomically(Path(path) / name, content)
                return
            files.makedirs(path, exist_ok=True)
            files.pipe_file(f"{path}/{name}", content)

        self._do(put)

    def names(self) -> list[str]:
        """The names of the files and folders in it; none where it does not exist."""

        def listed(files: Any, path: str) -> list[str]:
            files.invalidate_cache()  # others write here too
            try:
                found = files.ls(path, detail=False)
            except FileNotFoundError:
                return []
            return sorted(each.rstrip("/").rpartition("/")[2] for each in found)

        return self._do(listed)

    def size(self, name: str) -> int:
        """How many bytes a file has."""
        return self._do(lambda files, path: int(files.size(f"{path}/{name}")))

    def remove(self, name: str = "") -> None:
        """Remove a file in it; without a name, the folder with all that is in it."""
        self._do(lambda files, path: files.rm_file(f"{path}/{name}") if name else files.rm(path, recursive=True))

    def _do(self, work: Callable[[Any, str], Found]) -> Found:
        try:
            return work(*_open_url(self.url))
        except (OSError, StoreError):
            raise
        except Exception as error:  # each file system has errors of its own; what to do about them is the same
            raise OSError(f"{type(error).__name__}: {error}") from error


Folder = Path | RemoteFolder


def folder_of(place: str | Path) -> Folder:
    """The local path or the remote folder that a path or a URL names.

    >>> folder_of("s3://bucket/sweep") / "a"
    RemoteFolder(url='s3://bucket/sweep/a')
    >>> folder_of("/shared/sweep")
    PosixPath('/shared/sweep')
    """
    return RemoteFolder(place) if isinstance(place, str) and _URL.match(place) else Path(place)


def _open_url(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path there. fsspec keeps one of each kind."""
    import fsspec

    scheme = url.partition(":")[0]
    if "::" in url or scheme == "memory":
        raise StoreError(
            f"checkpoints must be at the URL of one file system that outlives its processes; got {url}. Use a path, "
            f"or a URL such as s3://bucket/folder."
        )
    if urlsplit(url).password:
        raise StoreError(
            "the URL of checkpoints must hold no password, because it is written to logs and pages; give it in the "
            "environment or in fsspec's configuration, ~/.config/fsspec."
        )
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise StoreError(
            f"checkpoints at {url} must be reached by fsspec; found: {error}. Install the package for {scheme}:// "
            f"(s3fs for s3, gcsfs for gs, adlfs for abfs, paramiko for sftp), or use a path."
        ) from error
    return files, path.rstrip("/")
