"""`jetspec eval` as a process, on fake servers: what it asks, what it writes, that files can be shown again."""

import json
from pathlib import Path
from statistics import median

import pytest
from processes import server_pids

from jetspec_sglang.eval import evaluate

# What the fake server commits a round; 8 tokens follow the first.
TAU = {"chain": 2, "eager": 1 + 6 / 3, "optimal": 4}


def rows_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def cost(rows: list[dict]) -> float:
    """Seconds a token; a prompt counts with its median repeat."""
    questions = {(r["block"], r["prompt"], r["turn"]) for r in rows}
    repeats = [
        [r for r in rows if (r["block"], r["prompt"], r["turn"]) == question] for question in questions
    ]
    return sum(median(r["decode_seconds"] for r in each) for each in repeats) / sum(
        median(r["decoded"] for r in each) for each in repeats
    )


def test_everything_at_once(finished, tmp_path):
    """Two heads, three expansions, policies, repeats, files of all kinds, and the same files again."""
    files = {name: tmp_path / f"out.{name}" for name in ("json", "jsonl", "svg")}
    status, out, err = finished(
        *("eval", "--drafters", "causal_parallel=/a/one,causal_parallel=/a/two", "--budgets", "4,16"),
        *("--scoring", "accum_logp,hybrid:alpha=0.5", "--scoring", "entropy", "--repeats", 3, "--limit", 3),
        *("--json", files["json"], "--jsonl", files["jsonl"], "--plot", files["svg"]),
        FAKE_DELAY="0.001",
    )
    assert (status, err) == (0, "")
    result = json.loads(files["json"].read_text())
    head, *raw = rows_of(files["jsonl"])
    keys = {
        "drafter",
        "expansion",
        "scoring",
        "alpha",
        "budget",
        "domain",
        "tau",
        "tok_s",
        "speedup",
        "rounds",
    }
    assert all(set(row) == keys | {"acceptance", "temperature"} for row in result["rows"])
    assert result["heads"] == {"causal_parallel=one": "one", "causal_parallel=two": "two"}
    assert {key: result[key] for key in head["run"]} == head["run"]

    a_head = 2 + 2 * 2 * 3  # chains of two budgets; eager and optimal, two budgets, three policies
    configurations = {tuple(row[key] for key in ("drafter", "expansion", "scoring", "budget")) for row in raw}
    assert len(configurations) == 1 + 2 * a_head
    assert len(result["rows"]) == len(configurations) * 4  # three domains, and all
    assert len(raw) == 4 * 3 * 2 * (1 + a_head)  # turns of three prompts, repeats, heads
    assert all(row["tau"] == TAU.get(row["expansion"], 1) for row in result["rows"] if row["domain"] == "all")
    assert all((row["alpha"] == 0.5) == (row["scoring"] == "hybrid") for row in result["rows"])

    for row in result["rows"]:  # every published number follows from the raw rows
        here = [r for r in raw if row["domain"] in (r["domain"], "all")]
        same = ("drafter", "expansion", "scoring", "alpha", "budget")
        mine = [r for r in here if all(r[key] == row[key] for key in same)]
        plain = [r for r in here if r["expansion"] == "none" and r["block"] in {r["block"] for r in mine}]
        assert row["rounds"] == sum(r["rounds"] for r in mine)
        assert row["tok_s"] == pytest.approx(1 / cost(mine))
        assert row["speedup"] == pytest.approx(cost(plain) / cost(mine))

    assert len(result["stages"]) == len(result["ceilings"]) == 2 * a_head
    assert all(row[stage] == pytest.approx(0.2) for row in result["stages"] for stage in ("draft", "commit"))
    ends = {(row["expansion"], row["budget"]): (row["share"], row["spike"]) for row in result["ceilings"]}
    assert ends["optimal", 4] == (1, True)  # 3 drafts each round, and 4 nodes have no room for more
    assert ends["optimal", 16] == (0, False)
    assert "optimal 16 hybrid:alpha=0.5" in out
    assert files["svg"].read_text().startswith("<?xml")
    assert len(server_pids(tmp_path)) == 2 * 3  # one plain server and one a head, with a child each

    # Raw rows can be shown again.
    again = {name: tmp_path / f"again.{name}" for name in ("json", "svg")}
    started = len(server_pids(tmp_path))
    status, shown, err = finished(
        *("eval", "--from", files["jsonl"], "--json", again["json"], "--plot", again["svg"])
    )
    assert (status, err) == (0, "")
    assert out.endswith(shown)
    for name, file in again.items():
        assert file.read_bytes() == files[name].read_bytes()
    assert len(server_pids(tmp_path)) == started


