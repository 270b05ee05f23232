"""Trees of a spec-block head: whose row a node gets, and what the rank head makes of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_data import VOCAB, spec_block_config

from jetspec_sglang.drafters.spec_block_expander import Blocks, SpecBlockExpander, ranked
from jetspec_sglang.drafters.spec_block_head import SpecBlockHead
from jetspec_sglang.kernels.top_k import top_k_entropy
from jetspec_sglang.tree import DraftProposal, build_tree_by_path

LENGTH, WIDTH = 9, 5  # committed tokens, the anchor not among them


class World:
    """A random head behind a random text, with `embedding` and `lm_head` [V, H]."""

    def __init__(self, positions: int, **changes) -> None:
        torch.manual_seed(1)
        self.config = spec_block_config(positions=positions, block_size=8, **changes)
        self.head = SpecBlockHead(self.config).requires_grad_(False)
        hidden = self.config.hidden_size
        self.embedding, self.lm_head = torch.randn(VOCAB, hidden), torch.randn(VOCAB, hidden) / 2
        self.taps = torch.randn(1, LENGTH, self.config.tap_width)
        self.context = self.head.context_kv(self.taps, torch.arange(LENGTH)[None])
        self.forwards = 0

    def forward(self, tokens: torch.Tensor, depths: torch.Tensor, inherited: torch.Tensor) -> torch.Tensor:
        """Of requests behind one and the same context."""
        self.forwards += 1
        starts, mask = self.embedding[tokens], self.embedding[self.config.mask_token_id]
        positions, seen = LENGTH + depths, torch.ones(*tokens.shape, LENGTH, dtype=torch.bool)
        context = [[each.expand(len(tokens), -1, -1, -1) for each in pair] for pair in self.context]
        return self.head(starts, mask, positions, context, seen, inherited)

    def rows(self, outputs: torch.Tensor, kept: int, entropy: bool):
        normed = self.head.norm(outputs)
        logprobs, ids, spread = top_k_entropy((normed @ self.lm_head.T).flatten(0, 1), kept)
        shape = outputs.shape[:2]
        rows = DraftProposal(*(x.unflatten(0, shape) for x in (ids, logprobs)), spread.unflatten(0, shape))
        return rows, self.head.rank_head(normed)

    def expander(self, width: int = WIDTH, entropy: bool = False) -> SpecBlockExpander:
        return SpecBlockExpander(self.blocks(width, entropy))

    def blocks(self, width: int = WIDTH, entropy: bool = False) -> Blocks:
        return Blocks(self.config, self.forward, self.rows, width, entropy)

    def state(self, path: list[int]) -> torch.Tensor:
        """Output [H] behind a path from the anchor on, block by block and with no other node."""
        inherited = torch.zeros(1, 1, self.config.hidden_size)
        for at in range(0, len(path), self.config.positions):
            block = self.forward(torch.tensor([[path[at]]]), torch.tensor([[at]]), inherited)
            inherited = block[:, :, -1]
        return self.head.norm(block[0, 0, (len(path) - 1) % self.config.positions])

    def row(self, path: list[int]) -> torch.Tensor:
        """Probabilities [V] of what follows."""
        state = self.state(path)
        q = (self.lm_head @ state).softmax(-1)
        return brute_force(q, self.head.rank_head(state))


def brute_force(q: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """q [V] and the offsets of ranks and of none of them [R + 1] -> the whole row [V]."""
    best, row = q.argsort(descending=True), q.clone()
    inside = best[: len(offsets) - 1]
    row[inside] = 0
    chances = (torch.cat((q[inside], row.sum()[None])).log() + offsets).softmax(-1)
    row *= chances[-1] / row.sum()
    row[inside] = chances[:-1]
    return row


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 6), st.sampled_from([0.5, 2.0, 5.0]))
def test_ranks_make_a_row_that_sums_to_one(seed, inside, more, spread):
    """Whatever part of the row is there, and however sure of itself it is; float32 knows 1 - p to some 1e-7."""
    torch.manual_seed(seed)
    q, offsets = (spread * torch.randn(12).double()).softmax(-1), 2 * torch.randn(inside + 1).double()
    wanted = brute_force(q, offsets)
    torch.testing.assert_close(wanted.sum(), torch.ones(()).double())
    values, ids = q.float().log().topk(min(inside + more, 12))
    entropy = -(q * q.log()).sum().float()
    order, logprobs, after = ranked(values, offsets.float(), entropy)
    kept = (q / wanted)[q.argmin()].item()  # of the row's mass, before it sums to one again
    rest = min(q.sort(descending=True).values[inside:].sum().item(), kept)
    close = {"rtol": 1e-4 + 1e-6 / rest, "atol": 1e-6}
    torch.testing.assert_close(logprobs.double().exp(), wanted[ids[order]], **close)
    assert bool((logprobs.diff() <= 0).all())
    torch.testing.assert_close(after.double(), -(wanted * wanted.log()).sum(), **close)
    assert ranked(values, offsets.float())[2] is None


@pytest.mark.parametrize("inside", [1, 3, 8])
def test_offsets_of_zero_leave_a_row_as_it_is(inside):
    """Bit for bit, its order also; so do offsets that are all alike."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(50, 40)
    logits[:, 5] = logits[:, 4]  # a tie
    values, _, entropy = top_k_entropy(logits, 20)
    for offset in (0.0, 1.25):
        order, logprobs, after = ranked(values, torch.full((50, inside + 1), offset), entropy)
        assert torch.equal(logprobs, values)
        assert torch.equal(order, torch.arange(20).expand(50, -1))
        torch.testing.assert_close(after, entropy, rtol=1e-5, atol=1e-6)


