"""Shapes, rows and the law of one whole round over sampled trees, by the references and by the fast path."""

from unittest.mock import patch

import torch
from enumerating_dice import law_of, plain_law_of
from law_cases import committed_tokens, node_paths, target_rows
from tree_cases import collate, repeat

from jetspec_sglang.tree import (
    DraftProposal,
    accept_rejection,
    accept_sampled,
    accept_traversal,
    draw_tree,
    given,
    missing_law,
)
from jetspec_sglang.tree.accept_reference import rejection_reference, traversal_reference
from jetspec_sglang.tree.sampled_reference import draw_tokens_reference

VOCAB = 4

# Parents of the slots below the root. Siblings are not always neighbours in slot order.
SHAPES = {
    "root": [],
    "chain": [0, 1, 2],
    "star": [0, 0, 0],
    "every token": [0, 0, 0, 0],
    "bushy": [0, 0, 1, 1],
    "late sibling": [0, 1, 0, 2],
    "unbalanced": [0, 0, 2, 2, 4],
    "second is deep": [0, 0, 2, 3],
}

FAST = {"rejection": accept_rejection, "traversal": accept_traversal}
REFERENCES = {"rejection": rejection_reference, "traversal": traversal_reference}


def shape_of(parents, batch=1):
    """A tree of one request with placeholder tokens, `batch` times."""
    nodes = [(0, -1, 0, 0.0)]
    for slot, parent in enumerate(parents, start=1):
        nodes.append((slot, parent, nodes[parent][2] + 1, -float(slot)))
    return repeat(collate([nodes], len(nodes)), batch)


def draft_rows(depth, temperature=1.0, seed=1, vocab=VOCAB):
    """`[D, V]` fp64, the drafter's laws."""
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(depth, vocab, generator=generator, dtype=torch.float64) / temperature).softmax(
        -1
    )


def as_law(rows, batch=1, kept=None):
    """The proposal of `rows [D, V]`, most probable first, only the first `kept` candidates of each."""
    values, order = rows.sort(-1, descending=True)
    kept = kept or rows.shape[1]
    logprobs, tokens = values[:, :kept].log().float(), order[:, :kept]
    return DraftProposal(tokens.expand(batch, -1, -1).clone(), logprobs.expand(batch, -1, -1).clone())


def law_rows(law):
    """`[D, V]` lists: what `law`, of one request, draws from."""
    draft = law.logprobs[0].double().softmax(-1)
    return torch.zeros(law.depth, VOCAB, dtype=torch.float64).scatter(1, law.token_ids[0], draft).tolist()


def fast_law(rule, parents, law, target, max_depth=None):
    """Law of the committed tokens, drawn and verified by the batched code as it runs here, on the CPU."""

    def run(dice, rows):
        shape = shape_of(parents, rows)
        tree = draw_tree(shape, law.rows(torch.zeros(rows, dtype=torch.int64)), dice)
        limit = int(shape.depth.max()) if max_depth is None else max_depth
        return committed_tokens(FAST[rule](tree, given(target_rows(tree, target)), limit, dice))

    return law_of(run)


def tensor_law(rule, parents, law, target):
    """The same by the operations that an accelerator runs."""
    with patch.object(accept_sampled, "try_children", missing_law.try_children_tensor):
        return fast_law(rule, parents, law, target)


def reference_law(rule, parents, law, target):
    """The same by the plain Python references."""
    shape, draft = shape_of(parents), law_rows(law)
    parent, depth = shape.parent[0].tolist(), shape.depth[0].tolist()

    def run(dice):
        tokens = draw_tokens_reference(parent, depth, draft, dice)
        rows = [target(path) for path in node_paths(tokens, parent)]
        return tuple(REFERENCES[rule](tokens, parent, depth, draft, rows, dice)[1])

    return plain_law_of(run)