def test_order_alternates_and_the_first_plain_answer_is_the_context(finished, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"turns": ["a", "bb"]}\n{"turns": ["ccc"]}\n')
    raw = tmp_path / "raw.jsonl"
    status, _, err = finished(
        *("eval", "--budgets", 8, "--expansions", "optimal", "--prompts", prompts, "--jsonl", raw),
        FAKE_DIFFERS="1",
    )
    assert (status, err) == (0, "")
    _, *rows = rows_of(raw)
    assert [(r["prompt"], r["turn"], r["expansion"]) for r in rows] == [
        (prompt, turn, expansion)
        for prompt, turn in ((0, 0), (0, 1), (1, 0))
        for expansion in ("none", "optimal")
    ]
    assert {r["domain"] for r in rows} == {"own"}
    assert [r["identical"] for r in rows] == [True, False] * 3


def test_sampling_has_acceptance_as_a_dimension(finished, tmp_path):
    out = tmp_path / "out.json"
    status, _, err = finished(
        *("eval", "--budgets", 8, "--expansions", "optimal", "--limit", 1, "--json", out),
        *("--temperature", 0.7, "--acceptance", "match,rejection"),
    )
    assert (status, err) == (0, "")
    rows = json.loads(out.read_text())["rows"]
    assert {(row["acceptance"], row["temperature"]) for row in rows} == {
        (None, 0.7),
        ("match", 0.7),
        ("rejection", 0.7),
    }


def test_load_compares_methods_at_each_concurrency(finished, tmp_path):
    files = {name: tmp_path / f"out.{name}" for name in ("json", "jsonl", "png")}
    status, out, err = finished(
        *("eval", "--concurrency", "1,3", "--budgets", "1,8", "--limit", 4, "--max-new-tokens", 12),
        *("--repeats", 2, "--json", files["json"], "--jsonl", files["jsonl"], "--plot", files["png"]),
    )
    assert (status, err) == (0, "")
    result = json.loads(files["json"].read_text())
    head, *raw = rows_of(files["jsonl"])
    assert head["run"]["kind"] == result["kind"] == "load"
    methods = ["plain", "budget 1", "budget 8", "adaptive", "bandit"]
    assert [(r["method"], r["concurrency"]) for r in result["rows"]] == [
        (method, n) for n in (1, 3) for method in methods
    ]
    assert len(raw) == 5 * 2 * 2 * 4  # methods, concurrencies, repeats, prompts
    assert {r["tokens"] for r in raw} == {12, 11, 9, 8}
    for row in result["rows"]:
        assert (row["tokens"], row["tau"]) == (40, 1 if row["method"] in ("plain", "budget 1") else 4)
        ends = {}
        for r in raw:
            if (r["method"], r["concurrency"]) == (row["method"], row["concurrency"]):
                ends[r["repeat"]] = max(r["ended"], ends.get(r["repeat"], 0))
        assert row["seconds"] == median(ends.values())
        assert row["tok_s"] == 40 / row["seconds"]
    # No more clients than asked for: a request begins when one of the last three has ended.
    for method in methods:
        mine = [r for r in raw if (r["method"], r["concurrency"], r["repeat"]) == (method, 3, 0)]
        assert all(sum(other["began"] < r["began"] < other["ended"] for other in mine) < 3 for r in mine)
    assert "adaptive / best fixed" in out
    assert "bandit / best fixed" in out
    assert files["png"].read_bytes().startswith(b"\x89PNG")

    status, shown, err = finished("eval", "--from", files["jsonl"])
    assert (status, err) == (0, "")
    assert out.endswith(shown)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--scoring", "best"], "--scoring: "),
        (["--plot", "out.pdf"], "out.pdf is no picture"),
        (["--acceptance", "match"], "no effect at temperature 0"),
        (["--concurrency", "2", "--expansions", "chain"], "leave --expansions out"),
        (["--concurrency", "2", "--eager-width", "3"], "leave --eager-width out"),
        (["--concurrency", "8", "--limit", "4"], "8 requests at once need as many prompts, but there are 4"),
        (["--concurrency", "1", "--drafters", "causal_parallel=/a,causal_parallel=/b"], "one head"),
        (["--from", "none.jsonl"], "none.jsonl can't be read"),
        (["--from", "none.jsonl", "--jsonl", "out.jsonl"], "leave one of them out"),
        (["--jsonl", "/no/such/place/out"], "There is no folder /no/such/place"),
    ],
)
def test_what_can_be_known_at_once_is_said_at_once(refused, args, sentence):
    assert sentence in refused(evaluate, *args)
