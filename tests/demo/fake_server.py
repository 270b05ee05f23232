"""Stands in for an SGLang server: the few routes that the commands use, and a child process of its own.

A JETSPEC one commits as many tokens a round as `STEPS` says for the settings of the request, refuses settings that
it was not started for, and keeps the trees of traced requests. Environment: `FAKE_FAIL` ends it at once with an
error, as a wrong head does; `FAKE_DIFFERS` makes its text another one; `FAKE_DELAY` is the seconds of a round.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

TOKENS = 9
DELAY = float(os.environ.get("FAKE_DELAY", "0.005"))
STAGES = ("draft", "build", "verify", "accept", "commit")
STEPS = {"root": 1, "chain": 2, "eager": 3, "optimal": 4}
LOCK = Lock()


class Counts:
    """What a worker would count, under `LOCK`."""

    rounds = 0
    histogram: dict[int, int] = {}  # noqa: RUF012  one process, one server
    trace: list[dict] = []  # noqa: RUF012


def tree_of(step: int) -> dict:
    """A chain of `step` nodes behind the root with a sibling for each; the whole chain is accepted."""
    parent = [-1, *(2 * (n // 2) - 1 if n > 1 else 0 for n in range(2 * (step - 1)))]
    depth = [0, *(n // 2 + 1 for n in range(2 * (step - 1)))]
    return {
        "tokens": [100 + slot for slot in range(len(parent))],
        "parent": parent,
        "depth": depth,
        "logprob": [-0.5 * level - 0.1 * (slot % 2 == 0) * (slot > 0) for slot, level in enumerate(depth)],
        "path": [0, *range(1, len(parent), 2)],
        "committed": [*(100 + slot for slot in range(1, len(parent), 2)), 7],
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    speculative = False
    budget = 16

    def log_message(self, *args) -> None:
        pass

    def _send(self, body: dict, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health_generate":
            return self._send({})
        with LOCK:
            jetspec = {
                "stage_seconds": dict.fromkeys(STAGES, float(Counts.rounds)),
                "rounds": Counts.rounds,
                "accepted_drafts_histogram": {str(k): v for k, v in Counts.histogram.items()},
                "trace": Counts.trace,
            }
        sizes = {"speculative_num_steps": 7}
        return self._send(sizes | {"internal_states": [{"jetspec": jetspec} if self.speculative else {}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            return self._send({"tokens": [len(m["content"]) for m in request["messages"]]})
        if self.path == "/detokenize":
            return self._send({"text": [" ".join(f"t{token}" for token in row) for row in request["tokens"]]})
        sampling = request["sampling_params"]
        asked = (sampling.get("custom_params") or {}).get("jetspec", {}) if self.speculative else {}
        if asked.get("budget", 1) > self.budget:
            message = f"custom_params.jetspec: budget is {asked['budget']}; give 1 to {self.budget}."
            return self._send({"error": {"message": message}}, 400)
        count = (
            sampling["max_new_tokens"]
            if sampling.get("ignore_eos")
            else min(TOKENS, sampling["max_new_tokens"])
        )
        ids = [sum(request["input_ids"]) % 100 + i for i in range(count)]
        if self.speculative and os.environ.get("FAKE_DIFFERS"):
            ids[-1] += 1
        kind = "root" if asked.get("budget") == 1 else asked.get("expansion", "optimal")
        step = STEPS["chain" if asked.get("width") == 1 else kind] if self.speculative else 1
        ends = [1, *range(1 + step, count, step), count] if count > 1 else [1]
        if request.get("stream"):
            return self._stream(request, ids, ends, step, asked)
        for end in ends:
            last = self._round(request, ids, end, step, asked)
            time.sleep(DELAY)
        return self._send(last)

    def _stream(self, request: dict, ids: list[int], ends: list[int], step: int, asked: dict) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for end in ends:
            self._send_chunk(
                b"data: " + json.dumps(self._round(request, ids, end, step, asked)).encode() + b"\n\n"
            )
            time.sleep(DELAY)
        self._send_chunk(b"data: [DONE]\n\n")
        self._send_chunk(b"")

    def _round(self, request: dict, ids: list[int], end: int, step: int, asked: dict) -> dict:
        """The message after the round that committed up to `end` tokens; the first is the prefill's."""
        meta = {"completion_tokens": end}
        if self.speculative and end > 1:
            rounds = -(-(end - 1) // step)
            meta |= {"spec_verify_ct": rounds, "spec_num_correct_drafts": rounds * (step - 1)}
            with LOCK:
                Counts.rounds += 1
                Counts.histogram[step - 1] = Counts.histogram.get(step - 1, 0) + 1
                if asked.get("trace"):
                    # Rounds of one answer differ: each takes one draft less than the one before.
                    tree = tree_of(max(1, step - rounds + 1))
                    Counts.trace.append({"rid": request.get("rid"), "round": rounds - 1, **tree})
        return {"text": " ".join(map(str, ids[:end])), "output_ids": ids[:end], "meta_info": meta}

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int)
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-num-draft-tokens", type=int, default=16)
    options, _ = parser.parse_known_args()
    if os.environ.get("FAKE_FAIL") and options.speculative_algorithm:
        raise ValueError("the head does not fit the target")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with Path(os.environ["FAKE_PIDS"]).open("a") as pids:
        pids.write(f"{os.getpid()} {child.pid}\n")
    Handler.speculative = options.speculative_algorithm == "JETSPEC"
    Handler.budget = options.speculative_num_draft_tokens
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
