"""The accepting rules in plain Python, one request at a time: what the fast ones are tested against.

A tree is given as `tokens`, `parent`, `depth` by slot; `target[slot]` is the target's law after that node, a list
over the vocabulary, and `draft[d]` the law that tokens at depth d + 1 were drawn from. Rules return the path
(slots, root first) and the committed tokens (bonus last), without padding.
"""

from typing import Protocol

Outcome = tuple[list[int], list[int]]


class PlainDice(Protocol):
    """Where randomness comes from: a generator, or something that goes through every outcome."""

    def coin(self, chance: float) -> bool:
        """True with probability `chance`: never for 0, always for 1."""

    def draw(self, weights: list[float]) -> int:
        """An index in proportion to its weight; never one of weight 0."""


def follow_reference(tokens: list[int], parent: list[int], choice: list[int], max_depth: int) -> Outcome:
    """The walk of the greedy and match rules.

    Descend from the root to the child that holds the target's choice, as long as there is one and at most
    `max_depth` times; the choice at the last node is the bonus token.
    """
    path, committed = [0], [choice[0]]
    while len(path) <= max_depth:
        node = path[-1]
        matching = [child for child in children_of(node, parent) if tokens[child] == choice[node]]
        if not matching:
            break
        path.append(matching[0])
        committed.append(choice[matching[0]])
    return path, committed


def rejection_reference(
    tokens: list[int],
    parent: list[int],
    depth: list[int],
    draft: list[list[float]],
    target: list[list[float]],
    dice: PlainDice,
) -> Outcome:
    """Recursive rejection without replacement (SpecInfer, arXiv 2305.09781; RSD, arXiv 2402.14160), root to leaf.

    A node's children are tried in the order they were drawn. A child that was drawn from q and is accepted with
    probability min(1, p/q) contributes min(p, q) to the law of the next token; what is missing of p is
    (p - q)+, so that becomes the p of the next try, while q loses the token just tried. After the last
    rejection the missing part itself is drawn from.
    """
    path = [0]
    while True:
        node = path[-1]
        p, q = target[node], _row(draft, depth[node])
        for child in children_of(node, parent):
            token = tokens[child]
            if dice.coin(min(1.0, p[token] / q[token])):
                path.append(child)
                break
            p, q = residual(p, q), without(q, token)
        else:
            return path, [tokens[slot] for slot in path[1:]] + [dice.draw(p)]


def traversal_reference(
    tokens: list[int],
    parent: list[int],
    depth: list[int],
    draft: list[list[float]],
    target: list[list[float]],
    dice: PlainDice,
) -> Outcome:
    """Traversal verification (arXiv 2505.12398), leaf to root: the first path accepted in post-order.

    Each node carries an allowance `a`: going through it must commit a text that continues as the target's with
    total probability a, no more. The root's is 1. A child drawn from q has allowance min(1, a p/q), which makes
    its share of the law min(a p, q); and its whole subtree gets the chance to spend it before its next sibling
    is looked at. If it comes back rejected, (a p - q)+ is missing, out of the cases where a rejection
    happens: these have probability 1 - sum min(a p, q) = left + 1 - a, where left = sum (a p - q)+. So the
    allowance becomes left / (left + 1 - a), and p the normalised missing part. A node without untried children
    spends its allowance on itself: accepted with probability a, followed by a draw from its p.

    By induction from the leaves, every node spends exactly its allowance whatever its children were drawn from,
    as long as the n-th child was drawn from the n-th q given those before it, and its subtree independently of
    them. Hence it is exact for siblings drawn without replacement (as here, q losing each tried token) as it is
    for independent ones. On a chain it is block verification.
    """

    def visit(node: int, a: float) -> Outcome | None:
        p, q = target[node], _row(draft, depth[node])
        for child in children_of(node, parent):
            token = tokens[child]
            below = visit(child, min(1.0, a * p[token] / q[token]))
            if below is not None:
                return [node, *below[0]], [token, *below[1]]
            missing = positive_part([a * x for x in p], q)
            left = sum(missing)
            rejected = left + (1 - a)
            a = left / rejected if rejected > 0 else 0.0  # 0 only if the child could not be rejected
            p, q = normalised(missing), without(q, token)
        return ([node], [dice.draw(p)]) if dice.coin(a) else None

    accepted = visit(0, 1.0)
    assert accepted is not None, "the root's allowance is 1"
    return accepted


def children_of(node: int, parent: list[int]) -> list[int]:
    """Slots of the children in draw order."""
    return [slot for slot in range(len(parent)) if parent[slot] == node]


def residual(p: list[float], q: list[float]) -> list[float]:
    """norm((p - q)+)."""
    return normalised(positive_part(p, q))


def positive_part(p: list[float], q: list[float]) -> list[float]:
    return [max(x - y, 0.0) for x, y in zip(p, q, strict=True)]


def without(q: list[float], token: int) -> list[float]:
    """q of the draws after `token` was drawn."""
    return normalised([0.0 if other == token else x for other, x in enumerate(q)])


def normalised(weights: list[float]) -> list[float]:
    """Scaled to sum 1. Weights that are all 0 stay so: no draw and no rejection leads on from there."""
    total = sum(weights)
    return [weight / total for weight in weights] if total > 0 else weights


def _row(draft: list[list[float]], depth: int) -> list[float]:
    return draft[depth] if depth < len(draft) else []  # no children below the last row
