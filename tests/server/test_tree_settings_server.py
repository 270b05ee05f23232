"""One server, many trees: settings of single requests, their trace, and a budget that follows the load."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from oracle import Oracle

pytestmark = pytest.mark.server

COMMON = ("--skip-tokenizer-init", "--dtype", "float32", "--random-seed", "1", "--max-total-tokens", "4096")
PROMPT = [11, 12, 13, 14, 15, 16, 17]


@pytest.fixture(scope="module", params=["fixed", "adaptive"])
def server(request, serve, models):
    return serve(
        *("--model-path", models["target"], *COMMON, "--enable-metrics", "--max-running-requests", "8"),
        *("--speculative-algorithm", "JETSPEC", "--speculative-draft-model-path", models["head"]),
        *("--speculative-num-draft-tokens", "16", "--jetspec-budget", request.param),
    )


def ask(server, ids, new_tokens: int, **jetspec) -> dict:
    params = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    return server.generate(input_ids=ids, sampling_params=params | {"custom_params": {"jetspec": jetspec}})


def info(server) -> dict:
    return server.info()["internal_states"][0]["jetspec"]


WISHES = [
    {},
    {"budget": 1},
    {"budget": 5},
    {"width": 1},
    {"depth": 2},
    {"expansion": "eager", "width": 3},
    {"scoring": "entropy"},
    {"scoring": "hybrid:alpha=2"},
    {"scoring": "top2gap"},
]


def test_the_text_is_the_same_whatever_the_tree(server, models):
    expected, _, _ = Oracle(models["target"], models["head"]).decode(PROMPT, 24, budget=1, width=1)
    with ThreadPoolExecutor(len(WISHES)) as pool:  # side by side in the same rounds
        answers = list(pool.map(lambda own: ask(server, PROMPT, 24, **own), WISHES))
    for own, answer in zip(WISHES, answers, strict=True):
        assert answer["output_ids"] == expected, own


def test_traced_rounds_are_the_trees_of_the_method(server, models):
    if "adaptive" in server.args:
        pytest.skip("an adaptive budget cuts the trees")
    answer = ask(server, PROMPT, 24, trace=True, budget=9)
    rows = [row for row in info(server)["trace"] if row["rid"] == answer["meta_info"]["id"]]
    tokens, lengths, _ = Oracle(models["target"], models["head"]).decode(PROMPT, 24, budget=9, width=15)
    assert [row["round"] for row in rows] == list(range(len(lengths)))
    assert [len(row["committed"]) for row in rows] == lengths
    assert [token for row in rows for token in row["committed"]][:23] == tokens[1:]
    for row in rows:
        assert len(row["tokens"]) == len(row["parent"]) == len(row["logprob"]) == 9
        path = row["path"]
        assert [row["parent"][node] for node in path] == [-1, *path[:-1]]
        assert [row["tokens"][node] for node in path[1:]] == row["committed"][:-1]


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"jetspec": {"budget": 17}}, "from 1 to 16, which this server has"), ("x", "give an object")],
    ids=["beyond the server's budget", "no object"],
)
def test_a_request_that_cannot_be_had_gets_status_400(server, asked, said):
    reply = requests.post(
        server.url + "/generate",
        json={"input_ids": PROMPT, "sampling_params": {"custom_params": asked}},
        timeout=60,
    )
    assert reply.status_code == 400
    assert said in reply.text
    ask(server, PROMPT, 4)  # and the server goes on


def test_counters_for_prometheus(server):
    ask(server, PROMPT, 8)
    text = requests.get(server.url + "/metrics", timeout=60).text
    values = {}
    for line in text.splitlines():
        if line.startswith("jetspec:"):
            name, _, value = line.rpartition(" ")
            values[name] = float(value)
    counted = info(server)
    assert sum(v for name, v in values.items() if name.startswith("jetspec:rounds_total")) >= 1
    assert values["jetspec:request_rounds_total"] == counted["request_rounds"]
    assert values["jetspec:verified_nodes_total"] == counted["verified_nodes"]


def test_an_adaptive_server_says_what_it_decides(server):
    adaptive = info(server).get("adaptive")
    if "fixed" in server.args:
        assert adaptive is None
        return
    ask(server, PROMPT, 64)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda seed: ask(server, [seed, *PROMPT], 48), range(20, 26)))
    counted = info(server)
    assert counted["verified_nodes"] <= 16 * counted["request_rounds"], (
        "the start-up measurement is no traffic"
    )
    adaptive = counted["adaptive"]
    assert sum(adaptive["rounds_by_batch_and_nodes"]["1"].values()) > 10
    assert any(int(batch) >= 4 for batch in adaptive["rounds_by_batch_and_nodes"])
    assert adaptive["expected_tau"]["1"] == 1
    assert {row["batch"] for row in adaptive["calibration"]} >= {"1"}
