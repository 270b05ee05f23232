"""The tables of `jetspec quality`, from its raw results, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from . import paper
from .drafters.quality.rows import Measured, Round
from .drafters.quality.summary import EXTREME, FAITHFUL, PAPERS_DRAFTED, Gaps, gaps, pairs

NOTHING = "–"


@dataclass(frozen=True)
class Sheet:
    """A table as text, for the terminal and the page alike; the first `text` columns are aligned to the left."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    note: str = ""
    text: int = 1

    def rich(self) -> Table:
        table = Table(title=self.title, caption=self.note or None, caption_justify="left")
        for number, heading in enumerate(self.headings):
            text = number < self.text
            table.add_column(
                heading, justify="left" if text else "right", overflow="fold" if text else "ellipsis"
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def sheets(measured: Measured) -> Iterator[Sheet]:
    """Everything that there is to say."""
    yield gap_sheet(measured)
    if len(measured.heads) > 1:
        yield pair_sheet(measured)
    yield from example_sheets(measured)
    if measured.cost:
        yield cost_sheet(measured)


def gap_sheet(measured: Measured) -> Sheet:
    token = [f"≥ {EXTREME / PAPERS_DRAFTED:.2f}", f"< {FAITHFUL / PAPERS_DRAFTED:.2f}"]
    return Sheet(
        title="Gap of the likeliest block: draft joint − target joint, nats",
        headings=[
            *("head", "drafted", "rounds", "median", f"≥ {EXTREME:g}", f"< {FAITHFUL:g}", "a token", *token),
            *("τ of it", f"τ of {measured.budget} nodes"),
        ],
        rows=[_gap_row(each) for each in gaps(measured)] + [_papers_row(each) for each in paper.TREE_QUALITY],
        note=f"The thresholds {EXTREME:g} and {FAITHFUL:g} are the paper's, for its {PAPERS_DRAFTED} drafted tokens; "
        f"behind them the median and the thresholds per drafted token ({' and '.join(token)}), which suit every block. "
        "τ counts the bonus token; it is the mean over these prefixes, which are the same for all heads, and not over "
        "the rounds that a head would have. The paper's, beside the tree: its mean accepted length. The paper: "
        "Qwen3-8B on 50 MATH-500 prompts.",
    )


def _gap_row(of: Gaps) -> list[str]:
    return [
        of.head,
        str(of.drafted),
        str(of.rounds),
        f"{of.median:.2f}",
        f"{of.extreme:.0%}",
        f"{of.faithful:.0%}",
        f"{of.token_median:.3f}",
        f"{of.token_extreme:.0%}",
        f"{of.token_faithful:.0%}",
        f"{of.rank1_length:.2f}",
        f"{of.tree_length:.2f}",
    ]


def _papers_row(of: paper.TreeQuality) -> list[str]:
    shares = [f"{of.extreme:.0%}", f"{of.faithful:.0%}"]
    accepted = NOTHING if of.accepted is None else f"{of.accepted:.2f}"
    name = f"paper: {of.head}, γ={of.gamma}"
    return [name, str(PAPERS_DRAFTED), "50", NOTHING, *shares, NOTHING, *shares, NOTHING, accepted]


def pair_sheet(measured: Measured) -> Sheet:
    rows = [
        [
            each.wider,
            each.closer,
            f"{each.exceeds:.0%}",
            NOTHING if each.ratio is None else f"{each.ratio:.1f}x",
            f"{each.accepted:.2f}x",
        ]
        for each in pairs(measured)
    ]
    papers = [f"{paper.GAP_EXCEEDS:.0%}", f"{paper.GAP_RATIO:g}x", f"{paper.ACCEPTED_RATIO:g}x"]
    return Sheet(
        title="Two heads at the same prefixes",
        headings=["A", "B", "A's gap is larger", "its median over B's", "τ of B's tree over A's"],
        rows=[*rows, ["paper: diffusion, γ=0", "causal, γ=0", *papers]],
        note="Gaps are compared per drafted token. There is no ratio where B's median is not positive.",
        text=2,
    )


def example_sheets(measured: Measured) -> Iterator[Sheet]:
    """The canonical example: prompt 0, round 1, where its answer was long enough."""
    shown: Round = measured.rounds[0]
    for head, draft in shown.drafts.items():
        yield Sheet(
            title=f"{head}: likeliest blocks at prompt {shown.prompt}, round {shown.number}",
            headings=["rank", "block", "draft joint", "target joint", "gap", "accepted"],
            rows=[
                [
                    str(rank),
                    visible(branch.text),
                    f"{branch.draft_joint:.2f}",
                    f"{branch.target_joint:.2f}",
                    f"{branch.gap:.2f}",
                    f"{branch.accepted} of {len(branch.tokens)}",
                ]
                for rank, branch in enumerate(draft.branches, 1)
            ],
            note=f"Behind …{visible(shown.prefix)}| the target goes on with |{visible(shown.truth)}|. "
            f"The tree has {draft.tree_accepted} tokens of that.",
            text=2,
        )


def visible(text: str) -> str:
    """On one line."""
    return text.replace("\r", "").replace("\n", "⏎").replace("\t", "→")


def cost_sheet(measured: Measured) -> Sheet:
    cells = {(row.head, row.drafted, row.context): row for row in measured.cost}
    contexts = sorted({row.context for row in measured.cost})
    rows = []
    for head, drafted in dict.fromkeys(
        (head, drafted) for head, drafted, _ in sorted(cells, key=_order(measured))
    ):
        found = [cells.get((head, drafted, context)) for context in contexts]
        rows.append([head, str(drafted), *(_cost(row) for row in found)])
    papers = ", ".join(f"{value * 100:g} % for {n}" for n, value in paper.DRAFT_COST.items())
    return Sheet(
        title="Cost c of a drafted token in target passes, and the times of draft / pass, by context",
        headings=["head", "drafted N", *(f"L = {context}" for context in contexts)],
        rows=rows,
        note="c = draft / N / target pass over N + 1 tokens behind L cached ones. A block's values don't matter for "
        f"its time, so it is timed at any N. The paper (H200 NVL, L = {paper.DRAFT_COST_CONTEXT}): {papers}.",
    )


def _order(measured: Measured):
    places = list(measured.heads)
    return lambda cell: (places.index(cell[0]), cell[1:])


def _cost(row) -> str:
    if row is None:
        return ""
    return f"{row.relative:.2%} ({row.draft_seconds * 1e3:.1f} / {row.target_seconds * 1e3:.1f} ms)"
