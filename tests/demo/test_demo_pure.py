"""Metrics, prompts and tables, without a server."""

import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from jetspec_sglang import compare, serving
from jetspec_sglang.builtin import head as builtin_head_module
from jetspec_sglang.builtin.head import BuiltinHeadError, builtin_head
from jetspec_sglang.builtin.prompts import Prompt, PromptError, load_prompts, mixed
from jetspec_sglang.compare import Answer, CompareError, alternating, decode_cost, speedup, tau
from jetspec_sglang.demo_report import JETSPEC, PLAIN, Comparison, Result, report, side_by_side
from jetspec_sglang.drafters.checkpoint import HeadError, check_head_files, load_head_tensors, locate


def answer(seconds: float, tokens: int = 11, first: int = 1, rounds: int = 0, accepted: int = 0) -> Answer:
    return Answer("text", tuple(range(tokens)), first, 0.1, seconds, rounds, accepted)


def test_tau_counts_the_bonus_and_weighs_by_rounds():
    assert tau([answer(1, rounds=10, accepted=5), answer(1, rounds=30, accepted=45)]) == 1 + 50 / 40
    assert tau([answer(1)]) == 1


def test_speed_leaves_out_what_came_with_the_first_message():
    assert decode_cost([[answer(2, tokens=12, first=4)]]) == 2 / 8


def test_a_prompt_counts_with_its_median_repeat():
    assert decode_cost([[answer(1), answer(9), answer(2)], [answer(3)]]) == 5 / 20


def test_speedup_is_the_ratio_of_total_times_where_lengths_agree():
    plain, other = [[answer(6)], [answer(2)]], [[answer(1)], [answer(3)]]
    assert speedup(plain, other) == pytest.approx(8 / 4)


def test_a_shorter_answer_is_not_a_faster_one():
    assert speedup([[answer(2, tokens=21)]], [[answer(1, tokens=11)]]) == pytest.approx(1)


def test_order_alternates():
    assert alternating("ab", 0) == ["a", "b"]
    assert alternating("ab", 1) == ["b", "a"]


def comparison(identical: bool = True) -> Comparison:
    row = Comparison(Prompt("code", ("Complete this.\ndef fib(n: int):\n    ...",)))
    row.answers[PLAIN] = [answer(1), answer(1)]
    row.answers[JETSPEC] = [answer(0.5, 11 if identical else 10, rounds=4, accepted=6)] * 2
    return row


@pytest.mark.parametrize(
    ("dtype", "identical", "said"),
    [
        ("bfloat16", True, "token for token"),
        ("bfloat16", False, "--dtype float32"),
        ("float32", False, "must not"),
    ],
)
def test_report_says_what_differs_and_why(dtype, identical, said):
    screen = Console(file=io.StringIO(), width=200)
    screen.print(report(Result(dtype, 16, [comparison(identical)])))
    text = screen.file.getvalue()
    assert said in text
    assert "def fib(n: int):" in text
    assert "2.50" in text  # τ = 1 + 6/4


def test_summary_is_the_published_schema():
    summary = Result("float32", 16, [comparison()]).summary()
    assert json.loads(json.dumps(summary)) == {
        "dtype": "float32",
        "budget": 16,
        "prompts": [
            {
                "prompt": "Complete this.\ndef fib(n: int):\n    ...",
                "identical": True,
                "plain_tok_s": 10,
                "jetspec_tok_s": 20,
                "tau": 2.5,
            }
        ],
        "speedup": 2,
        "tau": 2.5,
        "all_identical": True,
    }


def test_columns_show_the_end_of_a_long_text():
    screen = Console(file=io.StringIO(), width=80, height=20)
    text = " ".join(f"word{i}" for i in range(300))
    screen.print(side_by_side({PLAIN: text}, {PLAIN: "40.0 tok/s"}, screen))
    shown = screen.file.getvalue()
    assert "word299" in shown
    assert "word0 " not in shown
    assert "40.0 tok/s" in shown


def test_held_out_prompts_are_mixed_by_domain():
    first = mixed(load_prompts(), 6)
    assert [prompt.domain for prompt in first] == ["code", "maths", "chat", "stories", "code", "maths"]


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"turns": []}', '{"turns": [3]}', '{"text": "x"}'])
def test_a_wrong_prompt_file_is_named(tmp_path, text):
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(PromptError, match=r"prompts\.jsonl") as caught:
        load_prompts(file)
    assert "\n" not in str(caught.value)


def test_missing_packaged_head_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(BuiltinHeadError, match="name a head's folder"):
        builtin_head(folder=tmp_path)
    monkeypatch.setattr(compare, "builtin_head", lambda: builtin_head_module.builtin_head(folder=tmp_path))
    with pytest.raises(CompareError, match="no built-in draft head"):
        compare.model_folders(None, None)


