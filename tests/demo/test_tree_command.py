"""`jetspec tree` as a process, on a fake server whose rounds accept 3, 2, 1, … drafts."""

import json
import re

import pytest
import requests
from patience import PATIENCE
from processes import server_pids
from rich.console import Console

from jetspec_sglang.client import jetspec_state, post, server_info
from jetspec_sglang.compare import CompareError
from jetspec_sglang.tree.draw import DrawnRound
from jetspec_sglang.tree_command import TracedAnswer, show, tree


def test_tree_draws_the_round_that_accepted_most(finished, tmp_path):
    files = {name: tmp_path / f"out.{name}" for name in ("svg", "png", "json")}
    status, out, err = finished(
        *("tree", "Hello!", "--heatmap", tmp_path / "heat.png"),
        *(arg for name, file in files.items() for arg in (f"--{name}", file)),
    )
    assert (status, err) == (0, "")
    assert "round 1 of 2: 7 nodes, 3 drafts accepted" in out
    drawn = out[out.index("● t100") :].splitlines()
    assert drawn[:8] == [
        "● t100  100%",
        "├── ● t101  61%",
        "│   ├── ● t103  37%",
        "│   │   ├── ● t105  22%",
        "│   │   │   └── ★ t7",
        "│   │   └── ○ t106  20%",
        "│   └── ○ t104  33%",
        "└── ○ t102  55%",
    ]
    assert "9 tokens, τ 3.50 over 2 rounds." in out
    assert "0.0% of 2 rounds accepted the whole block of 7 drafts" in out
    assert "\x1b" not in out
    assert files["svg"].read_text().startswith("<?xml")
    assert files["png"].read_bytes()[:4] == (tmp_path / "heat.png").read_bytes()[:4] == b"\x89PNG"
    result = json.loads(files["json"].read_text())
    assert set(result) == {"prompt", "settings", "text", "tau", "drawn_round", "texts", "trace"}
    assert (result["prompt"], result["settings"]) == ("Hello!", {"budget": 16})
    assert [len(row["path"]) for row in result["trace"]] == [4, 3]
    assert result["texts"]["105"] == "t105"
    assert len(server_pids(tmp_path)) == 2


def test_another_round_and_other_settings(finished):
    status, out, _ = finished(
        *("tree", "Hello!", "--round", 2, "--expansion", "eager", "--budget", 8, "--depth", 3)
    )
    assert status == 0
    assert "round 2 of 3: 3 nodes, 1 draft accepted" in out
    assert "whole block of 3 drafts" in out
    status, _, err = finished("tree", "Hello!", "--round", 3)
    assert status == 1
    assert "--round is 3, but the answer took 2 rounds." in err


def test_a_running_server_is_used_as_it_is(start, finished, tmp_path):
    demo = start("demo", "--keep")
    kept, _ = demo.communicate(timeout=60)
    url = re.search(r"JETSPEC runs on at (\S+),", kept)[1]
    running = len(server_pids(tmp_path))

    process = start("tree", "Hello!", "--url", url + "/", "--budget", 4)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert "3 drafts accepted" in out

    process = start("tree", "Hello!", "--url", url, "--budget", 99)
    assert "budget is 99; give 1 to 16." in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1
    assert len(server_pids(tmp_path)) == running


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--svg", "out.png"], "--svg is out.png; give it a name in .svg."),
        (["--heatmap", "out.txt"], "out.txt is no picture"),
        (["--url", "http://127.0.0.1:9", "--head", "."], "leave --target and --head out"),
    ],
)
def test_what_can_be_known_at_once_is_said_at_once(refused, args, sentence):
    assert sentence in refused(tree, "Hello!", *args)


def test_nothing_to_map_is_one_sentence(finished, tmp_path):
    status, _, err = finished("tree", "Hello!", "--budget", 1, "--heatmap", tmp_path / "heat.svg")
    assert status == 1
    assert err == "jetspec tree: --heatmap: no round drafted anything, so there is nothing to map.\n"


def test_client_errors_are_sentences(monkeypatch):
    with pytest.raises(CompareError, match=r"http://127\.0\.0\.1:9 does not answer \(ConnectionError\)"):
        server_info("http://127.0.0.1:9")
    reply = requests.Response()
    reply.status_code, reply._content = 200, b"no json"
    monkeypatch.setattr(requests, "request", lambda *args, **how: reply)
    with pytest.raises(CompareError, match="http://x does not answer"):
        server_info("http://x")
    reply.status_code, reply._content = 400, b'{"error": {"message": "No."}}'
    with pytest.raises(CompareError, match=r"^The server refused the request: No\.$"):
        post("http://x", "/generate", {})
    with pytest.raises(CompareError, match="http://x is no JETSPEC server"):
        jetspec_state({"internal_states": [{}]}, "http://x")


@pytest.mark.parametrize("first", [0, 44])
def test_a_long_answer_says_that_its_first_rounds_are_gone(first, capsys):
    row = {"tokens": [1, 2], "parent": [-1, 0], "depth": [0, 1], "logprob": [0.0, -0.1]}
    trace = [{"round": first, "path": [0, 1], "committed": [2, 3], **row}]
    rounds = [DrawnRound.of_trace(each) for each in trace]
    show(Console(width=120), TracedAnswer("text", 90, trace, rounds, {1: "a", 2: "b", 3: "c"}, 0), 0)
    said = capsys.readouterr().out
    assert ("The server keeps 1 rounds; the answer's first 44 are gone." in said) == bool(first)
