"""Counts in memory, and answers every request with the count."""
import http.server
import json
import os
import threading
import time

count = 0


def tick():
    global count
    while True:
        count += 1
        time.sleep(0.01)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"count": count, "pid": os.getpid()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


threading.Thread(target=tick, daemon=True).start()
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
