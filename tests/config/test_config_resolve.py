"""Where a setting comes from, and what is refused."""

import json
from types import SimpleNamespace

import pytest

from jetspec_sglang.config import (
    CONFIG_ENV,
    DEFAULT_SUFFIX_CACHE,
    FLAGS_ENV,
    MAX_BUDGET,
    ConfigError,
    JetSpecConfig,
    asked_drafter,
    resolve_config,
)
from jetspec_sglang.drafters.no_head import NoHead

HEAD = SimpleNamespace(block_size=16, drafter="causal_parallel", conditioning="marginal")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    monkeypatch.delenv(CONFIG_ENV, raising=False)
    monkeypatch.delenv(FLAGS_ENV, raising=False)


def view(**fields):
    return SimpleNamespace(**fields)


@pytest.fixture
def head_folder(tmp_path):
    def write(**section):
        (tmp_path / "config.json").write_text(json.dumps({"block_size": 16, "jetspec_config": section}))
        return str(tmp_path)

    return write


def test_defaults():
    config = resolve_config(view(), HEAD)
    assert config == JetSpecConfig(
        drafter="causal_parallel",
        scoring="accum_logp",
        expansion="optimal",
        acceptance="rejection",
        budget_policy="fixed",
        budget=16,
        depth=15,
        width=15,
        block_length=16,
    )


@pytest.mark.parametrize(("budget", "width"), [(1, 1), (2, 1), (5, 4), (17, 16), (1024, 16)])
def test_default_width_follows_the_budget(budget, width):
    assert resolve_config(view(speculative_num_draft_tokens=budget), HEAD).width == width


def test_flags_outrank_head_outranks_environment(monkeypatch, head_folder):
    monkeypatch.setenv(CONFIG_ENV, '{"budget": 2, "depth": 2, "width": 2, "scoring": "accum_logp"}')
    folder = head_folder(budget=3, depth=3)
    config = resolve_config(view(speculative_num_draft_tokens=4, speculative_draft_model_path=folder), HEAD)
    assert (config.budget, config.depth, config.width) == (4, 3, 2)


def test_own_flags_outrank_the_head(monkeypatch, head_folder):
    folder = head_folder(drafter="of_the_head")
    monkeypatch.setenv(FLAGS_ENV, '{"drafter": "causal_parallel"}')
    monkeypatch.setenv(CONFIG_ENV, '{"drafter": "of_the_site"}')
    assert resolve_config(view(speculative_draft_model_path=folder), HEAD).drafter == "causal_parallel"


def test_environment_names_a_file(monkeypatch, tmp_path):
    file = tmp_path / "site.json"
    file.write_text('{"budget": 7}')
    monkeypatch.setenv(CONFIG_ENV, str(file))
    assert resolve_config(view(), HEAD).budget == 7


def test_resolving_what_was_settled_changes_nothing(monkeypatch):
    monkeypatch.setenv(CONFIG_ENV, '{"budget": 7, "width": 3}')
    first = resolve_config(view(), HEAD)
    settled = view(
        speculative_num_draft_tokens=first.budget,
        speculative_num_steps=first.depth,
        speculative_eagle_topk=first.width,
    )
    assert resolve_config(settled, HEAD) == first


@pytest.mark.parametrize(
    ("fields", "range_"),
    [
        ({"speculative_num_draft_tokens": 0}, "1 to 1024"),
        ({"speculative_num_draft_tokens": 100000}, "1 to 1024"),
        ({"speculative_num_draft_tokens": -3}, "1 to 1024"),
        ({"speculative_num_steps": 0}, "1 to 15"),
        ({"speculative_num_steps": 16}, "1 to 15"),
        ({"speculative_eagle_topk": 0}, "1 to 64"),
        ({"speculative_eagle_topk": 65}, "1 to 64"),
    ],
)
def test_out_of_range_names_the_flag_and_the_range(fields, range_):
    (field,) = fields
    with pytest.raises(ConfigError) as error:
        resolve_config(view(**fields), HEAD)
    assert range_ in str(error.value)
    assert "--" + field.replace("_", "-") in str(error.value)
    assert "give" in str(error.value)


