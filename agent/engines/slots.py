"""Key/value slots of the embedded engine: one row per live request, every row with its own length.

Promises:
* rows [0, live) are the live requests, without holes; column p of a row holds the token at position p of that request;
* what stands right of a row's length (left-overs of an earlier request, padding) is finite and always masked, so a
  row's result does not depend on its neighbours beyond floating-point noise;
* storage grows by doubling, rows and columns, to what the live requests need; no row is ever shared.
Not thread-safe: only the engine's own thread touches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "sao_slots"
"""Name under which `slot_attention` is registered with transformers."""

_FIRST_COLUMNS = 256


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """query [B, H, Q, D], key and value [B, K, L, D], mask bool [B, 1, Q, L] → [B, Q, H, D].

    With one query token the H/K queries of a group stand at the same position and share one mask row, so they become
    query rows: keys and values are not repeated, the mathematics is unchanged."""
    rows, heads, queries, dim = query.shape
    groups = key.shape[1]
    if queries == 1:
        query = query.reshape(rows, groups, heads // groups, dim)
    elif heads != groups:
        key = key.repeat_interleave(heads // groups, dim=1)
        value = value.repeat_interleave(heads // groups, dim=1)
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    if queries == 1:
        return output.reshape(rows, 1, heads, value.shape[-1])
    return output.transpose(1, 2)


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`attend` for transformers' own modules."""
    if attention_mask is None or dropout:  # a plain forward without our cache, e.g. a comparison
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    return attend(query, key, value, attention_mask, scaling), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, slot_attention)


@dataclass(frozen=True)
class SavedRow:
    """A row taken out of the slots: keys [layers, K, n, D] and values; position i belongs to the i-th token."""

    keys: Tensor
    values: Tensor

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


class SlotCache(Cache):
    """What the model sees as `past_key_values`. Set the target with `aim_row` or `aim_batch` before each forward."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[])
        self._layers = layers
        # Keys and values, [layers, rows, K, columns, D] each, made when the first states show K and D.
        self._store: tuple[Tensor, Tensor] | None = None
        self._allocated = (0, 0)  # rows, columns
        self._rows: slice | Tensor = slice(0, 0)
        self._at: slice | Tensor = slice(0, 0)
        self._span = slice(0, 0)
        self._seen = slice(0, 0)

    def aim_row(self, row: int, start: int, end: int) -> None:
        """The next forward is [1, end - start]: positions [start, end) of one row (prefill)."""
        self._reserve(row + 1, end)
        self._rows, self._at = slice(row, row + 1), slice(start, end)
        self._span, self._seen = slice(row, row + 1), slice(0, end)

    def aim_batch(self, rows: Tensor, positions: Tensor, longest: int) -> None:
        """The next forward is [B, 1]: row i gets its token at `positions[i]`; `longest` is max(positions) + 1."""
        self._reserve(len(rows), longest)
        self._rows, self._at = rows, positions
        self._span, self._seen = slice(0, len(rows)), slice(0, longest)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if self._store is None:
            self._store = self._allocate(key_states), self._allocate(value_states)
        keys, values = self._store[0][layer_idx], self._store[1][layer_idx]
        if isinstance(self._rows, slice):
            keys[self._rows, :, self._at] = key_states
            values[self._rows, :, self._at] = value_states
        else:
            keys[self._rows, :, self._at] = key_states[:, :, 0]
            values[self._rows, :, self._at] = value_states[:, :, 0]
        return keys[self._span, :, self._seen], values[self._span, :, self._seen]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._seen.stop

    def save(self, row: int, length: int) -> SavedRow:
        """A copy of the first `length` positions of a row that has been computed."""
        keys, values = (tensor[:, row, :, :length].clone() for tensor in self._store or ())
        return SavedRow(keys, values)

    def restore(self, row: int, saved: SavedRow, length: int) -> None:
        """Put the first `length` positions of a saved row back."""
        self._reserve(row + 1, length)
        for tensor, kept in zip(self._store or (), (saved.keys, saved.values), strict=True):
            tensor[:, row, :, :length] = kept[:, :, :length]

    def move(self, source: int, target: int, length: int) -> None:
        if source != target:
            for tensor in self._store or ():
                tensor[:, target, :, :length] = tensor[:, source, :, :length]

    def wipe(self, row: int) -> None:
        """Zero a row: a masked NaN still poisons its row (0 · NaN), so a failed request must not leave one behind."""
        for tensor in self._store or ():
            tensor[:, row].zero_()

    def _allocate(self, states: Tensor) -> Tensor:
        rows, columns = self._allocated
        # Zeros, not empty: see `wipe`.
        return states.new_zeros((self._layers, rows, states.shape[1], columns, states.shape[3]))

    def _reserve(self, rows: int, columns: int) -> None:
        had_rows, had_columns = self._allocated
        if rows <= had_rows and columns <= had_columns:
            return
        rows = had_rows if rows <= had_rows else max(rows, 2 * had_rows)
        columns = had_columns if columns <= had_columns else max(columns, 2 * had_columns, _FIRST_COLUMNS)
        self._allocated = rows, columns
        if self._store is not None:
            growth = (0, 0, 0, columns - had_columns, 0, 0, 0, rows - had_rows)
            keys, values = (torch.nn.functional.pad(tensor, growth) for tensor in self._store)
            self._store = keys, values
