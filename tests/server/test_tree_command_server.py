"""`jetspec tree` and `jetspec eval` against a real server with the built-in model."""

import builtin_model as builtin
import pytest

from jetspec_sglang.builtin.prompts import load_prompts
from jetspec_sglang.compare import Chat, CompareError
from jetspec_sglang.eval_grid import PLAIN, grid
from jetspec_sglang.eval_run import Block, Conversations, Head, Setting
from jetspec_sglang.tree_command import ask_traced

pytestmark = pytest.mark.server

BUDGET, BLOCK_LENGTH = 16, 8


@pytest.fixture(scope="module")
def server(serve):
    return serve(*builtin.COMMON, *builtin.jetspec_flags(BUDGET, overlap=True))


def test_tree_shows_the_rounds_that_made_the_answer(server):
    settings = {"budget": 12, "expansion": "eager", "width": 3}
    answer = ask_traced(server.url, "Name three colours.", False, settings, 0, 24)
    assert answer.depth == 7
    assert all(drawn.size <= 12 and max(drawn.rank) < 3 for drawn in answer.rounds)
    committed = [token for drawn in answer.rounds for token in drawn.committed]
    # The first token is the prefill's; rounds that overlap the end may commit behind it.
    written = "".join(answer.texts[token] for token in committed[: answer.completion_tokens - 1])
    assert written.strip()
    assert written.removesuffix("<|im_end|>") in answer.text
    most = answer.most_accepted()
    assert answer.rounds[most].accepted == max(answer.histogram)
    labels, bonus = answer.labels(most)
    assert len(labels) == answer.rounds[most].size
    assert bonus
    with pytest.raises(CompareError, match="budget is 17; give a whole number from 1 to 16"):
        ask_traced(server.url, "Hello!", False, {"budget": 17}, 0, 8)


def test_eval_tells_configurations_of_one_server_apart(serve, server):
    head = Head("d", "causal_parallel", builtin.builtin_head(), BLOCK_LENGTH)
    target = builtin.builtin_target()
    conversations = Conversations(load_prompts()[:2], Chat(target))
    setting = Setting(target, "float32", 24, 0, 1, eager_width=7)
    configurations = grid(
        "d", BLOCK_LENGTH, [1, BUDGET], ["chain", "eager", "optimal"], ["accum_logp", "entropy"]
    )
    plain = serve(*builtin.COMMON)
    block = Block(head, configurations, plain, server, conversations, setting)
    block.warm_up()
    rows = list(block.measure())
    assert len(rows) == (1 + len(configurations)) * len(list(conversations.turns()))
    assert all(m.identical for m in rows), "in fp32, whatever the tree"
    tau = {}
    for m in rows:
        if m.configuration == PLAIN:
            continue
        counted = sum(m.histogram.values())
        assert m.rounds <= counted <= m.rounds + 1, "the round that overlaps the end may be counted"
        assert max(map(int, m.histogram)) <= m.drafts
        assert m.stage_seconds["verify"] > 0
        tau.setdefault(m.configuration.name, []).append(1 + m.accepted_drafts / m.rounds)
    assert set(tau["chain 1"] + tau["optimal 1"]) == {1.0}
    assert sum(tau["optimal 16"]) > sum(tau["chain 8"])
    assert sum(tau["optimal 16"]) > sum(tau["optimal 16 entropy"])
