"""Credentials of each service (a keyring, or mode 600) and the link of a folder. Credentials are only sent to the URL
that they were stored for, even if the link of a cloned folder names another one."""

import fcntl
import ipaddress
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from platform_site.developer_cli.failures import Exit, Failure

LINK_FILE = "platform.json"
_ID = re.compile(r"(prj|env)_[0-9a-z]{1,40}")
_TOKEN = re.compile(r"[A-Za-z0-9._-]{1,4096}")
_KEYRING = "platform"
"""Name of the service in the system's keyring, if `keyring` is installed. It is imported late, because it is slow."""


@dataclass(frozen=True)
class Credentials:
    token: str
    refresh_token: str | None = None
    name: str = ""


@dataclass(frozen=True)
class Link:
    url: str
    project: str
    environment: str


def version() -> str:
    from importlib import metadata

    try:
        return metadata.version("backend-platform")
    except metadata.PackageNotFoundError:
        return "unknown"  # run from a checkout


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def checked_token(text: str) -> str:
    """The stripped token, if a header can contain it."""
    if not _TOKEN.fullmatch(text.strip()):
        raise Failure(Exit.USAGE, "invalid_token", "This is not a token.", "Use a key (sk_…, pk_…) or an access token.")
    return text.strip()


def origin_of(url: str) -> str:
    """Scheme, host and port. Plain HTTP only to this machine: requests have credentials."""
    wrong = Failure(Exit.USAGE, "invalid_url", f"{url} is not a URL such as https://platform.example.com.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise wrong
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.scheme == "http" and not _is_this_machine(parts.hostname):
        raise Failure(
            Exit.USAGE, "invalid_url", f"{url} would send your credentials without encryption.", "Use https://."
        )
    default = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + ("" if port in (None, default) else f":{port}")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_file(path: Path) -> str:
    """UTF-8, with its line ends, which belong to a function's source."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise Failure(Exit.USAGE, "no_file", f"There is no file {path}.") from None
    except OSError as error:
        raise Failure(Exit.USAGE, "unreadable_file", f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise Failure(Exit.USAGE, "unreadable_file", f"{path}:{line}: this is not UTF-8.") from None


def write_file(path: Path, text: str, mode: int | None = None) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask if mode is None else mode)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise Failure(Exit.USAGE, "file_error", f"{path} cannot be written: {error.strerror}.") from None


def _credentials_path() -> Path:
    if folder := os.environ.get("PLATFORM_CONFIG_DIR"):
        return Path(folder) / "credentials.json"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "platform" / "credentials.json"


def _all_credentials() -> dict[str, dict[str, Any]]:
    path = _credentials_path()
    try:
        if path.stat().st_mode & 0o077:
            raise Failure(
                Exit.CREDENTIALS, "credentials_readable", f"Other users can read {path}.", f"Run: chmod 600 {path}"
            )
        found = json.loads(path.read_text())
        if not isinstance(found, dict):
            raise ValueError
        return found
    except FileNotFoundError:
        return {}
    except ValueError:
        raise _unreadable_credentials() from None


def _unreadable_credentials() -> Failure:
    message = f"{_credentials_path()} is not JSON of this version."
    return Failure(Exit.CREDENTIALS, "credentials_unreadable", message, "Delete it and sign in again.")


@contextmanager
def locked() -> Iterator[None]:
    """A refresh token is valid for one use: one process at a time."""
    path = _credentials_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def credentials(url: str) -> Credentials | None:
    found = _all_credentials().get(url)
    try:
        if found is not None and found.get("keyring"):
            found = {**_read_keyring(url), "name": found["name"]}
        return None if found is None else Credentials(**found)
    except (AttributeError, KeyError, TypeError):
        raise _unreadable_credentials() from None


def urls() -> list[str]:
    return list(_all_credentials())


def save_credentials(url: str, value: Credentials | None) -> None:
    """Store or, with None, remove them, inside `locked()`: in the keyring if there is one, else in the file."""
    everything = _all_credentials()
    before = everything.pop(url, None)
    if value is not None:
        entry = asdict(value)
        name = entry.pop("name")
        is_in_keyring = _write_to_keyring(url, entry)
        everything[url] = {"name": name, "keyring": True} if is_in_keyring else {**entry, "name": name}
    if before and before.get("keyring") and not everything.get(url, {}).get("keyring"):
        with suppress(Exception):
            import keyring

            keyring.delete_password(_KEYRING, url)
    write_file(_credentials_path(), json.dumps(everything, indent=2) + "\n", 0o600)


def _write_to_keyring(url: str, tokens: dict[str, Any]) -> bool:
    try:
        import keyring
        from keyring.backends import fail, null
    except ImportError:
        return False
    if isinstance(keyring.get_keyring(), fail.Keyring | null.Keyring):
        return False
    try:
        keyring.set_password(_KEYRING, url, json.dumps(tokens))
        return keyring.get_password(_KEYRING, url) is not None
    except Exception:  # backends raise errors of their own, for a locked keyring or a bus that is not there
        return False


def _read_keyring(url: str) -> dict[str, Any]:
    try:
        import keyring

        found: dict[str, Any] = json.loads(keyring.get_password(_KEYRING, url) or "")
    except Exception:
        raise Failure(
            Exit.CREDENTIALS,
            "keyring_unavailable",
            f"The keyring did not return the credentials for {url}.",
            "Unlock it, install the package keyring if it is missing here, or sign in again: platform login",
        ) from None
    return found


def find_link() -> tuple[Path, Link] | None:
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise Failure(Exit.USAGE, "no_folder", "The current folder was deleted.") from None
    for folder in (here, *here.parents):
        path = folder / LINK_FILE
        if path.is_file():
            try:
                data = json.loads(path.read_text())
                link = Link(str(data["url"]), str(data["project"]), str(data["environment"]))
                if not is_id(link.project) or not is_id(link.environment):
                    raise ValueError
            except (ValueError, KeyError, TypeError):
                raise Failure(
                    Exit.USAGE, "invalid_link", f"{path} is not a link.", "Run `platform link` to write it again."
                ) from None
            return folder, link
    return None


def save_link(folder: Path, link: Link) -> Path:
    path = folder / LINK_FILE
    write_file(path, json.dumps(asdict(link), indent=2) + "\n")
    return path
