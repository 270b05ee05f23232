"""Entry point `sglang.srt.plugins`: SGLang calls `register` in each of its processes, before arguments are parsed.

SGLang logs and swallows what a plugin raises. So an error is kept here and raised again where it can't be
overlooked: when JETSPEC is selected.
"""

from . import algorithm

_failure: Exception | None = None
_registered = False


def register() -> None:
    """Register JETSPEC, its flags and its hooks; a second call does nothing."""
    global _failure, _registered
    if _registered:
        return
    _registered = True
    try:
        _add_algorithm()  # first, or there would be nothing to raise the error when JETSPEC is selected
        from . import cpu, flags, head_place, hooks, upstream
        from .refusals import request

        upstream.require_version()
        cpu.install_hooks()
        hooks.install()
        request.install()
        head_place.install()
        flags.install()
    except Exception as error:
        _failure = error


def failure() -> Exception | None:
    """What went wrong in `register`, if anything did."""
    return _failure


def _add_algorithm() -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    def require_hooks() -> None:
        if _failure is not None:
            raise RuntimeError(f"JETSPEC can't run in this SGLang: {_failure}") from _failure

    def validate(server_args) -> None:
        from . import upstream

        require_hooks()
        upstream.require()

    @SpeculativeAlgorithm.register(
        algorithm.NAME,
        supports_overlap=True,
        validate_server_args=validate,
        spec_class=algorithm.JetSpecAlgo,
    )
    def worker_class(server_args):
        require_hooks()  # again: this is another process than the one that parsed the arguments
        from .worker import JetSpecWorker

        return JetSpecWorker
