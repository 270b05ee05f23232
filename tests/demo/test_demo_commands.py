"""The commands as processes, on fake servers: what they write, and that nothing is left behind."""

import json
import re
import signal
import time

import pytest
from patience import PATIENCE
from processes import alive, server_pids, wait_for_servers


def test_demo_writes_its_numbers(start, tmp_path):
    process = start("demo", "--json", tmp_path / "out.json", "--svg", tmp_path / "out.svg", "--budget", 8)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    result = json.loads((tmp_path / "out.json").read_text())
    assert set(result) == {"dtype", "budget", "prompts", "speedup", "tau", "all_identical"}
    assert (result["dtype"], result["budget"], result["all_identical"]) == ("bfloat16", 8, True)
    assert result["tau"] == 4  # the fake server reports 2 rounds and 6 accepted drafts
    assert result["speedup"] > 0
    assert len(result["prompts"]) == 6
    for prompt in result["prompts"]:
        assert set(prompt) == {"prompt", "identical", "plain_tok_s", "jetspec_tok_s", "tau"}
        assert prompt["identical"] is True
        assert min(prompt["jetspec_tok_s"], prompt["plain_tok_s"]) > 0
    assert "--speculative-algorithm JETSPEC" in out
    assert "curl http://127.0.0.1:30000/v1/chat/completions" in out
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
    pids = server_pids(tmp_path)
    assert len(pids) == 4  # two servers with a child each
    assert not any(map(alive, pids))
    assert not list(tmp_path.glob("jetspec-server-*.log"))


def test_differing_text_is_explained_in_bf16_and_an_error_in_fp32(start):
    bf16, fp32 = start("demo", FAKE_DIFFERS="1"), start("demo", "--dtype", "float32", FAKE_DIFFERS="1")
    out = bf16.communicate(timeout=PATIENCE)[0]
    assert bf16.returncode == 0
    assert "6 of 6 answers differ" in out
    assert "--dtype float32" in out
    out = fp32.communicate(timeout=PATIENCE)[0]
    assert fp32.returncode == 1
    assert "must not" in out


@pytest.mark.parametrize(
    ("command", "sig"),
    [
        ("demo", signal.SIGINT),
        ("demo", signal.SIGTERM),
        ("demo", signal.SIGHUP),
        ("eval", signal.SIGINT),
    ],
)
def test_a_signal_leaves_no_process(start, tmp_path, command, sig):
    process = start(command, FAKE_DELAY="0.5")
    wait_for_servers(tmp_path)
    time.sleep(0.3)
    process.send_signal(sig)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + sig
    assert not any(map(alive, server_pids(tmp_path)))


def test_a_server_that_fails_is_one_sentence(start, tmp_path):
    process = start("demo", FAKE_FAIL="1")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert re.fullmatch(
        r"jetspec demo: The JETSPEC server did not start: the head does not fit the target \(log: .*\)\n", err
    )
    assert not any(map(alive, server_pids(tmp_path)))


def test_keep_leaves_only_the_jetspec_server(start, tmp_path):
    process = start("demo", "--keep")
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    url, pid = re.search(r"JETSPEC runs on at (\S+), process (\d+)", out).groups()
    assert f"{url}/v1/chat/completions" in out
    living = [pid for pid in server_pids(tmp_path) if alive(pid)]
    assert int(pid) in living
    assert len(living) == 2


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--json", "/no/such/place/out.json"], "There is no folder /no/such/place"),
        (["--prompts", "/no/prompts.jsonl"], "/no/prompts.jsonl can't be read"),
    ],
)
def test_what_can_be_known_at_once_is_said_at_once(start, args, sentence):
    process = start("demo", *args)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert sentence in err
    assert err.count("\n") == 1
