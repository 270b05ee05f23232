"""The accepting walk in plain Python, one request at a time: what `accept` is tested against."""


def follow_reference(
    tokens: list[int], parent: list[int], choice: list[int], max_depth: int
) -> tuple[list[int], list[int]]:
    """(path, committed tokens) of one tree, without padding.

    Descend from the root to the child that holds the target's choice, as long as there is one and at most
    `max_depth` times; the choice at the last node is the bonus token.
    """
    path, committed = [0], [choice[0]]
    while len(path) <= max_depth:
        node = path[-1]
        matching = [c for c in range(len(tokens)) if parent[c] == node and tokens[c] == choice[node]]
        if not matching:
            break
        path.append(matching[0])
        committed.append(choice[matching[0]])
    return path, committed
