"""Server arguments of a JETSPEC server: what is refused, what is filled in. Runs once, in the launching process."""

import logging

from .config import resolve_config
from .refusals import refuse_unsupported
from .served_head import head_of
from .server_defaults import engine_defaults, tree_defaults

logger = logging.getLogger(__name__)


def resolve_server_args(server_args) -> None:
    """Check `server_args` and write what follows from them back into it.

    Raises ValueError (its subclasses name the setting) for anything JETSPEC doesn't do.
    """
    for name, value in engine_defaults(server_args).items():
        setattr(server_args, name, value)
    refuse_unsupported(server_args)
    config = resolve_config(server_args, head_of(server_args.speculative_draft_model_path))
    for name, value in tree_defaults(server_args, config).items():
        setattr(server_args, name, value)
    logger.info("JETSPEC: %s; rounds run eagerly (no graph capture yet)", config)
