"""What tests ask of a served model."""


def greedy(server, ids: list[int], new_tokens: int, **jetspec) -> dict:
    params = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    if jetspec:
        params["custom_params"] = {"jetspec": jetspec}
    return server.generate(input_ids=ids, sampling_params=params)


def settled(server) -> bool:
    """It still answers after having been idle, which is when SGLang looks for leaks."""
    return server.alive() and len(greedy(server, [7, 8, 9], 2)["output_ids"]) == 2
