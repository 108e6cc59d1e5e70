"""The backup file: a ZIP archive, whose last entry, `manifest.json`, has the size and SHA-256 of all others. Read and
written in pieces. Format: docs/how-to/operations/backups.md."""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from rows.transfer.partial_file import partial_file

FORMAT: Final = "backend-platform.environment"
FORMAT_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
PIECE: Final = 256 * 1024
_LARGEST_JSON: Final = 64 * 1024 * 1024
_QUOTED: Final = 120

Progress = Callable[[int], None]


class DamagedArchive(Exception):
    pass


class UnsupportedFormat(Exception):
    pass


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    size: int
    sha256: str


class Writer:
    """A backup in progress, as a context manager over a `partial_file`: `unfinished`, readable after `finish`. Raises
    FileExistsError unless `replace`, OSError."""

    unfinished: Path

    def __init__(self, path: Path, *, replace: bool = False) -> None:
        if path.exists() and not replace:
            raise FileExistsError(path)
        self.path = path
        self._members: dict[str, ArchiveEntry] = {}

    def __enter__(self) -> Self:
        self._partial_file = partial_file(self.path)
        self._file = self._partial_file.__enter__()
        self.unfinished = Path(self._file.name)
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        return self

    def __exit__(self, *raised: Any) -> None:
        with suppress(OSError, ValueError):
            self._zip.close()
        self._partial_file.__exit__(*raised)

    @contextmanager
    def member(self, name: str) -> Generator[Callable[[bytes], None]]:
        digest = hashlib.sha256()
        size = 0
        with self._zip.open(name, "w", force_zip64=True) as target:

            def write(piece: bytes) -> None:
                nonlocal size
                digest.update(piece)
                size += len(piece)
                target.write(piece)

            yield write
        self._members[name] = ArchiveEntry(size, digest.hexdigest())

    def json_lines(self, name: str, records: Iterator[Mapping[str, Any]]) -> int:
        count = 0
        with self.member(name) as write:
            for record in records:
                write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
                count += 1
        return count

    def finish(self, facts: Mapping[str, Any]) -> None:
        members = {name: {"size": member.size, "sha256": member.sha256} for name, member in self._members.items()}
        manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, **facts, "members": members}
        info = zipfile.ZipInfo(MANIFEST)
        info.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(info, json.dumps(manifest, ensure_ascii=False, indent=1))
        self._zip.close()
        self._file.flush()
        os.fsync(self._file.fileno())


class Archive:
    """A backup opened for reading; trust it after `verify`. Raises DamagedArchive, UnsupportedFormat, OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError) as error:
            raise DamagedArchive("it is not a ZIP archive, or its end is missing") from error
        try:
            self.manifest = self._read_manifest()
            self.members = self._read_members()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def _read_manifest(self) -> dict[str, Any]:
        with _raise_damaged(MANIFEST):
            with self._zip.open(MANIFEST) as member:
                text = member.read(_LARGEST_JSON + 1)
            manifest = json.loads(text)
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise DamagedArchive("it is not a backup of an environment")
        if (version := manifest.get("format_version")) != FORMAT_VERSION:
            raise UnsupportedFormat(f"its format is {version}; this release reads format {FORMAT_VERSION}")
        return manifest

    def _read_members(self) -> dict[str, ArchiveEntry]:
        with _raise_damaged(MANIFEST):
            members = {
                name: ArchiveEntry(int(facts["size"]), str(facts["sha256"]))
                for name, facts in self.manifest["members"].items()
            }
        found = [info.filename for info in self._zip.infolist() if info.filename != MANIFEST]
        if sorted(found) != sorted(members) or len(self._zip.infolist()) != len(found) + 1:
            raise DamagedArchive("its entries are not those of its manifest")
        return members

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members.values())

    def verify(self, progress: Progress = lambda count: None) -> None:
        for name in self.members:
            for _ in self.read(name, progress):
                pass

    def read(self, name: str, progress: Progress = lambda count: None) -> Iterator[bytes]:
        """In pieces. Raises DamagedArchive, at the latest after the last one."""
        expected = self.members.get(name)
        if expected is None:
            raise DamagedArchive(f"it has no {name}")
        digest = hashlib.sha256()
        size = 0
        with _raise_damaged(name), self._zip.open(name) as member:
            while piece := member.read(PIECE):
                size += len(piece)
                if size > expected.size:
                    break
                digest.update(piece)
                progress(len(piece))
                yield piece
        if size != expected.size or digest.hexdigest() != expected.sha256:
            raise DamagedArchive(f"{name} was changed or damaged: its checksum does not match")

    def json(self, name: str) -> Any:
        if name in self.members and self.members[name].size > _LARGEST_JSON:
            raise DamagedArchive(f"{name} is too large")
        with _raise_damaged(name):
            return json.loads(b"".join(self.read(name)))

    def json_lines(self, name: str) -> Iterator[dict[str, Any]]:
        begun: list[bytes] = []
        length = 0
        number = 1
        for piece in self.read(name):
            end, *further = piece.split(b"\n")
            begun.append(end)
            length += len(end)
            if length > _LARGEST_JSON:
                beginning = b"".join(begun[:2])[:_QUOTED].decode(errors="replace")
                raise DamagedArchive(
                    f"line {number} of {name} has more than {_LARGEST_JSON >> 20} MB; it begins {beginning!a}"
                )
            for start in further:
                line = b"".join(begun)
                begun, length, number = [start], len(start), number + 1
                yield self._object(name, line)
        if line := b"".join(begun):
            yield self._object(name, line)

    def _object(self, name: str, line: bytes) -> dict[str, Any]:
        with _raise_damaged(name):
            found = json.loads(line)
        if not isinstance(found, dict):
            raise DamagedArchive(f"{name} cannot be read")
        return found


@contextmanager
def _raise_damaged(name: str) -> Generator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedArchive(f"{name} cannot be read") from error
