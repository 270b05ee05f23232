"""Masks and links by their definitions, one request at a time: what `layout` is tested against."""

from itertools import pairwise

from .token_tree import NONE


def ancestor_mask_reference(parent: list[int]) -> list[list[bool]]:
    """Row i is True at i and at every node met on the way up from i."""
    mask = [[False] * len(parent) for _ in parent]
    for node, row in enumerate(mask):
        while node != NONE:
            row[node] = True
            node = parent[node]
    return mask


def full_mask_reference(masks: list[list[list[bool]]], prefix_lens: list[int]) -> list[bool]:
    """The prefix, all visible, in front of each row; rows and requests one after the other."""
    flat: list[bool] = []
    for mask, prefix_len in zip(masks, prefix_lens, strict=True):
        for row in mask:
            flat += [True] * prefix_len + row
    return flat


def retrieve_links_reference(parent: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node."""
    children = [[child for child, above in enumerate(parent) if above == node] for node in range(len(parent))]
    first_child = [family[0] if family else NONE for family in children]
    next_sibling = [NONE] * len(parent)
    for family in children:
        for left, right in pairwise(family):
            next_sibling[left] = right
    return first_child, next_sibling
