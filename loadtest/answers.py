"""One answer as it arrives: what SGLang's native stream and the OpenAI chat stream say, in one form."""

from dataclasses import dataclass, field
from typing import Any


class AnswerError(RuntimeError):
    """The answer failed; the message is what the server said, or what was wrong with the stream."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Answer:
    """Fields are those of `records.Request`; `text` so far is for the next turn."""

    text: str = ""
    chunks: list[list] = field(default_factory=list)
    status: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    rounds: int | None = None
    accepted_drafts: int | None = None
    nodes: int | None = None
    histogram: list[int] | None = None
    finished: bool = False  # the server gave a reason for the end

    def native(self, event: dict[str, Any], now: float) -> None:
        """An event of `/generate`, at second `now`: text so far, and counts so far in `meta_info`."""
        _raise_error(event)
        meta = event["meta_info"]
        before = self.completion_tokens or 0
        self.text = event["text"]
        self.prompt_tokens = meta["prompt_tokens"]
        self.completion_tokens = meta["completion_tokens"]
        self.cached_tokens = meta.get("cached_tokens")
        if self.completion_tokens > before:
            self.chunks.append([now, self.completion_tokens - before])
        self._finish(meta.get("finish_reason"))
        self._speculation(meta)

    def chat(self, event: dict[str, Any], now: float) -> None:
        """A chunk of an OpenAI chat stream: new text, and `usage` in each chunk or in the last one only."""
        _raise_error(event)
        before = self.completion_tokens or 0
        usage = event.get("usage") or {}
        if usage:
            self.prompt_tokens = usage["prompt_tokens"]
            self.completion_tokens = usage["completion_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        said = ""
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            self.text += delta.get("content") or ""
            said += (delta.get("content") or "") + (delta.get("reasoning_content") or "")
            self._finish(choice.get("finish_reason"))
        counted = bool(usage) and bool(event.get("choices"))
        if counted and usage["completion_tokens"] > before:
            self.chunks.append([now, usage["completion_tokens"] - before])
        elif said and not counted:
            self.chunks.append([now, None])
        self._speculation((event.get("sglext") or {}).get("spec_tokens_details") or {})

    def check(self) -> None:
        """At the end of the stream.

        Raises:
            AnswerError: it ended early, or without a token.
        """
        if not self.finished:
            raise AnswerError("the stream ended before the answer did", self.status)
        if not self.chunks:
            raise AnswerError("the answer has no tokens", self.status)
        if self.completion_tokens is None:
            raise AnswerError("the server gave no usage, so its tokens can't be counted", self.status)

    def _finish(self, reason: Any) -> None:
        if not reason:
            return
        details = reason if isinstance(reason, dict) else {"type": reason}
        if details.get("type") == "abort":
            raise AnswerError(f"aborted: {details.get('message', 'the server does not say why')}")
        self.finished = True

    def _speculation(self, meta: dict[str, Any]) -> None:
        """SGLang's counts of a finished request. Its proposals leave the root out, which is verified too."""
        if rounds := meta.get("spec_verify_ct"):
            self.rounds = rounds
            self.accepted_drafts = meta["spec_num_correct_drafts"]
            self.nodes = meta["spec_num_proposed_drafts"] + rounds
            self.histogram = meta.get("spec_correct_drafts_histogram") or None


def _raise_error(event: dict[str, Any]) -> None:
    if error := event.get("error"):
        message = error.get("message", error) if isinstance(error, dict) else error
        raise AnswerError(str(message), error.get("code") if isinstance(error, dict) else None)
