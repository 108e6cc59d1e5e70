"""`platform`, and from a checkout `python -m platform_site.developer_cli`."""

import io
import os
import sys
from typing import Any

from platform_site.developer_cli.failures import Exit


class _Pipe(io.FileIO):
    """Ends the process when it cannot be written to, quietly if the reader has closed it (`platform … | head`). Typer
    and Rich would end it with 1, as if the command had failed. SIGPIPE would end it for closed sockets, too."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                sys.exit(Exit.OUTPUT_CLOSED)
            if self.fileno() != sys.stderr.fileno():
                print(f"Error: The output cannot be written: {error.strerror}.", file=sys.stderr)
            sys.exit(Exit.USAGE)


def main() -> None:
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, such as with `<&-`
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
        elif name != "stdin" and not stream.isatty():
            pipe = io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False))
            by_line = stream.line_buffering or stream.write_through
            setattr(sys, name, io.TextIOWrapper(pipe, stream.encoding, stream.errors, line_buffering=by_line))
    try:
        try:
            from platform_site.developer_cli.main import app

            app(prog_name="platform")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:  # before a command began
        print("Error: Interrupted.", file=sys.stderr)
        sys.exit(Exit.INTERRUPTED)


if __name__ == "__main__":
    main()
