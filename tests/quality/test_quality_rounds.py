"""Rounds of heads of each kind on a tiny target."""

import torch

from jetspec_sglang.drafters.quality.answers import anchors_of, greedy_answers, with_taps
from jetspec_sglang.drafters.quality.heads import for_trees
from jetspec_sglang.drafters.quality.rounds import Analysis
from jetspec_sglang.drafters.training.evaluate import accepted_in_tree, draft, draft_blocks, truth_table
from jetspec_sglang.drafters.training.shards import Hidden, Sequence
from jetspec_sglang.tree import build_tree_by_path

PROMPTS = [[17, 5, 9, 11, 23], [200, 201], [17, 5, 9, 11, 23]]


def analysis(generator, heads, budget=16) -> Analysis:
    return Analysis(generator.model, (0, 1, 2), heads, lambda tokens: " ".join(map(str, tokens)), budget)


def test_answers_come_in_the_order_of_prompts(generator):
    answers = greedy_answers(generator, PROMPTS, 12, {512})
    assert [answer.tokens[: answer.prompt_len].tolist() for answer in answers] == PROMPTS
    assert [len(answer.tokens) - answer.prompt_len for answer in answers] == [12] * 3
    alone = greedy_answers(generator, PROMPTS[1:2], 12, {512})
    assert alone[0].tokens.tolist() == answers[1].tokens.tolist()


def test_prefixes_are_a_block_apart_and_the_answer_goes_on_for_one():
    def answer(length: int) -> Sequence:
        return Sequence(torch.arange(length), 4, torch.zeros(length, 2), Hidden(torch.zeros(length, 1)))

    assert anchors_of(answer(4 + 12), 6, 9).tolist() == [4, 10]
    assert anchors_of(answer(4 + 12), 6, 1).tolist() == [4]
    assert anchors_of(answer(4 + 11), 6, 9).tolist() == [4]
    assert anchors_of(answer(4 + 5), 6, 9).tolist() == []
    assert anchors_of(answer(4 + 1), 6, 9).tolist() == []


def test_taps_are_picked_in_the_order_of_the_head():
    taps = torch.arange(12.0).view(2, 6)
    text = Sequence(torch.arange(2), 1, taps, Hidden(torch.zeros(2, 1)))
    assert with_taps(text, (0, 4, 7), (7, 0)).taps.tolist() == [[4, 5, 0, 1], [10, 11, 6, 7]]


def test_all_heads_are_asked_at_the_same_prefixes(generator, heads):
    [answer] = greedy_answers(generator, PROMPTS[:1], 18, {512})
    rounds = analysis(generator, heads).rounds(4, answer, 3)
    assert [(each.prompt, each.number, each.anchor) for each in rounds] == [(4, 1, 5), (4, 2, 11), (4, 3, 17)]
    for each in rounds:
        assert list(each.drafts) == [head.label for head in heads]
        follows = answer.tokens[each.anchor + 1 : each.anchor + 6].tolist()
        assert each.truth == " ".join(map(str, follows))
        assert each.prefix.endswith(f" {answer.tokens[each.anchor]}")
        for head in heads:
            draft = each.drafts[head.label]
            joints = [branch.draft_joint for branch in draft.branches]
            assert len(joints) == 5
            assert joints == sorted(joints, reverse=True)
            for branch in draft.branches:
                assert len(branch.tokens) == len(branch.draft) == len(branch.target) == head.depth
                agree = [mine == true for mine, true in zip(branch.tokens, follows, strict=False)]
                assert branch.accepted == [*agree, False].index(False)


def test_what_is_accepted_and_how_likely_it_is(generator, plain_model, heads):
    """Replaces the text behind an anchor by a block that a head drafts: it is then accepted whole, and the target
    thinks of it what it thinks of the text."""
    [answer] = greedy_answers(generator, PROMPTS[:1], 12, {512})
    asked = analysis(generator, heads)
    for head in heads:
        first = asked.rounds(0, answer, 1)[0].drafts[head.label].branches[0]
        tokens = answer.tokens.clone()
        tokens[6 : 6 + head.depth] = torch.tensor(first.tokens)
        [redone] = asked.rounds(0, Sequence(tokens, 5, answer.taps, answer.teacher), 1)
        drafted = redone.drafts[head.label]
        assert drafted.branches[0].tokens == first.tokens
        assert drafted.branches[0].accepted == head.depth
        with torch.no_grad():
            law = plain_model(tokens[None]).logits[0].log_softmax(-1)
        plain = [law[5 + i, token].item() for i, token in enumerate(first.tokens)]
        torch.testing.assert_close(first.target, plain, rtol=1e-3, atol=1e-3)


def test_heads_draft_what_evaluation_in_training_drafts(generator, heads):
    [answer] = greedy_answers(generator, PROMPTS[:1], 18, {512})
    anchors = anchors_of(answer, 6, 3)
    asked = analysis(generator, heads, budget=64)
    for head in heads:
        text = with_taps(answer, (0, 1, 2), head.taps)
        args = (head.model, asked.embedding, asked.lm_head, text, anchors)
        with torch.no_grad():
            _, tree = draft(*args)
            levels = head.expanders(asked.embedding, asked.lm_head, text, anchors)()
            expander = for_trees(levels, head.depth, 64)
            mine = build_tree_by_path(
                expander, text.tokens[anchors], 64, width=16, depth=head.depth, frontier=head.frontier
            )
        assert mine.tokens.tolist() == tree.tokens.tolist()
        assert mine.parent.tolist() == tree.parent.tolist()
        proposed = asked.propose(head, answer, anchors)
        truth = truth_table(answer, anchors, head.depth)
        assert proposed.tree_accepted.tolist() == accepted_in_tree(tree, truth).tolist()
        if head.label in ("causal", "diffusion"):
            ids, _ = draft_blocks(*args, 16)
            assert proposed.tokens[:, 0].tolist() == ids[:, :, 0].tolist()