def test_largest_budget_is_allowed():
    assert resolve_config(view(speculative_num_draft_tokens=MAX_BUDGET), HEAD).budget == MAX_BUDGET


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"budget": 4, "budgte": 5}',
            "unknown key budgte; use only drafter, scoring, expansion, acceptance, budget_policy, graft, budget, "
            "depth, width, suffix_cache.",
        ),
        ('{"a": 1, "b": 2}', "unknown keys a, b"),
        ('{"budget": 4,\n "width" 5}', "line 2, column 10"),
        ("/no/such/file.json", "neither a JSON object nor an existing file; set it to"),
        ('{"budget": "4"}', "give a whole number from 1 to 1024"),
        ('{"width": true}', "give a whole number from 1 to 64"),
        ('{"depth": 2.5}', "give a whole number from 1 to 15"),
        ('{"budget": null}', "give a whole number"),
        ('{"scoring": 3}', "give a name"),
        ('{"scoring": "best_guess"}', "accum_logp"),
        ('{"drafter": "oracle"}', "causal_parallel"),
    ],
)
def test_bad_environment(monkeypatch, text, said):
    monkeypatch.setenv(CONFIG_ENV, text)
    with pytest.raises(ConfigError) as error:
        resolve_config(view(), HEAD)
    assert said in str(error.value)
    assert CONFIG_ENV in str(error.value)


def test_environment_file_that_holds_a_list(monkeypatch, tmp_path):
    file = tmp_path / "site.json"
    file.write_text("[1, 2]")
    monkeypatch.setenv(CONFIG_ENV, str(file))
    with pytest.raises(ConfigError, match="JSON list; make it an object"):
        resolve_config(view(), HEAD)


def test_unknown_key_in_the_head(head_folder):
    with pytest.raises(ConfigError, match=r"jetspec_config in .*config\.json has the unknown key alhpa"):
        resolve_config(view(speculative_draft_model_path=head_folder(alhpa=1)), HEAD)


def test_head_section_that_is_no_object(tmp_path):
    (tmp_path / "config.json").write_text('{"jetspec_config": [1]}')
    with pytest.raises(ConfigError, match="write a JSON object"):
        resolve_config(view(speculative_draft_model_path=str(tmp_path)), HEAD)


def test_config_built_by_hand_is_checked_too():
    with pytest.raises(ConfigError, match="give 1 to 3"):
        JetSpecConfig("causal_parallel", "accum_logp", "optimal", "match", "fixed", 8, 4, 2, block_length=4)


def kind(drafter: str):
    by_path = drafter in ("autoregressive", "spec_block")
    return SimpleNamespace(block_size=8, drafter=drafter, conditioning="path" if by_path else "marginal")


@pytest.mark.parametrize("drafter", ["causal_parallel", "diffusion", "autoregressive", "spec_block"])
def test_the_drafter_is_the_heads_own(drafter, monkeypatch):
    config = resolve_config(view(), kind(drafter))
    assert config.drafter == drafter
    assert config.acceptance == ("match" if config.conditioning == "path" else "rejection")
    monkeypatch.setenv(FLAGS_ENV, json.dumps({"drafter": drafter}))
    assert resolve_config(view(), kind(drafter)).drafter == drafter


@pytest.mark.parametrize(
    ("asked", "head", "said"),
    [
        ("causal_parallel", "diffusion", "but this head is a bidirectional block head"),
        ("diffusion", "causal_parallel", "but this head is a causal block head"),
        ("autoregressive", "causal_parallel", "but this head is a causal block head"),
        ("diffusion", "autoregressive", "but this head is an EAGLE-3 head"),
        ("causal_parallel", "spec_block", "but this head is a spec-block head"),
        (
            "spec_block",
            "causal_parallel",
            "drafts with a spec-block head .*, but this head is a causal block",
        ),
        ("spec_block", "autoregressive", "but this head is an EAGLE-3 head"),
    ],
)
def test_a_drafter_that_contradicts_the_head_is_refused(asked, head, said, monkeypatch):
    monkeypatch.setenv(FLAGS_ENV, json.dumps({"drafter": asked}))
    with pytest.raises(ConfigError, match=said) as refused:
        resolve_config(view(), kind(head))
    assert f"drafter {asked} (--jetspec-drafter)" in str(refused.value)
    assert str(refused.value).endswith(f"give {head}.")


@pytest.mark.parametrize("drafter", ["autoregressive", "spec_block"])
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"expansion": "eager"}, "expansion 'eager' .* is not for the drafter {}; give optimal."),
        ({"acceptance": "traversal"}, "acceptance 'traversal' .* drafter {}; give match."),
    ],
    ids=str,
)
def test_what_a_path_drafter_does_not_do_is_refused(drafter, setting, said, monkeypatch):
    monkeypatch.setenv(FLAGS_ENV, json.dumps(setting))
    assert resolve_config(view(), kind("diffusion"))
    with pytest.raises(ConfigError, match=said.format(drafter)):
        resolve_config(view(), kind(drafter))


