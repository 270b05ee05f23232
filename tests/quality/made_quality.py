"""Results made by hand, whose summary can be worked out on paper."""

from jetspec_sglang.drafters.quality.rows import Branch, Cost, Draft, Head, Measured, Prompt, Round


def branch(gap: float, drafted: int, accepted: int, text: str = "a block") -> Branch:
    """The draft gives each token -0.5; the target joint is `gap` below the draft's."""
    return Branch(
        text=text,
        tokens=list(range(drafted)),
        draft=[-0.5] * drafted,
        target=[-0.5 - gap / drafted] * drafted,
        accepted=accepted,
    )


def measured(cost: bool = True) -> Measured:
    """Heads of 3 and 6 drafted tokens at four prefixes, two branches each.

    Rank-1 gaps of `near`: -1, 1, 2, 18, hence a token -1/3, 1/3, 2/3, 6, accepted 3, 2, 1, 0, in the tree 3, 3, 2, 1;
    of `far`: 3, 12, 60, 120, a token 1/2, 2, 10, 20, accepted 2, 1, 0, 0, in the tree 2, 1, 1, 0.
    """
    near = zip((-1, 1, 2, 18), (3, 2, 1, 0), (3, 3, 2, 1), strict=True)
    far = zip((3, 12, 60, 120), (2, 1, 0, 0), (2, 1, 1, 0), strict=True)

    def drafts(rows, drafted):
        for gap, accepted, tree in rows:
            first, second = (
                branch(gap, drafted, accepted, "first <b>\nof all"),
                branch(0.5, drafted, 0, "second"),
            )
            yield Draft(branches=[first, second], tree_accepted=tree)

    rounds = [
        Round(
            prompt=i // 2,
            number=1 + i % 2,
            anchor=10 + 7 * i,
            prefix="so\nfar",
            truth="and on",
            drafts={"near": a, "far": b},
        )
        for i, (a, b) in enumerate(zip(drafts(near, 3), drafts(far, 6), strict=True))
    ]
    costs = [
        Cost(head=head, context=context, drafted=n, draft_seconds=seconds, target_seconds=0.1)
        for head, seconds in (("near", 0.01), ("far", 0.004))
        for context in (128, 1024)
        for n in (2, 16)
    ]
    return Measured(
        machine={"processor": "P&Q 1", "cores": 2},
        target="a target",
        dtype="float32",
        budget=16,
        heads={
            "near": Head(folder="n", drafter="causal_parallel", drafted=3, vocabulary=96),
            "far": Head(folder="f", drafter="diffusion", drafted=6, vocabulary=96),
        },
        prompts=[Prompt(domain="chat", label="hello"), Prompt(domain="code", label="def f")],
        rounds=rounds,
        cost=costs if cost else [],
    )
