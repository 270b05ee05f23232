"""A tiny target whose law is known for every path, and the distance of a round's law from it."""

import itertools
import math
from collections import defaultdict

import torch


class Target:
    """Next-token law after every path of tokens, drawn at random once; the whole path matters.

    `restrict` makes the request's law of a probability row (top-k, top-p), and `grid` rounds rows to multiples
    of 1/grid.
    """

    def __init__(self, temperature, vocab=3, grid=None, restrict=None, seed=0):
        self.temperature, self.vocab, self.grid, self.seed = temperature, vocab, grid, seed
        self.restrict, self.rows = restrict, {}

    def __call__(self, path):
        if path not in self.rows:
            key = self.seed * 7919 + sum(3**i * (t + 1) for i, t in enumerate(path))
            logits = 2 * torch.randn(
                self.vocab, generator=torch.Generator().manual_seed(key), dtype=torch.float64
            )
            probs = (logits / self.temperature).softmax(-1)
            if self.grid:
                probs = (probs * self.grid).round() / self.grid
                probs[-1] = 1 - probs[:-1].sum()
            self.rows[path] = (self.restrict(probs) if self.restrict else probs).tolist()
        return self.rows[path]

    def prob(self, tokens, given=()):
        return math.prod(self((*given, *tokens[:i]))[token] for i, token in enumerate(tokens))


def top_k(count):
    def restrict(probs):
        kept = torch.zeros_like(probs).scatter(0, probs.topk(count).indices, 1.0) * probs
        return kept / kept.sum()

    return restrict


def top_p(mass):
    def restrict(probs):
        values, order = probs.sort(descending=True)
        values = values.where(values.cumsum(0) - values < mass, 0.0)
        return torch.zeros_like(probs).scatter(0, order, values / values.sum())

    return restrict


def node_paths(tokens, parent):
    """Tokens from below the root to each node of one tree, given as lists; () for padding."""
    paths = []
    for token, above in zip(tokens, parent, strict=True):
        paths.append((*paths[above], token) if above >= 0 else ())
    return paths


def target_rows(tree, target):
    """`[B, N, V]` fp64, the target's law at every node."""
    paths = [node_paths(*row) for row in zip(tree.tokens.tolist(), tree.parent.tolist(), strict=True)]
    return torch.tensor([[target(path) for path in row] for row in paths], dtype=torch.float64)


def total_variation(law, target, length):
    """Distance of a round's law, continued by the target to `length` tokens, from the target's law."""
    continued = defaultdict(float)
    for committed, weight in law.items():
        for rest in itertools.product(range(target.vocab), repeat=length - len(committed)):
            continued[committed + rest] += weight * target.prob(rest, given=committed)
    sequences = itertools.product(range(target.vocab), repeat=length)
    return sum(abs(continued[tokens] - target.prob(tokens)) for tokens in sequences) / 2


def mean_length(law):
    """Expected tokens a round commits."""
    return sum(len(committed) * weight for committed, weight in law.items())


def committed_tokens(accepted):
    pairs = zip(accepted.tokens.tolist(), accepted.lengths.tolist(), strict=True)
    return [tuple(tokens[:length]) for tokens, length in pairs]
