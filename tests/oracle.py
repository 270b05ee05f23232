"""The method in one screen of plain torch: what a server must emit, and in how many rounds."""

import torch
from transformers import AutoModelForCausalLM

from jetspec_sglang.drafters.autoregressive_head import AutoregressiveHead
from jetspec_sglang.drafters.causal_head import CausalParallelHead, block_mask
from jetspec_sglang.drafters.checkpoint import load_head_tensors, read_head_config
from jetspec_sglang.drafters.head_config import FRONTIER
from jetspec_sglang.drafters.spec_block_expander import Blocks
from jetspec_sglang.drafters.spec_block_growth import SpecBlockGrowth
from jetspec_sglang.drafters.spec_block_head import SpecBlockHead
from jetspec_sglang.tree import (
    DraftProposal,
    TokenTree,
    build_tree,
    build_tree_by_path,
    follow,
    positions,
)
from jetspec_sglang.tree.layout import ancestor_mask


class Oracle:
    """Greedy JETSPEC decoding of one request in fp32, without a KV cache: each round recomputes everything."""

    def __init__(self, target: str, head: str) -> None:
        self.target = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self.embed = self.target.get_input_embeddings()
        self.config = read_head_config(head)
        self.taps = self.config.taps(self.target.config.num_hidden_layers)
        kind, self._draft = {
            "autoregressive": (AutoregressiveHead, self._grow),
            "spec_block": (SpecBlockHead, self._grow_blocks),
        }.get(self.config.drafter, (CausalParallelHead, self._build))
        self.head = kind(self.config).eval()
        self.head.load_state_dict(load_head_tensors(head))

    @torch.inference_mode()
    def decode(
        self, prompt: list[int], new_tokens: int, budget: int, width: int, depth: int | None = None
    ) -> tuple[list[int], list[int], list[TokenTree]]:
        """→ (generated tokens, tokens committed by each round, its tree); the first token is the prefill's."""
        depth = depth or self.config.block_size - 1
        text = [*prompt, int(self._target(torch.tensor([prompt]), None, None)[0][0, -1].argmax())]
        rounds: list[int] = []
        trees: list[TokenTree] = []
        while len(text) - len(prompt) < new_tokens:
            tree = self._draft(text, budget, width, depth)
            logits = self._verify(text[:-1], tree)
            accepted = follow(tree, logits.argmax(-1), depth)
            rounds.append(int(accepted.lengths[0]))
            trees.append(tree)
            text += accepted.tokens[0, : rounds[-1]].tolist()
        return text[len(prompt) :][:new_tokens], rounds, trees

    @torch.inference_mode()
    def plain(self, prompt: list[int], new_tokens: int) -> list[int]:
        """Greedy decoding without a drafter."""
        text = list(prompt)
        for _ in range(new_tokens):
            text.append(int(self._target(torch.tensor([text]), None, None)[0][0, -1].argmax()))
        return text[len(prompt) :]

    def _target(self, ids, mask, pos):
        out = self.target(ids, attention_mask=mask, position_ids=pos, output_hidden_states=True)
        taps = torch.cat([out.hidden_states[i + 1] for i in self.taps], -1)
        return out.logits, taps

    def _build(self, text: list[int], budget: int, width: int, depth: int) -> TokenTree:
        """One pass of the head over the features of all but the anchor, then its block."""
        length, config = self.config.block_size, self.config
        _, taps = self._target(torch.tensor([text[:-1]]), None, None)
        context = self.head.context_kv(taps, torch.arange(len(text) - 1)[None])
        block = torch.tensor([[text[-1]] + [config.mask_token_id] * (length - 1)])
        slots = torch.arange(len(text) - 1, len(text) - 1 + length)[None]
        mask = block_mask(len(text) - 1, length, causal=config.causal)
        residual = self.head.drafting(self.head.block_residual(self.embed(block), slots, context, mask))
        logits, anchor = self.target.lm_head(self.head.norm(residual)), torch.tensor(text[-1:])
        if config.corrector is not None:
            expand = self._corrected(residual[0], logits[0], width)
            return build_tree_by_path(expand, anchor, budget, width=width, depth=depth)
        values, tokens = logits.log_softmax(-1).topk(width, dim=-1)
        return build_tree(DraftProposal(tokens, values), anchor, budget, depth=depth)

    def _corrected(self, residual: torch.Tensor, logits: torch.Tensor, width: int):
        """An expander over the block's outputs [D, H] and logits [D, V]: each node's path is read from the anchor on,
        and its row is a softmax over the whole vocabulary, of which the block's own likeliest are drafted."""
        corrector, level = self.head.path_corrector, [[]]
        hidden = self.head.norm(residual)

        def expand(tokens: torch.Tensor, parents: torch.Tensor, at: int) -> DraftProposal:
            nonlocal level
            above = [level[i] for i in parents[0].tolist()]
            level = [[*path, token] for path, token in zip(above, tokens[0].tolist(), strict=True)]
            rows = []
            for path in level:
                row = logits[at].clone()
                likeliest = row.topk(max(corrector.config.candidates, width)).indices
                if corrector.config.kind == "treeflash":
                    known = likeliest[: corrector.config.candidates]
                    row[known] = self._treeflash(residual[at], path[-1])[known]
                elif at >= corrector.config.skip:
                    state = None
                    for token in path:
                        state = corrector.advance(torch.tensor(token), state, self.embed)
                    query = corrector.queries(corrector.of_slots(hidden[at]), state)
                    known = likeliest[: corrector.config.candidates]
                    row[known] += corrector.candidates(known, self.embed) @ query
                values, order = row.log_softmax(-1)[likeliest].topk(width)
                rows.append((likeliest[order], values))
            drafted, values = (torch.stack(column)[None] for column in zip(*rows, strict=True))
            return DraftProposal(drafted, values)

        return expand

    def _treeflash(self, residual: torch.Tensor, parent: int) -> torch.Tensor:
        """Logits [V] of the output [H] moved by its parent."""
        corrector = self.head.path_corrector
        read = torch.cat([corrector.norm(self.embed(torch.tensor(parent))), self.head.norm(residual)])
        up, gate = (corrector.ug.weight @ read + corrector.ug.bias).chunk(2)
        moved = residual + corrector.d.weight @ (torch.nn.functional.silu(gate) * up)
        return self.target.lm_head(self.head.norm(moved))

    def _grow(self, text: list[int], budget: int, width: int, depth: int) -> TokenTree:
        """One pass of the head a depth. A node is a row behind the context's and those of its ancestors."""
        ids, length = torch.tensor([text]), len(text) - 1
        features = self.head.fuse(self._target(ids[:, :-1], None, None)[1])
        rows = torch.arange(length - 1)[None]
        context = self.head.context_kv(features[:, :-1], self.embed(ids[:, 1:-1]), rows)
        level: list[tuple[list[int], torch.Tensor]] = []  # of each node: path of tokens, outputs along it

        def expand(tokens: torch.Tensor, parents: torch.Tensor, at: int) -> DraftProposal:
            nonlocal level
            above = [([], features[:, -1])] if at == 0 else [level[i] for i in parents[0].tolist()]
            level = []
            for token, (path, inputs) in zip(tokens[0].tolist(), above, strict=True):
                path = [*path, token]
                # The whole path again, as a chain: the inputs of its rows are known.
                mask = block_mask(length - 1, len(path), causal=True)[None]
                where = length - 1 + torch.arange(len(path))[None]
                chain = inputs.view(1, len(path), -1)
                outputs, _ = self.head(chain, self.embed(torch.tensor([path])), where, context, mask)
                level.append((path, torch.cat((chain, outputs[:, -1:]), 1)))
            last = torch.cat([outputs[:, -1] for _, outputs in level])
            values, drafted = self.head.logits(last, self.target.lm_head.weight).log_softmax(-1).topk(width)
            return DraftProposal(self.head.token_ids(drafted)[None], values[None])

        anchor = torch.tensor(text[-1:])
        return build_tree_by_path(expand, anchor, budget, width=width, depth=depth, frontier=FRONTIER)

    def _grow_blocks(self, text: list[int], budget: int, width: int, depth: int) -> TokenTree:
        """Blocks one by one, each alone behind the committed context."""
        length = len(text) - 1
        _, taps = self._target(torch.tensor([text[:-1]]), None, None)
        context = self.head.context_kv(taps, torch.arange(length)[None])
        seen, mask = torch.ones(1, 1, length, dtype=torch.bool), self.embed.weight[self.config.mask_token_id]

        def forward(tokens: torch.Tensor, depths: torch.Tensor, inherited: torch.Tensor) -> torch.Tensor:
            nodes = zip(*(each.split(1, dim=1) for each in (tokens, depths, inherited)), strict=True)
            blocks = [
                self.head(self.embed(token), mask, length + at, context, seen, state)
                for token, at, state in nodes
            ]
            return torch.cat(blocks, dim=1)

        def rows(outputs: torch.Tensor, kept: int, _: bool) -> tuple[DraftProposal, torch.Tensor]:
            normed = self.head.norm(outputs)
            values, drafted = self.target.lm_head(normed).log_softmax(-1).topk(kept)
            return DraftProposal(drafted, values), self.head.rank_head(normed)

        growth = SpecBlockGrowth(Blocks(self.config, forward, rows, width), depth, budget)
        return build_tree_by_path(growth, torch.tensor(text[-1:]), budget, width=width, depth=depth)

    def _verify(self, prefix: list[int], tree) -> torch.Tensor:
        """Logits [1, N, V] of the tree's nodes: prefix and tree in one forward, under an explicit mask."""
        nodes, length = tree.budget, len(prefix)
        mask = torch.zeros(length + nodes, length + nodes, dtype=torch.bool)
        mask[:length, :length] = torch.ones(length, length, dtype=torch.bool).tril()
        mask[length:, :length] = True
        mask[length:, length:] = ancestor_mask(tree)[0]
        pos = torch.cat([torch.arange(length), positions(tree, torch.tensor([length]))[0]])[None]
        ids = torch.cat([torch.tensor(prefix), tree.tokens[0].clamp(min=0)])[None]
        bias = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        return self._target(ids, bias[None, None], pos)[0][:, length:]
