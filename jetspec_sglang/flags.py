"""The ``--jetspec-*`` flags of ``python -m sglang.launch_server`` and ``sglang serve``.

SGLang's parser keeps only its own fields, so our flags are taken out of argv before it sees them and travel
to the scheduler processes in an environment variable, which children inherit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from .config import FLAGS_ENV, JETSPEC_FLAGS, ConfigError

TARGET = "sglang.srt.server_args.prepare_server_args"
ALGORITHM = "JETSPEC"
PREFIX = "--jetspec-"

HELP = {
    "drafter": "Kind of draft head (default: what the head's config says), or suffix: no head at all.",
    "scoring": "Policy that ranks the nodes of the tree, like hybrid:alpha=0.5 (default: accum_logp).",
    "expansion": "How the tree grows: optimal (the best tree of each size; default) or eager (the paper's).",
    "acceptance": "Rule at temperature > 0: rejection (default) or traversal, which sample the tree, or match.",
    "budget_policy": "fixed (default); adaptive or bandit: as many nodes as pay at the load, by a model or by trying.",
    "graft": "suffix: graft what followed in earlier text onto the head's trees (default: none).",
    "suffix_cache": "Tokens of finished answers that suffix may draft from; 0: none (default: 524288).",
}
FLAGS = {flag: (setting, HELP[setting]) for setting, flag in JETSPEC_FLAGS.items()}  # flag -> (setting, help)


def take_jetspec_flags(argv: list[str]) -> list[str]:
    """Return ``argv`` without our flags, and leave their values in the environment for ``resolve_config``.

    Both ``--flag value`` and ``--flag=value`` are understood; the last of a repeated flag counts, as it does
    for SGLang's own. A call without any clears what an earlier call in this process left.

    Raises:
        ConfigError: an unknown ``--jetspec-`` flag, or one without a value.
    """
    rest: list[str] = []
    settings: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith(PREFIX):
            rest.append(word)
            continue
        flag, equals, value = word.partition("=")
        if flag not in FLAGS:
            raise ConfigError(f"{flag} is not a flag of JETSPEC; use one of {', '.join(FLAGS)}.")
        if not equals:
            value = next(words, "")
        if not value or value.startswith("--"):
            raise ConfigError(f"{flag} needs a value; write {flag}=NAME.")
        settings[FLAGS[flag][0]] = value
    if settings:
        os.environ[FLAGS_ENV] = json.dumps(settings)
    else:
        os.environ.pop(FLAGS_ENV, None)
    return rest


def help_text() -> str:
    """The lines added to ``--help``."""
    width = max(map(len, FLAGS)) + len(" NAME") + 2
    lines = [f"  {(flag + ' NAME').ljust(width)}{text}" for flag, (_, text) in FLAGS.items()]
    return "\n".join(["", f"with --speculative-algorithm {ALGORITHM}:", *lines])


def parse_with_jetspec_flags(prepare: Callable[..., Any], argv: list[str], *args: Any, **kwargs: Any) -> Any:
    """AROUND hook of ``prepare_server_args``. A wrong flag ends like argparse: one line, status 2."""
    try:
        rest = take_jetspec_flags(list(argv))
    except ConfigError as error:
        _exit(error)
    try:
        server_args = prepare(rest, *args, **kwargs)
    except SystemExit as stop:
        if stop.code in (0, None) and {"-h", "--help"} & set(rest):
            print(help_text())
        raise
    if (server_args.speculative_algorithm or "").upper() == ALGORITHM:
        _settle(server_args)
    elif FLAGS_ENV in os.environ:
        _exit(f"{PREFIX}* flags have no effect; add --speculative-algorithm {ALGORITHM} or leave them out.")
    return server_args


def _settle(server_args: Any) -> None:
    """Resolve the arguments now, as SGLang does right after. What we refuse then ends in our sentence alone;
    raised from within SGLang it would come behind a traceback."""
    from jetspec_sglang.drafters.head_tensors import HeadError

    from .refusals import UnsupportedError
    from .upstream import UpstreamError

    try:
        server_args.resolve_once()
    except (ConfigError, HeadError, UnsupportedError, UpstreamError) as error:
        _exit(error)


def install() -> None:
    """Register the hook; SGLang applies it when every plugin has run.

    It reaches every module that imported the function by name, ``__main__`` of ``sglang.launch_server``
    included.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, parse_with_jetspec_flags, HookType.AROUND)


def _exit(problem: object) -> None:
    print(f"jetspec: error: {problem}", file=sys.stderr)
    raise SystemExit(2)
