"""A web page on a server of its own, whose origin is therefore not the service's."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def page_server(text: str, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve `text` at every path. Yields the origin, whose host is the given name of this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{host}:{server.server_port}"
    server.shutdown()
    server.server_close()
