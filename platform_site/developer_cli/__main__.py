"""`platform`, and from a checkout `python -m platform_site.developer_cli`."""

import os
import sys

from platform_site.developer_cli.failures import Exit


def main() -> None:
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell, such as with `<&-`
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
    try:
        try:
            from platform_site.developer_cli.main import app

            app(prog_name="platform")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:  # before a command began
        print("Error: Interrupted.", file=sys.stderr)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:  # `platform … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.OUTPUT_CLOSED)


if __name__ == "__main__":
    main()
