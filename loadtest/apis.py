"""The three ways to ask a server: `/generate`, OpenAI chat completions, and an SGLang frontend program."""

import os
import threading
import time
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any, Protocol

from .answers import Answer, AnswerError
from .config import LoadConfig
from .http_stream import API_KEY, events
from .workloads import prompt_text

Messages = Sequence[tuple[str, str]]  # (role, text)


class Asks(Protocol):
    """One user's way to ask."""

    def ask(self, messages: Messages, answer: Answer) -> None:
        """Stream the answer to `messages` into `answer`, whose times are by `time.monotonic()`.

        Raises:
            AnswerError: it failed; `answer` holds what came before.
        """


class GenerateApi:
    """SGLang's native streaming."""

    def __init__(self, config: LoadConfig) -> None:
        self.config = config

    def ask(self, messages: Messages, answer: Answer) -> None:
        body = {
            "text": prompt_text(messages, self.config.template),
            "sampling_params": {
                "max_new_tokens": self.config.max_tokens,
                "temperature": self.config.temperature,
                "ignore_eos": self.config.ignore_eos,
            },
            "stream": True,
        }
        for now, event in events(self.config.url + "/generate", body, self.config.timeout_s):
            answer.status = 200
            answer.native(event, now)


class ChatApi:
    """OpenAI chat completions. Usage is asked for in every chunk, which tells how many tokens a chunk brought."""

    def __init__(self, config: LoadConfig) -> None:
        self.config = config

    def ask(self, messages: Messages, answer: Answer) -> None:
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [{"role": role, "content": text} for role, text in messages],
            "max_tokens": self.config.max_tokens,
            "temperature": self.config.temperature,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_spec_tokens_details": True,
        }
        if self.config.ignore_eos:
            body["ignore_eos"] = True
        for now, event in events(self.config.url + "/v1/chat/completions", body, self.config.timeout_s):
            answer.status = 200
            answer.chat(event, now)


class ProgramApi:
    """A program of `sglang.lang`, run by its interpreter against the server.

    The clock is in the backend, where pieces of the stream reach the interpreter.
    """

    def __init__(self, config: LoadConfig) -> None:
        self.config = config

    def ask(self, messages: Messages, answer: Answer) -> None:
        program, backend = frontend(self.config.url, self.config.template)
        backend = backend.recording(answer)
        program.run(
            messages=messages,
            max_new_tokens=self.config.max_tokens,
            temperature=self.config.temperature,
            ignore_eos=self.config.ignore_eos,
            backend=backend,
            stream=True,
        )
        if not backend.ended.wait(self.config.timeout_s):
            raise AnswerError(f"not complete after {self.config.timeout_s:g} s", answer.status)
        if backend.failure is not None:
            raise backend.failure


@cache
def frontend(url: str, template: str) -> tuple[Any, Any]:
    """The program and its backend, which asks the server for its model.

    Call it before a run: importing sglang takes many seconds.
    """
    import sglang as sgl
    from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint

    @sgl.function
    def program(s, messages):
        for role, text in messages:
            s += sgl.user(text) if role == "user" else sgl.assistant(text)
        s += sgl.assistant(sgl.gen("answer"))

    class RecordingEndpoint(RuntimeEndpoint):
        answer: Answer
        ended: threading.Event
        failure: AnswerError | None = None

        def recording(self, answer: Answer) -> "RecordingEndpoint":
            """A copy for one answer, noted in `answer`; `ended` is set at its end, `failure` says why early."""
            one = copy(self)
            one.answer, one.ended = answer, threading.Event()
            return one

        def generate_stream(self, s, sampling_params):
            answer, text = self.answer, ""
            try:
                for piece, meta in super().generate_stream(s, sampling_params):
                    answer.status = 200
                    text += piece
                    answer.native({"text": text, "meta_info": meta}, time.monotonic())
                    yield piece, meta
            except Exception as error:
                told = str(error) if isinstance(error, AnswerError) else f"{type(error).__name__}: {error}"
                self.failure = AnswerError(told)
                raise
            finally:
                self.ended.set()

    return program, RecordingEndpoint(
        url,
        api_key=os.environ.get(API_KEY),
        chat_template_name=None if template == "none" else template,
    )


APIS: dict[str, type] = {"generate": GenerateApi, "chat": ChatApi, "program": ProgramApi}
