"""Makes the demo policy's starting point: tokenizer, configuration and structured random weights, about 1 M parameters.

    python -m agent.demo_model --out runs/demo-start

Why the weights are not plain noise: an agent must *copy* (a path from the issue, a line from a file). A transformer of
this size learns the circuit for it, an induction head, only after millions of tokens; two cores make 2,000 to 7,000
tokens a second. So the circuit is put in at the start, as random matrices that are related to each other:
* layer 0, heads 0 and 1 look one and two tokens back (a fixed rotation in the fast rotary dimensions) and store what
  they saw in two subspaces of the residual stream;
* layer 1, head 2 looks at the latest word after `def` and stores it: a token knows which function it stands in;
* layer 2, head 0 looks for a place in the same function where this token, after the same one before, was followed by
  something, and adds that something to the residual stream in the coordinates of the LM head;
* every other head starts with queries like its keys and outputs like its values ("mimetic" initialisation,
  Trockman & Kolter, arXiv 2305.09828).
Nothing here knows the tasks, the tools or the fixes: that is all learned, and every weight goes on training.

Promises: the same seed gives the same weights, bit for bit; no text is learned here, only the vocabulary is read.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 128, 4, 4, 2, 64, 256
MAX_POSITIONS = 1024
EMBEDDING_STD = 0.1
NORM_GAIN = 1.5
"""Weight of the query and key norms of the matching heads; their scores reach HEAD_DIM ** 0.5 * gain ** 2 = 18."""
COPY_GAIN = 3.0
"""How much louder the copied token is than the present one in the residual stream."""
_SHIFT_PARTS = (0.30, 0.20, 0.15, 0.10, 0.10, 0.05, 0.05, 0.05)
"""Energy of the position heads in the eight fastest rotary pairs: a clear peak without echoes within 200 tokens."""
_SEGMENT = 40
"""About the length of a function, in tokens."""
_REACH = 160
"""Tokens over which matching heads must not be turned away by the rotary embedding: only slower pairs are used."""


def demo_config(vocab_size: int) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        # Untied: some engines keep a stale tied head when weights are updated in flight.
        tie_word_embeddings=False,
        attention_dropout=0.0,
    )


def start_model(tokenizer: Any, seed: int = 0) -> Any:
    """A Qwen3ForCausalLM with the weights described above. `tokenizer` is a Hugging Face fast tokenizer."""
    import torch
    from transformers import Qwen3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Whole groups of eight: matrix kernels like it, and room for a few added tokens.
        model = Qwen3ForCausalLM(demo_config(-(-len(tokenizer) // 8) * 8))
    generator = torch.Generator().manual_seed(seed)
    vocabulary = tokenizer.get_vocab()
    with torch.no_grad():
        tokens, rms = _embeddings(model, vocabulary, generator)
        for layer in model.model.layers:
            _mimetic(layer.self_attn)
        previous = _mix(_PREVIOUS, _TOKEN, generator)
        before = _orthonormal(_size(_BEFORE), _size(_PREVIOUS), generator)
        owner = _mix(_OWNER, _TOKEN, generator)
        frequencies = model.model.rotary_emb.inv_freq
        attentions = [layer.self_attn for layer in model.model.layers]
        _look_back(attentions[0], (previous * rms, before @ previous * rms), frequencies)
        # From layer 1 on the two stored tokens are part of the stream that the norms see.
        rms = math.sqrt(rms**2 + EMBEDDING_STD**2 * (_size(_PREVIOUS) + _size(_BEFORE)) / HIDDEN)
        _know_function(attentions[1], owner * rms, previous @ tokens[vocabulary["def"], _TOKEN], frequencies)
        rms = math.sqrt(rms**2 + EMBEDDING_STD**2 * _size(_OWNER) / HIDDEN)
        _match(attentions[2], previous, before, frequencies, generator)
        _hand_over(attentions[2], rms)
    return model.eval()


# How the residual stream is divided at the start; the last two coordinates are spare and a constant.
_TOKEN = slice(0, 56)
_PREVIOUS = slice(56, 82)
_BEFORE = slice(82, 98)
_OWNER = slice(98, 126)
_CONSTANT = HIDDEN - 1


def _size(part: slice) -> int:
    return int(part.stop - part.start)


def _mix(target: slice, source: slice, generator: torch.Generator) -> torch.Tensor:
    """Random projection that keeps the size of each coordinate."""
    return _orthonormal(_size(target), _size(source), generator)


def _embeddings(model: Any, vocabulary: dict[str, int], generator: torch.Generator) -> tuple[torch.Tensor, float]:
    """Random token vectors; a word with and without its space start alike. Returns them and their root mean square."""
    import torch

    weight = model.model.embed_tokens.weight
    tokens = torch.zeros_like(weight)
    tokens[:, _TOKEN] = torch.randn(len(weight), _size(_TOKEN), generator=generator) * EMBEDDING_STD
    for text in sorted(vocabulary):
        if text.startswith("Ġ") and text[1:] in vocabulary:  # Ġ is the byte-level spelling of a space
            plain, spaced = vocabulary[text[1:]], vocabulary[text]
            tokens[plain, _TOKEN] = 0.75 * tokens[spaced, _TOKEN] + 0.66 * tokens[plain, _TOKEN]
    noise = torch.randn(tokens.shape, generator=generator) * EMBEDDING_STD / 10
    model.lm_head.weight.copy_(tokens + noise)
    noise[:, _TOKEN] = 0.0
    noise[:, _CONSTANT] = constant = 4 * EMBEDDING_STD
    weight.copy_(tokens + noise)
    return tokens, math.sqrt((_size(_TOKEN) * EMBEDDING_STD**2 + constant**2) / HIDDEN)


def _mimetic(attention: Any) -> None:
    group = HEADS // KV_HEADS
    for head in range(HEADS):
        query, key = _rows(head), _rows(head // group)
        attention.q_proj.weight[query] = (
            0.9 * attention.k_proj.weight[key] + math.sqrt(1 - 0.9**2) * attention.q_proj.weight[query]
        )
        attention.o_proj.weight[:, query] = attention.v_proj.weight[key].T


def _look_back(attention: Any, stores: tuple[torch.Tensor, torch.Tensor], inverse_frequencies: torch.Tensor) -> None:
    """Heads 0 and 1 attend one and two tokens back: keys are one fixed vector, queries that vector turned back."""
    import torch

    pairs, half = len(_SHIFT_PARTS), HEAD_DIM // 2
    amplitude = torch.tensor(_SHIFT_PARTS).sqrt()
    attention.q_norm.weight.fill_(1.15 * NORM_GAIN)
    attention.k_norm.weight.fill_(1.15 * NORM_GAIN)
    key = torch.zeros(HEAD_DIM)
    key[:pairs] = amplitude
    _only(attention.k_proj.weight, 0, _CONSTANT, key)
    _carry_tokens(attention, 0)
    for head, (distance, target, store) in enumerate(((1, _PREVIOUS, stores[0]), (2, _BEFORE, stores[1]))):
        angle = -distance * inverse_frequencies[:pairs]
        query = torch.zeros(HEAD_DIM)
        query[:pairs], query[half : half + pairs] = amplitude * torch.cos(angle), amplitude * torch.sin(angle)
        _only(attention.q_proj.weight, head, _CONSTANT, query)
        _store(attention, head, target, store)


def _know_function(
    attention: Any, store: torch.Tensor, stored_def: torch.Tensor, inverse_frequencies: torch.Tensor
) -> None:
    """Head 2 attends to the latest token after `def`: keys measure how much the stored previous token is `def`, and
    rotary pairs of about 40 tokens make nearer ones score higher."""
    import torch

    attention.q_norm.weight.fill_(NORM_GAIN)
    attention.k_norm.weight.fill_(NORM_GAIN)
    near = torch.argsort((inverse_frequencies * _SEGMENT).log().abs())[:2]
    axis = torch.zeros(HEAD_DIM)
    axis[near] = math.sqrt(0.5)
    _only(attention.q_proj.weight, 2, _CONSTANT, axis)
    attention.k_proj.weight[_rows(1)] = 0.0
    attention.k_proj.weight[_rows(1), _PREVIOUS] = torch.outer(axis, stored_def / stored_def.square().sum())
    # The norm makes every key equally long; without a share that the query does not see, weak ones would look strong.
    attention.k_proj.weight[2 * HEAD_DIM - 1, _CONSTANT] = 0.5 / (4 * EMBEDDING_STD)
    _carry_tokens(attention, 1)
    _store(attention, 2, _OWNER, store)


def _match(
    attention: Any,
    previous: torch.Tensor,
    before: torch.Tensor,
    inverse_frequencies: torch.Tensor,
    generator: torch.Generator,
) -> None:
    """Head 0: queries (this token, the previous, function) like keys (the previous, the one before, function), in slow
    rotary pairs."""
    import torch

    half = HEAD_DIM // 2
    slow = [pair for pair in range(half) if float(inverse_frequencies[pair]) * _REACH < 1]
    places = torch.tensor(slow + [pair + half for pair in slow])
    places = places[torch.randperm(len(places), generator=generator)]
    cuts = [int(share * len(places)) for share in (0.45, 0.65)]
    attention.q_norm.weight.fill_(NORM_GAIN)
    attention.k_norm.weight.fill_(NORM_GAIN)
    query, key = torch.zeros(HEAD_DIM, HIDDEN), torch.zeros(HEAD_DIM, HIDDEN)
    for part, now, then, seen in (
        (places[: cuts[0]], _TOKEN, _PREVIOUS, previous),
        (places[cuts[0] : cuts[1]], _PREVIOUS, _BEFORE, before),
        (places[cuts[1] :], _OWNER, _OWNER, None),
    ):
        projection = torch.randn(len(part), _size(then), generator=generator) / math.sqrt(_size(then))
        query[part, now] = projection if seen is None else projection @ seen
        key[part, then] = projection
    attention.q_proj.weight[_rows(0)] = query
    attention.k_proj.weight[_rows(0)] = key


def _hand_over(attention: Any, rms: float) -> None:
    """Head 0 adds the token it found to the present one, louder."""
    import torch

    _carry_tokens(attention, 0)
    _store(attention, 0, _TOKEN, torch.eye(_size(_TOKEN)) * rms * COPY_GAIN)


def _carry_tokens(attention: Any, group: int) -> None:
    """The values of a key-value group are the token vectors themselves."""
    import torch

    attention.v_proj.weight[_rows(group)] = 0.0
    attention.v_proj.weight[_rows(group), _TOKEN] = torch.eye(HEAD_DIM)[:, : _size(_TOKEN)]


def _store(attention: Any, head: int, target: slice, projection: torch.Tensor) -> None:
    """What the head found goes through `projection` into one part of the residual stream and nowhere else."""
    attention.o_proj.weight[:, _rows(head)] = 0.0
    start = head * HEAD_DIM
    attention.o_proj.weight[target, start : start + _size(_TOKEN)] = projection


def _rows(head: int) -> slice:
    return slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)


def _only(weight: Any, head: int, column: int, values: torch.Tensor) -> None:
    """The head reads nothing but one coordinate of the residual stream."""
    weight[_rows(head)] = 0.0
    weight[_rows(head), column] = values


def _orthonormal(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    import torch

    return torch.linalg.qr(torch.randn(columns, rows, generator=generator))[0].T


def write_start(folder: Path, *, seed: int = 0, tasks: int = 4096) -> int:
    """Tokenizer over the first `tasks` micro-SWE train tasks and the model, into `folder`. Returns the parameters."""
    import json

    from agent.demo_tokenizer import build_tokenizer
    from data.micro_swe import load

    texts: list[str] = []
    for task in load("train", limit=tasks):
        texts += [task.row["problem_statement"], *json.loads(task.row["files"]).values()]
    tokenizer = build_tokenizer(texts)
    model = start_model(tokenizer, seed)
    tokenizer.save_pretrained(folder)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the demo policy's starting point (tokenizer, random weights).")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=4096, help="train tasks whose words become the vocabulary")
    arguments = parser.parse_args()
    parameters = write_start(arguments.out, seed=arguments.seed, tasks=arguments.tasks)
    print(f"{arguments.out}: {parameters:,} parameters")


if __name__ == "__main__":
    main()
