"""One core stays free for the server's other processes; an explicit setting wins."""

import torch

from jetspec_sglang.cpu import threads


def test_one_core_is_left_but_one_thread_remains():
    assert [threads.serving_threads(cores) for cores in (1, 2, 8)] == [1, 1, 7]


def test_an_explicit_setting_wins(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    threads.use_serving_threads()
    assert chosen == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    threads.use_serving_threads()
    assert chosen == [3]