def test_what_a_rank_head_has_learned_moves_rows_and_zeros_do_not():
    """A head whose rank head speaks for the third candidate drafts that first; a mutant that doesn't listen fails."""
    world = World(2)
    q = (world.lm_head @ world.state([7])).softmax(-1).sort(descending=True)
    at = torch.tensor([[7]]), torch.tensor([[0]]), 0
    torch.nn.init.zeros_(world.head.rank_head.weight)
    plain = world.expander(entropy=True)(*at)
    assert torch.equal(plain.token_ids[0, 0], q.indices[:WIDTH])
    torch.testing.assert_close(plain.logprobs[0, 0].exp(), q.values[:WIDTH])
    torch.testing.assert_close(plain.entropy[0, 0], -(q.values * q.values.log()).sum())

    state = world.state([7])
    world.head.rank_head.weight[2] = 3 * state / (state @ state)
    moved = world.expander(entropy=True)(*at)
    assert moved.token_ids[0, 0].tolist() == q.indices[[2, 0, 1, 3, 4]].tolist()
    odds = q.values[2] * torch.tensor(3.0).exp()
    torch.testing.assert_close(moved.logprobs[0, 0, 0].exp(), odds / (odds + 1 - q.values[2]))
    assert moved.entropy[0, 0] != plain.entropy[0, 0]


def test_a_row_without_a_rest_gives_it_nothing():
    """Where float32 sees no probability behind the ranks, nothing is infinite."""
    values = torch.tensor([[0.0, -30.0, -40.0, -float("inf")]])
    order, logprobs, entropy = ranked(values, torch.tensor([[-9.0, 2.0, 5.0]]), torch.zeros(1))
    assert order.tolist() == [[0, 1, 2, 3]]
    assert bool((logprobs <= 0).all())
    assert bool(entropy.isfinite().all())


def test_the_documented_row():
    q, factors = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]), torch.tensor([0.6, 2.0, 1.0])
    torch.testing.assert_close(factors.log(), torch.tensor([-0.51, 0.69, 0.0]), rtol=0, atol=0.005)
    order, logprobs, _ = ranked(q.log(), factors.log())
    assert order.tolist() == [1, 0, 2, 3, 4]
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]))


def test_equal_candidates_stay_in_order():
    order, logprobs, _ = ranked(torch.tensor([0.25, 0.25, 0.125]).log(), torch.tensor([0.5, 1.0, 1.0]).log())
    assert order.tolist() == [1, 0, 2]
    assert logprobs[1] == logprobs[2]


