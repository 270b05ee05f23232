"""The adaptive budget without an engine: costs, calibration, the price rule, and all three in a simulated server."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jetspec_sglang.tree import DraftProposal, TokenTree, build_tree
from jetspec_sglang.tree.budget import (
    AdaptiveBudget,
    Calibration,
    CostModel,
    RoundShape,
    Sample,
    best_width,
    candidate_widths,
)
from jetspec_sglang.tree.budget.price import HYSTERESIS


@given(st.integers(1, 1024))
def test_widths_reach_from_plain_decoding_to_the_budget(most):
    widths = candidate_widths(most)
    assert widths[0] == 1
    assert widths[-1] == most
    assert list(widths) == sorted(set(widths))
    assert all(after <= 2 * before for before, after in itertools.pairwise(widths))
    assert len(widths) <= 2 * math.log2(most) + 2


rates = st.lists(st.tuples(st.floats(1, 100), st.floats(0.01, 10)), min_size=1, max_size=8)


@given(rates, st.data())
def test_the_best_width_wins_unless_the_present_one_is_nearly_as_good(pairs, data):
    widths = range(1, len(pairs) + 1)
    tokens, seconds = zip(*pairs, strict=True)
    rate = {n: t / s for n, t, s in zip(widths, tokens, seconds, strict=True)}
    present = data.draw(st.sampled_from([None, *widths]))
    chosen = best_width(widths, tokens, seconds, present)
    assert best_width(widths, tokens, seconds, None) == min(widths, key=lambda n: (-rate[n], n))
    if chosen == present:
        assert max(rate.values()) <= rate[chosen] * HYSTERESIS * (1 + 1e-9)
    else:
        assert rate[chosen] == max(rate.values())


def seconds_of(shape: RoundShape) -> tuple[float, float, float]:
    """A machine: (draft, verify, rest). Flat up to 16 rows, then a millisecond a row; overheads a request; context is
    read by each request and by each row."""
    rows = shape.batch * shape.nodes
    reading = (1e-6 * shape.batch + 2e-6 * rows) * shape.context
    verify = 0.024 + 0.001 * max(0, rows - 16) + 0.0005 * shape.batch + reading
    draft = 0.003 + 0.0004 * shape.batch * (shape.depth + 1) if shape.depth else 0.0
    return draft, verify, 0.0005 + 0.00002 * rows


def dry_runs(most_requests: int = 16, budget: int = 32, max_depth: int = 7) -> list[Sample]:
    shapes = [
        RoundShape(b, n, min(max_depth, n - 1), 64)
        for b in (1, 4, most_requests)
        for n in candidate_widths(budget)
    ]
    return [Sample(s, *seconds_of(s)) for s in [*shapes, RoundShape(1, 1, 0, 448), RoundShape(1, 8, 7, 448)]]


def test_the_cost_model_interpolates_what_was_measured():
    model = CostModel(dry_runs())
    for shape in (
        RoundShape(2, 8, 7, 64),
        RoundShape(8, 4, 3, 64),
        RoundShape(1, 8, 7, 448),
        RoundShape(16, 1, 0, 200),
        RoundShape(16, 1, 0, 1000),
        RoundShape(16, 16, 7, 1000),
    ):
        assert model.measured(shape) == pytest.approx(sum(seconds_of(shape)), rel=0.12), shape


def test_more_rows_never_cost_less_however_noisy_the_dry_runs():
    rng = np.random.default_rng(0)
    noisy = [
        Sample(s.shape, *(value * rng.lognormal(0, 0.3) for value in (s.draft, s.verify, s.rest)))
        for s in dry_runs()
    ]
    model = CostModel(noisy)
    for batch in (1, 3, 16, 40):
        costs = [model.measured(RoundShape(batch, n, 7, 64)) for n in range(1, 64)]
        assert all(a <= b + 1e-12 for a, b in itertools.pairwise(costs))


def test_live_rounds_correct_the_level_and_their_own_shape():
    model = CostModel(dry_runs())
    seen, other = RoundShape(1, 8, 7, 64), RoundShape(1, 16, 7, 64)
    for _ in range(40):
        model.observe(seen, 2 * sum(seconds_of(seen)), gap=0.004)
    assert model.seconds(seen) == pytest.approx(2 * model.measured(seen) + 0.004, rel=0.02)
    assert model.seconds(other) == pytest.approx(
        2 * model.measured(other) + 0.004, rel=0.02
    )  # a slower machine
    for _ in range(9):
        model.observe(other, 3 * model.measured(other), gap=None)
    assert model.seconds(other) == pytest.approx(3 * model.measured(other) + 0.004, rel=0.1)


def test_one_hiccup_changes_nothing():
    model = CostModel(dry_runs())
    shape = RoundShape(1, 8, 7, 64)
    for _ in range(9):
        model.observe(shape, model.measured(shape), gap=0.001)
    before = model.seconds(shape)
    model.observe(shape, 50 * model.measured(shape), gap=5.0)
    assert model.seconds(shape) == pytest.approx(before, rel=0.08)
    for _ in range(2):
        model.observe(shape, model.measured(shape), gap=0.001)
    assert model.seconds(shape) == pytest.approx(before, rel=0.05)


def test_a_slower_machine_does_not_make_the_shape_in_use_look_bad():
    model = CostModel(dry_runs())
    plain, tree = RoundShape(16, 1, 0, 64), RoundShape(16, 4, 3, 64)
    for shape in (plain, tree):
        for _ in range(12):
            model.observe(shape, sum(seconds_of(shape)), gap=None)
    before = model.seconds(tree) / model.seconds(plain)
    for _ in range(6):  # something else runs now: plain rounds take two and a half times as long
        model.observe(plain, 2.5 * sum(seconds_of(plain)), gap=None)
        assert model.seconds(tree) / model.seconds(plain) == pytest.approx(before, rel=0.12)
    assert model.seconds(plain) == pytest.approx(2.5 * sum(seconds_of(plain)), rel=0.1)


def test_a_shape_that_is_worse_than_measured_is_left_and_the_others_keep_their_price():
    model = CostModel(dry_runs())
    plain, tree = RoundShape(16, 1, 0, 64), RoundShape(16, 4, 3, 64)
    for _ in range(30):
        model.observe(plain, sum(seconds_of(plain)), gap=None)
    for _ in range(3):
        model.observe(tree, 1.4 * sum(seconds_of(tree)), gap=None)
    assert model.seconds(tree) > 1.25 * sum(seconds_of(tree))
    assert model.seconds(plain) == pytest.approx(sum(seconds_of(plain)), rel=0.1)


def test_calibration_learns_each_depths_bias():
    rng = np.random.default_rng(1)
    calibration = Calibration(3)
    for _ in range(1500):
        depth = rng.integers(1, 4, 16)
        logprob = -rng.exponential(1.5, 16).astype(np.float32)
        truth = np.exp(logprob) * np.array([0, 1.0, 0.7, 0.4])[depth]
        calibration.learn(logprob, depth, rng.random(16) < truth, batch=2)
    for depth, bias in ((1, 1.0), (2, 0.7), (3, 0.4)):
        for claimed in (0.9, 0.5, 0.2):
            got = calibration.probability(np.log([claimed]).astype(np.float32), np.array([depth]))
            assert got[0] == pytest.approx(claimed * bias, rel=0.2), (depth, claimed)
    report = calibration.report()
    assert [row["depth"] for row in report] == [1, 2, 3]
    assert {row["batch"] for row in report} == {"2-3"}
    for row in report:
        assert abs(row["predicted"] - row["accepted"]) < 0.02
    assert report[2]["predicted_raw"] - report[2]["accepted"] > 0.1


def test_an_unseen_cell_believes_the_drafter_and_padding_counts_nothing():
    logprob = np.array([-0.5, -np.inf], np.float32)
    assert Calibration(2).probability(logprob, np.array([1, 0])).tolist() == pytest.approx(
        [math.exp(-0.5), 0]
    )


class Simulation:
    """Requests whose drafter is over-confident, on the machine of `seconds_of`."""

    def __init__(self, sharpness: float, seed: int = 0, budget: int = 32, depth: int = 7) -> None:
        self.rng = np.random.default_rng(seed)
        self.sharpness, self.budget, self.depth = sharpness, budget, depth

    def trees(self, batch: int, depth: int) -> tuple[TokenTree, np.ndarray, np.ndarray]:
        """Trees; how probable each node is under the target [B, N]; and which nodes the target went through."""
        logits = torch.from_numpy(self.rng.gumbel(size=(batch, depth, 12)) * self.sharpness)
        logprobs, _ = logits.log_softmax(-1).float().sort(-1, descending=True)
        tokens = torch.arange(12).expand(batch, depth, -1).contiguous()
        anchors = torch.zeros(batch, dtype=torch.int64)
        tree = build_tree(DraftProposal(tokens, logprobs), anchors, self.budget)
        truth = (0.75 * logprobs).softmax(-1).double().numpy()  # flatter than what the drafter says
        path = (truth.cumsum(-1) < self.rng.random((batch, depth, 1))).sum(-1)
        probable, on_path = np.zeros(tree.tokens.shape), np.zeros(tree.tokens.shape, bool)
        for b in range(batch):
            probable[b, 0], on_path[b, 0] = 1, True
            for node in range(1, int(tree.size[b])):
                token, parent, row = (
                    int(tree.tokens[b, node]),
                    int(tree.parent[b, node]),
                    int(tree.depth[b, node]) - 1,
                )
                probable[b, node] = probable[b, parent] * truth[b, row, token]
                on_path[b, node] = on_path[b, parent] and path[b, row] == token
        return tree, probable, on_path

    def spend(self, shape: RoundShape) -> float:
        return sum(seconds_of(shape)) * self.rng.lognormal(0, 0.05)

    def fixed(self, batch: int, nodes: int, rounds: int) -> float:
        """Tokens a second at a fixed width."""
        tokens = seconds = 0.0
        depth = min(self.depth, nodes - 1)
        for _ in range(rounds):
            tokens += batch
            if depth:
                tokens += self.trees(batch, depth)[1][:, 1:nodes].sum()
            seconds += self.spend(RoundShape(batch, nodes, depth, 64))
        return tokens / seconds

    def adaptive(self, budget: AdaptiveBudget, batch: int, rounds: int) -> float:
        tokens = seconds = 0.0
        for _ in range(rounds):
            plan = budget.plan(batch, 64, self.budget)
            nodes, tree = 1, None
            if plan.depth:
                tree, probable, on_path = self.trees(batch, plan.depth)
                caps = np.full(batch, self.budget)
                nodes = budget.cut(plan, tree.logprob.numpy(), tree.depth.numpy(), caps, 64)
                tokens += probable[:, 1:nodes].sum()
            shape = RoundShape(batch, nodes, plan.depth, 64)
            budget.chosen(shape, plan.probe)
            tokens += batch
            took = self.spend(shape)
            seconds += took
            budget.cost.observe(shape, took, 0.0)
            if tree is not None:
                logprob, depth = tree.logprob.numpy(), tree.depth.numpy()
                budget.learn_tree(logprob, depth, plan.depth)
                budget.learn_outcome(logprob[:, :nodes], depth[:, :nodes], on_path[:, :nodes])
        return tokens / seconds


@pytest.mark.parametrize("sharpness", [0.5, 3.0], ids=["poor drafter", "good drafter"])
def test_at_every_load_the_best_fixed_width_is_nearly_reached(sharpness):
    simulation = Simulation(sharpness)
    budget = AdaptiveBudget(CostModel(dry_runs()), simulation.budget, simulation.depth)
    for batch in (1, 4, 16, 2, 8, 1):  # one server, a load that changes
        simulation.adaptive(budget, batch, 60)
        got = simulation.adaptive(budget, batch, 150)
        fixed = {n: simulation.fixed(batch, n, 150) for n in (1, 2, 4, 8, 16, 32)}
        assert got >= 0.95 * max(fixed.values()), (batch, got, fixed)
        assert got >= 0.97 * fixed[1]


@pytest.mark.parametrize("seed", range(4))
def test_start_up_measurements_of_a_busy_machine_are_found_out(seed):
    """Each kind of round was measured up to 1.6 times as slow as it is."""
    rng = np.random.default_rng(seed)
    wrong = [
        Sample(s.shape, *(value * busy for value in (s.draft, s.verify, s.rest)))
        for s, busy in ((s, rng.uniform(1, 1.6)) for s in dry_runs())
    ]
    simulation = Simulation(1.5, seed)
    budget = AdaptiveBudget(CostModel(wrong), simulation.budget, simulation.depth)
    for batch in (1, 8, 16):
        simulation.adaptive(budget, batch, 100)
        got = simulation.adaptive(budget, batch, 150)
        fixed = {n: simulation.fixed(batch, n, 100) for n in (1, 2, 3, 4, 6, 8, 16)}
        assert got >= 0.94 * max(fixed.values()), (batch, got, fixed)


def test_a_useless_drafter_is_asked_only_to_see_whether_it_got_better():
    simulation = Simulation(0.01)
    budget = AdaptiveBudget(CostModel(dry_runs()), simulation.budget, simulation.depth)
    simulation.adaptive(budget, 16, 400)
    assert budget.rounds[5, 1] > 300
    assert 1 <= budget.probes < 20
    simulation.sharpness = 6.0  # now it is good, and must be found out
    simulation.adaptive(budget, 1, 400)
    assert budget.rounds[1, 1] < 200
    assert sum(count for (octave, nodes), count in budget.rounds.items() if octave == 1 and nodes >= 8) > 200


def test_a_request_with_a_small_budget_of_its_own_caps_its_gain():
    simulation = Simulation(3.0)
    budget = AdaptiveBudget(CostModel(dry_runs()), 32, 7)
    tree, _, _ = simulation.trees(1, 7)
    arrays = tree.logprob.numpy(), tree.depth.numpy()
    plan = budget.plan(1, 64, 32)
    assert budget.cut(plan, *arrays, np.array([32]), 64) > 1
    assert budget.cut(plan, *arrays, np.array([1]), 64) == 1


def test_the_report_is_plain_json():
    import json

    simulation = Simulation(3.0)
    budget = AdaptiveBudget(CostModel(dry_runs()), 32, 7)
    simulation.adaptive(budget, 2, 20)
    report = json.loads(json.dumps(budget.report()))
    assert sum(report["rounds_by_batch_and_nodes"]["2"].values()) == 20
    assert report["calibration"]
