"""HTTP requests to the service: retries, token refresh, and error messages."""

import json
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from platform_site.developer_cli import store
from platform_site.developer_cli.failures import Exit, Failure

if TYPE_CHECKING:
    import httpx

ATTEMPTS = 3
MAX_WAIT_SECONDS = 10
_RETRIED = (429, 500, 502, 503)
_EXITS = {401: Exit.CREDENTIALS, 403: Exit.CREDENTIALS, 404: Exit.NOT_FOUND, 409: Exit.CONFLICT, 412: Exit.CONFLICT}
_HINTS = {
    401: "Sign in again: platform login",
    403: "Use a member or key that has this permission.",
    412: "It was changed at the same time. Run the command again.",
    429: "Wait, then run the command again.",
}


def path_part(text: str) -> str:
    if text in ("", ".", "..") or "/" in text:
        raise Failure(Exit.USAGE, "invalid_name", f'"{text}" is not a name.')
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise Failure(Exit.USAGE, "invalid_name", "A name is not UTF-8.") from None


class Answer(dict[str, Any]):
    """A JSON object. A missing field ends the command: the service has another version."""

    def __missing__(self, name: str) -> Any:
        raise Failure(
            Exit.INCOMPATIBLE,
            "unexpected_response",
            f'The service answered without the field "{name}".',
            "Install the version of this command that belongs to the service.",
        )


