"""Trains a small byte-level BPE with Python's `tokenizers` and writes it with the ids of some texts, which
`crates/data` must reproduce.

    pip install tokenizers
    python tests/reference/make_tokenizer.py            # writes tests/reference/tokenizer/
    python tests/reference/make_tokenizer.py --check    # compares instead
"""

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_name("tokenizer")
VOCABULARY = 500

TEXTS = [
    "",
    "Hello, world!",
    "fn main() {\n    println!(\"{}\", 1 + 2);\n}\n",
    "it's we'll they're I'd've 'tis IT'S",
    "  two spaces,   three\n\n\nthree lines \n \n a space before a line\t\ttabs\r\nand returns\r\n\r\n",
    "café naïve Ünïcödé straße 中文字符。\n中文 русский текст עברית 日本語\u3000全角 e\u0301 \u00a0nbsp",
    "emoji 🎉🎉 👩‍👩‍👧 𝄞 and ½ ² ٣ Ⅻ",
    "numbers 3.14159 1,000,000 0x1F 2026-01-01 v1.2.3-rc4",
    "a<|endoftext|>b <|endoftext|>\n<|endoftext",
    "trailing spaces   ",
    "\n\n  leading",
    "x_y = [a[i] ** 2 for i in range(10)]  # comment\n\treturn x_y\n",
    "\x00\x01\x1f\x7f\x0b\x0c \x1c\x1d\u0085\u2028|",
    "don't  stop\n  'quoted' \"double\" `tick`\n--flag=value; /* c */ // d",
]


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([(ROOT / "README.md").read_text(), *TEXTS], trainer)
    return tokenizer


def expected(tokenizer):
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    return [{"text": text, "ids": encode(text), "decoded": tokenizer.decode(encode(text), skip_special_tokens=False)} for text in TEXTS]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true", help="compare the stored ids with what this machine's tokenizers finds")
    if p.parse_args().check:
        found = expected(Tokenizer.from_file(str(FOLDER / "tokenizer.json")))
        assert found == json.loads((FOLDER / "expected.json").read_text()), "other ids"
        return
    FOLDER.mkdir(exist_ok=True)
    tokenizer = train()
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    (FOLDER / "expected.json").write_text(json.dumps(expected(tokenizer), indent=1) + "\n")


if __name__ == "__main__":
    main()
