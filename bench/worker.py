"""Runs inside a sandbox that is measured: see worker.go."""

import hashlib
import http.server
import os
import sys
import threading
import time
import urllib.parse

memory = bytearray()
longest = 0.0


def tick():
    # Wall-clock time, for the monotonic clock may stand still with the sandbox.
    global longest
    last = time.time()
    while True:
        time.sleep(0.001)
        now = time.time()
        longest = max(longest, now - last)
        last = now


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        global memory, longest
        url = urllib.parse.urlsplit(self.path)
        megabytes = int(dict(urllib.parse.parse_qsl(url.query)).get("megabytes", "0"))
        if url.path == "/dirty":
            memory = bytearray()
            memory = bytearray(os.urandom(megabytes << 20))
            text = hashlib.sha256(memory).hexdigest()
        elif url.path == "/hash":
            text = hashlib.sha256(memory).hexdigest()
        elif url.path == "/ping":
            text = "pong"
        elif url.path == "/files":
            os.makedirs("/home/user/files", exist_ok=True)
            for i in range(megabytes // 16):
                with open("/home/user/files/%d" % i, "wb") as f:
                    f.write(os.urandom(16 << 20))
                    f.flush()
                    os.fsync(f.fileno())
            text = "written"
        elif url.path == "/longest":
            # How long it stood still at most, in ms, since it was last asked.
            text, longest = "%.3f" % (longest * 1000), 0.0
        else:
            self.send_error(404)
            return
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


threading.Thread(target=tick, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