def test_a_corrected_head_is_refused_what_a_path_drafter_does_not_do(monkeypatch):
    head = SimpleNamespace(block_size=8, drafter="causal_parallel", conditioning="path")
    config = resolve_config(view(), head)
    assert (config.conditioning, config.acceptance, config.expansion) == ("path", "match", "optimal")
    monkeypatch.setenv(FLAGS_ENV, json.dumps({"acceptance": "rejection"}))
    said = "for the drafter causal_parallel with a path corrector; give match."
    with pytest.raises(ConfigError, match=said):
        resolve_config(view(), head)
    monkeypatch.setenv(FLAGS_ENV, json.dumps({"acceptance": "rejection", "drafter": "x"}))
    monkeypatch.setattr(
        "jetspec_sglang.config.known_names", lambda name: ["x", "rejection", "optimal", "fixed"]
    )
    assert resolve_config(view(), head).conditioning == "marginal"


def test_without_a_head_trees_are_as_deep_as_the_budget():
    config = resolve_config(view(speculative_num_draft_tokens=24), NoHead("suffix"))
    assert (config.drafter, config.depth, config.acceptance) == ("suffix", 23, "match")
    assert config.suffix_cache == DEFAULT_SUFFIX_CACHE
    assert resolve_config(view(speculative_num_draft_tokens=1), NoHead("suffix")).depth == 1
    with pytest.raises(ConfigError, match="give 1 to 23"):
        resolve_config(view(speculative_num_draft_tokens=24, speculative_num_steps=24), NoHead("suffix"))


def test_grafted_trees_may_be_deeper_than_the_head_drafts(monkeypatch):
    monkeypatch.setenv(FLAGS_ENV, '{"graft": "suffix", "suffix_cache": "1000"}')
    config = resolve_config(view(speculative_num_draft_tokens=24), kind("diffusion"))
    assert (config.depth, config.head_depth, config.acceptance) == (23, 7, "match")
    assert config.suffix_cache == 1000
    shallow = resolve_config(view(speculative_num_steps=3), kind("diffusion"))
    assert (shallow.depth, shallow.head_depth) == (3, 3)
    few = resolve_config(view(speculative_num_draft_tokens=4), kind("diffusion"))
    assert (few.depth, few.head_depth) == (7, 7)


def test_resolving_what_was_settled_with_a_graft_changes_nothing(monkeypatch):
    monkeypatch.setenv(FLAGS_ENV, '{"graft": "suffix"}')
    first = resolve_config(view(), kind("causal_parallel"))
    settled = view(
        speculative_num_draft_tokens=first.budget,
        speculative_num_steps=first.depth,
        speculative_eagle_topk=first.width,
    )
    assert resolve_config(settled, kind("causal_parallel")) == first


@pytest.mark.parametrize(
    ("flags", "head", "said"),
    [
        ({"graft": "suffix", "acceptance": "rejection"}, "diffusion", "acceptance .* give match."),
        (
            {"graft": "suffix", "scoring": "entropy"},
            "diffusion",
            "scoring .* --jetspec-graft suffix; give accum",
        ),
        ({"graft": "suffix", "expansion": "eager"}, "diffusion", "expansion .* give optimal."),
        ({"graft": "trie"}, "diffusion", "is unknown; give one of none, suffix."),
        ({"graft": "suffix"}, "suffix", "needs a head to graft onto; leave it out or give a head."),
        ({"acceptance": "traversal"}, "suffix", "is not for the drafter suffix; give match."),
        (
            {"suffix_cache": "1000"},
            "diffusion",
            "no effect without retrieval; leave it out or add --jetspec-graft",
        ),
        ({"graft": "suffix", "suffix_cache": "-1"}, "diffusion", "give a whole number from 0 to"),
        ({"graft": "suffix", "suffix_cache": "9999999999"}, "diffusion", "and 0 is none"),
    ],
    ids=str,
)
def test_what_retrieval_does_not_do_is_refused(flags, head, said, monkeypatch):
    monkeypatch.setenv(FLAGS_ENV, json.dumps(flags))
    with pytest.raises(ConfigError, match=said):
        resolve_config(view(), NoHead("suffix") if head == "suffix" else kind(head))


def test_who_names_the_drafter(monkeypatch, head_folder):
    assert asked_drafter(view()) is None
    monkeypatch.setenv(CONFIG_ENV, '{"drafter": "suffix"}')
    assert asked_drafter(view()) == "suffix"
    assert asked_drafter(view(speculative_draft_model_path=head_folder(drafter="diffusion"))) == "diffusion"
    monkeypatch.setenv(FLAGS_ENV, '{"drafter": "causal_parallel"}')
    assert asked_drafter(view()) == "causal_parallel"
