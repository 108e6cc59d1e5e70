"""The email backend of development: prints emails if no mail server is configured. Django's backend for a terminal
prints what would travel, headers and HTML and all; people at a terminal want the text and its link."""

from django.core.mail.backends.console import EmailBackend as ConsoleBackend
from django.core.mail.message import EmailMessage


class EmailBackend(ConsoleBackend):
    """Prints the recipient, subject and text of each email."""

    def write_message(self, message: EmailMessage) -> None:
        lines = (line for line in str(message.body).splitlines() if line.strip())
        self.stream.write(f"e-mail to {', '.join(message.to)}: {message.subject}\n")
        self.stream.write("".join(f"    {line}\n" for line in lines))