class Api:
    """The API of one service and caller. `environment` is sent as X-Environment."""

    def __init__(self, url: str, credentials: store.Credentials | None, environment: str | None = None) -> None:
        # Imported here, because it takes a third of the time of `platform --help`.
        import ssl

        import httpx

        self.url, self.credentials, self.environment = url, credentials, environment
        is_here = url.startswith("http://")
        try:
            self._client = httpx.Client(
                base_url=f"{url}/v1",
                headers={"User-Agent": f"platform/{store.version()}"},
                timeout=httpx.Timeout(90, connect=10),
                # Reading the certificate authorities takes a fifth of a command's time; without them none is trusted.
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_here else True,
                trust_env=not is_here,  # HTTP_PROXY would get the credentials without encryption
            )
        except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
            message = f"A proxy or certificates of your environment cannot be used: {error}."
            hint = "See HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR."
            raise Failure(Exit.USAGE, "invalid_environment", message, hint) from None

    def get(self, path: str, **params: Any) -> Answer:
        return self._object(self.request("GET", path, params=params))

    def has_page(self, path: str) -> bool:
        return self._send_with_retries("GET", f"{self.url}{path}", {}, None, {}).status_code != 404

    def pages(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        while True:
            page = self.get(path, **params)
            yield from page["data"]
            if not page.get("next_cursor"):
                return
            params["cursor"] = page["next_cursor"]

    def send(self, method: str, path: str, body: Any = None, authored: bool = False) -> Answer:
        """The response's object, empty for 204. `authored`: the user wrote the body's field names."""
        response = self.request(method, path, body=body, authored=authored)
        return self._object(response) if response.content else Answer()

    def apply(self, body: dict[str, Any]) -> str:
        """Apply a plan of the configuration; returns its status."""
        try:
            return str(self.send("POST", "/config/apply", body)["status"])
        except KeyboardInterrupt:
            raise Failure(
                Exit.INTERRUPTED,
                "interrupted",
                "Interrupted while the service applied the changes: all of them or none.",
                "See which: platform plan, or platform merge --dry-run",
            ) from None

    def _object(self, response: "httpx.Response") -> Answer:
        try:
            found = json.loads(response.content, object_hook=Answer)
        except ValueError:
            found = None
        if not isinstance(found, Answer):
            raise self._not_a_platform(response)
        return found

    def request(
        self, method: str, path: str, *, params: dict[str, Any] | None = None, body: Any = None, authored: bool = False
    ) -> "httpx.Response":
        """Raises Failure unless the status is 2xx with a body of this API."""
        sent = {}
        if self.environment:
            sent["X-Environment"] = self.environment
        if method in ("POST", "PATCH"):
            sent["Idempotency-Key"] = str(uuid.uuid4())
        given = {name: value for name, value in (params or {}).items() if value is not None}
        response = self._send_with_retries(method, path, given, body, sent)
        if response.status_code == 401 and self.credentials and self.credentials.refresh_token:
            self._refresh(self.credentials)
            response = self._send_with_retries(method, path, given, body, sent)
        return self._checked(response, authored)

    def _send_with_retries(
        self, method: str, path: str, params: dict[str, Any], body: Any, headers: dict[str, str]
    ) -> "httpx.Response":
        import httpx

        if self.credentials:
            headers = {**headers, "Authorization": f"Bearer {self.credentials.token}"}
        for attempt in range(1, ATTEMPTS + 1):
            seconds = float(attempt)
            try:
                response = self._client.request(method, path, params=params, json=body, headers=headers)
            except httpx.ConnectError as error:
                raise self._unreachable(error) from error
            except ValueError:
                raise Failure(
                    Exit.USAGE,
                    "invalid_input",
                    "The input contains a value that cannot be encoded as JSON in UTF-8, such as Infinity.",
                ) from None
            except (httpx.TransportError, httpx.DecodingError) as error:
                if attempt == ATTEMPTS:
                    raise self._unreachable(error) from error
            else:
                seconds = _retry_after(response, seconds)
                if response.status_code not in _RETRIED or attempt == ATTEMPTS or seconds > MAX_WAIT_SECONDS:
                    return response
            time.sleep(seconds)
        raise AssertionError("unreachable")

    def _unreachable(self, error: Exception) -> Failure:
        reason = str(error) or type(error).__name__
        return Failure(
            Exit.UNREACHABLE,
            "unreachable",
            f"{self.url} does not answer: {reason}.",
            "Is `manage.py up` running? For another service, run: platform login --url URL"
            if self.url.startswith("http://")
            else "Check your network and the URL.",
        )

    def _refresh(self, used: store.Credentials) -> None:
        with store.locked():
            stored = store.credentials(self.url)
            if stored is not None and stored.refresh_token and stored.token != used.token:
                self.credentials = stored
                return
            grant = {"grant_type": "refresh_token", "refresh_token": used.refresh_token}
            self.credentials = None
            try:
                response = self._send_with_retries("POST", "/auth/token", {}, grant, {})
            finally:
                self.credentials = used  # a command that waits for the service tries again
            if response.status_code == 400:
                raise Failure(
                    Exit.CREDENTIALS, "session_ended", "Your session has ended.", "Sign in again: platform login"
                )
            tokens = self._object(self._checked(response))
            self.credentials = store.Credentials(tokens["access_token"], tokens["refresh_token"], used.name)
            store.save_credentials(self.url, self.credentials)

    def _checked(self, response: "httpx.Response", authored: bool = False) -> "httpx.Response":
        status = response.status_code
        if 200 <= status < 300:
            expected = response.headers.get("content-type", "")
            if response.content and not expected.startswith(("application/json", "application/typescript")):
                raise self._not_a_platform(response)
            return response
        error = self._object(response).get("error")
        if not isinstance(error, Answer):
            raise self._not_a_platform(response)
        code, message, fields = str(error["code"]), str(error["message"]), error.get("fields") or []
        unknown_endpoint = status == 405 or (status == 404 and message.startswith("There is no such endpoint"))
        unknown_field = not authored and any(field.get("code") == "unknown_field" for field in fields)
        if unknown_endpoint or unknown_field:
            raise Failure(
                Exit.INCOMPATIBLE,
                "server_too_old",
                f"{self.url} does not support a request of this command: {message}",
                "Its version is probably older or much newer than this command. Install the version of the service.",
                fields,
                str(error.get("request_id", "")),
            )
        hint = _HINTS.get(status, "")
        if status == 401 and self.credentials and not self.credentials.refresh_token:
            hint = "Use another token: platform login --token, or PLATFORM_TOKEN."
        if status == 404 and message.startswith("The environment does not exist"):
            hint = "Link this folder to another one: platform link"
        default = Exit.UNREACHABLE if status >= 500 or status == 429 else Exit.REFUSED
        ids = str(error.get("request_id", "")), str(error.get("run_id", ""))
        raise Failure(_EXITS.get(status, default), code, message, hint, fields, *ids)

    def _not_a_platform(self, response: "httpx.Response") -> Failure:
        return Failure(
            Exit.INCOMPATIBLE,
            "unexpected_response",
            f"{self.url} answered {response.status_code} without a body of this API.",
            "Check the URL. A proxy may have answered instead of the service, or the service is much newer.",
        )


def _retry_after(response: "httpx.Response", otherwise: float) -> float:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return otherwise
