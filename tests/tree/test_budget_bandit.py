"""The bandit budget on simulated machines whose best width is known."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from jetspec_sglang.tree.budget import Bandit, Choice, bandit, candidate_widths

WIDTHS = candidate_widths(16)
DRAFTS = (0, 0.42, 0.6, 0.7, 0.85, 0.98, 1.1, 1.15)  # accepted a request and round, by width
START, LAST = 1500, 500  # rounds until it must know, and rounds that are looked at then
FOLLOWS = 3 * bandit.MEMORY  # rounds until a change must be known


class Machine:
    """Rounds of `batch` requests, of which each width brings so many drafts a request and takes so many seconds."""

    def __init__(self, batch: int, drafts: Sequence[float], seconds: Sequence[float]) -> None:
        self.batch, self.drafts, self.seconds = batch, np.array(drafts), np.array(seconds)
        self.tokens = batch * (1 + self.drafts)
        self.rates = self.tokens / self.seconds
        self.best = WIDTHS[int(self.rates.argmax())]

    @classmethod
    def by_rows(cls, batch: int, row: float) -> "Machine":
        """Rows cost `row` seconds from six on, drafting always something."""
        rows = batch * np.array(WIDTHS)
        drafting = (rows > batch) * (0.004 + 0.0003 * batch)
        return cls(batch, DRAFTS, 0.024 + row * np.maximum(0, rows - 6) + drafting)

    def committed(self, rng: np.random.Generator, arm: int) -> list[float]:
        """By the tree of each width up to that of `arm`. Trees are nested: one draw a request decides for all."""
        luck = rng.random(self.batch)
        tokens = [luck.size]
        for drafts in self.drafts[1 : arm + 1]:  # geometric
            tokens.append(int(np.ceil(np.log(luck) / np.log(drafts / (1 + drafts))).sum()))
        return tokens


MACHINES = {  # the best width is ahead by a tenth or more
    "one request": Machine(
        1,
        (0, 0.5, 0.7, 0.9, 1.3, 1.9, 2.0, 2.1),
        (0.010, 0.0125, 0.0128, 0.013, 0.0135, 0.014, 0.018, 0.022),
    ),
    # Two nodes are far worse than one, sixteen are best.
    "drafting is dear": Machine(1, (0, 0.3, 0.5, 0.8, 1.2, 1.7, 2.3, 3.2), [0.010] + 7 * [0.020]),
    "four requests": Machine(4, 2 * np.array(DRAFTS), 0.010 + 0.006 * (np.array(WIDTHS) - 1)),
    "sixteen requests": Machine.by_rows(16, 0.0008),
    "rows are dear": Machine.by_rows(16, 0.004),
}
FLAT = {"flat at one": Machine.by_rows(1, 0.0008), "flat at four": Machine.by_rows(4, 0.0008)}


def serve(
    learner: Bandit, machine: Machine, rounds: int, seed: int, load: int = 1
) -> tuple[list[int], float]:
    """Widths chosen, and seconds lost: those in which the best width would have brought as much are not."""
    rng = np.random.default_rng(seed)
    chosen, lost = [], 0.0
    for _ in range(rounds):
        choice = learner.choose(load, WIDTHS[-1])
        arm = WIDTHS.index(choice.width)
        took = machine.seconds[arm] * rng.lognormal(0, 0.05)
        learner.learn(load, choice, machine.committed(rng, arm), took)
        chosen.append(choice.width)
        lost += machine.seconds[arm] - machine.tokens[arm] / machine.rates.max()
    return chosen, lost


def spent(machine: Machine, chosen: list[int]) -> float:
    return sum(machine.seconds[WIDTHS.index(width)] for width in chosen)


def share(chosen: list[int], machine: Machine) -> float:
    return chosen.count(machine.best) / len(chosen)


def ends_on_the_best(learner: Bandit, machine: Machine, seed: int) -> None:
    serve(learner, machine, START, seed)
    chosen, _ = serve(learner, machine, LAST, seed + 100)
    assert share(chosen, machine) >= 0.9, (machine.best, sorted(chosen))


def loses_little(learner: Bandit, machine: Machine, seed: int) -> None:
    """From the first round on: trying, mistakes about near widths, two rounds of each width, and the way there."""
    chosen, lost = serve(learner, machine, START + LAST, seed)
    allowed = 0.05 * spent(machine, chosen) + 2 * machine.seconds.sum()
    assert lost <= allowed, (lost, allowed)


def follows(learner: Bandit, before: Machine, after: Machine, seed: int) -> None:
    serve(learner, before, START, seed)
    serve(learner, after, FOLLOWS, seed + 100)
    chosen, _ = serve(learner, after, LAST, seed + 200)
    assert share(chosen, after) >= 0.8, (after.best, sorted(chosen))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_nine_rounds_of_ten_have_the_best_width_in_the_end(machine, seed):
    ends_on_the_best(Bandit(WIDTHS), machine, seed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("machine", [*MACHINES.values(), *FLAT.values()], ids=[*MACHINES, *FLAT])
def test_against_the_best_fixed_width_little_is_lost(machine, seed):
    loses_little(Bandit(WIDTHS), machine, seed)


# What is served gets harder or easier to draft, or rows get dearer or cheaper.
NO_DRAFTS = Machine(1, 0.03 * np.arange(8), [0.010] + 7 * [0.014])
DEAR_ROWS = Machine(1, MACHINES["one request"].drafts, 0.010 + 0.006 * (np.array(WIDTHS) - 1))
CHANGES = {
    "other costs": (MACHINES["one request"], MACHINES["drafting is dear"]),
    "and back": (MACHINES["drafting is dear"], MACHINES["one request"]),
    "rows become dear": (MACHINES["one request"], DEAR_ROWS),
    "nothing can be drafted any more": (MACHINES["one request"], NO_DRAFTS),
    "now it can": (NO_DRAFTS, MACHINES["one request"]),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_followed(change, seed):
    follows(Bandit(WIDTHS), *CHANGES[change], seed)


def tells_loads_apart(learner: Bandit) -> None:
    loads = {1: MACHINES["drafting is dear"], 5: MACHINES["sixteen requests"]}
    ended: dict[int, list[int]] = {1: [], 5: []}
    for turn in range((START + LAST) // 20):
        for load, machine in loads.items():
            ended[load] += serve(learner, machine, 20, seed=turn, load=load)[0]
    for load, machine in loads.items():
        assert share(ended[load][-LAST:], machine) >= 0.9


def tries_little_of_what_is_dear(learner: Bandit) -> None:
    """16 nodes bring a twentieth of the tokens a second, and a round of them takes as long as 30 plain ones."""
    machine = MACHINES["rows are dear"]
    chosen, lost = serve(learner, machine, START + LAST, seed=0)
    assert max(chosen[:50]) <= 4, "widths are climbed"
    assert chosen.count(16) <= 4
    assert 0 < lost <= 1.25 * bandit.TRYING * spent(machine, chosen) + 2 * machine.seconds.sum()


def test_loads_are_learnt_each_for_itself():
    learner = Bandit(WIDTHS)
    tells_loads_apart(learner)
    before = learner.known()[1]
    serve(learner, MACHINES["sixteen requests"], 100, seed=0, load=5)
    assert learner.known()[1] == before
    assert learner.choose(3, 16).width == 1, "an unknown load begins with plain decoding"


def test_what_is_clearly_worse_is_seldom_tried_and_what_is_dear_even_less():
    tries_little_of_what_is_dear(Bandit(WIDTHS))


PLAIN = Choice(1, tried=False)


def certain(rounds: int = 60) -> Bandit:
    """It has seen rounds without noise: 100 tokens a second of one node, 150 of two, 50 of three."""
    learner = Bandit((1, 2, 3))
    for _ in range(rounds):
        choice = learner.choose(1, 3)
        learner.learn(1, choice, (1, 3, 4)[: choice.width], (0.01, 0.02, 0.08)[choice.width - 1])
    return learner


def test_the_worth_of_a_width_is_tokens_over_seconds():
    worth = {width: known[:2] for width, known in certain().known()[1].items()}
    assert worth == {
        1: pytest.approx((100, 0.01)),
        2: pytest.approx((150, 0.02)),
        3: pytest.approx((50, 0.08)),
    }


def test_a_request_gets_no_more_than_it_may_have():
    learner = certain()
    for _ in range(50):
        assert learner.choose(1, 1) == PLAIN, "the best of what is allowed"
        learner.learn(1, PLAIN, (1,), 0.01)
    assert learner.choose(1, 2).width == 2


def test_rounds_that_a_small_request_made_narrow_are_no_tries_to_be_paid_for():
    learner = certain()
    for _ in range(500):
        learner.learn(1, learner.choose(1, 1), (1,), 0.01)
    choices = []
    for _ in range(100):
        choices.append(learner.choose(1, 3))
        learner.learn(
            1, choices[-1], (1, 3, 4)[: choices[-1].width], (0.01, 0.02, 0.08)[choices[-1].width - 1]
        )
    assert 3 in {choice.width for choice in choices if choice.tried}


def test_a_wider_tree_tells_what_a_narrower_one_had_brought():
    learner = certain()
    for _ in range(bandit.MEMORY):  # only three nodes are verified, and the second is never right any more
        learner.learn(1, Choice(3, tried=False), (1, 1, 4), 0.08)
    rate, seconds, _ = learner.known()[1][2]
    assert 50 < rate < 90, "no more 150"
    assert seconds == pytest.approx(0.02)


def test_the_first_round_of_a_width_and_a_hiccup_do_not_count_as_they_are():
    learner = Bandit((1, 2))
    learner.learn(1, PLAIN, (1,), 30.0)  # it compiled
    assert learner.known() == {1: {}}
    for _ in range(50):
        learner.learn(1, PLAIN, (1,), 0.01)
    learner.learn(1, PLAIN, (1,), 30.0)
    rate, seconds, _ = learner.known()[1][1]
    assert seconds < 0.011
    assert rate > 90


def test_what_is_known_is_plain_json():
    assert json.loads(json.dumps(certain().known()))["1"]["2"][0] == pytest.approx(150)


class BlindToCosts(Bandit):
    def learn(self, load, choice, tokens, seconds):
        super().learn(load, choice, tokens, 1.0)


class BlindToTokens(Bandit):
    def learn(self, load, choice, tokens, seconds):
        super().learn(load, choice, [1] * len(tokens), seconds)


class BlindToTheLoad(Bandit):
    def choose(self, load, most):
        return super().choose(0, most)

    def learn(self, load, choice, tokens, seconds):
        super().learn(0, choice, tokens, seconds)


class Hasty(Bandit):
    """Tries the widest first."""

    def choose(self, load, most):
        unknown = set(self.widths) - set(self.known().get(load, {}))
        return Choice(max(unknown), True) if unknown else super().choose(load, most)


MUTANTS = {
    "blind to costs": (BlindToCosts, {}, lambda new: ends_on_the_best(new, MACHINES["sixteen requests"], 0)),
    "blind to tokens": (BlindToTokens, {}, lambda new: ends_on_the_best(new, MACHINES["one request"], 0)),
    "blind to the load": (BlindToTheLoad, {}, tells_loads_apart),
    "widest first": (Hasty, {}, tries_little_of_what_is_dear),
    "no optimism": (
        Bandit,
        {"TOKENS_VARY": 0.0, "SECONDS_VARY": 0.0},
        lambda new: ends_on_the_best(new, MACHINES["drafting is dear"], 0),
    ),
    "too much of it": (
        Bandit,
        {"TOKENS_VARY": 2.0, "TRYING": 1.0},
        lambda new: loses_little(new, MACHINES["sixteen requests"], 0),
    ),
    "no limit on trying": (Bandit, {"TRYING": 1.0}, tries_little_of_what_is_dear),
    "no forgetting": (
        Bandit,
        {"MEMORY": 1e12},
        lambda new: follows(new, MACHINES["one request"], NO_DRAFTS, 0),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found_out(mutant, monkeypatch):
    made, constants, check = MUTANTS[mutant]
    check(Bandit(WIDTHS))
    for name, value in constants.items():
        monkeypatch.setattr(bandit, name, value)
    with pytest.raises(AssertionError):
        check(made(WIDTHS))
