"""The bandit's place in the worker: a round's width from it, and its outcome back to it."""

from collections import Counter

from .round_budget import Note, WidthLog, caps_of, deepest
from .stage_clock import FinishedRound
from .tree import TokenTree
from .tree.budget import Bandit, Choice, Plan, RoundShape, UsualGaps, candidate_widths, octave_of
from .tree_settings import TreeSettings


class BanditBudget:
    """The width that `Bandit` chooses, at most what the requests have, whatever the trees look like.

    What is learnt is the width that was planned: trees that were found in text may have fewer nodes.
    """

    learns = True

    def __init__(self, budget: int) -> None:
        self._bandit = Bandit(candidate_widths(budget))
        self._gaps = UsualGaps()
        self._rounds: dict[int, Counter[int]] = {}  # by octave of the batch and nodes
        self._tries = 0
        self._log = WidthLog()

    def plan(self, settings: list[TreeSettings], context: int) -> Plan:
        choice = self._bandit.choose(octave_of(len(settings)), max(caps_of(settings)))
        return Plan(choice.width, min(choice.width - 1, deepest(settings)), choice.tried)

    def cut(self, plan: Plan, tree: TokenTree, settings: list[TreeSettings], context: int) -> int:
        return min(plan.nodes, tree.budget)

    def chosen(self, shape: RoundShape, probe: bool) -> None:
        self._rounds.setdefault(octave_of(shape.batch), Counter())[shape.nodes] += 1
        self._tries += probe
        if not probe:
            self._log.note(shape)

    def learn(self, finished: FinishedRound) -> None:
        note: Note = finished.note
        shape, drafted = note.shape, note.plan.depth > 0
        if finished.gap is not None:
            self._gaps.observe(shape.batch, drafted, finished.gap)
        # Behind a prefill the gap is none of the round's doing.
        gap = self._gaps.seconds(shape.batch, drafted) if finished.gap is None else finished.gap
        committed = [shape.batch]  # by the first n nodes, at n - 1
        if note.slots:
            *_, on_path = finished.tensors
            committed = on_path[:, : shape.nodes].sum(0).cumsum(0).tolist()
        choice = Choice(note.plan.nodes, note.plan.probe)
        widths = [n for n in self._bandit.widths if n <= choice.width]
        tokens = [committed[min(n, len(committed)) - 1] for n in widths]
        seconds = sum(finished.seconds.values()) + gap
        self._bandit.learn(octave_of(shape.batch), choice, tokens, seconds)

    def report(self) -> dict:
        """Plain values for /server_info, by the smallest batch of an octave and nodes a request."""
        return {
            "rounds_by_batch_and_nodes": {
                str(2 ** (octave - 1)): {str(n): count for n, count in sorted(rounds.items())}
                for octave, rounds in sorted(self._rounds.items())
            },
            "known_by_batch_and_nodes": {
                str(2 ** (octave - 1)): {
                    str(n): {
                        "tok_s": round(rate, 1),
                        "ms": round(1000 * seconds, 2),
                        "rounds_remembered": round(rounds, 1),
                    }
                    for n, (rate, seconds, rounds) in arms.items()
                }
                for octave, arms in self._bandit.known().items()
            },
            "tries": self._tries,
        }
