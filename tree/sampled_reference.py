"""Drawing the tokens of one tree in plain Python: what `draw_tree` is tested against."""

from .accept_reference import PlainDice


def draw_tokens_reference(
    parent: list[int], depth: list[int], draft: list[list[float]], dice: PlainDice
) -> list[int]:
    """Tokens of the slots, the root's left at -1. `draft[d]` is the law, over the vocabulary, of the tokens at
    depth d + 1.

    Slots are filled in order. Each parent draws from its own copy of the row, and a token drawn is gone.
    """
    tokens = [-1]
    left: dict[int, list[float]] = {}
    for slot in range(1, len(parent)):
        weights = left.setdefault(parent[slot], list(draft[depth[slot] - 1]))
        token = dice.draw(weights)
        weights[token] = 0.0
        tokens.append(token)
    return tokens
