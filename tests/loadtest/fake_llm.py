"""An SGLang-like server whose service time is known exactly, in a process of its own; standard library only.

An answer's first token comes `prefill` seconds after its turn begins, then `chunk` tokens every `chunk * pace`
seconds, by absolute times. `slots` answers are written at once, others queue. From `stall_at` seconds after a run's
first request on, for `stall` seconds, nothing is sent; emptying the cache begins another run. `die_after` ends the
process in the middle of that answer. A prompt may set its own chunk size ("chunk=4"), or be refused ("<refuse>") or
broken off half-way ("<break>").
"""

import argparse
import asyncio
import json
import os
import re
import time


class FakeServer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.o = options
        self.slots = asyncio.Semaphore(options.slots)
        self.begun: float | None = None
        self.answers = 0
        self.flushes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1].partition("?")[0]
            lengths = [line for line in head.lower().splitlines() if line.startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b""
            await self.answer(path, json.loads(body or b"{}"), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, path: str, body: dict, writer: asyncio.StreamWriter) -> None:
        if path in ("/generate", "/v1/chat/completions"):
            if "<refuse>" in json.dumps(body):
                return self.whole(writer, {"error": {"message": "no room"}}, "503 Service Unavailable")
            self.begun = self.begun or time.monotonic()
            self.answers += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
            asked = re.search(r"chunk=(\d+)", json.dumps(body))
            chunk = int(asked[1]) if asked else self.o.chunk
            async with self.slots:
                await (self.native if path == "/generate" else self.chat)(body, chunk, writer)
            writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return await writer.drain()
        if path == "/flush_cache":
            self.flushes += 1
            self.begun = None  # another run
        info = {"flushes": self.flushes, "answers": self.answers, "api_key": "secret", "model_path": "fake"}
        return self.whole(writer, info)

    def whole(self, writer: asyncio.StreamWriter, content: dict, status: str = "200 OK") -> None:
        data = json.dumps(content).encode()
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status.encode(), len(data)) + data)

    async def totals(self, tokens: int, chunk: int, text: str):
        """Tokens so far, when they are there."""
        due, total, number = time.monotonic() + self.o.prefill, 1, self.answers
        while True:
            await asyncio.sleep(due - time.monotonic())
            await self.stalled()
            if total > tokens // 2:
                if number == self.o.die_after:
                    os._exit(1)
                if "<break>" in text:
                    raise ConnectionError
            yield total
            if total == tokens:
                return
            step = min(chunk, tokens - total)
            total, due = total + step, due + step * self.o.pace

    async def stalled(self) -> None:
        since = time.monotonic() - self.begun - self.o.stall_at
        if 0 <= since < self.o.stall:
            await asyncio.sleep(self.o.stall - since)

    async def native(self, body: dict, chunk: int, writer: asyncio.StreamWriter) -> None:
        tokens = body["sampling_params"]["max_new_tokens"]
        async for total in self.totals(tokens, chunk, json.dumps(body)):
            meta = {"prompt_tokens": 7, "completion_tokens": total, "cached_tokens": 3, "finish_reason": None}
            if total == tokens:
                meta |= {"finish_reason": {"type": "length"}, **self.speculation(tokens, chunk)}
            event = {"text": "x" * total, "output_ids": [5] * total, "meta_info": meta}
            writer.write(_event(event))
            await writer.drain()

    async def chat(self, body: dict, chunk: int, writer: asyncio.StreamWriter) -> None:
        tokens, before = body["max_tokens"], 0
        each = body["stream_options"].get("continuous_usage_stats") and not self.o.last_usage_only
        writer.write(_event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        async for total in self.totals(tokens, chunk, json.dumps(body)):
            event: dict = {"choices": [{"delta": {"content": "x" * (total - before)}, "finish_reason": None}]}
            if each:
                event["usage"] = {"prompt_tokens": 7, "completion_tokens": total}
            before = total
            writer.write(_event(event))
            await writer.drain()
        writer.write(_event({"choices": [{"delta": {}, "finish_reason": "length"}]}))
        if details := self.speculation(tokens, chunk):
            writer.write(_event({"choices": [], "sglext": {"spec_tokens_details": details}}))
        cached = {"cached_tokens": 3}
        usage = {"prompt_tokens": 7, "completion_tokens": tokens, "prompt_tokens_details": cached}
        writer.write(_event({"choices": [], "usage": usage}))

    def speculation(self, tokens: int, chunk: int) -> dict:
        """Of a server that verifies 20 nodes a round; every chunk after the first is a round."""
        if chunk == 1:
            return {}
        rounds, rest = divmod(tokens - 1, chunk)
        accepted = rounds * (chunk - 1) + max(0, rest - 1)
        rounds += bool(rest)
        return {
            "spec_verify_ct": rounds,
            "spec_num_correct_drafts": accepted,
            "spec_num_proposed_drafts": 19 * rounds,
            "spec_correct_drafts_histogram": [0] * (chunk - 1) + [rounds],
        }


def _event(content: dict) -> bytes:
    return _chunk(b"data: " + json.dumps(content).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in {"prefill": 0.1, "pace": 0.01, "stall_at": 0.0, "stall": 0.0}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default)
    for name, default in {"chunk": 1, "slots": 1000, "die_after": -1}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--last-usage-only", action="store_true")
    server = await asyncio.start_server(FakeServer(parser.parse_args()).serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
