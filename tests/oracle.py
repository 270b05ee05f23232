"""The method in one screen of plain torch: what a server must emit, and in how many rounds."""

import torch
from transformers import AutoModelForCausalLM

from jetspec_sglang.drafters.causal_head import CausalParallelHead, block_mask
from jetspec_sglang.drafters.checkpoint import load_head_tensors, read_head_config
from jetspec_sglang.tree import DraftProposal, build_tree, follow, positions
from jetspec_sglang.tree.layout import ancestor_mask


class Oracle:
    """Greedy JETSPEC decoding of one request in fp32, without a KV cache: each round recomputes everything."""

    def __init__(self, target: str, head: str) -> None:
        self.target = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self.config = read_head_config(head)
        self.head = CausalParallelHead(self.config).eval()
        self.head.load_state_dict({k: v.float() for k, v in load_head_tensors(head).items()})

    @torch.inference_mode()
    def decode(
        self, prompt: list[int], new_tokens: int, budget: int, width: int
    ) -> tuple[list[int], list[int]]:
        """→ (generated tokens, tokens committed by each round); the first token comes from the prefill."""
        text = [*prompt, int(self._target(torch.tensor([prompt]), None, None)[0][0, -1].argmax())]
        rounds = []
        while len(text) - len(prompt) < new_tokens:
            tree = build_tree(self._propose(text, width), torch.tensor(text[-1:]), budget)
            logits = self._verify(text[:-1], tree)
            accepted = follow(tree, logits.argmax(-1), self.config.block_size - 1)
            rounds.append(int(accepted.lengths[0]))
            text += accepted.tokens[0, : rounds[-1]].tolist()
        return text[len(prompt) :][:new_tokens], rounds

    def _target(self, ids, mask, pos):
        out = self.target(ids, attention_mask=mask, position_ids=pos, output_hidden_states=True)
        taps = torch.cat([out.hidden_states[i + 1] for i in self.config.target_layer_ids], -1)
        return out.logits, taps

    def _propose(self, text: list[int], width: int) -> DraftProposal:
        """The head over the features of all but the anchor, then its block."""
        _, taps = self._target(torch.tensor([text[:-1]]), None, None)
        context = self.head.context_kv(taps, torch.arange(len(text) - 1)[None])
        block = torch.tensor([[text[-1]] + [self.config.mask_token_id] * (self.config.block_size - 1)])
        slots = torch.arange(len(text) - 1, len(text) - 1 + self.config.block_size)[None]
        mask = block_mask(len(text) - 1, self.config.block_size, causal=True)
        hidden = self.head.block_hidden(self.target.get_input_embeddings()(block), slots, context, mask)
        logprobs = self.target.lm_head(hidden[:, 1:]).log_softmax(-1)
        values, tokens = logprobs.topk(width, dim=-1)
        return DraftProposal(tokens, values)

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
