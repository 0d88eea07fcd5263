"""Files in a folder that fsspec reaches: `s3://bucket/folder`, `gs://...`, `sftp://host/folder`.

Such places have neither a rename nor a sync to rely on; a file is there when its write has returned, and may be there
in part when its writer was killed. A listing may lag behind what was written; a file that is asked for by its name does
not. What fails in passing is tried again (`retry`). Credentials are fsspec's business (its configuration, the
environment), not the URL's.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dovetail.store.atomic_write import write_atomically
from dovetail.store.retry import RETRY_SECONDS, is_passing, response_of, retry
from dovetail.vocabulary import StoreError

_URL = re.compile(r"[a-z][a-z0-9+.-]*(::|://)", re.IGNORECASE)

# Stores of keys and values: there are no folders to make, and what would be made for a path there is its bucket.
_KEYED = {"abfs", "abfss", "az", "gcs", "gs", "s3", "s3a"}
_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to ~/.aws/credentials"
_S3 = {"s3", "s3a"}
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "sftp": "paramiko"}

Found = TypeVar("Found")


@dataclasses.dataclass(frozen=True)
class RemoteFolder:
    """A folder at a URL. Its methods raise OSError, whatever fsspec's file systems raise, after `retry_seconds` of
    trying where that may pass.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = RemoteFolder(f"file://{name}") / "task"
    ...     folder.write("page", b"text")
    ...     folder.names(), folder.read("page")
    (['page'], b'text')
    """

    url: str
    retry_seconds: float = dataclasses.field(default=RETRY_SECONDS, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.url.rstrip("/").rpartition("/")[2]

    def __truediv__(self, name: str) -> "RemoteFolder":
        return dataclasses.replace(self, url=f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url

    def read(self, name: str) -> bytes:
        """The contents of a file."""

        def read(files: Any, path: str) -> bytes:
            files.invalidate_cache()  # a size from an earlier listing would cut what was written since
            return bytes(files.cat_file(f"{path}/{name}"))

        return self._do(read)

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file, and the folder if need be. On this machine's disks (`file://`) only this user can
        read it; elsewhere the place decides who can."""

        def put(files: Any, path: str) -> None:
            if "file" in files.protocol:
                Path(path).mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomically(Path(path) / name, content)
                return
            if not _KEYED & {self.url.partition(":")[0].lower()}:
                files.makedirs(path, exist_ok=True)
            files.pipe_file(f"{path}/{name}", content)

        self._do(put)

    def names(self) -> list[str]:
        """The names of the files and folders in it; none where it does not exist."""

        def listed(files: Any, path: str) -> list[str]:
            files.invalidate_cache()  # others write here too
            try:
                found = files.ls(path, detail=False)
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return []
            return sorted(each.rstrip("/").rpartition("/")[2] for each in found)

        return self._do(listed)

    def files(self) -> list[str]:
        """The paths of all files in it and in the folders below, from here; in one request where the place can do so.
        What was written a moment ago may be missing."""

        def listed(files: Any, path: str) -> list[str]:
            files.invalidate_cache()  # others write here too
            try:
                # Of a prefix without keys some give the prefix itself.
                return sorted(each[len(path) + 1 :] for each in files.find(path) if each.startswith(f"{path}/"))
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return []

        return self._do(listed)

    def has(self, name: str) -> bool:
        """Whether a file is there. It is asked for by its name: no listing decides that."""

        def found(files: Any, path: str) -> bool:
            files.invalidate_cache()
            try:
                return bool(files.info(f"{path}/{name}")["type"] == "file")
            except FileNotFoundError:
                return False

        return self._do(found)

    def remove(self, name: str = "") -> None:
        """Remove a file in it; without a name, the folder with all that is in it."""

        def remove(files: Any, path: str) -> None:
            files.invalidate_cache()
            if name:
                files.rm_file(f"{path}/{name}")
            else:
                files.rm(path, recursive=True)

        self._do(remove)

    def _do(self, work: Callable[[Any, str], Found]) -> Found:
        try:
            return retry(lambda: work(*_open_url(self.url)), seconds=self.retry_seconds)
        except StoreError:
            raise
        except Exception as error:  # each file system has errors of its own; what to do about them is the same
            explained = _explain(error, self.url)
            if is_passing(error):
                tried = f"tried again for {self.retry_seconds:g} s"
                raise OSError(explained.errno, f"{str(explained).rstrip('.')} ({tried})") from error
            if explained is error:
                raise
            raise explained from error


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
        files, path = fsspec.core.url_to_fs(url, **_options(scheme, fsspec.config.conf))
    except (ImportError, ValueError) as error:
        raise StoreError(
            f"checkpoints at {url} must be reached by fsspec; found: {error}. {_install(scheme)}, or use a path."
        ) from error
    if scheme in _S3:
        files.retries = 1  # of s3fs itself; the options make this file system one that nobody else has
    return files, path.rstrip("/")


def _install(scheme: str) -> str:
    if scheme in _S3:
        return "Install it: pip install 'dovetail[s3]'"
    if scheme in _PACKAGES:
        return f"Install it: pip install {_PACKAGES[scheme]}"
    return f"Install the package for {scheme}://"


def _options(scheme: str, configured: Mapping[str, Any]) -> dict[str, Any]:
    """What fsspec is told beside what the user's configuration says. `retry` is the one that tries again: three that
    do so within each other multiply their pauses, and botocore's draws them from the generator that training uses."""
    if scheme not in _S3:
        return {}
    users = configured.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {"retries": {"total_max_attempts": 1}, **users}}


def _explain(error: Exception, url: str) -> OSError:
    """The error as an OSError, with what to do about it where that is known."""
    code = _code(error)
    if code == "NoSuchBucket":
        return OSError(f"there is no bucket {urlsplit(url).netloc!r}; make it, or name another")
    if type(error).__name__ == "NoCredentialsError":
        return PermissionError(f"there are no keys for it; {_KEYS}")
    if isinstance(error, PermissionError) and code:
        return PermissionError(
            f"the server refuses the keys that are given, or they may not do this ({error}); {_KEYS}"
        )
    return error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")


def _code(error: Exception) -> str:
    """What S3 calls the error; empty for errors of other places."""
    return str(response_of(error).get("Error", {}).get("Code", ""))
