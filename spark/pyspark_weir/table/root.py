"""Where an archive is stored: one value for deltalake and for pyarrow, with one set of credentials.

Knows: the schemes that both libraries reach, how each is given its credentials; what is one step where.
Must never know: what the files hold.

On this machine a file is synced before it is renamed, and its folder after. On an object store an object
appears when it is complete. Elsewhere (HDFS) renaming is one step.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self
from urllib.parse import unquote

from pyarrow import fs

from pyspark_weir.errors import OptionError

# A name that ends so is a write that never ended; readers pass it over and the next writer replaces it.
UNFINISHED: Final = ".tmp"


# With pyarrow's three a store that is busy for two seconds ends a batch; these go on for about a minute, as
# deltalake's own do.
_ATTEMPTS_MAX: Final = 10


class Folder:
    """`files` is pyarrow's file system, `base` the path of the folder there; names are relative to it."""

    files: Any
    base: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, fs.LocalFileSystem)

    def path(self, name: str) -> str:
        return f"{self.base}/{name}" if name else self.base

    def names(self, folder: str, *, folders: bool = False) -> list[str]:
        """The files right in a folder, and its `folders`, sorted; none where there is no folder."""
        selector = fs.FileSelector(self.path(folder), allow_not_found=True)
        try:
            found = self.files.get_file_info(selector)
        except FileNotFoundError:
            # Pyarrow says so where another process creates the folder while it looks.
            return []
        return sorted(info.base_name for info in found if folders or info.type == fs.FileType.File)

    def size(self, name: str) -> int | None:
        """The size of a file in bytes; None where there is none."""
        info = self.files.get_file_info(self.path(name))
        return info.size if info.type == fs.FileType.File else None

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where there is none. Raises OSError."""
        try:
            with self.files.open_input_stream(self.path(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def create(self, name: str) -> Any:  # noqa: ANN401 - pyarrow has no types
        """A stream that writes a file. An object appears when it is closed; other files at once."""
        if not self._has_objects:
            self.files.create_dir(self.path(str(PurePosixPath(name).parent)), recursive=True)
        return self.files.open_output_stream(self.path(name))

    def replace(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all; it replaces another, and stays there through a power cut."""
        unfinished = name if self._has_objects else f"{name}{UNFINISHED}"
        with self.create(unfinished) as file:
            file.write(content)
        if self._has_objects:
            return
        if self.is_local:
            self._sync(self.path(unfinished))
        self.files.move(self.path(unfinished), self.path(name))
        self.sync([name])

    def sync(self, names: Iterable[str]) -> None:
        """Have the disk hold files, and the folders that lead to them. Only local files need it."""
        written = list(names)
        if not self.is_local or not written:
            return
        folders = {parent for name in written for parent in PurePosixPath(name).parents}
        for name in written:
            self._sync(self.path(name))
        for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
            self.sync_folder("" if str(folder) == "." else str(folder))
        # The folder itself may be new.
        self._sync(str(PurePosixPath(self.base).parent))

    def sync_folder(self, name: str) -> None:
        if self.is_local:
            self._sync(self.path(name))

    def delete(self, name: str) -> None:
        """Delete a file; a missing one is deleted already."""
        try:
            self.files.delete_file(self.path(name))
        except FileNotFoundError:
            return

    def _sync(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @property
    def _has_objects(self) -> bool:
        return isinstance(self.files, fs.S3FileSystem)


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
# Hadoop's names for the same.
S3_SCHEMES: Final = ("s3", "s3a", "s3n")
# deltalake's names -> the arguments of pyarrow's S3FileSystem.
_S3_OPTIONS: Final = {
    "AWS_ACCESS_KEY_ID": "access_key",
    "AWS_SECRET_ACCESS_KEY": "secret_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
    "AWS_ENDPOINT_URL": "endpoint_override",
}
# What object stores call safe: libraries differ in how they read other characters.
_KEY: Final = re.compile(r"[A-Za-z0-9!_.*'()=/\-]+")


@dataclass(frozen=True)
class ArchiveRoot(Folder):
    """The folder of an archive. `url` is absolute: `/folder` or `s3://bucket/folder`, with no `/` at its end.

    `options` are deltalake's: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION,
    AWS_ENDPOINT_URL. Without keys both libraries search as the AWS command line does, each on its machine. It
    can be pickled, and its `repr` shows no credentials.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, place: str | Path, options: Mapping[str, str] | None = None) -> Self:
        """The root that a path, `file:///folder` or `s3://bucket/folder` names; paths become absolute. Region
        and endpoint of a bucket are this machine's, from the environment, unless `options` say.

        Raises OptionError for other schemes, for options that are not known, and for what names no folder.
        """
        text, given = str(place), {name.upper(): value for name, value in (options or {}).items()}
        match = _SCHEME.match(text)
        if match is None or match[1] == "file":
            return cls(_local(text, given))
        if match[1] in S3_SCHEMES:
            return cls(_bucket(text), _from_environment() | _s3_options(given))
        raise OptionError(
            f"{text!r}: an archive is a folder (a path, or file:///folder) or s3://bucket/folder, not "
            f"{match[1]}:; write ./{text} for a folder of that very name"
        )

    @property
    def is_local(self) -> bool:
        return self.url.startswith("/")

    @property
    def storage_options(self) -> dict[str, str]:
        """What deltalake needs beside `url`."""
        plain = self.options.get("AWS_ENDPOINT_URL", "").startswith("http://")
        return {**self.options, "AWS_ALLOW_HTTP": "true"} if plain else dict(self.options)

    @cached_property
    def files(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        if self.is_local:
            return fs.LocalFileSystem()
        given = {_S3_OPTIONS[name]: value for name, value in self.options.items()}
        scheme, found, rest = given.get("endpoint_override", "").partition("://")
        if found:
            given |= {"scheme": scheme, "endpoint_override": rest.rstrip("/")}
        return fs.S3FileSystem(**given, retry_strategy=fs.AwsStandardS3RetryStrategy(_ATTEMPTS_MAX))

    @property
    def base(self) -> str:  # type: ignore[override] # it follows from `url`
        """The path of the folder for `files`."""
        return self.url if self.is_local else self.url.partition("://")[2]

    def __reduce__(self) -> tuple[type["ArchiveRoot"], tuple[str, dict[str, str]]]:
        # Connections stay where they are.
        return ArchiveRoot, (self.url, dict(self.options))

    def inside(self, folder: str) -> "ArchiveRoot":
        """A folder of this one as a root; itself without a name."""
        return ArchiveRoot(f"{self.url}/{folder}", self.options) if folder else self


def _local(text: str, options: Mapping[str, str]) -> str:
    if options:
        raise OptionError(
            f"{text!r} is a folder of this machine, which takes no options: {', '.join(options)}"
        )
    if text.startswith("file:"):
        if not text.startswith("file:///"):
            raise OptionError(f"{text!r}: write file:///folder, with three slashes")
        text = unquote(text.removeprefix("file://"))
    if not text or "\0" in text:
        raise OptionError(f"{text!r} is no folder")
    if "%" in text:
        raise OptionError(f"{text!r}: an archive's folder has no % in its path, which deltalake would decode")
    found = os.path.normpath(Path(text).absolute())
    if found == "/":
        raise OptionError("an archive has a folder of its own, not /")
    # POSIX keeps two slashes at the beginning.
    return "/" + found.lstrip("/")


def _bucket(text: str) -> str:
    _, found, rest = text.partition("://")
    parts = rest.rstrip("/").split("/")
    named = all(part not in ("", ".", "..") for part in parts)
    if not found or len(parts) < 2 or not named or not _KEY.fullmatch(rest):
        raise OptionError(f"{text!r}: write s3://bucket/folder, with letters, digits and !_.*'()=- alone")
    return f"s3://{'/'.join(parts)}"


def _s3_options(given: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(given.keys() - _S3_OPTIONS.keys())
    if unknown:
        raise OptionError(f"no option {unknown[0]}: known are {', '.join(_S3_OPTIONS)}")
    return dict(given)


def _from_environment() -> dict[str, str]:
    """What both libraries need and only one of them reads; no keys, since options travel with plans."""
    found = {name: os.environ[name] for name in ("AWS_REGION", "AWS_ENDPOINT_URL") if os.environ.get(name)}
    region = os.environ.get("AWS_DEFAULT_REGION")
    return {"AWS_REGION": region} | found if region else found