@pytest.mark.parametrize("positions", [1, 2, 3, 7])
@pytest.mark.parametrize("frontier", [1, 4, 8])
def test_a_node_gets_the_row_of_its_own_path(positions, frontier):
    """Of every tree node, by a forward for its path alone: siblings and their subtrees change nothing."""
    world = World(positions)
    expander, paths, seen = world.expander(), [[]], 0

    def checked(tokens: torch.Tensor, parents: torch.Tensor, depth: int) -> DraftProposal:
        nonlocal paths, seen
        proposal = expander(tokens, parents, depth)
        above = [paths[i] for i in parents[0].tolist()]
        paths = [[*path, token] for path, token in zip(above, tokens[0].tolist(), strict=True)]
        for node, path in enumerate(paths):
            wanted, ids = world.row(path)[proposal.token_ids[0, node]], proposal.token_ids[0, node]
            torch.testing.assert_close(proposal.logprobs[0, node].exp(), wanted, rtol=1e-3, atol=1e-6)
            assert len(set(ids.tolist())) == WIDTH
            seen += 1
        return proposal

    tree = build_tree_by_path(checked, torch.tensor([7]), 24, width=WIDTH, depth=7, frontier=frontier)
    tree.validate()
    assert seen > 6 * min(frontier, WIDTH)


def test_requests_do_not_mix():
    world, anchors = World(2), torch.tensor([7, 9, 40])
    how = {"width": WIDTH, "depth": 7, "frontier": 4}
    together = build_tree_by_path(world.expander(), anchors, 20, **how)
    for row, anchor in enumerate(anchors):
        alone = build_tree_by_path(world.expander(), anchor[None], 20, **how)
        assert torch.equal(together.tokens[row], alone.tokens[0])
        assert torch.equal(together.parent[row], alone.parent[0])
        torch.testing.assert_close(together.logprob[row], alone.logprob[0], rtol=1e-4, atol=1e-5)


def test_a_round_takes_a_forward_every_k_depths():
    world = World(3)
    build_tree_by_path(world.expander(), torch.tensor([7]), 24, width=WIDTH, depth=7, frontier=4)
    assert world.forwards == world.config.forwards(7) == 3


def test_a_block_that_went_another_way_drafts_something_else():
    world = World(2)
    first, second = world.row([7, 5, 9]), world.row([7, 6, 9])
    torch.testing.assert_close(first, second)  # 5 and 6 lie within one block, which doesn't know them
    assert not torch.allclose(world.row([7, 5, 9, 4]), world.row([7, 5, 8, 4]), atol=1e-3)
    assert not torch.allclose(world.row([7, 5, 9]), world.row([8, 5, 9]), atol=1e-3)


@pytest.mark.parametrize("width", [1, 2, 4, VOCAB])
@pytest.mark.parametrize("sure", [True, False])
def test_rows_hold_the_likeliest(width, sure):
    """Also where the rank head is sure that the token is at none of the ranks."""
    world = World(2, ranks=6)
    if sure:
        world.head.rank_head.weight[-1] = world.state([7])
    proposal = world.expander(width, entropy=True)(torch.tensor([[7]]), torch.tensor([[0]]), 0)
    row = world.row([7])
    assert proposal.token_ids.shape == (1, 1, width)
    best = row.sort(descending=True).values[:width]
    torch.testing.assert_close(proposal.logprobs[0, 0].exp(), best, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(proposal.entropy[0, 0], -(row * row.log()).sum(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(row[proposal.token_ids[0, 0]], best, rtol=1e-3, atol=1e-6)


def test_along_the_text_it_says_what_unroll_says():
    """One node a level, several requests at once: what training scores is what is drafted."""
    world = World(2)
    tokens = torch.randint(4, VOCAB, (1, LENGTH))
    mask = world.embedding[world.config.mask_token_id]
    anchors = torch.tensor([[3]])
    outputs = world.head.unroll(world.taps, world.embedding[tokens], mask, anchors, 5)
    state = world.head.norm(outputs[0, 0])
    q, offsets = (state @ world.lm_head.T).softmax(-1), world.head.rank_head(state)

    context = world.head.context_kv(world.taps[:, :3], torch.arange(3)[None])

    def forward(tokens, depths, inherited):
        seen = torch.ones(1, 1, 3, dtype=torch.bool)
        return world.head(world.embedding[tokens], mask, 3 + depths, context, seen, inherited)

    expander = SpecBlockExpander(Blocks(world.config, forward, world.rows, WIDTH))
    for depth in range(5):
        row = expander(tokens[:, 3 + depth, None], torch.zeros(1, 1, dtype=torch.int64), depth)
        wanted = brute_force(q[depth], offsets[depth])[row.token_ids[0, 0]]
        torch.testing.assert_close(row.logprobs[0, 0].exp(), wanted, rtol=1e-3, atol=1e-6)
