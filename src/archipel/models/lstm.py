# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks: text `[b, T]` of character numbers."""

from __future__ import annotations

from torch import Tensor, nn

from archipel.errors import ArchipelError


class CharLSTM(nn.Module):
    """Predict each next character: int64 `[b, T] -> [b, T, characters]`."""

    def __init__(self, characters: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, characters)

    def forward(self, text: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(text))
        logits: Tensor = self.head(states)
        return logits


def char_lstm(
    shape: tuple[int, ...], outputs: int, embedding: int = 8, hidden: int = 256, layers: int = 2
) -> nn.Module:
    """Return McMahan et al.'s character LSTM (arXiv 1602.05629); `outputs` is the vocabulary.

    The paper's 866,578 weights are those of 258 characters (the bytes and two marks), one bias per
    gate and peephole connections. torch has two biases per gate and no peepholes: 867,090 there,
    822,570 with the 90 characters of later work (where one bias per gate gives 820,522).
    """
    if len(shape) != 1:
        raise ArchipelError(
            f"the model 'char_lstm' reads text [length] but examples have shape {list(shape)}: "
            "use 'cnn' for images or 'mlp' for features."
        )
    return CharLSTM(outputs, embedding, hidden, layers)
