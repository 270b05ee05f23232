"""A tokenizer for the tiny target: a token a character, and a chat template."""

from pathlib import Path

import tiny_data
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

START, END = "<start>", "<end>"
TEMPLATE = (
    "{% for m in messages %}" + START + "{{ m['role'][0] }}:{{ m['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + START + "a:{% endif %}"
)


def write_chat_target(folder: Path) -> Path:
    """The tiny target with a tokenizer beside it."""
    tiny_data.write_target(folder)
    letters = [chr(code) for code in range(32, 127)][: tiny_data.VOCAB - 4]
    vocabulary = ["<unknown>", START, END, "<mask>", *letters]
    model = models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<unknown>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, extra_special_tokens=[START, "<mask>"]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder
