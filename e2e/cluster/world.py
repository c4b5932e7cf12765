"""The outside world's stand-ins: HTTP servers on a public-like address and on the metadata address.

"The sandbox can't reach it" proves nothing where there is nothing to reach. These answer every pod under no policy.
Run inside the fabric's namespace: ``python -m e2e.cluster.world ADDRESS=GREETING …``.
"""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 80


def serve(address: str, greeting: str) -> ThreadingHTTPServer:
    """Answer every GET on an address with a greeting, from a thread of its own."""

    class Greeter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"{greeting}\n".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer((address, PORT), Greeter)
    threading.Thread(target=server.serve_forever).start()
    return server


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        serve(*argument.split("=", 1))
