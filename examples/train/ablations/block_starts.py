"""Where the blocks of a spec-block head start: its replayed τ with blocks from any position, and from last ones only.

    python examples/train/ablations/block_starts.py HEAD FEATURES TOKENS

HEAD: a folder or builtin:NAME, made for the built-in target; FEATURES: the folder `features` of a `jetspec train` run
whose stage `data` is done, with held-out texts; TOKENS: how many of their response tokens to replay. Both ways run as
many forwards of as many blocks. A third row has blocks from any position with the rank head set to zero.
"""

import json
import random
import sys
from pathlib import Path

import torch

from jetspec_sglang.builtin.head import named_builtin
from jetspec_sglang.builtin.target import builtin_target
from jetspec_sglang.drafters.checkpoint import load_head_tensors, read_head_config
from jetspec_sglang.drafters.head_config import FRONTIER
from jetspec_sglang.drafters.spec_block_expander import Blocks, SpecBlockExpander
from jetspec_sglang.drafters.spec_block_growth import SpecBlockGrowth
from jetspec_sglang.drafters.training.evaluate import (
    BUDGETS,
    GROUP,
    WIDTH,
    Replay,
    accepted_in_tree,
    truth_table,
)
from jetspec_sglang.drafters.training.expander import spec_blocks
from jetspec_sglang.drafters.training.shards import Folder
from jetspec_sglang.drafters.training.student import make_head
from jetspec_sglang.drafters.training.target import load_model
from jetspec_sglang.tree import TokenTree, build_tree_by_path

ANY, LAST, UNRANKED = "any position", "last positions", "any position, rank head zero"


def tree(way: str, blocks: Blocks, roots: torch.Tensor, depth: int) -> TokenTree:
    budget = max(BUDGETS)
    if way == LAST:
        expander, frontier = SpecBlockExpander(blocks), FRONTIER
    else:
        expander, frontier = SpecBlockGrowth(blocks, depth, budget), None
    return build_tree_by_path(expander, roots, budget, width=WIDTH, depth=depth, frontier=frontier)


@torch.no_grad()
def main(place: str, features: str, tokens: int) -> None:
    folder = named_builtin(place) or Path(place)
    head = make_head(read_head_config(folder))
    head.load_state_dict({name: each.float() for name, each in load_head_tensors(folder).items()})
    model = load_model(builtin_target(), torch.float32)
    embedding = model.get_input_embeddings().weight
    lm_head = model.get_output_embeddings().weight.bfloat16()
    ranks, depth = head.rank_head.weight.clone(), head.config.block_size - 1
    shards = Folder(Path(features))
    refs = shards.refs(shards.names("heldout"))
    replays = {(way, budget): Replay(depth) for way in (ANY, LAST, UNRANKED) for budget in BUDGETS}
    replayed = 0
    for ref in random.Random(0).sample(refs, len(refs)):
        if replayed >= tokens:
            break
        text = ref.shard.read(ref.index)
        counts: dict[tuple[str, int], list[int]] = {case: [] for case in replays}
        for anchors in torch.tensor(list(text.anchors())).split(GROUP):
            truth = truth_table(text, anchors, depth)
            for way in (ANY, LAST, UNRANKED):
                head.rank_head.weight.copy_(torch.zeros_like(ranks) if way == UNRANKED else ranks)
                with torch.autocast("cpu", torch.bfloat16):
                    blocks = spec_blocks(head, embedding, lm_head, text.taps, anchors, WIDTH)
                    grown = tree(way, blocks, text.tokens[anchors], depth)
                for budget in BUDGETS:
                    counts[way, budget] += accepted_in_tree(grown.prefix(budget), truth).tolist()
        for case, each in counts.items():
            replays[case].add(each)
        replayed += len(text.anchors())
    for (way, budget), replay in replays.items():
        row = {"head": place, "blocks": way, "nodes": budget, "tokens": replayed}
        print(json.dumps(row | {"rounds": replay.rounds, "tau": round(replay.tau, 4)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
