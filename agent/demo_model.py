"""Makes the demo policy's starting point: tokenizer, configuration and structured random weights, about 1 M parameters.

    python -m agent.demo_model --out runs/demo-start

Why the weights are not plain noise: an agent must *copy* (a path from the issue, a line from a file). A transformer of
this size learns the circuit for it, an induction head, only after millions of tokens; two cores make 2,000 to 7,000
tokens a second. So the circuit is put in at the start, as random matrices that are related to each other:
* layer 0, heads 0 and 1 look one and two tokens back (a fixed rotation in the fast rotary dimensions) and store what
  they saw in two subspaces of the residual stream;
* layer 1, head 0 looks for the place where (the last two tokens) were followed by something, and adds that something
  to the residual stream in the coordinates of the LM head. Layer 2 starts with the same matching, free in its output;
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
    with torch.no_grad():
        rms = _embeddings(model, tokenizer.get_vocab(), generator)
        for layer in model.model.layers:
            _mimetic(layer.self_attn)
        mix = _orthonormal(HIDDEN // 4 - 1, HIDDEN // 2, generator) * math.sqrt(HIDDEN / 2 / (HIDDEN // 4 - 1)) * 0.7
        inverse_frequencies = model.model.rotary_emb.inv_freq
        _look_back(model.model.layers[0].self_attn, mix * rms, inverse_frequencies)
        for index in (1, 2):
            attention = model.model.layers[index].self_attn
            _match(attention, mix, inverse_frequencies, generator)
            if index == 1:
                _hand_over(attention, rms)
    return model.eval()


# The residual stream starts as [token: 64 | previous token: 31 | the one before: 31 | spare: 1 | constant: 1].
_TOKEN = slice(0, HIDDEN // 2)
_PREVIOUS = slice(HIDDEN // 2, HIDDEN // 2 + HIDDEN // 4 - 1)
_BEFORE = slice(_PREVIOUS.stop, _PREVIOUS.stop + HIDDEN // 4 - 1)
_CONSTANT = HIDDEN - 1


def _embeddings(model: Any, vocabulary: dict[str, int], generator: torch.Generator) -> float:
    """Random token vectors; a word with and without its space start alike. Returns their root mean square."""
    import torch

    weight = model.model.embed_tokens.weight
    tokens = torch.zeros_like(weight)
    half = _TOKEN.stop
    tokens[:, _TOKEN] = torch.randn(len(weight), half, generator=generator) * EMBEDDING_STD
    for text in sorted(vocabulary):
        if text.startswith("Ġ") and text[1:] in vocabulary:  # Ġ is the byte-level spelling of a space
            plain, spaced = vocabulary[text[1:]], vocabulary[text]
            tokens[plain, _TOKEN] = 0.75 * tokens[spaced, _TOKEN] + 0.66 * tokens[plain, _TOKEN]
    noise = torch.randn(tokens.shape, generator=generator) * EMBEDDING_STD / 10
    model.lm_head.weight.copy_(tokens + noise)
    noise[:, _TOKEN] = 0.0
    noise[:, _CONSTANT] = constant = 4 * EMBEDDING_STD
    weight.copy_(tokens + noise)
    return math.sqrt((half * EMBEDDING_STD**2 + constant**2) / HIDDEN)


def _mimetic(attention: Any) -> None:
    group = HEADS // KV_HEADS
    for head in range(HEADS):
        query, key = _rows(head), _rows(head // group)
        attention.q_proj.weight[query] = (
            0.9 * attention.k_proj.weight[key] + math.sqrt(1 - 0.9**2) * attention.q_proj.weight[query]
        )
        attention.o_proj.weight[:, query] = attention.v_proj.weight[key].T


def _look_back(attention: Any, mix: torch.Tensor, inverse_frequencies: torch.Tensor) -> None:
    """Heads 0 and 1 attend to the token one and two back: keys are one fixed vector, queries that vector turned back."""
    import torch

    pairs, half = len(_SHIFT_PARTS), HEAD_DIM // 2
    amplitude = torch.tensor(_SHIFT_PARTS).sqrt()
    attention.q_norm.weight.fill_(1.15 * NORM_GAIN)
    attention.k_norm.weight.fill_(1.15 * NORM_GAIN)
    key = torch.zeros(HEAD_DIM)
    key[:pairs] = amplitude
    _only(attention.k_proj.weight, 0, _CONSTANT, key)
    attention.v_proj.weight[_rows(0)] = 0.0
    attention.v_proj.weight[_rows(0), _TOKEN] = torch.eye(HEAD_DIM)
    for head, (distance, target) in enumerate(((1, _PREVIOUS), (2, _BEFORE))):
        angle = -distance * inverse_frequencies[:pairs]
        query = torch.zeros(HEAD_DIM)
        query[:pairs], query[half : half + pairs] = amplitude * torch.cos(angle), amplitude * torch.sin(angle)
        _only(attention.q_proj.weight, head, _CONSTANT, query)
        attention.o_proj.weight[:, _rows(head)] = 0.0
        attention.o_proj.weight[target, _rows(head)] = mix


def _match(attention: Any, mix: torch.Tensor, inverse_frequencies: torch.Tensor, generator: torch.Generator) -> None:
    """Queries (this token, the previous) like keys (the previous, the one before), in slow rotary pairs."""
    import torch

    half = HEAD_DIM // 2
    slow = [pair for pair in range(half) if float(inverse_frequencies[pair]) * _REACH < 1]
    places = torch.tensor(slow + [pair + half for pair in slow])
    places = places[torch.randperm(len(places), generator=generator)]
    first = int(0.6 * len(places))
    width = len(mix)
    attention.q_norm.weight.fill_(NORM_GAIN)
    attention.k_norm.weight.fill_(NORM_GAIN)
    query, key = torch.zeros(HEAD_DIM, HIDDEN), torch.zeros(HEAD_DIM, HIDDEN)
    for part, now, then, inner in (
        (places[:first], _TOKEN, _PREVIOUS, mix),
        (places[first:], _PREVIOUS, _BEFORE, None),
    ):
        projection = torch.randn(len(part), width, generator=generator) / math.sqrt(width)
        query[part, now] = projection @ inner if inner is not None else projection
        key[part, then] = projection
    attention.q_proj.weight[_rows(0)] = query
    attention.k_proj.weight[_rows(0)] = key


def _hand_over(attention: Any, rms: float) -> None:
    """Head 0 adds the token it found to the present one, louder."""
    import torch

    attention.v_proj.weight[_rows(0)] = 0.0
    attention.v_proj.weight[_rows(0), _TOKEN] = torch.eye(HEAD_DIM)
    attention.o_proj.weight[:, _rows(0)] = 0.0
    attention.o_proj.weight[_TOKEN, _rows(0)] = torch.eye(HEAD_DIM) * rms * COPY_GAIN


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
