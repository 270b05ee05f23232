"""Lists as users type them, and the configurations that follow."""

from pathlib import Path

import pytest

from jetspec_sglang.compare import CompareError
from jetspec_sglang.eval_grid import (
    PLAIN,
    Configuration,
    grid,
    parse_acceptances,
    parse_drafters,
    parse_expansions,
    parse_numbers,
    parse_scorings,
)
from jetspec_sglang.eval_run import Head, head_flags


@pytest.mark.parametrize("text", ["", "0", "4,x", "-1", "4,"])
def test_wrong_numbers(text):
    with pytest.raises(CompareError, match="--budgets"):
        parse_numbers("--budgets", text)


def test_numbers_count_once():
    assert parse_numbers("--budgets", "16,4,16") == [16, 4]


@pytest.mark.parametrize(
    ("texts", "parsed"),
    [
        (["accum_logp"], ["accum_logp"]),
        (["accum_logp,entropy,hybrid:alpha=0.5"], ["accum_logp", "entropy", "hybrid:alpha=0.5"]),
        (["top2gap:beta=2,gap=1,entropy"], ["top2gap:beta=2,gap=1", "entropy"]),
        (["hybrid:alpha=0,hybrid", "hybrid"], ["hybrid:alpha=0", "hybrid"]),
    ],
)
def test_scoring_texts_hold_commas_of_their_own(texts, parsed):
    assert parse_scorings(texts) == parsed


@pytest.mark.parametrize("text", ["", "best", "alpha=1", "hybrid:alpha=x", "entropy:alpha=1", "accum_logp,"])
def test_wrong_scoring_is_told_at_once(text):
    with pytest.raises(CompareError, match="--scoring: "):
        parse_scorings([text])


def test_other_names():
    assert parse_expansions("chain,optimal") == ["chain", "optimal"]
    with pytest.raises(CompareError, match=r"'best'; give any of chain,"):
        parse_expansions("best")
    assert parse_acceptances(None, 1) == []
    assert parse_acceptances("match,traversal", 1) == ["match", "traversal"]
    with pytest.raises(CompareError, match="add --temperature 1"):
        parse_acceptances("match", 0)
    with pytest.raises(CompareError, match="'all'; give any of match"):
        parse_acceptances("all", 1)


def test_drafters_and_their_labels():
    known = ["causal_parallel", "other"]
    assert parse_drafters("causal_parallel", known) == [("causal_parallel", "causal_parallel", None)]
    assert parse_drafters("other=/x/h1,causal_parallel", known) == [
        ("other", "other", Path("/x/h1")),
        ("causal_parallel", "causal_parallel", None),
    ]
    assert [label for label, _, _ in parse_drafters("other=/x/h1,other=/x/h2,other", known)] == [
        "other=h1",
        "other=h2",
        "other=default",
    ]
    with pytest.raises(CompareError, match="--drafters has 'best'"):
        parse_drafters("best=/x", known)
    with pytest.raises(CompareError, match="different names"):
        parse_drafters("other=/x/h,other=/y/h", known)


def test_a_grid_has_every_combination_once():
    found = grid("d", 8, [4, 16, 64], ["chain", "eager", "optimal"], ["accum_logp", "hybrid:alpha=0.5"])
    assert [c.name for c in found] == [
        "chain 4",
        "chain 8",
        *(
            f"{kind} {n}{scoring}"
            for kind in ("eager", "optimal")
            for scoring in ("", " hybrid:alpha=0.5")
            for n in (4, 16, 64)
        ),
    ]
    assert len(set(found)) == len(found)
    assert {c.alpha for c in found if c.scoring == "hybrid"} == {0.5}


def test_acceptance_is_one_more_dimension():
    found = grid("d", 8, [16], ["chain", "optimal"], ["accum_logp"], ["match", "rejection"])
    assert [c.name for c in found] == [
        "chain 8 match",
        "chain 8 rejection",
        "optimal 16 match",
        "optimal 16 rejection",
    ]


