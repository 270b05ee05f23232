"""The load test as Locust runs it: `locust -f loadtest/locustfile.py --host http://127.0.0.1:30000`.

With Locust's page, headless, or with `--master` and `--worker`. `jetspec loadtest run` starts it headless.
"""

from jetspec_sglang.loadtest import hooks  # noqa: F401  registers options and events
from jetspec_sglang.loadtest.users import LoadUser

__all__ = ["LoadUser"]
