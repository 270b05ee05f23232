import pytest

from jetspec_sglang.loadtest.answers import AnswerError
from jetspec_sglang.loadtest.http_stream import events, request_json


def generate(url: str, text: str = "", timeout: float = 10) -> list[dict]:
    body = {"text": text, "sampling_params": {"max_new_tokens": 5}}
    return [event for _, event in events(url + "/generate", body, timeout)]


def test_events_come_with_growing_times(start_fake_llm):
    url = start_fake_llm(prefill=0.05, pace=0.1)
    body = {"text": "", "sampling_params": {"max_new_tokens": 5}}
    times = [now for now, _ in events(url + "/generate", body, 10)]
    assert len(times) == 5
    assert times == sorted(times)
    assert times[-1] - times[0] == pytest.approx(0.4, abs=0.2)  # of a busy machine


def test_every_address_of_a_host_is_tried(start_fake_llm):
    """`localhost` is ::1 first on many machines, and the server listens on 127.0.0.1 alone."""
    url = start_fake_llm().replace("127.0.0.1", "localhost")
    assert request_json(url + "/server_info")["model_path"] == "fake"
    assert len(generate(url)) == 5


def test_failures_say_what_happened(start_fake_llm):
    url = start_fake_llm(prefill=0.5)
    with pytest.raises(AnswerError, match="no room") as refused:
        generate(url, "<refuse>")
    assert refused.value.status == 503
    with pytest.raises(AnswerError, match=r"not complete after 0\.1 s"):
        generate(url, timeout=0.1)
    with pytest.raises(AnswerError, match="the stream was broken off") as broken:
        generate(url, "<break>")
    assert broken.value.status == 200
    with pytest.raises(AnswerError, match="refused") as absent:
        generate("http://127.0.0.1:9")
    assert absent.value.status is None


def test_small_requests(start_fake_llm):
    url = start_fake_llm()
    assert request_json(url + "/flush_cache?timeout=3", "POST")["flushes"] == 1
    with pytest.raises(AnswerError, match="refused"):
        request_json("http://127.0.0.1:9/server_info")
