"""A real SMTP server that stores accepted messages, and refuses others on request."""

import email
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import default
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

_TOKEN = re.compile(r"\blnk_[0-9A-Za-z]{49}\b")


class _OnAnyPort(Controller):
    """aiosmtpd's server on a port that the system chooses."""

    def __init__(self, handler: object) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        super().__init__(
            handler, hostname="127.0.0.1", port=self._listening.getsockname()[1], server_hostname="mail.test"
        )

    def _create_server(self) -> Any:
        return self.loop.create_server(self._factory_invoker, sock=self._listening)


@dataclass
class Postbox:
    """`answers` are given instead of accepting the next emails, one each: `550 …` refuses, `421 …` is temporary."""

    messages: list[EmailMessage] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    port: int = 0

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.answers:
            return self.answers.pop(0)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        message = email.message_from_bytes(envelope.content, policy=default)
        assert isinstance(message, EmailMessage)
        assert envelope.rcpt_tos == [message["To"]]
        self.messages.append(message)
        return "250 OK"

    def to(self, recipient: str) -> list[EmailMessage]:
        return [message for message in self.messages if message["To"] == recipient]

    def last(self, recipient: str) -> EmailMessage:
        return self.to(recipient)[-1]


@contextmanager
def open_postbox() -> Iterator[Postbox]:
    """A server on a port of its own, until the end of the block."""
    postbox = Postbox()
    controller = _OnAnyPort(postbox)
    postbox.port = controller.port
    controller.start()
    try:
        yield postbox
    finally:
        controller.stop()


def text_of(message: EmailMessage) -> str:
    body = message.get_body(("plain",))
    assert body is not None
    return str(body.get_content())


def html_of(message: EmailMessage) -> str:
    body = message.get_body(("html",))
    assert body is not None
    return str(body.get_content())


def link_in(message: EmailMessage) -> str:
    """The URL of the link; text and HTML contain the same one."""
    [link] = set(re.findall(r"https?://\S+", text_of(message)))
    assert f'href="{link}"' in html_of(message)
    return link


def token_in(text: "EmailMessage | str") -> str:
    [token] = set(_TOKEN.findall(text if isinstance(text, str) else text_of(text)))
    return str(token)
