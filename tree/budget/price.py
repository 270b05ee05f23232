"""The price rule: the verify width that yields most tokens a second.

A round over B requests with n nodes each commits B + G(n) tokens, G(n) the expected accepted drafts of all of
them, and takes T(n) seconds. Adding nodes pays as long as the tokens they bring are worth more than the
seconds they cost at the present throughput, which is to say: take the n with the largest (B + G(n)) / T(n).
(CAST theorem 2 and CaDDTree state the same rule node by node; over a small set of widths it is a maximum.)
"""

from collections.abc import Sequence

HYSTERESIS = 1.02  # a new width must promise so much more than the present one


def candidate_widths(most: int) -> tuple[int, ...]:
    """1 (plain decoding), then about two sizes an octave up to `most`, which is among them.

    There is no chain in it: a tree of as many nodes costs the same and is never less probable.
    """
    sizes = {1, most}
    size = 2
    while size < most:
        sizes |= {size, size * 3 // 2}
        size *= 2
    return tuple(sorted(n for n in sizes if n <= most))


def best_width(
    widths: Sequence[int], tokens: Sequence[float], seconds: Sequence[float], present: int | None
) -> int:
    """The width of the largest tokens / seconds; `present` stays unless another beats it clearly.

    tokens, seconds: of a round at each width. Of equals the smallest wins.
    """
    rate = {n: t / s for n, t, s in zip(widths, tokens, seconds, strict=True)}
    best = max(widths, key=lambda n: (rate[n], -n))
    if present in rate and rate[best] < HYSTERESIS * rate[present]:
        return present
    return best
