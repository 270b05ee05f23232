"""What a module of the load test brings with it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "metrics",
            "pydantic numpy locust gevent torch sglang",
        ),  # what the audit is made of: standard library
        ("validity", "pydantic numpy locust gevent torch sglang"),
        ("runner", "locust gevent torch sglang"),  # gevent's patches stay in Locust's own process
        ("generator", "torch sglang"),  # SGLang's frontend is imported for programs alone
    ],
)
def test_it_brings_no_more_than_it_needs(module, absent):
    program = f"import sys, jetspec_sglang.loadtest.{module}; print(*set({absent.split()}).intersection(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
