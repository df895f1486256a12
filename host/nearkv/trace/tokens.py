"""Tokenises a text with the vocabulary, merges and pre-tokeniser that a GGUF file carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIX = "tokenizer.ggml."
# Token types of GGUF that a text names literally, such as <|endoftext|> between documents.
CONTROL, USER_DEFINED = 3, 4
# Names under `tokenizer.ggml.pre`, and whether each digit is split off before the byte-level step.
SPLITS_DIGITS = {"smollm": True, "gpt-2": False}


def encode(metadata: Mapping[str, Any], text: str) -> list[int]:
    """Token ids of `text`, preceded by the beginning-of-text token where the model asks for one.

    `metadata` maps GGUF keys to values. Raises ValueError for a tokeniser this module does not imitate and
    for a byte of the text that the vocabulary cannot express (it would be dropped silently).
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    kind = _required(metadata, "model")
    if kind != "gpt2":
        raise ValueError(f"tokeniser {kind!r} is not supported; supported: 'gpt2' (byte-level BPE)")
    pre = _required(metadata, "pre")
    if pre not in SPLITS_DIGITS:
        raise ValueError(f"pre-tokeniser {pre!r} is not supported; supported: {', '.join(SPLITS_DIGITS)}")
    tokens = _required(metadata, "tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in _required(metadata, "merges")]
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # the package raises the bare class
        raise ValueError(f"the model's vocabulary and merges do not fit together: {error}") from None
    byte_level = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(metadata.get(PREFIX + "add_space_prefix", False))
    )
    digits = [pre_tokenizers.Digits(individual_digits=True)] if SPLITS_DIGITS[pre] else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    types = metadata.get(PREFIX + "token_type", [])
    special = [token for token, kind in zip(tokens, types, strict=False) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    _require_all_bytes(text, vocabulary)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    if metadata.get(PREFIX + "add_bos_token", False):
        ids.insert(0, int(_required(metadata, "bos_token_id")))
    return ids


def _required(metadata: Mapping[str, Any], name: str) -> Any:
    if PREFIX + name not in metadata:
        raise ValueError(f"the model has no {PREFIX + name}")
    return metadata[PREFIX + name]


def _require_all_bytes(text: str, vocabulary: Mapping[str, int]) -> None:
    # The printable stand-ins that byte-level BPE uses: printable Latin-1 as itself, the rest from U+0100 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    symbol = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    for byte in sorted(set(text.encode())):
        if symbol[byte] not in vocabulary:
            raise ValueError(f"the text holds byte 0x{byte:02x}, for which the model has no token")
