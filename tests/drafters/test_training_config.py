"""Settings: files, overrides on the command line, refusals, and the shipped recipes."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from jetspec_sglang.drafters.training.config import TrainConfig, load_config
from jetspec_sglang.drafters.training.errors import TrainError

RECIPES = Path(__file__).parents[2] / "examples" / "train"

YAML = """
target: builtin
work: ~/somewhere
head: {layers: 2, mask_token_id: 3}
fit: {steps: 10}
"""


@pytest.fixture
def recipe(tmp_path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(YAML)
    return path


def test_folders_are_in_the_work_folder_unless_named(recipe):
    config = load_config(recipe, ["features.folder=/data"])
    assert config.work == Path.home() / "somewhere"
    assert config.tokens_folder == config.work / "tokens"
    assert config.features_folder == Path("/data")
    assert config.head_folder == config.work / "head"


def test_values_of_the_command_line_win_and_have_types(recipe):
    changes = ["fit.learning_rate=1e-3", "fit.steps=null", "fit.minutes=2", "head.drafter=diffusion"]
    changes += ["features.target_layer_ids=[1, 5]", "target=some/model", "data.prompts=mine.jsonl"]
    config = load_config(recipe, changes)
    assert (config.fit.learning_rate, config.fit.steps, config.fit.minutes) == (1e-3, None, 2)
    assert config.head.drafter == "diffusion"
    assert config.features.target_layer_ids == (1, 5)
    assert (config.target, config.data.prompts) == ("some/model", "mine.jsonl")


def test_toml_is_read_too(tmp_path, recipe):
    path = tmp_path / "recipe.toml"
    path.write_text(
        'target = "builtin"\nwork = "~/somewhere"\n[head]\nlayers = 2\nmask_token_id = 3\n[fit]\nsteps = 10\n'
    )
    assert load_config(path) == load_config(recipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("fit.learnig_rate=1", "learnig_rate"),
        ("fit.steps=null", "exactly one of `minutes` and `steps`"),
        ("fit.minutes=1", "exactly one of `minutes` and `steps`"),
        ("head.mask_token_id=null", "drafts from masks: set `mask_token_id`"),
        ("head.drafter=autoregressive", "set `layers: 1`, drop `mask_token_id`"),
        ("fit.gamma=-1", "fit.gamma"),
        ("data.generator=vllm", "data.generator"),
    ],
)
def test_bad_values_are_refused(recipe, change, message):
    with pytest.raises(ValidationError, match=message):
        load_config(recipe, [change])


def test_a_temperature_belongs_to_a_divergence(recipe):
    with pytest.raises(ValidationError, match="belong to a KL"):
        load_config(recipe, ["fit.objective=cross_entropy", "fit.temperature=2"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("fit.steps", "write it as section.key=value"),
        ("=3", "write it as section.key=value"),
        ("target.name=x", "target is a value, not a section"),
    ],
)
def test_changes_that_are_none_are_refused(recipe, change, message):
    with pytest.raises(TrainError, match=message):
        load_config(recipe, [change])


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(TrainError, match="can't be read"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(TrainError, match="mapping of keys"):
        load_config(tmp_path / "list.yaml")


@pytest.mark.parametrize("name", sorted(path.name for path in RECIPES.glob("*.yaml")))
def test_shipped_recipes_are_valid(name):
    config = load_config(RECIPES / name)
    assert config.target == "builtin"
    assert config.head.block_size == 8
    assert config.features.target_layer_ids == (1, 8, 14, 20, 27)


def test_the_shipped_corrector_is_for_the_first_recipes_head():
    head, corrector = (load_config(RECIPES / name) for name in ("smollm2.yaml", "smollm2-corrector.yaml"))
    assert Path(corrector.fit.start).expanduser() == head.head_folder
    assert corrector.head.model_copy(update={"corrector": None}) == head.head
    for name in ("data", "seed", "features_folder"):
        assert getattr(corrector, name) == getattr(head, name)


def test_the_shipped_recipes_differ_in_the_drafter_alone():
    """Same data, same fit, so that their heads can be compared."""
    one, *others = (each for each in map(load_config, RECIPES.glob("*.yaml")) if each.fit.start is None)

    def shared(config: TrainConfig) -> dict:
        return config.model_dump(include={"target", "seed", "data"}) | {
            "fit": config.fit,
            "folder": config.features_folder,
        }

    assert all(shared(other) == shared(one) for other in others)
    assert {config.head.drafter for config in (one, *others)} == {
        "causal_parallel",
        "diffusion",
        "autoregressive",
    }
