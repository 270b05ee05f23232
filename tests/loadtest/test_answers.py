"""What servers say in their streams."""

import pytest

from jetspec_sglang.loadtest.answers import Answer, AnswerError


def native(completion: int, **meta) -> dict:
    counts = {"prompt_tokens": 3, "completion_tokens": completion, "cached_tokens": 0, "finish_reason": None}
    return {"text": "x" * completion, "meta_info": counts | meta}


def chat(content: str | None = None, usage: int | None = None, **choice) -> dict:
    event: dict = {"choices": [{"delta": {"content": content}, **choice}]}
    return event if usage is None else event | {"usage": {"prompt_tokens": 3, "completion_tokens": usage}}


def test_native_stream():
    answer = Answer()
    answer.native(native(1), 0.1)
    answer.native(native(1), 0.15)  # brings nothing
    answer.native(native(5, finish_reason={"type": "stop"}), 0.2)
    answer.check()
    assert answer.chunks == [[0.1, 1], [0.2, 4]]
    assert (answer.text, answer.completion_tokens, answer.rounds) == ("xxxxx", 5, None)


def test_native_speculation():
    counts = {"spec_verify_ct": 2, "spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 30}
    answer = Answer()
    answer.native(native(6, finish_reason={"type": "stop"}, **counts), 0.1)
    assert (answer.rounds, answer.accepted_drafts, answer.nodes) == (2, 3, 32)


def test_chat_stream_with_usage_in_every_chunk():
    answer = Answer()
    answer.chat(chat(""), 0.05)  # the role
    answer.chat(chat("a", 1), 0.1)
    answer.chat(chat("bcd", 4), 0.2)
    answer.chat(chat(None, finish_reason="stop"), 0.25)
    answer.chat({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}, 0.26)
    answer.check()
    assert answer.chunks == [[0.1, 1], [0.2, 3]]
    assert (answer.text, answer.completion_tokens) == ("abcd", 5)  # the stop token has no text


def test_chat_stream_with_usage_at_the_end():
    answer = Answer()
    answer.chat(chat("a"), 0.1)
    answer.chat({"choices": [{"delta": {"reasoning_content": "hm"}}]}, 0.2)
    answer.chat(chat(None, finish_reason="stop"), 0.25)
    cached = {"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}
    answer.chat({"choices": [], "usage": cached}, 0.26)
    answer.check()
    assert answer.chunks == [[0.1, None], [0.2, None]]
    assert (answer.text, answer.cached_tokens) == ("a", 2)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda a: a.native({"error": {"message": "no room", "code": 503}}, 0), "no room"),
        (
            lambda a: a.native(native(1, finish_reason={"type": "abort", "message": "gone"}), 0),
            "aborted: gone",
        ),
        (lambda a: a.chat({"error": "bad"}, 0), "bad"),
        (lambda a: a.chat(chat(finish_reason="abort"), 0), "aborted: the server does not say why"),
        (lambda a: a.check(), "ended before the answer did"),
        (lambda a: (a.native(native(1), 0), a.check()), "ended before the answer did"),
        (lambda a: (a.chat(chat(finish_reason="stop"), 0), a.check()), "no tokens"),
        (lambda a: (a.chat(chat("a", finish_reason="stop"), 0), a.check()), "no usage"),
    ],
)
def test_failures(read, message):
    with pytest.raises(AnswerError, match=message):
        read(Answer())
