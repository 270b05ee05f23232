"""Lengths on the host: a tree's mask is sized by them, and a budget plans with them."""

from jetspec_sglang import algorithm


def test_they_are_asked_for_whatever_the_attention_backends_need(monkeypatch):
    monkeypatch.setattr(algorithm, "FutureMap", lambda *given: given)
    made = algorithm.JetSpecAlgo.create_future_map("algorithm", "cuda", "pool", needs_cpu_seq_lens=False)
    assert made == ("cuda", "algorithm", "pool", True, False)
