"""The tokens of conversations as transformers' apply_chat_template gives them, with a small tokenizer of the `tokenizers` library.

    python3 chat_prompts.py                   (needs transformers, tokenizers) writes ../data/chat_prompts.json
    python3 chat_prompts.py --check FOLDER    loads a folder that `mezzo export` wrote and prints its prompt and what ends an answer
"""
import json
import pathlib
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<|begin|>", "<|head|>", "<|/head|>", "<|over|>"]
TEMPLATES = {  # the three shapes that published templates have, in words of our own
    "turns": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "brackets": "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
                "{% elif m['role'] == 'assistant' %} {{ m['content'] | trim }}{{ eos_token }}{% else %}[INST] {{ m['content'] }}\n[/INST]"
                "{% endif %}{% endfor %}",
    "heads": "{{ '<|begin|>' }}{%- for m in messages %}\n    {{- '<|head|>' + m.role + '<|/head|>\n\n' + m.content | trim + '<|over|>' }}\n"
             "{%- endfor %}{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\n\n' }}{%- endif %}",
}
# Llama 3's pattern, by which line ends before an answer are words of their own: GPT-2's joins two of them where nothing follows, and
# Mezzo tokenizes an answer apart from what is before it, as it is drawn.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CONVERSATIONS = [
    [("user", "Hello, who are you?")],
    [("system", "You answer in one word."), ("user", "What is the capital of France?"), ("assistant", "Paris."), ("user", "And of Peru?")],
    [("user", "Zähle: 1, 2, 3"), ("assistant", "4, 5, 6"), ("user", "日本語 \U0001f600 it's\n\n  two lines"), ("assistant", "Ok.\n\n- a\n- b")],
    [("user", "")],
]


def tokenizer():
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    inner.decoder = decoders.ByteLevel()
    words = [text for conversation in CONVERSATIONS for role, content in conversation for text in (role, content)]
    inner.train_from_iterator(words * 3, trainers.BpeTrainer(vocab_size=360, special_tokens=SPECIAL, show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return inner


def make():
    inner, cases = tokenizer(), []
    for name, template in TEMPLATES.items():
        outer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", chat_template=template)
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            for prompt in (False, True):
                ids = outer.apply_chat_template(messages, tokenize=True, add_generation_prompt=prompt, return_dict=False)
                cases.append({"template": name, "messages": messages, "prompt": prompt, "tokens": ids})
    data = {"tokenizer": json.loads(inner.to_str()), "templates": TEMPLATES, "bos_token": "<s>", "eos_token": "</s>", "cases": cases}
    path = pathlib.Path(__file__).parent.parent / "data" / "chat_prompts.json"
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{path.name}: {len(cases)} conversations, {sum(len(c['tokens']) for c in cases)} tokens")


def check(folder):
    outer, settings = AutoTokenizer.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
    messages = [{"role": "user", "content": "Hi"}]
    print(repr(outer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)))
    print("ends:", settings.eos_token_id)


check(sys.argv[2]) if len(sys.argv) == 3 and sys.argv[1] == "--check" else make()
