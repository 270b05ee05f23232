"""What of `/server_info` is kept in a run's record."""

from jetspec_sglang.loadtest.collector import brief, changes

INFO = {
    "model_path": "m",
    "api_key": "secret",
    "internal_states": [
        {
            "model_path": "m",
            "api_key": "secret",
            "admin_api_key": "secret",
            "jetspec": {"rounds": 3},
            "load": 1.0,
        }
    ],
}


def test_flags_are_kept_once_and_secrets_nowhere():
    assert brief(INFO) == {
        "model_path": "m",
        "internal_states": [{"jetspec": {"rounds": 3}, "load": 1.0}],
    }
    assert brief({"answers": 2}) == {"answers": 2}


def test_after_a_run_only_changes_are_kept():
    before = brief(INFO)
    after = before | {"internal_states": [{"jetspec": {"rounds": 9}, "load": 1.0}]}
    assert changes(before, after) == {"internal_states": after["internal_states"]}
    assert changes(None, after) == after
    assert changes(before, None) is None
