import json
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.loadtest.config import LoadConfig
from jetspec_sglang.loadtest.workloads import (
    Conversation,
    Workload,
    WorkloadError,
    load_workload,
    prompt_text,
    shared_text,
)


def load(name: str, **settings) -> Workload:
    return load_workload(LoadConfig(workload=str(name), **settings))


def test_builtin_by_domain():
    everything = load("builtin")
    some = load("builtin:code,chat")
    assert {c.domain for c in everything.conversations} == {"code", "maths", "chat", "stories"}
    assert {c.domain for c in some.conversations} == {"code", "chat"}
    with pytest.raises(WorkloadError, match="There is no built-in domain poems; there are chat, code,"):
        load("builtin:poems")


def test_turns_are_cut_to_what_is_asked_for():
    assert {len(c.turns) for c in load("builtin:chat").conversations} == {1}
    assert {len(c.turns) for c in load("builtin:chat", max_turns=5).conversations} == {2}


@settings(max_examples=30)
@given(st.integers(1, 20), st.integers(0, 99))
def test_every_conversation_comes_once_a_pass(size, seed):
    conversations = [Conversation("d", (str(n),)) for n in range(size)]
    workload, again = Workload("w", conversations, seed), Workload("w", conversations, seed)
    for pass_ in range(3):
        numbers = [workload.at(pass_ * size + n)[0] for n in range(size)]
        assert sorted(numbers) == list(range(size))
    later = 2 * size + size // 2
    assert again.at(later) == workload.at(later)  # whatever was asked for before


def test_another_seed_is_another_order():
    orders = [[load("builtin", seed=seed).at(n)[0] for n in range(48)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_shared_prefix_is_the_same_for_all():
    workload = load("builtin:chat", shared_prefix=50, max_turns=2)
    prefix = shared_text(50)
    assert len(prefix.split()) == 50
    plain = load("builtin:chat", max_turns=2)
    for with_prefix, without in zip(workload.conversations, plain.conversations, strict=True):
        assert with_prefix.turns == (f"{prefix}\n\n{without.turns[0]}", without.turns[1])


def test_jsonl(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"turns": ["a\u2028b"]}\n\n{"turns": ["c", "d"], "domain": "x"}\n', encoding="utf-8")
    found = load(file, max_turns=2).conversations
    assert found == [Conversation("own", ("a\u2028b",)), Conversation("x", ("c", "d"))]


def test_sharegpt(tmp_path):
    rows = [
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"conversations": [{"role": "user", "content": "c"}, {"role": "user", "content": "d"}]},
        {"conversations": [{"from": "gpt", "value": "nobody asked"}]},
    ]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps(rows))
    found = load(file, max_turns=2).conversations
    assert [c.turns for c in found] == [("a",), ("c", "d")]


@pytest.mark.parametrize("cell", ["ask", ["ask", "more"], [{"role": "user", "content": "ask"}]])
def test_hub(monkeypatch, cell):
    def load_dataset(name, split):
        assert (name, split) == ("owner/name", "test")
        return [{"column": cell}, {"column": ""}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    (found,) = load("hf:owner/name:test:column").conversations
    assert found == Conversation("owner/name", ("ask",))


def test_hub_errors_are_told(monkeypatch):
    def load_dataset(name, split):
        raise ConnectionError("offline")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(WorkloadError, match=r"can't be loaded \(ConnectionError: offline\)"):
        load("hf:owner/name:test:column")
    with pytest.raises(WorkloadError, match="name split and column"):
        load("hf:owner/name")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"turns": []}', "line 1 is no conversation"),
        ("a.jsonl", '{"turns": ["a"]}\n{"turns": [1]}', "line 2 is no conversation"),
        ("a.jsonl", "\n", "holds no conversations"),
        ("a.json", '{"a": 1}', "is not ShareGPT-like"),
        ("a.json", "[]", "holds no conversations"),
        ("a.txt", "a", "is neither .jsonl nor .json"),
    ],
)
def test_other_files_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(WorkloadError, match=message):
        load(tmp_path / name)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(WorkloadError, match="can't be read"):
        load(tmp_path / "none.jsonl")


def test_prompt_as_text():
    messages = [("user", "a"), ("assistant", "b"), ("user", "c")]
    assert prompt_text(messages[:1], "none") == "a"
    assert prompt_text(messages, "none") == "a\n\nb\n\nc"
    assert prompt_text(messages[:1], "chatml") == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"


def test_the_description_tells_prompts_apart():
    one, other = load("builtin:chat").describe(), load("builtin:chat", max_turns=2).describe()
    assert one["conversations"] == other["conversations"] == 12
    assert one["sha256"] != other["sha256"]