def test_a_packaged_corrector_comes_with_the_head_it_completes(tmp_path, monkeypatch):
    monkeypatch.setenv("JETSPEC_CACHE", str(tmp_path))
    folder = builtin_head("gru")
    tensors, head = load_head_tensors(folder), load_head_tensors(builtin_head())
    check_head_files(folder)
    assert all(torch.equal(tensors[name], head[name]) for name in head)
    assert {name.partition(".")[0] for name in tensors.keys() - head.keys()} == {"path_corrector"}
    assert (folder / "README.md").is_file()
    assert builtin_head("gru") == folder  # made once
    assert [path.name for path in (tmp_path / "heads").iterdir()] == [folder.name]


def test_a_corrector_without_its_head_is_no_head(tmp_path):
    shutil.copytree(builtin_head().with_name("gru"), tmp_path / "gru")
    with pytest.raises(BuiltinHeadError, match="no built-in draft head"):
        builtin_head("gru", tmp_path)


def test_names_and_a_cache_that_cannot_be_are_told_in_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(BuiltinHeadError, match="no built-in draft head"):
        builtin_head("../heads/causal")
    (tmp_path / "file").touch()
    monkeypatch.setenv("JETSPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuiltinHeadError, match="set JETSPEC_CACHE"):
        builtin_head("gru")


def test_packaged_heads_go_by_name_wherever_a_head_is_named():
    assert (
        locate("builtin:causal") == builtin_head() == compare.model_folders(None, Path("builtin:causal"))[1]
    )
    with pytest.raises(CompareError, match=r"no built-in draft head 'none': choose .*builtin:causal"):
        compare.model_folders(None, Path("builtin:none"))
    with pytest.raises(HeadError, match=r"choose .*builtin:causal"):
        locate("builtin:none")


def test_wrong_folders_are_told_apart(tmp_path):
    with pytest.raises(CompareError, match="--head: there is no folder"):
        compare.model_folders(None, tmp_path / "none")
    with pytest.raises(CompareError, match=r"--target: .* is no model folder"):
        compare.model_folders(tmp_path, None)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CompareError, match="holds no draft head"):
        compare.model_folders(None, tmp_path)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("noise\njetspec: error: budget is 0; give 1 to 1024.\n", "budget is 0; give 1 to 1024."),
        ("Traceback\n  x\njetspec_sglang.config.ConfigError: no such scoring\nKilled\n", "no such scoring"),
        ("", "it gave no reason."),
    ],
)
def test_reason_of_a_failed_server(tmp_path, log, reason):
    server = serving.Server([])
    server.log = tmp_path / "log"
    server.log.write_text(log)
    assert compare.failure_reason(server) == f"{reason} (log: {server.log})"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"error": {"message": "budget is 99; give 1 to 16."}}', "budget is 99; give 1 to 16."),
        ('{"object": "error", "message": "no"}', "no"),
        ('{"error": "gone"}', "gone"),
        ("<html>502</html>", "<html>502</html>"),
        ("[]", "[]"),
    ],
)
def test_refusal_of_a_server(text, sentence):
    assert compare.refusal(text) == sentence


def test_no_free_port_is_one_sentence(monkeypatch):
    def bind(self, address):
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(serving.socket.socket, "bind", bind, raising=False)
    with pytest.raises(serving.ServerError, match="no free TCP port"):
        serving.free_port()


def test_free_ports_lie_below_the_systems_own():
    ports = [serving.free_port() for _ in range(100)]
    assert min(ports) >= 10_000
    assert max(ports) < 22_000
    assert len(set(ports)) > 90


@pytest.fixture
def listener():
    with serving.socket.socket() as opened:
        opened.bind((serving.HOST, serving.free_port()))
        opened.listen()
        yield opened


def test_a_port_in_use_is_not_free(monkeypatch, listener):
    taken, draw = listener.getsockname()[1], serving.secrets.randbelow
    draws = [taken - 10_000] * 2
    monkeypatch.setattr(serving.secrets, "randbelow", lambda bound: draws.pop() if draws else draw(bound))
    assert serving.free_port() != taken
    assert not draws


def test_a_server_is_not_started_where_another_answers(listener):
    with pytest.raises(serving.ServerError, match="in use; give another one"):
        serving.Server([], port=listener.getsockname()[1]).launch()


def test_a_dead_server_is_not_ready_though_another_answers_on_its_port(monkeypatch):
    server = serving.Server([], program=("-c", "raise SystemExit(3)"))
    server.launch()
    server._process.wait()
    monkeypatch.setattr(server, "_healthy", lambda: True)
    with pytest.raises(serving.ServerError, match="ended with status 3"):
        server.ready()
    server.stop()
    server.log.unlink()
