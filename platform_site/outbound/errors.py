"""Errors of outbound requests. The class says what to do next; `reason` is a sentence for the owner of the URL. No
reason has an IP address that the caller did not write, or text from the other side."""


class OutboundError(Exception):
    """Base of every call without an answer. Never raised itself."""

    reason: str = "the call failed"

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason or type(self).reason
        super().__init__(self.reason)


class Forbidden(OutboundError):
    """The URL or its IP address may not be called; retrying changes nothing."""

    reason = "the IP address may not be called"


class Unresolved(OutboundError):
    reason = "the name could not be resolved"


class Refused(OutboundError):
    """Nothing listens there, or it cannot be reached."""

    reason = "the connection was refused or the host is unreachable"


class Insecure(OutboundError):
    """The TLS handshake failed: an expired, foreign or self-signed certificate, or no TLS at all."""

    reason = "no secure connection: the certificate is not valid for this host, or the handshake failed"


class RequestTimedOut(OutboundError):
    """The time for the whole call, or for connecting, ran out."""

    reason = "it took too long"


class ConnectionBroken(OutboundError):
    """The connection ended before there was an answer."""

    reason = "the connection was closed before an answer came"


class InvalidResponse(OutboundError):
    """What came is no HTTP response, or half of one, or has more head than any response needs."""

    reason = "what came back is not a complete HTTP response"