def test_what_a_request_asks_for():
    def asked(budget: int, expansion: str, scoring: str = "accum_logp", *acceptance: str) -> dict:
        (configuration,) = grid("d", 8, [budget], [expansion], [scoring], acceptance)
        return configuration.custom_params(7)["jetspec"]

    assert PLAIN.custom_params(7) is None
    assert asked(16, "chain") == {"budget": 8, "width": 1}
    assert asked(16, "optimal") == {"budget": 16, "expansion": "optimal", "scoring": "accum_logp"}
    assert asked(16, "eager", "hybrid") == {
        "budget": 16,
        "expansion": "eager",
        "scoring": "hybrid:alpha=1.0",
        "width": 7,
    }
    assert asked(4, "eager")["width"] == 3, "a root of 4 nodes has at most 3 children"
    assert asked(1, "eager")["width"] == 1
    assert asked(8, "optimal", "accum_logp", "rejection")["acceptance"] == "rejection"


def test_a_policy_that_reads_a_file_is_the_servers(tmp_path):
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_text('{"depth_rank_accept": [[0.5, 0.1]]}')
    texts = [f"rank_histogram:profile={file}" for file in files]
    configurations = grid("d", 8, [4, 16], ["optimal"], parse_scorings([f"entropy,{texts[0]},threshold=0.1"]))
    flags = head_flags(Head("d", "causal_parallel", Path("/h"), 8), configurations, 7)
    assert flags[-2:] == ["--jetspec-scoring", f"{texts[0]},threshold=0.1"]
    assert flags.count("--jetspec-scoring") == 1
    with pytest.raises(CompareError, match="one rank_histogram file"):
        parse_scorings(texts)


def test_drafts_of_a_round():
    drafts = {c.name: c.drafts(8) for c in grid("d", 8, [1, 4, 64], ["optimal"], ["accum_logp"])}
    assert drafts == {"optimal 1": 0, "optimal 4": 3, "optimal 64": 7}
    assert PLAIN.drafts(8) == 0


def test_one_server_can_serve_all_of_a_head():
    head = Head("d", "causal_parallel", Path("/h"), 8)
    flags = " ".join(head_flags(head, grid("d", 8, [4, 64, 16], ["eager"], ["accum_logp"]), 7))
    assert "--speculative-draft-model-path /h --speculative-num-draft-tokens 64" in flags
    assert "--jetspec-drafter causal_parallel" in flags
    assert "topk" not in flags, "wide enough by default"
    flags = " ".join(head_flags(head, grid("d", 8, [64], ["eager"], ["accum_logp"]), 24))
    assert "--speculative-eagle-topk 24" in flags
    flags = " ".join(head_flags(head, [Configuration("d", "chain", "none", None, 8)], 24))
    assert "--speculative-num-draft-tokens 8" in flags
    assert "topk" not in flags


def test_retrieval_is_measured_without_a_memory_of_answers():
    """Or the second configuration would be drafted for from the first one's answer."""
    known = ["causal_parallel", "suffix"]
    assert parse_drafters("suffix,causal_parallel+suffix=/x/h", known) == [
        ("suffix", "suffix", None),
        ("causal_parallel+suffix", "causal_parallel+suffix", Path("/x/h")),
    ]
    with pytest.raises(CompareError, match=r"--drafters has 'suffix\+suffix'"):
        parse_drafters("suffix+suffix", known)
    alone = " ".join(Head("suffix", "suffix", None, 1024).flags(16))
    assert "--jetspec-drafter suffix --jetspec-suffix-cache 0" in alone
    assert "model-path" not in alone
    grafted = " ".join(Head("g", "causal_parallel", Path("/x/h"), 1024, "suffix").flags(16))
    assert "--jetspec-drafter causal_parallel --jetspec-graft suffix --jetspec-suffix-cache 0" in grafted
    assert "suffix" not in " ".join(Head("h", "causal_parallel", Path("/x/h"), 8).flags(16))
