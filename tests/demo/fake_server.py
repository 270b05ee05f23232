"""Stands in for an SGLang server: the few routes that the commands use, and a child process of its own.

Options beside SGLang's: `--fake-fail` ends it at once with an error, as a wrong head does.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKENS = 9
DELAY = float(os.environ.get("FAKE_DELAY", "0.005"))
STAGES = ("draft", "build", "verify", "accept", "commit")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    speculative = False
    rounds = 0

    def log_message(self, *args) -> None:
        pass

    def _send(self, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health_generate":
            return self._send({})
        jetspec = {"stage_seconds": dict.fromkeys(STAGES, float(Handler.rounds)), "rounds": Handler.rounds}
        return self._send({"internal_states": [{"jetspec": jetspec} if self.speculative else {}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids = [sum(request["input_ids"]) % 100 + i for i in range(TOKENS)]
        if self.speculative and os.environ.get("FAKE_DIFFERS"):
            ids[-1] += 1
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        step = 4 if self.speculative else 1
        ends = [1, *range(1 + step, TOKENS + 1, step)]
        for end in ends:
            meta = {"completion_tokens": end}
            if self.speculative and end > 1:
                Handler.rounds += 1
                meta |= {"spec_verify_ct": 2, "spec_num_correct_drafts": 6}
            chunk = {"text": " ".join(map(str, ids[:end])), "output_ids": ids[:end], "meta_info": meta}
            self._send_chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            time.sleep(DELAY)
        self._send_chunk(b"data: [DONE]\n\n")
        self._send_chunk(b"")

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--speculative-algorithm")
    options, _ = parser.parse_known_args()
    if os.environ.get("FAKE_FAIL") and options.speculative_algorithm:
        raise ValueError("the head does not fit the target")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with Path(os.environ["FAKE_PIDS"]).open("a") as pids:
        pids.write(f"{os.getpid()} {child.pid}\n")
    Handler.speculative = options.speculative_algorithm == "JETSPEC"
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
