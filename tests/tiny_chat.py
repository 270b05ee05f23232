"""A tokenizer for tiny targets: a token a character, and a chat template."""

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

START, END = "<start>", "<end>"
TEMPLATE = (
    "{% for m in messages %}" + START + "{{ m['role'][0] }}:{{ m['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + START + "a:{% endif %}"
)


def write_tokenizer(folder: Path, vocab_size: int) -> Path:
    """Write a tokenizer of so many tokens beside a model whose end-of-text token is 2."""
    letters = [chr(code) for code in range(32, 127)]
    more = [f"<{i}>" for i in range(vocab_size)]
    vocabulary = ["<unknown>", START, END, "<mask>", *letters, *more][:vocab_size]
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
