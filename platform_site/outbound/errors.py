"""Errors of outbound requests. `reason` is for the URL's owner, without IPs or the other side's text."""


class OutboundError(Exception):
    reason: str = "the call failed"

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason or type(self).reason
        super().__init__(self.reason)


class Forbidden(OutboundError):
    reason = "the IP address may not be called"


class Unresolved(OutboundError):
    reason = "the name could not be resolved"


class Refused(OutboundError):
    reason = "the connection was refused or the host is unreachable"


class Insecure(OutboundError):
    reason = "no secure connection: the certificate is not valid for this host, or the handshake failed"


class RequestTimedOut(OutboundError):
    reason = "the request took too long"


class ConnectionBroken(OutboundError):
    reason = "the connection was closed before a response came"


class InvalidResponse(OutboundError):
    reason = "the response is not a complete HTTP response"
